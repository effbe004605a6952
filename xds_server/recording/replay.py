"""Plays a recording: through the policy it was made with, and through another one beside it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from xds_server.core.model import Instance, Model, Tier, Topology
from xds_server.core.plan import TIER_WEIGHT_TOTAL, Level, Plan
from xds_server.core.policy import Policy
from xds_server.fleet import Evaluated, Fleet, Saw
from xds_server.recording.format import Digests, Recording, RecordingError

MOST_OWN = 1000
"""Evaluations of the other policy between two recorded ones; a deadline that does not move on ends them."""
_TOLD = 5
"""Differences named in one sentence."""

Place = tuple[str, str]
"""Model and tier."""


class MisfitError(Exception):
    """The configuration is of another fleet than the recording; the text is one sentence."""


@dataclass(slots=True)
class Curve:
    """Weight and level of one tier over time."""

    weights: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the start and share in 0-1, where it changed."""
    pressed_s: dict[Level, float] = field(default_factory=dict)
    _level: tuple[float, Level] | None = None

    def add(self, at: float, weight: float, level: Level) -> None:
        """Note what is given out from now on."""
        if not self.weights or self.weights[-1][1] != weight:
            self.weights.append((at, weight))
        if self._level is None or self._level[1] is not level:
            self.end(at)
            self._level = at, level

    def end(self, at: float) -> None:
        """Count the time at the last level."""
        if self._level is not None:
            since, level = self._level
            self.pressed_s[level] = self.pressed_s.get(level, 0.0) + at - since
            self._level = at, level

    def mean(self, end: float) -> float:
        """Return the mean share up to `end`."""
        if not self.weights:
            return 0.0
        ends = [at for at, _ in self.weights[1:]] + [end]
        start = self.weights[0][0]
        if end <= start:
            return self.weights[-1][1]
        area = sum(
            weight * (until - at) for (at, weight), until in zip(self.weights, ends, strict=True)
        )
        return area / (end - start)


@dataclass(slots=True)
class Run:
    """What one policy made of the recording."""

    curves: dict[Place, Curve] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)

    def add(self, at: float, plan: Plan) -> None:
        """Note a plan."""
        self.events.update(event.name for event in plan.events)
        for model in plan.models:
            for tier in model.tiers:
                curve = self.curves.setdefault((model.name, tier.name), Curve())
                curve.add(at, tier.weight / TIER_WEIGHT_TOTAL, tier.level)

    def end(self, at: float) -> None:
        """Note that it is over."""
        for curve in self.curves.values():
            curve.end(at)


@dataclass(slots=True)
class Comparison:
    """Both runs."""

    recorded: Run
    other: Run
    span_s: float
    evaluations: int
    same_as_recorded: int
    """How many of the decisions came out as they were made, byte for byte."""
    is_same_policy: bool
    start_unix_s: float
    config_version: str
    is_whole: bool
    """Whether the recording has its end."""


def replay(path: Path, topology: Topology | None, policy: Policy | None) -> Comparison:
    """Play a recording through what it was made with, and through another topology and policy.

    Args:
        path: The recording.
        topology: The other one; None = as recorded.
        policy: The other one; None = as recorded.

    Raises:
        RecordingError: It cannot be played.
        MisfitError: The topology is of another fleet.
    """
    try:
        return _play(Recording(path), topology, policy)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # The lines could be read, and the brain cannot make sense of what they say.
        raise RecordingError(f"{path}: it cannot be played: {error!r}") from error


