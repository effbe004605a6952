"""What a client's headers say. A gateway's requests have the same ones again and again, in ten bytes."""

from __future__ import annotations

from hpack import Decoder, HPACKError
from hpack.table import HeaderTable

from xds_server.istio.picker.framing.frames import Error, Http2Error
from xds_server.istio.picker.framing.heads import Head, head

_MOST_KEPT = 64


class HeaderBlocks:
    """Reads the blocks of one connection, all of them, in their order: each may add to the table."""

    def __init__(self, max_bytes: int) -> None:
        """Read blocks that are at most `max_bytes` long when they are unpacked."""
        self._decoder = Decoder(max_header_list_size=max_bytes)
        self._read: dict[bytes, Head] = {}
        """What was read, for as long as the table that it refers to stays as it is."""

    def read(self, block: bytes) -> Head:
        """Return the fields of a block.

        Raises:
            Http2Error: It cannot be unpacked, and none after it could.
        """
        known = self._read.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table
        before, size = _newest(table), table.maxsize
        try:
            # Any byte is a character of Latin-1: one odd value must not cost a gateway its connection.
            raw = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise Http2Error(Error.COMPRESSION_ERROR, f"headers: {error}") from None
        read = head([(_text(each[0]), _text(each[1])) for each in raw])
        if _newest(table) is not before or table.maxsize != size:
            self._read.clear()  # Every entry has another number now.
        elif len(self._read) < _MOST_KEPT:
            self._read[block] = read
        return read


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode("latin-1")


def _newest(table: HeaderTable) -> object:
    return table.dynamic_entries[0] if table.dynamic_entries else None
