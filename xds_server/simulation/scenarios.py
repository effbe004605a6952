"""The incidents that the closed loop must stand, each with its measures and what they must be.

Times are seconds of simulated time. The first tier has three or four instances, the second is large
enough for twice the load; the static tier comes last. `play` runs one seed under the real brain and,
with the same requests, under static capacity weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from xds_server.core.policy import Policy
from xds_server.simulation import measure
from xds_server.simulation.control import Brain, StaticWeights
from xds_server.simulation.engine import EngineSpec
from xds_server.simulation.fleet import TICK_S, Crash, FleetSpec, Silence, Tick, Trace, run
from xds_server.simulation.workload import Profile

LAGS_S = (0.1, 2.0, 5.0)
"""Ages at which samples reach the control loop: direct, through a scraper, through a slow pipeline."""
_BIG = EngineSpec(slots=40)
_SMALL = EngineSpec(slots=20)
_FALLBACK = (EngineSpec(slots=80),) * 4
_WARM_S = 60.0
"""Left out of sustained windows: the fleet fills up and the brain learns."""
_TOLERANCE = 0.10
"""A spill this close to the ideal is settled: one standard deviation of the demand is 0.02-0.03."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Must:
    """A bound on a measure, inclusive."""

    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        """Whether the value is within the bound."""
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def __str__(self) -> str:
        bounds = [(">=", self.least), ("<=", self.most)]
        return " and ".join(f"{sign} {bound:.4g}" for sign, bound in bounds if bound is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A fleet, an incident, and what is expected of it."""

    name: str
    spec: FleetSpec
    policy: Policy
    measures: Callable[[Trace], Mapping[str, float]]
    must: Mapping[str, Must]
    """Measures of the brain's run; `wait_vs_static` compares with the baseline's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Measures under the brain and under the baseline: of one seed, or medians of several."""

    brain: Mapping[str, float]
    static: Mapping[str, float]


def play(scenario: Scenario, seed: int) -> Outcome:
    """Run a scenario once under the brain and once under static capacity weights.

    Args:
        scenario: What to play.
        seed: Equal seeds give equal outcomes.

    Returns:
        The measures of both runs.
    """
    trace = run(scenario.spec, brain(scenario), seed)
    slots = tuple(tuple(float(engine.slots) for engine in tier) for tier in scenario.spec.tiers)
    baseline = run(scenario.spec, StaticWeights(slots=slots), seed)
    ours, static = dict(scenario.measures(trace)), scenario.measures(baseline)
    if "wait_vs_static" in scenario.must:
        ours["wait_vs_static"] = ours["wait_p99_s"] / max(static["wait_p99_s"], TICK_S)
    return Outcome(brain=ours, static=static)


def brain(scenario: Scenario) -> Brain:
    """Return the brain that a scenario is played with."""
    return Brain(topology=scenario.spec.topology(), policy=scenario.policy)


def medians(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the median of every measure."""
    first = outcomes[0]
    return Outcome(
        brain={name: median(outcome.brain[name] for outcome in outcomes) for name in first.brain},
        static={
            name: median(outcome.static[name] for outcome in outcomes) for name in first.static
        },
    )


def scenarios() -> tuple[Scenario, ...]:
    """Return every scenario."""
    found: list[Scenario] = []
    for lag_s in LAGS_S:
        found.append(uneven(lag_s))
        found += [sustained(load, lag_s) for load in (1.25, 2.0)]
        found.append(step(f"step, lag {lag_s:g} s", lag_s, Policy()))
        for factor, word in ((0.5, "small"), (2.0, "large")):
            policy = Policy()
            spill = replace(policy.spill, prior_service_s=policy.spill.prior_service_s / factor)
            name = f"step, prior capacity 2x too {word}, lag {lag_s:g} s"
            found.append(step(name, lag_s, replace(policy, spill=spill)))
        found.append(drift(lag_s))
        found.append(slots_wrong(lag_s))
        found.append(oom(lag_s))
        found.append(silence(lag_s))
    return tuple(found)


def uneven(lag_s: float) -> Scenario:
    """Four instances, one of half the size, at 0.75x: nobody may wait longer than without a brain."""
    spec = FleetSpec(
        tiers=((_BIG, _BIG, _BIG, _SMALL), _FALLBACK),
        load=_constant(0.75),
        duration_s=_WARM_S + 240.0,
        lag_s=lag_s,
    )
    return Scenario(
        name=f"0.75x on 40/40/40/20, lag {lag_s:g} s",
        spec=spec,
        policy=_policy(Policy(), lag_s),
        measures=_waits,
        must={"wait_vs_static": Must(most=1.1)},
    )


def _waits(trace: Trace) -> Mapping[str, float]:
    end = trace.spec.duration_s
    return {
        "wait_p99_s": measure.queue_wait(trace, _WARM_S, end, 0.99),
        "elsewhere": measure.served_elsewhere(trace, _WARM_S, end),
    }


def sustained(load: float, lag_s: float) -> Scenario:
    """More load than the first tier can take, for four minutes."""
    ideal = measure.ideal_spill(load)
    return Scenario(
        name=f"{load:g}x sustained, lag {lag_s:g} s",
        spec=FleetSpec(
            tiers=((_BIG,) * 4, _FALLBACK),
            load=_constant(load),
            duration_s=_WARM_S + 240.0,
            lag_s=lag_s,
        ),
        policy=_policy(Policy(), lag_s),
        measures=_sustained,
        must={
            "utilization": Must(least=0.88),
            "elsewhere": Must(most=ideal + 0.06),
            "jumps_per_min": Must(most=0.0),
        },
    )


def _sustained(trace: Trace) -> Mapping[str, float]:
    end = trace.spec.duration_s
    return {
        "utilization": measure.utilization(trace, _WARM_S, end),
        "elsewhere": measure.served_elsewhere(trace, _WARM_S, end),
        "jumps_per_min": measure.jumps_per_min(trace, _WARM_S, end, size=0.25, within_s=5.0),
        "wait_p99_s": measure.queue_wait(trace, _WARM_S, end, 0.99),
    }


def step(name: str, lag_s: float, policy: Policy) -> Scenario:
    """0.5x for a minute, 1.5x for two, 0.5x for one."""
    return Scenario(
        name=name,
        spec=FleetSpec(
            tiers=((_BIG,) * 4, _FALLBACK),
            load=Profile.steps((0.0, 0.5), (60.0, 1.5), (180.0, 0.5)),
            duration_s=240.0,
            lag_s=lag_s,
        ),
        policy=_policy(policy, lag_s),
        measures=_steps,
        must=_settles(lag_s),
    )


def _settles(lag_s: float) -> dict[str, Must]:
    limit_s = 30.0 if lag_s >= 5.0 else 15.0
    return {
        "settled_up_s": Must(most=limit_s),
        "settled_down_s": Must(most=limit_s),
        "overshoot": Must(most=0.15),
        "spill_at_end": Must(most=0.0),
    }


def _steps(trace: Trace) -> Mapping[str, float]:
    ideal = measure.ideal_spill(1.5)
    return {
        "settled_up_s": measure.settled(trace, 60.0, 180.0, ideal=ideal, tolerance=_TOLERANCE),
        "settled_down_s": measure.settled(trace, 180.0, 240.0, ideal=0.0, tolerance=_TOLERANCE),
        "overshoot": measure.overshoot(trace, 60.0, 180.0, ideal=ideal),
        "spill_at_end": measure.spills(trace, 230.0, 240.0)[-1][1],
        "utilization": measure.utilization(trace, 90.0, 180.0),
        "wait_p99_s": measure.queue_wait(trace, 60.0, 180.0, 0.99),
    }


def drift(lag_s: float) -> Scenario:
    """The same steps, while every request comes to take 50 % longer, within a minute of the overload."""
    slow = replace(_BIG, slowdown=Profile(points=((100.0, 1.0), (160.0, 1.5))))
    return Scenario(
        name=f"step, service time drifts by 50 %, lag {lag_s:g} s",
        spec=FleetSpec(
            tiers=((slow,) * 4, _FALLBACK),
            load=Profile.steps((0.0, 0.5), (60.0, 1.5), (220.0, 0.5)),
            duration_s=280.0,
            lag_s=lag_s,
        ),
        policy=_policy(Policy(), lag_s),
        measures=_drifts,
        must=_settles(lag_s),
    )


def _drifts(trace: Trace) -> Mapping[str, float]:
    slowdown = trace.spec.tiers[0][0].slowdown
    beyond = [
        spill - measure.ideal_spill(1.5 * slowdown.at(at))
        for at, spill in measure.spills(trace, 60.0, 220.0)
    ]
    before, after = measure.ideal_spill(1.5), measure.ideal_spill(1.5 * 1.5)
    return {
        "settled_up_s": measure.settled(trace, 60.0, 100.0, ideal=before, tolerance=_TOLERANCE),
        "settled_drift_s": measure.settled(trace, 160.0, 220.0, ideal=after, tolerance=_TOLERANCE),
        "settled_down_s": measure.settled(trace, 220.0, 280.0, ideal=0.0, tolerance=_TOLERANCE),
        "overshoot": max(0.0, *beyond),
        "spill_at_end": measure.spills(trace, 270.0, 280.0)[-1][1],
        "utilization": measure.utilization(trace, 90.0, 220.0),
        "wait_p99_s": measure.queue_wait(trace, 60.0, 220.0, 0.99),
    }


def slots_wrong(lag_s: float) -> Scenario:
    """The configured slots are twice what the KV cache can hold: the engines preempt instead."""
    kv_tokens = _BIG.kv_capacity(FleetSpec(tiers=(), load=_constant(1.0), duration_s=0.0).lengths)
    believed = replace(_BIG, slots=80, kv_tokens=kv_tokens)
    return Scenario(
        name=f"step, slots configured 2x too large, lag {lag_s:g} s",
        spec=FleetSpec(
            tiers=((believed,) * 4, _FALLBACK),
            # Multiples of the configured capacity: half of them are of the real one.
            load=Profile.steps((0.0, 0.25), (60.0, 0.75), (180.0, 0.25)),
            duration_s=240.0,
            lag_s=lag_s,
        ),
        policy=_policy(Policy(), lag_s),
        measures=_steps,
        # How much an engine can run that preempts depends on the lengths: no ideal to settle at.
        must={name: must for name, must in _settles(lag_s).items() if name != "settled_up_s"},
    )


_CRASH_S = 60.0
_OOM_LOAD = 0.9


def oom(lag_s: float) -> Scenario:
    """One of three instances runs out of memory and takes 83 s to reload, at 0.9x."""
    crash = Crash(at=_CRASH_S, instance="0-1")
    return Scenario(
        name=f"OOM of one of three at 0.9x, lag {lag_s:g} s",
        spec=FleetSpec(
            tiers=((_BIG,) * 3, _FALLBACK),
            load=_constant(_OOM_LOAD),
            duration_s=_CRASH_S + crash.reload_s + 150.0,
            lag_s=lag_s,
            crashes=(crash,),
        ),
        policy=_policy(Policy(), lag_s),
        measures=_ooms,
        must={
            "ceiling_zero_s": Must(most=0.5 + lag_s + 1.0),
            "survivors_load": Must(most=1.0),
            "stages_skipped": Must(most=0.0),
            "back_s": Must(most=90.0),
        },
    )


def _ooms(trace: Trace) -> Mapping[str, float]:
    crash = trace.spec.crashes[0]
    ready_at, end = crash.at + crash.reload_s, trace.spec.duration_s
    victim = 1
    zero = [
        at - crash.at
        for at, decision in trace.decisions
        if at >= crash.at and decision.ceilings[0][victim] == 0.0
    ]
    after = measure.ticks(trace, crash.at, end)
    detected_at = crash.at + (zero[0] if zero else 0.0)
    survivors = [k for k in range(len(trace.spec.tiers[0])) if k != victim]
    slots = sum(trace.spec.tiers[0][k].slots for k in survivors)
    inside = [sum(tick.running[0][k] + tick.waiting[0][k] for k in survivors) for tick in after]
    given = [
        _offered_to(tick, survivors) * trace.spec.capacity / _capacity(trace, survivors)
        for tick in after
        if tick.at > detected_at + trace.spec.push_s and tick.decision.ceilings[0][victim] < 1.0
    ]
    path: list[float] = []
    for tick in after:
        ceiling = tick.decision.ceilings[0][victim]
        if not path or path[-1] != ceiling:
            path.append(ceiling)
    stages = [stage for stage in path if stage > 0.0][1:]
    expected = list(Policy().recovery.stages)
    normal = [
        tick.decision.ceilings[0][victim] == 1.0 and tick.decision.spill <= _TOLERANCE
        for tick in measure.ticks(trace, ready_at, end)
    ]
    lasting = round(10.0 / TICK_S)
    back = [i for i in range(len(normal) - lasting) if all(normal[i : i + lasting])]
    return {
        "ceiling_zero_s": zero[0] if zero else end,
        "survivors_load": max(given, default=0.0),
        "survivors_inside_peak": max(inside) / slots,
        "stages_skipped": float(stages != expected),
        "back_s": back[0] * TICK_S if back else end - ready_at,
        "broken_streams": float(trace.broken),
        "wait_p99_s": measure.queue_wait(trace, crash.at, end, 0.99),
    }


def _offered_to(tick: Tick, instances: Sequence[int]) -> float:
    """Return the load that weights send to some instances, in multiples of the first tier's capacity."""
    weights = tick.decision.weights[0]
    total = sum(weights)
    share = sum(weights[k] for k in instances) / total if total > 0.0 else 0.0
    return _OOM_LOAD * tick.decision.shares[0] * share


def _capacity(trace: Trace, instances: Sequence[int]) -> float:
    spec = trace.spec
    return sum(spec.tiers[0][k].slots / spec.tiers[0][k].service_s(spec.lengths) for k in instances)


_SILENT_FROM_S, _SILENT_TO_S = 90.0, 210.0


def silence(lag_s: float) -> Scenario:
    """No telemetry from anybody for two minutes, at 1.25x."""
    return Scenario(
        name=f"telemetry lost for 2 min at 1.25x, lag {lag_s:g} s",
        spec=FleetSpec(
            tiers=((_BIG, _BIG, _BIG, _SMALL), _FALLBACK),
            load=_constant(1.25),
            duration_s=_SILENT_TO_S + 60.0,
            lag_s=lag_s,
            silences=(Silence(start=_SILENT_FROM_S, end=_SILENT_TO_S),),
        ),
        policy=_policy(Policy(), lag_s),
        measures=_silences,
        must={
            "halted": Must(most=0.0),
            "moves_while_silent": Must(most=0.0),
            "off_static": Must(most=0.01),
            "spill_jump": Must(most=0.10),
            "weight_jump": Must(most=0.10),
        },
    )


def _silences(trace: Trace) -> Mapping[str, float]:
    lag_s = trace.spec.lag_s
    silent = measure.ticks(trace, _SILENT_FROM_S, _SILENT_TO_S)
    held = measure.ticks(
        trace, _SILENT_FROM_S + lag_s + 3.0 * max(1.0, lag_s) + 1.0, _SILENT_FROM_S + 29.0
    )
    # Later than this, weights and shares move as they always do.
    returned = measure.ticks(trace, _SILENT_TO_S - 1.0, _SILENT_TO_S + lag_s + 2.0)
    slots = [float(spec.slots) for spec in trace.spec.tiers[0]]
    last = silent[-1].decision.weights[0]
    moves = {(tick.decision.spill, tick.decision.weights) for tick in held}
    reach = round(1.0 / TICK_S)
    pairs = list(zip(returned, returned[reach:], strict=False))
    return {
        "halted": float(
            any(
                tick.decision.shares[0] <= 0.0 or min(map(min, tick.decision.weights)) <= 0.0
                for tick in silent
            )
        ),
        "moves_while_silent": float(len(moves) - 1),
        "off_static": max(
            abs(weight / sum(last) - k / sum(slots)) for weight, k in zip(last, slots, strict=True)
        ),
        "spill_jump": max(abs(a.decision.spill - b.decision.spill) for a, b in pairs),
        "weight_jump": max(
            abs(before - after) / before
            for a, b in pairs
            for before, after in zip(a.decision.weights[0], b.decision.weights[0], strict=True)
        ),
        "utilization": measure.utilization(trace, _SILENT_FROM_S, _SILENT_TO_S),
        "wait_p99_s": measure.queue_wait(trace, _SILENT_FROM_S, _SILENT_TO_S, 0.99),
    }


def _constant(load: float) -> Profile:
    return Profile(points=((0.0, load),))


def _policy(policy: Policy, lag_s: float) -> Policy:
    """Return the policy of an operator who knows how slow the telemetry is."""
    telemetry = replace(policy.telemetry, interval_s=max(policy.telemetry.interval_s, lag_s))
    return replace(policy, telemetry=telemetry)
