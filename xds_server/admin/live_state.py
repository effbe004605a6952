"""The state that the live page shows: one small JSON text per model, instance and proxy.

Texts, because a client is sent only the items whose text differs from what it has. A moment is sent as the
control plane's clock read then (`at_s`), never as an age: an age would differ every time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from xds_server.admin.overview import known_pressure
from xds_server.core.model import InstanceId
from xds_server.core.plan import (
    InstancePlan,
    ModelPlan,
    Plan,
    TierPlan,
)
from xds_server.core.sample import Sample
from xds_server.xds.syncz import ProxyStatus, SyncState, TypeStatus, worst

Items = Mapping[str, str]
"""JSON texts by key, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """What a client has, or shall have."""

    models: Items = field(default_factory=dict)
    instances: Items = field(default_factory=dict)
    proxies: Items = field(default_factory=dict)

    def changes_since(self, before: LiveState) -> dict[str, dict[str, str | None]]:
        """Return the items that differ, by section; None = the item is gone."""
        return {
            section: changed
            for section in ("models", "instances", "proxies")
            if (changed := _differing(getattr(before, section), getattr(self, section)))
        }


def _differing(before: Items, after: Items) -> dict[str, str | None]:
    changed: dict[str, str | None] = {
        key: text for key, text in after.items() if before.get(key) != text
    }
    changed.update((key, None) for key in before if key not in after)
    return changed


def written(changes: Mapping[str, Mapping[str, str | None]]) -> Iterator[str]:
    """Yield the members of a JSON object that says these changes."""
    for section, items in changes.items():
        members = ",".join(f"{json.dumps(key)}:{text or 'null'}" for key, text in items.items())
        yield f'"{section}":{{{members}}}'


class InstanceTexts:
    """Texts of models and instances; those of objects that stayed the same are kept.

    It runs in another thread, so it only reads what it is given: neither a plan nor a sample ever changes.
    """

    def __init__(self) -> None:
        self._kept: dict[InstanceId, tuple[InstancePlan, Sample | None, float, str]] = {}
        self._models: dict[str, tuple[ModelPlan, str]] = {}

    def of(self, plan: Plan | None, latest: Mapping[InstanceId, Sample]) -> tuple[Items, Items]:
        """Return the texts of models, and of instances."""
        models: dict[str, tuple[ModelPlan, str]] = {}
        kept: dict[InstanceId, tuple[InstancePlan, Sample | None, float, str]] = {}
        for model in plan.models if plan else ():
            known = self._models.get(model.name)
            same = known is not None and known[0] is model
            models[model.name] = known if known and same else (model, _text(_model(model)))
            for tier in model.tiers:
                total = sum(each.effective_weight for each in tier.instances)
                for each in tier.instances:
                    share = tier.weight / 1000 * each.effective_weight / total if total else 0.0
                    kept[each.id] = self._instance(model, tier, each, latest.get(each.id), share)
        self._models, self._kept = models, kept
        return (
            {name: text for name, (_, text) in models.items()},
            {name: text for name, (*_, text) in kept.items()},
        )

    def _instance(
        self,
        model: ModelPlan,
        tier: TierPlan,
        instance: InstancePlan,
        sample: Sample | None,
        share: float,
    ) -> tuple[InstancePlan, Sample | None, float, str]:
        known = self._kept.get(instance.id)
        if known and known[0] is instance and known[1] is sample and known[2] == share:
            return known
        document = {
            "model": model.name,
            "tier": tier.name,
            "state": instance.state.value,
            "freshness": instance.freshness.value,
            "health": instance.health.value,
            "ceiling": _round(instance.ceiling),
            "weight": instance.effective_weight,
            "share": round(share, 4),
            "pressure": _round(known_pressure(instance, sample)),
            "rule": instance.rule,
            "text": instance.reason.text,
            **_sample(sample),
        }
        return instance, sample, share, _text(document)


def _model(model: ModelPlan) -> dict[str, Any]:
    return {
        "tiers": [
            {
                "name": tier.name,
                "level": tier.level.value,
                "pressure": _round(tier.pressure),
                "weight": tier.weight,
                "spill": _round(tier.spill),
                "demand": _round(tier.demand),
                "capacity": _round(tier.capacity),
                "rule": tier.reason.rule,
                "text": tier.reason.text,
                "instances": [each.id for each in tier.instances],
            }
            for tier in model.tiers
        ],
        "classes": [
            {
                "name": each.name,
                "demand_ratio": _round(each.demand_ratio),
                "weights": each.weights,
                "is_shed": each.is_shed,
                "is_rejected": each.is_rejected,
                "text": each.reason.text,
            }
            for each in model.classes
        ],
    }


def _sample(sample: Sample | None) -> dict[str, Any]:
    if sample is None:
        return {"at_s": None}
    return {
        "at_s": round(sample.observed_at, 1),
        "kv": _round(sample.engine.kv_ratio),
        "waiting": _round(sample.engine.waiting),
        "running": _round(sample.engine.running),
        "vram": None if sample.gpu is None else _round(sample.gpu.vram_ratio),
    }


def proxy_texts(statuses: Iterable[ProxyStatus], now: float) -> Items:
    """Return the texts of proxies, stream by stream.

    Args:
        statuses: How every stream stands.
        now: The control plane's monotonic clock when it was asked.
    """
    texts: dict[str, str] = {}
    for each in statuses:
        # A proxy may have several streams, and while it reconnects it does.
        key = each.proxy.id
        number = 1
        while key in texts:
            number += 1
            key = f"{each.proxy.id} ({number})"
        texts[key] = _text(_proxy(each, now))
    return texts


def _proxy(status: ProxyStatus, now: float) -> dict[str, Any]:
    return {
        "id": status.proxy.id,
        "cluster": status.proxy.cluster,
        "protocol": status.protocol.value,
        "state": worst(each.state for each in status.types).value,
        "types": [
            {
                "name": each.type_url.rpartition(".")[2],
                "state": each.state.value,
                "nacks": each.nacks,
                "error": each.error[:300],
                # While a response is under way, since when; afterwards, how long it took.
                "sent_at_s": _since(each, now),
                "lag_s": _round(each.lag_s) if each.state is SyncState.SYNCED else None,
            }
            for each in status.types
        ],
    }


def _since(status: TypeStatus, now: float) -> float | None:
    if status.state is not SyncState.STALE or status.sent_age_s is None:
        return None
    return round(now - status.sent_age_s, 1)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
