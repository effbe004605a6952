"""What happens in the process, as rows of the event store."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xds_server.core.inputs import Drain
from xds_server.core.model import InstanceId, Topology
from xds_server.core.plan import Event, ModelPlan, Plan
from xds_server.store.row import Kind, Row

WEIGHTS_GAP_S = 1.0
"""Least time between two rows of weights of one model; the newest is written when it is over."""
MOST_TEXT = 2000
"""What a proxy says about a refusal may be long."""


class History:
    """Makes rows. Every method is quick, runs on the event loop and never raises on account of the disk."""

    def __init__(
        self,
        add: Callable[[Row], None],
        *,
        topology: Callable[[], Topology],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._add = add
        self._topology = topology
        self._wall = wall
        self._models: tuple[ModelPlan, ...] = ()
        self._weights: dict[str, dict[str, int]] = {}
        self._held: dict[str, ModelPlan] = {}
        self._written_at: dict[str, float] = {}

    def decided(self, event: Event) -> None:
        """Note what the brain decided."""
        reason = event.reason
        self._row(
            Kind.DECISION,
            event.name,
            model=event.model,
            tier=event.tier,
            instance=event.instance or "",
            before=event.before,
            after=event.after,
            rule=reason.rule,
            text=reason.text,
            data={"inputs": dict(reason.inputs)} if reason.inputs else {},
        )

    def planned(self, plan: Plan) -> None:
        """Note the weights of tiers that are new, model by model."""
        if plan.models is self._models:
            return
        known = {id(each) for each in self._models}
        self._models = plan.models
        for model in plan.models:
            if id(model) not in known:
                self._held[model.name] = model
        self.flush_weights()

    async def keep(self) -> None:
        """Write held back weights when they are due, until cancelled."""
        while True:
            await asyncio.sleep(WEIGHTS_GAP_S / 2)
            self.flush_weights()

    def flush_weights(self) -> None:
        """Write the weights that were held back and are due."""
        now = self._wall()
        for name, model in list(self._held.items()):
            last = self._written_at.get(name)
            if last is not None and last <= now < last + WEIGHTS_GAP_S:
                continue
            del self._held[name]
            self._weigh(model, now)

    def _weigh(self, model: ModelPlan, now: float) -> None:
        weights = {str(tier.name): tier.weight for tier in model.tiers}
        before = self._weights.get(model.name)
        if weights == before:
            return
        self._weights[model.name] = weights
        self._written_at[model.name] = now
        tiers = {
            tier.name: {"weight": tier.weight, "level": tier.level.value, "pressure": tier.pressure}
            for tier in model.tiers
        }
        moved = [each for each in model.tiers if before and before.get(each.name) != each.weight]
        self._row(
            Kind.WEIGHTS,
            "weights_changed",
            model=model.name,
            before=_line(before or {}),
            after=_line(weights),
            rule=moved[0].reason.rule if moved else "",
            text=moved[0].reason.text if moved else "",
            data={"tiers": tiers},
        )

    def ordered(
        self,
        name: str,
        *,
        who: str,
        why: str,
        model: str = "",
        tier: str = "",
        instance: str = "",
        **data: Any,
    ) -> None:
        """Note what a person ordered."""
        self._row(
            Kind.OPERATOR,
            name,
            model=model,
            tier=tier,
            instance=instance,
            who=who,
            why=why,
            data=data,
        )

    def drained(self, drain: Drain) -> None:
        """Note that a person drains an instance, or takes it back."""
        model, tier = self._place(drain.instance)
        name = "drain_requested" if drain.draining else "undrain_requested"
        self.ordered(
            name, who=drain.who, why=drain.why, model=model, tier=tier, instance=drain.instance
        )

    def configured(self, text: str, *, name: str, changed: Sequence[str] = ()) -> None:
        """Note the configuration that is in use from now on."""
        self._row(
            Kind.CONFIG,
            name,
            after=config_version(text),
            text="; ".join(changed),
            data={"version": config_version(text), "changed": list(changed)},
        )

    def refused(self, problems: Sequence[str]) -> None:
        """Note that a changed configuration is not used."""
        self._row(
            Kind.CONFIG,
            "config_refused",
            text="; ".join(problems),
            data={"problems": list(problems)},
        )

    def process(self, name: str, text: str = "", **data: Any) -> None:
        """Note that the control plane started or ends."""
        self._row(Kind.PROCESS, name, text=text, data=data)

    def proxy(self, name: str, proxy: str, text: str = "", **data: Any) -> None:
        """Note what became of a proxy."""
        self._row(Kind.PROXY, name, proxy=proxy, text=text, data=data)

    def mesh(self, name: str, text: str = "", *, model: str = "", **data: Any) -> None:
        """Note what an Istio mesh was told, or made of it."""
        self._row(Kind.MESH, name, model=model, text=text, data=data)

    def _place(self, instance: InstanceId) -> tuple[str, str]:
        for model, tier, each in self._topology().instances():
            if each.id == instance:
                return model.name, tier.name
        return "", ""

    def _row(
        self,
        kind: Kind,
        name: str,
        *,
        text: str = "",
        data: Mapping[str, Any] | None = None,
        **texts: Any,
    ) -> None:
        self._add(
            Row(
                at_unix_s=self._wall(),
                kind=kind,
                name=name,
                text=text[:MOST_TEXT],
                data=data or {},
                **texts,
            )
        )


def config_version(text: str) -> str:
    """Return the name of a configuration: the start of its SHA-256, as `sha256sum` prints it."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _line(weights: Mapping[str, int]) -> str:
    return " ".join(f"{tier}={weight / 10:g}%" for tier, weight in weights.items())
