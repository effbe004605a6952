"""Versions that are hashes of content, and the steps from one catalog to another."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_protos.istio.mcp.v1alpha1.resource_pb2 import Resource
from tests.fakes.xds_process import ROOT
from tests.istio.mcp.objects import catalog_of, destination_rule, service_entry, virtual_service
from xds_server.istio.mcp.catalog import EMPTY_VERSION, Catalog, finished, next_step
from xds_server.istio.mcp.kinds import Kind

SE, DR, VS = Kind.SERVICE_ENTRY, Kind.DESTINATION_RULE, Kind.VIRTUAL_SERVICE


def test_a_resource_is_what_istiod_takes():
    made = finished(virtual_service(), (("istio.io/rev", "canary"),))
    resource = Resource.FromString(made.resource)
    metadata = resource.metadata
    assert (metadata.name, metadata.version) == ("ai/chat", made.version)
    assert dict(metadata.labels) == {"istio.io/rev": "canary"}
    assert resource.body.type_url == "type.googleapis.com/istio.networking.v1alpha3.VirtualService"
    assert made.message == virtual_service().message


def test_an_object_is_always_younger_than_the_admins():
    resource = Resource.FromString(finished(virtual_service(), ()).resource)
    assert resource.metadata.create_time.ToDatetime().year == 2200, (
        "not set would be 1970: the oldest"
    )


def test_equal_content_has_an_equal_version_and_other_content_another():
    versions = [
        finished(draft, labels).version
        for draft, labels in (
            (virtual_service(), ()),
            (virtual_service(), ()),
            (virtual_service(weight=49), ()),
            (virtual_service(), (("istio.io/rev", "x"),)),
        )
    ]
    assert versions[0] == versions[1]
    assert len(set(versions)) == 3


def test_versions_are_the_same_in_another_process():
    code = (
        "from tests.istio.mcp.objects import *\n"
        "print(finished(service_entry(*(f'10.0.0.{n}' for n in range(9))), (('a', 'b'),)).version)"
    )
    versions = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}:{ROOT}/protos"},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(versions) == 1


def test_of_what_there_is_nothing_of_the_version_is_that_of_nothing():
    assert catalog_of(virtual_service()).version(SE) == EMPTY_VERSION == Catalog({}).version(None)


def said(catalog: Catalog) -> dict[str, list[str]]:
    """Names by kind; of rules with their subsets."""
    return {
        kind.value: [
            each.key[1] + "".join(f"/{one.name}" for one in getattr(each.message, "subsets", ()))
            for each in catalog.of_kind(kind)
        ]
        for kind in Kind
        if catalog.of_kind(kind)
    }


def steps(before: Catalog | None, wanted: Catalog) -> list[Catalog]:
    result = []
    while before is None or not before.is_same(wanted):
        before = next_step(before, wanted)
        result.append(before)
        assert len(result) < 5, "it never ends"
    return result


def test_at_first_everything_goes_out_at_once():
    wanted = catalog_of(virtual_service(), service_entry("10.0.0.1"), destination_rule("v1"))
    assert steps(None, wanted) == [wanted]


def test_weights_of_routes_and_endpoints_go_out_together():
    before = catalog_of(virtual_service(90), service_entry("10.0.0.1", weight=5))
    wanted = catalog_of(virtual_service(80), service_entry("10.0.0.1", "10.0.0.2"))
    assert [each.is_same(wanted) for each in steps(before, wanted)] == [True]


def test_a_host_is_there_before_a_route_names_it_and_until_none_does():
    before = catalog_of(virtual_service(), service_entry("10.0.0.1", host="a.ai.svc"))
    after = catalog_of(
        virtual_service(to=("c.ai.svc", "b.ai.svc")), service_entry("10.0.0.1", host="c.ai.svc")
    )
    first, second, third = steps(before, after)
    both = {
        "ServiceEntry": ["ai/entry-a.ai.svc", "ai/entry-c.ai.svc"],
        "VirtualService": ["ai/chat"],
    }
    assert said(first) == said(second) == both
    assert first.of_kind(VS) == before.of_kind(VS)
    assert second.of_kind(VS) == after.of_kind(VS)
    assert third.is_same(after)


def test_a_subset_is_there_before_a_route_names_it_and_until_none_does():
    before = catalog_of(virtual_service(subset="v1"), destination_rule("v1"))
    after = catalog_of(virtual_service(subset="v2"), destination_rule("v2"))
    first, second, third = steps(before, after)
    assert said(first)["DestinationRule"] == ["ai/rule-a.ai.svc/v2/v1"]
    assert first.of_kind(VS) == before.of_kind(VS)
    assert second.of_kind(VS) == after.of_kind(VS)
    assert said(third)["DestinationRule"] == ["ai/rule-a.ai.svc/v2"]


def test_a_model_that_is_gone_takes_its_route_along_first():
    before = catalog_of(virtual_service(), service_entry("10.0.0.1"))
    first, second = steps(before, Catalog({}))
    assert list(said(first)) == ["ServiceEntry"]
    assert said(second) == {}


HOSTS = st.sets(st.sampled_from(["a.ai.svc", "b.ai.svc", "c.ai.svc"]), min_size=2, max_size=2)
STATES = st.tuples(HOSTS, st.sampled_from(["", "v1", "v2"]), st.integers(0, 100))


def state(hosts: set[str], subset: str, weight: int) -> Catalog:
    pair = tuple(sorted(hosts))
    rules = [destination_rule(subset, host=each) for each in hosts if subset]
    entries = [service_entry("10.0.0.1", host=each) for each in hosts]
    return catalog_of(virtual_service(weight, to=pair, subset=subset), *rules, *entries)


@given(STATES, STATES)
def test_no_step_has_a_route_to_what_is_not_there(before, wanted):
    start = state(*before)
    for step in steps(start, state(*wanted)):
        hosts = {host for each in step.of_kind(SE) for host in each.message.hosts}
        subsets = {
            (each.message.host, one.name)
            for each in step.of_kind(DR)
            for one in each.message.subsets
        }
        for route in step.of_kind(VS)[0].message.http:
            for part in route.route:
                assert part.destination.host in hosts
                if part.destination.subset:
                    assert (part.destination.host, part.destination.subset) in subsets


@pytest.mark.parametrize("weight", [0, 50])
def test_nothing_to_do_is_no_step(weight):
    catalog = catalog_of(virtual_service(weight))
    assert next_step(catalog, catalog_of(virtual_service(weight))).is_same(catalog)
