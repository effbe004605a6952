"""What becomes of the engines' load reports: samples where no agent speaks, and a check on those that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xds_server.core.model import InstanceId
from xds_server.core.plan import Event
from xds_server.core.policy import TelemetryPolicy
from xds_server.core.sample import Sample
from xds_server.evidence.cross_check import CrossCheck, Standing
from xds_server.evidence.entry import EndpointLoad
from xds_server.evidence.orca import StandIn, read
from xds_server.evidence.places import Place
from xds_server.observability.metrics import Reading, Tally

FORGET_S = 60.0
"""Without reports for this long, nothing is said about the agent any more."""


class LoadReports:
    """The reports of all instances of one control plane. Used on one event loop."""

    def __init__(
        self,
        *,
        latest: Callable[[InstanceId], Sample | None],
        offer: Callable[[Sample], None],
        tell: Callable[[Event], None],
        policy: Callable[[], TelemetryPolicy],
        tally: Tally,
    ) -> None:
        """Compare with `latest`, hand samples to `offer` and contradictions to `tell`."""
        self._offer = offer
        self._tell = tell
        self._policy = policy
        self._tally = tally
        self._stand_in = StandIn(latest=latest, policy=policy)
        self._checks: dict[InstanceId, CrossCheck] = {}
        self._places: dict[InstanceId, Place] = {}

    def take(self, source: object, place: Place, load: EndpointLoad, now: float) -> None:
        """Take in what one proxy did with one instance, and what that reported."""
        instance = place.instance
        if not load.metrics and instance not in self._checks:
            return  # No reports are asked for there.
        self._stand_in.counted(instance, source, load)
        report = read(load.metrics)
        if report is None:
            if load.metrics:
                self._tally.add("fleet_evidence_refused_total", "bad_report")
            return
        self._tally.add(
            "fleet_engine_reports_total", place.model, place.tier, by=float(report.answers)
        )
        check = self._checks.setdefault(instance, CrossCheck())
        self._places[instance] = place
        was = check.standing
        agent = self._stand_in.agent(instance)
        reason = check.take(agent, report, self._policy(), now)
        if reason is not None:
            self._tell(
                Event(
                    name=reason.rule,
                    model=place.model,
                    tier=place.tier,
                    instance=instance,
                    reason=reason,
                    before=was,
                    after=check.standing,
                )
            )
        sample = self._stand_in.sample(instance, report, now)
        if sample is not None:
            self._offer(sample)

    def forget(self, source: object) -> None:
        """Forget what a proxy had in progress: it is gone, or says it anew."""
        self._stand_in.forget(source)

    def keep(self, instances: frozenset[InstanceId]) -> None:
        """Forget instances that left."""
        self._stand_in.keep(instances)
        self._checks = {k: v for k, v in self._checks.items() if k in instances}
        self._places = {k: v for k, v in self._places.items() if k in instances}

    def note(self, instance: InstanceId, now: float) -> str:
        """Return a sentence on an agent that is not to be trusted; empty when there is nothing to say."""
        check = self._checks.get(instance)
        if check is None or now - check.heard_at > FORGET_S or not check.text:
            return ""
        return f"Its agent is {check.standing}: {check.text}."

    def readings(self, now: float) -> Iterator[Reading]:
        """Yield 1 for each agent that is contradicted or silent, 0 for those that agree."""
        for instance, check in self._checks.items():
            if now - check.heard_at > FORGET_S or check.standing is Standing.UNKNOWN:
                continue
            place = self._places[instance]
            for standing in (Standing.CONTRADICTED, Standing.SILENT):
                labels = (place.model, place.tier, instance, standing.value)
                yield "fleet_agent_doubted", labels, float(check.standing is standing)
