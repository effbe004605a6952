"""What istiod asks for."""

from __future__ import annotations

import pytest

from tests.fakes.adsc import types_of
from xds_server.istio.mcp.kinds import Kind, parse_type


@pytest.mark.parametrize("version", ["v1alpha3", "v1"])
def test_all_that_istiods_ask_for_is_known(version):
    asked = [parse_type(each) for each in types_of(version)]
    assert len(asked) == 15
    assert all(each.is_known for each in asked)
    assert {each.kind for each in asked} == {None, *Kind}


@pytest.mark.parametrize(
    "type_url", ["networking.istio.io/v9/NewThing", "other.io/v1/VirtualService"]
)
def test_others_are_not_known_and_nothing_of_ours(type_url):
    asked = parse_type(type_url)
    assert (asked.kind, asked.is_known) == (None, False)
