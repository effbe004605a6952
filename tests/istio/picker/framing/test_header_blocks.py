"""Blocks that are known are not unpacked again, and never mean what they meant before the table changed."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.istio.picker.framing.frames import Http2Error
from xds_server.istio.picker.framing.header_blocks import HeaderBlocks

NEWEST = b"\xbe"
"""The newest entry of the table, whatever it is."""
NO_TABLE, FULL_TABLE = b"\x20", b"\x3f\xe1\x1f"


def entry(name: bytes, value: bytes) -> bytes:
    return b"\x40" + bytes((len(name),)) + name + bytes((len(value),)) + value


def test_a_known_block_means_something_else_when_the_table_is_another():
    blocks = HeaderBlocks(16_384)
    for name in (b"a", b"b", b"c"):
        blocks.read(entry(name, b"1"))
        for _ in range(3):
            assert blocks.read(NEWEST).fields == {name.decode(): "1"}


@pytest.mark.parametrize("emptied", [NO_TABLE, NO_TABLE + FULL_TABLE], ids=["for good", "once"])
def test_a_known_block_means_nothing_when_the_table_is_empty(emptied):
    blocks = HeaderBlocks(16_384)
    blocks.read(entry(b"a", b"1"))
    assert blocks.read(NEWEST).fields == {"a": "1"}
    blocks.read(emptied)
    with pytest.raises(Http2Error):
        blocks.read(NEWEST)


@settings(max_examples=100, deadline=None)
@given(
    asked=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", "3" * 900])), max_size=4),
        max_size=40,
    )
)  # fmt: skip
def test_every_block_says_what_it_says_to_who_knows_none(asked):
    encoder, decoder, blocks = Encoder(), Decoder(), HeaderBlocks(16_384)
    for fields in asked:
        block = encoder.encode(fields)
        assert blocks.read(block).fields == dict(decoder.decode(block))