def _play(recording: Recording, topology: Topology | None, policy: Policy | None) -> Comparison:
    head = recording.head
    wanted = head.topology if topology is None else fitted(topology, head.topology)
    thresholds = head.policy if policy is None else policy
    is_same = (wanted, thresholds) == (head.topology, head.policy)
    first, second = (Fleet(head.topology, head.policy, head.start) for _ in range(2))
    for fleet in (first, second):
        fleet.recall(head.memory)
    if not is_same:
        second.reconfigure(wanted, thresholds, head.start)
    runs = Run(), Run()
    digests = Digests()
    now, count, same = head.start, 0, 0
    if first.plan is not None:
        for run in runs:
            run.add(0.0, replace(first.plan, events=()))
    for played in recording.steps():
        step = played.step
        if not is_same:
            _own_deadlines(second, runs[1], now, step.now, head.start)
        now = step.now
        if isinstance(step, Evaluated):
            plan = first.evaluate(step.inputs, now)
            runs[0].add(now - head.start, plan)
            count += 1
            same += digests.of(plan) == played.digest
            runs[1].add(now - head.start, second.evaluate(step.inputs, now))
        elif isinstance(step, Saw):
            for fleet in (first, second):
                fleet.saw_requests(step.model, step.counts, now)
        else:
            first.reconfigure(step.topology, step.policy, now)
            if is_same:
                second.reconfigure(step.topology, step.policy, now)
            else:
                other = step.topology if topology is None else fitted(topology, step.topology)
                second.reconfigure(other, step.policy if policy is None else policy, now)
    for run in runs:
        run.end(now - head.start)
    if not count and recording.end is None:
        raise RecordingError(f"{recording.path}: it breaks off before the first evaluation")
    return Comparison(
        recorded=runs[0],
        other=runs[1],
        span_s=now - head.start,
        evaluations=count,
        same_as_recorded=same,
        is_same_policy=is_same,
        start_unix_s=head.unix_s,
        config_version=head.config_version,
        is_whole=recording.end is not None,
    )


def _own_deadlines(fleet: Fleet, run: Run, since: float, until: float, start: float) -> None:
    """Have the other policy think when it wants to, not only when the recorded one did."""
    for _ in range(MOST_OWN):
        deadline = None if fleet.plan is None else fleet.plan.next_deadline
        if deadline is None or not since < deadline < until:
            return
        run.add(deadline - start, fleet.evaluate([], deadline))
        since = deadline


def fitted(topology: Topology, recorded: Topology) -> Topology:
    """Return a configured topology with the addresses, and the registered instances, of the recorded one.

    Raises:
        MisfitError: A model, tier or instance is in one of them only.
    """
    models = {model.name: model for model in recorded.models}
    wrong = _differing("model", {model.name for model in topology.models}, set(models))
    if not wrong:
        pairs = [(model, models[model.name]) for model in topology.models]
        for model, known in pairs:
            wrong += _differences(model, known)
    if wrong:
        more = f" and {len(wrong) - _TOLD} more" if len(wrong) > _TOLD else ""
        raise MisfitError(f"it does not fit the recording: {'; '.join(wrong[:_TOLD])}{more}")
    fitting = tuple(_fit_model(model, models[model.name]) for model in topology.models)
    return replace(topology, models=fitting)


def _differences(model: Model, recorded: Model) -> list[str]:
    prefix = f"{model.name}/"
    tiers = {tier.name: tier for tier in recorded.tiers}
    wrong = _differing(
        "tier", {prefix + t.name for t in model.tiers}, {prefix + name for name in tiers}
    )
    if wrong:
        return wrong
    for tier in model.tiers:
        ours = {f"{each.id} of {prefix}{tier.name}" for each in tier.instances}
        theirs = {f"{each.id} of {prefix}{tier.name}" for each in tiers[tier.name].instances}
        wrong += _differing("instance", ours | theirs if tier.discovers else ours, theirs)
    return wrong


def _differing(kind: str, ours: set[str], theirs: set[str]) -> list[str]:
    return [
        *(f"{kind} {name} was not recorded" for name in sorted(ours - theirs)),
        *(f"recorded {kind} {name} is not configured" for name in sorted(theirs - ours)),
    ]


def _fit_model(model: Model, recorded: Model) -> Model:
    tiers = {tier.name: tier for tier in recorded.tiers}
    return replace(model, tiers=tuple(_fit_tier(tier, tiers[tier.name]) for tier in model.tiers))


def _fit_tier(tier: Tier, recorded: Tier) -> Tier:
    ours = {each.id: each for each in tier.instances}
    instances: list[Instance] = []
    for known in recorded.instances:
        mine = ours.get(known.id)
        instances.append(known if mine is None else replace(known, capacity=mine.capacity))
    return replace(tier, instances=tuple(instances))
