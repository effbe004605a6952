"""The fleet as people see it: tables for the admin server, gauges for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from xds_server.config.addresses import format_address
from xds_server.core.model import InstanceId
from xds_server.core.plan import (
    TIER_WEIGHT_TOTAL,
    ClassPlan,
    InstancePlan,
    Level,
    ModelPlan,
    Plan,
    TierPlan,
)
from xds_server.core.sample import Sample
from xds_server.fleet import instance_plans
from xds_server.ingest.registry import Registry
from xds_server.loop.control_loop import ControlLoop
from xds_server.observability.metrics import Reading
from xds_server.xds.syncz import ProxyStatus, SyncState, TypeStatus, worst


def describe_fleet(loop: ControlLoop, registry: Registry, now: float) -> dict[str, Any]:
    """Return instances with what was last heard of them, agents, and conflicts."""
    plan = loop.fleet.plan
    plans = instance_plans(plan) if plan is not None else {}
    instances = []
    for model, tier, instance in loop.fleet.topology.instances():
        sample = loop.latest.get(instance.id)
        instances.append(
            {
                "instance": instance.id,
                "model": model.name,
                "tier": tier.name,
                "address": format_address(instance.host, instance.port),
                "agent": registry.owner(instance.id),
                "sample_age_s": None if sample is None else round(now - sample.observed_at, 3),
                "sample": sample,
                "plan": plans.get(instance.id),
            }
        )
    agents = [
        {
            "agent": each.hello.agent,
            "epoch": each.hello.epoch,
            "version": each.hello.agent_version,
            "config_hash": each.hello.config_hash,
            "connected": each.connected,
            "claims": sorted(each.claims),
        }
        for each in registry.speakers()
    ]
    return {
        "warm": loop.is_warm,
        "instances": instances,
        "agents": agents,
        "conflicts": list(registry.conflicts()),
    }


def gauges_of_proxies(streams: Iterable[ProxyStatus]) -> Iterator[Reading]:
    """Yield the gauges that follow from how proxies stand.

    A proxy may have several streams: one per type, or an old one that nobody has given up yet. It counts once, in each type as the
    worst of its streams stands, so that no refusal is hidden.
    """
    standing: dict[str, dict[str, SyncState]] = {}
    refusing: dict[str, set[str]] = {}
    waited: dict[str, float] = {}
    proxies: set[str] = set()
    opened = 0
    for stream in streams:
        opened += 1
        proxies.add(stream.proxy.id)
        for each in stream.types:
            name = each.type_url.rpartition(".")[2]
            states = standing.setdefault(name, {})
            before = states.get(stream.proxy.id, each.state)
            states[stream.proxy.id] = worst((before, each.state))
            refusers = refusing.setdefault(name, set())
            if each.error:
                refusers.add(stream.proxy.id)
            waited[name] = max(waited.get(name, 0.0), _unaccepted_s(each))
    yield "fleet_proxies_connected", (), float(len(proxies))
    yield "fleet_xds_open_streams", (), float(opened)
    for name, states in sorted(standing.items()):
        yield "fleet_xds_nacked", (name,), float(len(refusing[name]))
        yield "fleet_xds_unaccepted_seconds", (name,), waited[name]
        found = Counter(states.values())
        for state in SyncState:
            yield "fleet_xds_proxies", (name, state.value), float(found[state])


def _unaccepted_s(status: TypeStatus) -> float:
    """Return how long a proxy has not accepted what there is; 0 when it has."""
    if status.state is SyncState.ERROR:
        return status.error_age_s or 0.0
    if status.state is SyncState.STALE:
        return status.lag_s or 0.0
    return 0.0


def gauges_of_fleet(
    plan: Plan | None,
    latest: Mapping[InstanceId, Sample],
    tripped: Callable[[], Collection[InstanceId]],
    now: float,
) -> Iterator[Reading]:
    """Yield the gauges of models, tiers and instances.

    They are many, so they are read in another thread: neither the plan nor `latest` may change.

    Args:
        plan: What was decided last.
        latest: The newest sample of each instance.
        tripped: Whose GPU memory takes capacity away.
        now: The control plane's monotonic clock.
    """
    leaking = tripped()
    for model in plan.models if plan else ():
        for tier in model.tiers:
            yield from _of_tier((model.name, tier.name), tier)
            for instance in tier.instances:
                labels = (model.name, tier.name, instance.id)
                yield from _of_instance(labels, instance)
                sample = latest.get(instance.id)
                if sample is not None:
                    yield from _of_sample(labels, sample, now)
                yield "fleet_instance_vram_tripped", labels, float(instance.id in leaking)
        for request_class in model.classes:
            yield from _of_class(model, request_class)


def _of_tier(labels: tuple[str, str], tier: TierPlan) -> Iterator[Reading]:
    yield "fleet_tier_share_ratio", labels, tier.share
    yield "fleet_tier_spill_ratio", labels, tier.spill
    for name, value in (
        ("fleet_tier_pressure_ratio", tier.pressure),
        ("fleet_tier_demand_requests_per_second", tier.demand),
        ("fleet_tier_capacity_requests_per_second", tier.capacity),
    ):
        if value is not None:
            yield name, labels, value
    for level in Level:
        yield "fleet_tier_level", (*labels, level.value), float(tier.level is level)


def _of_class(model: ModelPlan, request_class: ClassPlan) -> Iterator[Reading]:
    labels = (model.name, request_class.name)
    yield "fleet_class_demand_ratio", labels, request_class.demand_ratio
    yield "fleet_class_shed", labels, float(request_class.is_shed)
    for tier, weight in zip(model.tiers, request_class.weights, strict=True):
        yield "fleet_class_share_ratio", (*labels, tier.name), weight / TIER_WEIGHT_TOTAL


def _of_instance(labels: tuple[str, str, str], instance: InstancePlan) -> Iterator[Reading]:
    yield "fleet_instance_weight", labels, float(instance.weight)
    yield "fleet_instance_ceiling_ratio", labels, instance.ceiling
    if instance.pressure is not None:
        yield "fleet_instance_pressure_ratio", labels, instance.pressure
    yield "fleet_instance_state", (*labels, instance.state.value), 1.0
    yield "fleet_instance_freshness", (*labels, instance.freshness.value), 1.0


def _of_sample(labels: tuple[str, str, str], sample: Sample, now: float) -> Iterator[Reading]:
    """Yield what was last said, and how old it is."""
    yield "fleet_instance_telemetry_age_seconds", labels, max(0.0, now - sample.observed_at)
    for name, value in (
        ("fleet_instance_kv_cache_ratio", sample.engine.kv_ratio),
        ("fleet_instance_waiting_requests", sample.engine.waiting),
        ("fleet_instance_running_requests", sample.engine.running),
        ("fleet_instance_vram_ratio", None if sample.gpu is None else sample.gpu.vram_ratio),
    ):
        if value is not None:
            yield name, labels, value
