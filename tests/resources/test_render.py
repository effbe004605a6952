"""JSON for people: readable, complete, and good enough to be pasted back."""

from __future__ import annotations

import base64
import json

import pytest

from tests.fakes.plans import a_plan, a_topology
from xds_server.core.policy import Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.proto import pack, typed
from xds_server.resources.render import render, render_body, to_json
from xds_server.resources.snapshot import Resource, Snapshot, TypeSnapshot


def rendered(capability=Capability.COMPOSITE):
    topology = a_topology()
    builder = SnapshotBuilder(topology, Policy(), capability)
    return render(builder.build(a_plan(topology, [700, 200, 100])))


def walk(value):
    yield value
    if isinstance(value, dict):
        for item in value.values():
            yield from walk(item)
    if isinstance(value, list):
        for item in value:
            yield from walk(item)


@pytest.mark.parametrize("capability", list(Capability))
def test_everything_that_is_served_is_decoded_to_the_last_any(capability):
    page = rendered(capability)
    assert list(page) == ["clusters", "listeners", "endpoints", "routes"]
    assert json.loads(json.dumps(page)) == page
    anys = [each for each in walk(page) if isinstance(each, dict) and "@type" in each]
    assert anys
    assert not any("value" in each and isinstance(each["value"], str) for each in anys)
    assert not any(isinstance(each, dict) and "@unknown" in each for each in walk(page))


def test_field_names_and_values_are_those_of_the_protocol():
    page = rendered()
    cluster = page["clusters"]["resources"]["chat/primary"]["resource"]
    assert cluster["type"] == "EDS"
    assert cluster["outlier_detection"]["consecutive_5xx"] == 3
    assert cluster["outlier_detection"]["enforcing_success_rate"] == 0, "set to zero, so shown"
    assert cluster["common_lb_config"]["update_merge_window"] == "0s"
    chain = page["clusters"]["resources"]["chat/primary/chain"]["resource"]
    members = chain["cluster_type"]["typed_config"]["clusters"]
    assert [each["name"] for each in members] == ["chat/primary", "chat/fallback", "chat/static"]
    endpoints = page["endpoints"]["resources"]["chat/primary"]["resource"]["endpoints"]
    endpoint = endpoints[0]["lb_endpoints"][0]
    assert endpoint["metadata"]["filter_metadata"]["llm"]["model"] == "llama-3-70b"
    assert endpoint["health_status"] == "HEALTHY"
    route = page["routes"]["resources"]["llm"]["resource"]["virtual_hosts"][0]["routes"][1]
    assert route["route"]["retry_policy"]["retry_back_off"]["base_interval"] == "0.01s"
    weights = route["route"]["weighted_clusters"]["clusters"]
    assert [each["weight"] for each in weights] == [700, 200, 100]


def test_versions_are_those_of_the_snapshot():
    topology = a_topology()
    snapshot = SnapshotBuilder(topology, Policy(), Capability.COMPOSITE).build(a_plan(topology))
    page = render(snapshot)
    assert page["routes"]["version"] == snapshot.of_type(served.ROUTE).version
    resource = snapshot.of_type(served.ROUTE).resources["llm"]
    assert page["routes"]["resources"]["llm"]["version"] == resource.version


def test_what_no_library_knows_is_shown_and_not_left_out():
    unknown = b"\xfa\x7f\x03abc"  # field 2047
    body = bytes(typed.cluster.Cluster(name="x")) + unknown
    assert render_body(served.CLUSTER, body) == {
        "name": "x",
        "@unknown": base64.b64encode(unknown).decode(),
    }
    stranger = typed.protobuf.Any(type_url="type.googleapis.com/some.Thing", value=b"\x01")
    assert to_json(stranger) == {"@type": "type.googleapis.com/some.Thing", "value": "AQ=="}
    odd = TypeSnapshot("type.googleapis.com/some.Thing", {"y": Resource.of("y", b"\x01")})
    page = render(Snapshot({odd.type_url: odd}))
    assert page[odd.type_url]["resources"]["y"]["resource"] == "AQ=="


def test_an_any_of_free_form_data_keeps_it_under_value():
    value = typed.protobuf.Value(string_value="v")
    struct = typed.protobuf.Struct(fields={"k": value})
    assert to_json(pack(struct)) == {
        "@type": "type.googleapis.com/google.protobuf.Struct",
        "value": {"k": "v"},
    }
    assert to_json(pack(value))["value"] == "v"


def test_bytes_are_base64():
    source = typed.core.DataSource(inline_bytes=b"\x00\xff")
    assert to_json(source) == {"inline_bytes": "AP8="}


def test_rendering_changes_nothing_that_is_served():
    topology = a_topology()
    builder = SnapshotBuilder(topology, Policy(), Capability.COMPOSITE)
    snapshot = builder.build(a_plan(topology))
    render(snapshot)
    assert builder.build(a_plan(topology)) is snapshot
