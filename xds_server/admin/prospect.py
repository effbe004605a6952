"""What another configuration would change, found out on a copy: nothing of the fleet that runs is touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from xds_server.config.config import Config
from xds_server.config.difference import differences
from xds_server.core.model import Topology
from xds_server.core.plan import Plan
from xds_server.core.policy import Policy
from xds_server.fleet import Fleet, Memory
from xds_server.registered import Registered, with_registered
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.render import TITLES
from xds_server.resources.snapshot import Snapshot


class Side(NamedTuple):
    """One of two configurations, with what it leads to."""

    config: Config
    plan: Plan
    snapshot: Snapshot


def fresh(config: Config, now: float) -> Side:
    """Return what a configuration leads to before any telemetry.

    Args:
        config: A valid one.
        now: Monotonic seconds.
    """
    plan = Fleet(config.topology, config.policy, now).evaluate([], now)
    return Side(config, plan, _snapshot(config.topology, config.policy, plan))


class Copy(NamedTuple):
    """A running fleet at one moment; other threads may do with it what they like."""

    topology: Topology
    policy: Policy
    memory: Memory
    config: Config
    now: float


def copied(fleet: Fleet, config: Config, now: float) -> Copy:
    """Copy a running fleet: quick, since all that it remembers is immutable.

    Args:
        fleet: The running one.
        config: Its configuration.
        now: Its monotonic clock.
    """
    return Copy(fleet.topology, fleet.policy, fleet.remember(), config, now)


def applied(running: Copy, other: Config, registered: Iterable[Registered]) -> tuple[Side, Side]:
    """Return what a running fleet has, and what it would have if it went over to another configuration.

    Args:
        running: The fleet.
        other: The configuration to look into.
        registered: Instances that agents registered.
    """
    topology, policy, memory, config, now = running
    copy = Fleet(topology, policy, now)
    copy.recall(memory)
    plan = copy.plan if copy.plan is not None else copy.evaluate([], now)
    before = Side(config, plan, _snapshot(topology, policy, plan))
    target = with_registered(other.topology, registered)
    copy.reconfigure(target, other.policy, now)
    after = copy.evaluate([], now)
    return before, Side(other, after, _snapshot(target, other.policy, after))


def compare(before: Side, after: Side) -> dict[str, Any]:
    """Return what differs between two sides.

    Returns:
        Plain values: `settings` in words, `tiers` and `instances` with the weight before and after (None: it is not
        there), `resources` by kind with the names added, removed and changed. `is_same` when proxies get nothing new.
    """
    resources = _resources(before.snapshot, after.snapshot)
    tiers = _rows(_tiers(before.plan), _tiers(after.plan), ("model", "tier"))
    instances = _rows(
        _instances(before.plan), _instances(after.plan), ("model", "tier", "instance")
    )
    return {
        "is_same": not any(names for kind in resources.values() for names in kind.values()),
        "settings": differences(before.config, after.config),
        "tiers": tiers,
        "instances": instances,
        "resources": resources,
    }


def _snapshot(topology: Topology, policy: Policy, plan: Plan) -> Snapshot:
    return SnapshotBuilder(topology, policy, Capability.COMPOSITE).build(plan)


def _resources(before: Snapshot, after: Snapshot) -> dict[str, dict[str, list[str]]]:
    found = {}
    for url in sorted({*before.types, *after.types}, key=lambda url: TITLES.get(url, url)):
        old, new = before.of_type(url).resources, after.of_type(url).resources
        found[TITLES.get(url, url)] = {
            "added": sorted(new.keys() - old.keys()),
            "removed": sorted(old.keys() - new.keys()),
            "changed": sorted(
                name for name in old.keys() & new.keys() if old[name].version != new[name].version
            ),
        }
    return found


def _rows(
    before: Mapping[tuple[str, ...], int],
    after: Mapping[tuple[str, ...], int],
    names: tuple[str, ...],
) -> list[dict[str, Any]]:
    keys = [*before, *(key for key in after if key not in before)]
    return [
        {
            **dict(zip(names, key, strict=True)),
            "before": before.get(key),
            "after": after.get(key),
        }
        for key in keys
    ]


def _tiers(plan: Plan) -> dict[tuple[str, ...], int]:
    return {(model.name, tier.name): tier.weight for model in plan.models for tier in model.tiers}


def _instances(plan: Plan) -> dict[tuple[str, ...], int]:
    return dict(_weights(plan))


def _weights(plan: Plan) -> Iterator[tuple[tuple[str, ...], int]]:
    for model in plan.models:
        for tier in model.tiers:
            for each in tier.instances:
                yield (model.name, tier.name, each.id), each.effective_weight
