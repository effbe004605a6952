"""The gauges of proxies and of instances."""

from __future__ import annotations

import pytest

from tests.fakes.plans import a_model
from xds_server.admin.status import gauges_of_fleet, gauges_of_proxies
from xds_server.core.model import InstanceId, Topology
from xds_server.core.policy import Policy
from xds_server.core.sample import EngineFacts, EngineState, GpuFacts, MemoryKind, Sample
from xds_server.fleet import Fleet
from xds_server.resources.capability import Capability
from xds_server.xds.answer import Protocol
from xds_server.xds.node import Proxy
from xds_server.xds.syncz import ProxyStatus, SyncState, TypeStatus

NAMES = ("chat", "primary", "chat-primary-0")


def a_type(state, *, lag_s=None, error_age_s=None, url="x.Cluster"):
    return TypeStatus(
        type_url=url,
        state=state,
        sent_version="1",
        acked_version="",
        sent_age_s=None,
        acked_age_s=None,
        lag_s=lag_s,
        nacks=int(error_age_s is not None),
        error="" if error_age_s is None else "no",
        error_version="",
        error_names=(),
        error_age_s=error_age_s,
        subscribed=0,
        wildcard=True,
    )


def a_proxy(*types, name="p"):
    proxy = Proxy(id=name, cluster="c", agent="envoy", version="", capability=Capability.COMPOSITE)
    return ProxyStatus(proxy, Protocol.SOTW, 1.0, types)


def of_proxies(*proxies):
    return {(name, *labels): value for name, labels, value in gauges_of_proxies(proxies)}


def test_no_proxies_are_none_and_say_nothing_of_types():
    assert of_proxies() == {("fleet_proxies_connected",): 0, ("fleet_xds_open_streams",): 0}


def test_proxies_are_counted_by_how_they_stand_and_the_slowest_counts():
    found = of_proxies(
        a_proxy(a_type(SyncState.SYNCED, lag_s=0.4), name="a"),
        a_proxy(a_type(SyncState.STALE, lag_s=12.0), name="b"),
        a_proxy(a_type(SyncState.ERROR, error_age_s=99.0), name="c"),
        a_proxy(a_type(SyncState.NOT_SENT, url="x.Listener"), name="d"),
    )
    assert found["fleet_proxies_connected",] == 4
    assert found["fleet_xds_nacked", "Cluster"] == 1
    assert found["fleet_xds_nacked", "Listener"] == 0
    states = {
        state.value: found["fleet_xds_proxies", "Cluster", state.value] for state in SyncState
    }
    assert states == {"synced": 1, "stale": 1, "not_sent": 0, "error": 1}
    assert found["fleet_xds_unaccepted_seconds", "Cluster"] == 99
    assert found["fleet_xds_unaccepted_seconds", "Listener"] == 0


STREAMS = {
    "one per type": [[("Cluster", "synced")], [("Listener", "synced")], [("Secret", "synced")]],
    "an old one that is not given up": [[("Cluster", "stale")], [("Cluster", "synced")]],
    "one that refuses": [[("Cluster", "synced")], [("Cluster", "error")], [("Cluster", "stale")]],
    "one that has asked for nothing yet": [[], [("Cluster", "synced")]],
}


@pytest.mark.parametrize("streams", STREAMS.values(), ids=STREAMS.keys())
@pytest.mark.parametrize("backwards", [False, True])
def test_a_proxy_counts_once_however_many_streams_it_has_and_as_the_worst_of_them(
    streams, backwards
):
    ages = {"error": 7.0}
    described = [
        a_proxy(*(a_type(SyncState(s), error_age_s=ages.get(s), url=f"x.{t}") for t, s in types))
        for types in streams
    ]
    found = of_proxies(*(reversed(described) if backwards else described))
    assert found["fleet_proxies_connected",] == 1
    assert found["fleet_xds_open_streams",] == len(streams)
    order = ["error", "stale", "not_sent", "synced"]
    for kind in {kind for types in streams for kind, _ in types}:
        states = [state for types in streams for its, state in types if its == kind]
        told = {state: found["fleet_xds_proxies", kind, state] for state in order}
        assert told == dict.fromkeys(order, 0) | {min(states, key=order.index): 1}
        assert found["fleet_xds_nacked", kind] == ("error" in states)


def test_what_was_accepted_does_not_count_as_waiting():
    found = of_proxies(a_proxy(a_type(SyncState.SYNCED, lag_s=40.0)))
    assert found["fleet_xds_unaccepted_seconds", "Cluster"] == 0


def of_fleet(fleet, latest, now):
    plan = fleet.evaluate(list(latest.values()), now)
    readings = gauges_of_fleet(plan, latest, fleet.vram_tripped, now)
    return {(name, *labels): value for name, labels, value in readings}


def a_sample(*, engine=None, gpu=None, observed_at=0.0):
    return Sample(
        instance=InstanceId(NAMES[2]),
        observed_at=observed_at,
        engine=engine or EngineFacts(state=EngineState.UP),
        gpu=gpu,
    )


def test_what_was_not_said_has_no_series():
    fleet = Fleet(Topology(models=(a_model(),)), Policy(), 0.0)
    found = of_fleet(fleet, {}, 1.0)
    assert ("fleet_instance_weight", *NAMES) in found
    assert ("fleet_instance_telemetry_age_seconds", *NAMES) not in found
    sample = a_sample(engine=EngineFacts(state=EngineState.UP, kv_ratio=0.0), observed_at=1.0)
    found = of_fleet(fleet, {sample.instance: sample}, 3.0)
    assert found["fleet_instance_telemetry_age_seconds", *NAMES] == 2.0
    assert found["fleet_instance_kv_cache_ratio", *NAMES] == 0.0, "zero is not missing"
    for name in ("vram_ratio", "waiting_requests", "running_requests"):
        assert (f"fleet_instance_{name}", *NAMES) not in found


def test_memory_that_takes_capacity_away_is_told():
    fleet = Fleet(Topology(models=(a_model(),)), Policy(), 0.0)
    gpu = GpuFacts(memory_kind=MemoryKind.DEDICATED, vram_ratio=0.999, vram_free_bytes=1)
    sample = a_sample(gpu=gpu)
    found = of_fleet(fleet, {sample.instance: sample}, 0.1)
    assert found["fleet_instance_vram_tripped", *NAMES] == 1
    assert found["fleet_instance_vram_tripped", "chat", "primary", "chat-primary-1"] == 0
    assert found["fleet_instance_vram_ratio", *NAMES] == 0.999
