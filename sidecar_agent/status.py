"""What the agent is and knows, for its pages: readiness, instances, control planes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sidecar_agent.agent import Agent, Instance
from sidecar_agent.engine.outcome import OutcomeKind
from sidecar_agent.engine.token_watch import applied
from sidecar_agent.gpu.facts import DriverState
from sidecar_agent.uplink import Uplink


def unready(agent: Agent, now: float) -> list[str]:
    """Return why the agent is not ready; empty = ready.

    Ready means: a control plane hears it, and about every instance there is something fresh to say. An engine
    that is down is something to say; an engine that cannot be read is not. One of several control planes may
    be away: the others decide, and it is heard of in metrics and logs.
    """
    settings = agent.settings
    reasons: list[str] = []
    if not any(each.status.connected and each.status.last_sent_at for each in agent.uplinks):
        reasons.extend(map(_unheard, agent.uplinks))
    stale_s = 3 * max(settings.scrape.interval_s, settings.scrape.deadline_s)
    for name, instance in agent.instances.items():
        if instance.said_at is None or now - instance.said_at > stale_s:
            reasons.append(f"{name}: no fresh facts ({_detail(instance)})")
        for uplink in agent.uplinks:
            if refusal := uplink.status.refusals.get(name):
                by = f" by {uplink.server.address}" if len(agent.uplinks) > 1 else ""
                reasons.append(f"{name}: refused{by}: {refusal.code}: {refusal.reason}")
    if agent.gpu is not None and any(one.gpus for one in settings.instances):
        snapshot = agent.gpu.latest()
        if snapshot.driver is not DriverState.OK:
            reasons.append(f"gpu: {snapshot.driver.value}: {snapshot.detail}")
    return reasons


def _unheard(uplink: Uplink) -> str:
    if not uplink.status.connected:
        return f"control plane {uplink.server.address}: {uplink.status.detail}"
    return f"control plane {uplink.server.address}: no sample sent yet"


def describe(agent: Agent, instance: Instance, now: float) -> Mapping[str, Any]:
    """Return what is known about one instance, as JSON values."""
    name, tokens = instance.settings.name, instance.tokens
    facts = None if instance.engine.facts is None else applied(instance.engine.facts, tokens)
    outcome = instance.outcome
    fresh = facts is not None and outcome is not None and outcome.kind is not OutcomeKind.BAD_PAGE
    planes = list(_planes(agent, instance))
    connected = [plane for plane in planes if plane["connected"]]
    taken = [plane["taken_sequence"] for plane in connected]
    return {
        "instance": name,
        "state": facts.state.value if facts else "unread",
        "detail": facts.detail if facts else _detail(instance),
        "age_s": round(now - outcome.at, 3) if fresh and outcome else None,
        "waiting": facts.waiting if facts else None,
        "running": facts.running if facts else None,
        "kv_ratio": facts.kv_ratio if facts else None,
        "restarts": instance.engine.lifetime.count,
        "out_of_memory": bool(instance.engine.exhausted),
        "token_probe": None if tokens.said is None else tokens.said.result.value,
        "warnings": list(facts.warnings) if facts else [],
        "gpu": None if instance.gpu is None else instance.gpu.health.value,
        "draining": instance.draining,
        # Proxies follow any of those that are up. One that is away cannot be waited for: it may be gone for good.
        "drained": bool(connected) and all(plane["drained"] for plane in connected),
        "sequence": instance.sequence,
        "taken_sequence": None if not taken or None in taken else min(taken),
        "refusal": next((plane["refusal"] for plane in planes if plane["refusal"]), None),
        "control_planes": planes,
    }


def _planes(agent: Agent, instance: Instance) -> Iterator[dict[str, Any]]:
    """Yield what each control plane knows of an instance."""
    name = instance.settings.name
    for uplink in agent.uplinks:
        status = uplink.status
        taken, refusal = status.taken.get(name), status.refusals.get(name)
        confirmed = (
            taken is not None and taken.drained and taken.sequence >= instance.drain_sequence
        )
        yield {
            "address": uplink.server.address,
            "connected": status.connected,
            "detail": status.detail,
            "drained": confirmed and instance.draining,
            "taken_sequence": taken.sequence if taken else None,
            "refusal": refusal.reason if refusal else None,
        }


def _detail(instance: Instance) -> str:
    if instance.engine.facts is not None:
        return instance.engine.facts.detail
    return "not read yet" if instance.outcome is None else instance.outcome.detail
