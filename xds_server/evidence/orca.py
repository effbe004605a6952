"""From load reports of engines (ORCA, by way of the proxies) to samples. Pure: time is an argument.

An engine reports its KV usage and its queue at the end of each whole answer; proxies send the sums. There is no
report of a stream, of an error or without traffic, so this is telemetry for where no agent is, and a second
witness where one is:

* while an agent is heard, its samples alone reach the brain, and reports are only compared with them;
* when it has fallen silent they stand in for it, unless its last word was a fault or a drain: that is not overruled
  by an answer that may have begun before;
* an instance that never had an agent lives on reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from xds_server.core import freshness
from xds_server.core.model import InstanceId
from xds_server.core.plan import Freshness
from xds_server.core.policy import TelemetryPolicy
from xds_server.core.sample import EngineFacts, EngineState, Sample
from xds_server.evidence.entry import EndpointLoad

SPEAKER = "(load reports)"
"""What stands for the agent's name in such a sample; no agent can be called so."""
KV = ("named_metrics.kv_cache_usage_perc", "named_metrics.kv_cache_utilization")
"""vLLM (a ratio in spite of its name), Triton."""
WAITING = ("named_metrics.num_requests_waiting",)
_ROUNDING = 1.01
_MAX_COUNT = 1e15


class Report(NamedTuple):
    """The mean of what one engine reported to one proxy in one interval. Missing is None."""

    kv_ratio: float | None
    waiting: float | None
    answers: int
    """How many carried a report."""


def read(metrics: Mapping[str, tuple[float, int]]) -> Report | None:
    """Read what a proxy passed on; None when it holds no number that can be true."""
    kv, kv_count = _mean(metrics, KV, _ROUNDING)
    waiting, waiting_count = _mean(metrics, WAITING, _MAX_COUNT)
    if kv is None and waiting is None:
        return None
    return Report(None if kv is None else min(1.0, kv), waiting, max(kv_count, waiting_count))


def _mean(
    metrics: Mapping[str, tuple[float, int]], names: tuple[str, ...], most: float
) -> tuple[float | None, int]:
    for name in names:
        total, count = metrics.get(name, (0.0, 0))
        if count > 0 and isfinite(total):
            mean = total / count
            return (mean, count) if 0.0 <= mean <= most else (None, 0)
    return None, 0


@dataclass(slots=True)
class Counts:
    """What all proxies together did with one instance."""

    completed: int = 0
    """Requests that ended well, since this object was made. An engine that fails fast has no capacity for it."""
    in_progress: int = 0
    """Requests that are at the instance now."""


class StandIn:
    """Makes samples of reports for instances whose agent is silent, or that have none."""

    def __init__(
        self,
        *,
        latest: Callable[[InstanceId], Sample | None],
        policy: Callable[[], TelemetryPolicy],
    ) -> None:
        """Ask `latest` for the last sample of an instance, whoever it is from."""
        self._latest = latest
        self._policy = policy
        self._agents: dict[InstanceId, Sample] = {}
        self._counts: dict[InstanceId, Counts] = {}
        self._in_progress: dict[object, list[tuple[InstanceId, int]]] = {}
        """What each proxy said of that since it was last forgotten."""

    def agent(self, instance: InstanceId) -> Sample | None:
        """Return the last sample that an agent sent of an instance; None if none ever did."""
        sample = self._latest(instance)
        if sample is not None and sample.agent != SPEAKER:
            self._agents[instance] = sample
        return self._agents.get(instance)

    def counted(self, instance: InstanceId, source: object, load: EndpointLoad) -> None:
        """Add a proxy's counts of an instance, whether they carry a report or not; `forget` its last ones first."""
        counts = self._counts.setdefault(instance, Counts())
        counts.completed += load.succeeded
        if load.in_progress:
            counts.in_progress += load.in_progress
            self._in_progress.setdefault(source, []).append((instance, load.in_progress))

    def sample(self, instance: InstanceId, report: Report, now: float) -> Sample | None:
        """Return what stands in for the agent's sample; None where the agent is to be believed.

        Args:
            instance: Whose report it is.
            report: The newest report.
            now: Monotonic seconds.
        """
        agent = self.agent(instance)
        if agent is not None and not self._may_overrule(agent, now):
            return None
        counts = self._counts.get(instance)
        running: float | None = None
        finished: float | None = None
        if counts is not None:
            # Proxies do not know which of theirs wait inside the engine.
            running = max(0.0, counts.in_progress - (report.waiting or 0.0))
            finished = float(counts.completed)
        engine = EngineFacts(
            state=EngineState.UP,
            detail=f"mean of {report.answers} load reports",
            kv_ratio=report.kv_ratio,
            waiting=report.waiting,
            running=running,
            finished_total=finished,
            slots=None if agent is None else agent.engine.slots,
            # A counter that fell and rises again would look like restarts.
            restarts=0 if agent is None else agent.engine.restarts,
        )
        return Sample(instance=instance, observed_at=now, engine=engine, agent=SPEAKER)

    def forget(self, source: object) -> None:
        """Forget what a proxy had in progress: it is gone, or says it anew."""
        for instance, in_progress in self._in_progress.pop(source, ()):
            counts = self._counts.get(instance)
            if counts is not None:
                counts.in_progress -= in_progress

    def keep(self, instances: frozenset[InstanceId]) -> None:
        """Forget instances that left."""
        self._agents = {k: v for k, v in self._agents.items() if k in instances}
        self._counts = {k: v for k, v in self._counts.items() if k in instances}
        self._in_progress = {
            source: [each for each in said if each[0] in instances]
            for source, said in self._in_progress.items()
        }

    def _may_overrule(self, agent: Sample, now: float) -> bool:
        if agent.draining or agent.urgent or agent.engine.state is not EngineState.UP:
            return False
        return freshness.classify(agent.observed_at, self._policy(), now) is not Freshness.FRESH
