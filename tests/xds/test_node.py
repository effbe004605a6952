from __future__ import annotations

import pytest

from xds_server.resources.capability import Capability
from xds_server.xds.features import COMPOSITE, EXTENSIONS, lacks
from xds_server.xds.node import BadNodeError, describe


def capability_of(*, agent: str = "envoy", version: str = "1.40.0", composite: bool = True):
    return describe(
        node_id="p",
        cluster="c",
        agent=agent,
        version=version,
        missing=() if composite else (COMPOSITE,),
    ).capability


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param({}, Capability.COMPOSITE, id="envoy 1.40 with the extension"),
        pytest.param({"version": "2.0.1"}, Capability.COMPOSITE, id="a later envoy"),
        pytest.param({"version": ""}, Capability.COMPOSITE, id="version not told"),
        pytest.param({"version": "abc/1.40"}, Capability.COMPOSITE, id="version unreadable"),
        pytest.param(
            {"version": "1.39.2"}, Capability.AGGREGATE, id="composite that does not skip members"
        ),
        pytest.param({"composite": False}, Capability.AGGREGATE, id="envoy without the extension"),
        pytest.param({"agent": ""}, Capability.COMPOSITE, id="nameless with the extension"),
        pytest.param(
            {"agent": "gRPC C-core", "composite": False}, Capability.GRPC, id="proxyless grpc"
        ),
        pytest.param({"agent": "grpc-go", "composite": False}, Capability.GRPC, id="grpc-go"),
    ],
)
def test_a_proxy_gets_what_it_can_use(node, expected):
    assert capability_of(**node) is expected


@pytest.mark.parametrize(
    ("node_id", "message"),
    [
        pytest.param("", "missing", id="no id"),
        pytest.param("x" * 1025, "1025 bytes", id="too long"),
        pytest.param("a\nb", "control characters", id="not printable"),
    ],
)
def test_a_node_without_a_usable_id_is_refused_with_what_was_expected(node_id, message):
    with pytest.raises(BadNodeError, match=message):
        describe(node_id=node_id, cluster="", agent="envoy", version="1.40.0")


ALL = tuple(each.name for each in EXTENSIONS)


@pytest.mark.parametrize(
    ("capability", "missing", "expected"),
    [
        pytest.param(Capability.COMPOSITE, (), (), id="everything is there"),
        pytest.param(
            Capability.COMPOSITE, ("envoy.clusters.aggregate",), (), id="nobody needs aggregates"
        ),
        pytest.param(Capability.AGGREGATE, (), (COMPOSITE,), id="a composite that is too old"),
        pytest.param(Capability.AGGREGATE, ALL, ALL, id="nothing is there"),
        pytest.param(
            Capability.COMPOSITE,
            ("envoy.filters.http.lua",),
            ("envoy.filters.http.lua",),
            id="no Lua",
        ),
    ],
)
def test_what_an_envoy_lacks_is_named_by_extension(capability, missing, expected):
    found = lacks(capability=capability, missing=missing)
    assert tuple(each.partition(": ")[0] for each in found) == expected
    assert all(each.partition(": ")[2] for each in found)


def test_a_grpc_client_is_told_to_lack_all_that_only_envoys_can():
    found = lacks(capability=Capability.GRPC, missing=ALL)
    assert found == lacks(capability=Capability.GRPC, missing=())
    assert any("static answers" in each for each in found)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.40.0", 0), ("1.39.1", 1), ("2.0", 0), ("", 0), ("abc", 0)],
    ids=lambda value: str(value) or "not told",
)
def test_what_an_older_version_of_an_extension_cannot_do_is_told(version, expected):
    found = lacks(capability=Capability.COMPOSITE, missing=(), version=version)
    assert len([each for each in found if "retry-after" in each]) == expected
