"""The whole simulated fleet: routing, retries, telemetry and its determinism."""

from __future__ import annotations

import pytest

from xds_server.core.policy import Policy
from xds_server.simulation import measure
from xds_server.simulation.control import Brain, Decision, StaticWeights
from xds_server.simulation.engine import EngineSpec
from xds_server.simulation.fleet import Crash, FleetSpec, Silence, run
from xds_server.simulation.workload import Profile

ENGINE = EngineSpec(slots=20)
FALLBACK = (EngineSpec(slots=40),)


def spec(**changes):
    values = {
        "tiers": ((ENGINE, ENGINE), FALLBACK),
        "load": Profile(points=((0.0, 0.8),)),
        "duration_s": 60.0,
    }
    return FleetSpec(**(values | changes))


def static(fleet):
    return StaticWeights(slots=tuple(tuple(float(e.slots) for e in t) for t in fleet.tiers))


class Fixed:
    """Always the same weights; remembers what it was told."""

    def __init__(self, **changes):
        values = {
            "shares": (0.5, 0.3, 0.2),
            "spill": 0.5,
            "weights": ((3.0, 1.0), (1.0,)),
            "ceilings": ((1.0, 1.0), (1.0,)),
            "levels": ("healthy", "healthy"),
            "next_deadline": None,
        }
        self.decision = Decision(**(values | changes))
        self.samples = []

    def observe(self, sample):
        self.samples.append(sample)

    def decide(self, now):
        return self.decision


def test_equal_seeds_give_equal_traces():
    def shape(seed):
        fleet = spec()
        trace = run(fleet, Brain(topology=fleet.topology(), policy=Policy()), seed)
        return [(r.arrived_at, r.tier, r.started_at) for r in trace.requests], trace.decisions

    assert shape(3) == shape(3)
    assert shape(3) != shape(4)


def test_requests_follow_the_tier_weights_and_the_endpoint_weights():
    fleet = spec(duration_s=600.0)
    trace = run(fleet, Fixed(), 0)
    count = len(trace.requests)
    for tier, share in enumerate((0.5, 0.3, 0.2)):
        served = sum(r.tier == tier for r in trace.requests) / count
        assert served == pytest.approx(share, abs=0.03)
    busy = trace.ticks[-1].busy_slot_s[0]
    assert busy[0] / sum(busy) == pytest.approx(0.75, abs=0.05)


def test_every_agent_sends_at_its_interval_and_samples_arrive_with_the_lag():
    controller = Fixed()
    run(spec(duration_s=10.0, interval_s=0.5, lag_s=2.0), controller, 0)
    assert len(controller.samples) == pytest.approx(3 * 8 / 0.5, abs=3)
    assert {s.instance for s in controller.samples} == {"0-0", "0-1", "1-0"}


def test_nothing_arrives_during_a_silence():
    controller = Fixed()
    run(spec(silences=(Silence(start=10.0, end=40.0),)), controller, 0)
    times = [s.observed_at for s in controller.samples]
    assert not any(10.0 <= at < 40.0 for at in times)
    assert max(times) > 59.0


def test_a_dead_instance_refuses_and_the_proxy_goes_on_to_the_others_and_then_down_the_chain():
    first = Crash(at=20.0, instance="0-0", reload_s=1000.0)
    both = (first, Crash(at=40.0, instance="0-1", reload_s=1000.0))
    fleet = spec(crashes=both, duration_s=80.0)
    trace = run(fleet, static(fleet), 0)
    between = [r for r in trace.requests if 20.0 < r.arrived_at < 40.0]
    after = [r for r in trace.requests if r.arrived_at > 40.0]
    assert {r.tier for r in between} <= {0, 1}
    assert {r.tier for r in after} == {1}
    assert trace.broken > 0


def test_when_every_engine_is_dead_the_static_tier_answers_at_once():
    names = ("0-0", "0-1", "1-0")
    fleet = spec(crashes=tuple(Crash(at=20.0, instance=n, reload_s=1000.0) for n in names))
    trace = run(fleet, static(fleet), 0)
    after = [r for r in trace.requests if r.arrived_at > 20.0]
    assert {r.tier for r in after} == {2}
    assert all(r.started_at == r.arrived_at for r in after)


def test_a_tier_without_weights_passes_its_requests_on():
    trace = run(spec(), Fixed(weights=((0.0, 0.0), (1.0,))), 0)
    assert {r.tier for r in trace.requests} == {1, 2}


def test_the_topology_is_what_a_user_would_configure():
    topology = spec().topology()
    (model,) = topology.models
    assert [len(tier.instances) for tier in model.tiers] == [2, 1, 0]
    assert [i.capacity for _, _, i in topology.instances()] == [20.0, 20.0, 40.0]
    assert model.tiers[-1].is_static


def test_the_brain_reports_what_happened():
    fleet = spec(crashes=(Crash(at=20.0, instance="0-0"),))
    brain = Brain(topology=fleet.topology(), policy=Policy())
    run(fleet, brain, 0)
    down = [at for at, event in brain.events if event.name == "instance_down"]
    assert down
    assert 20.0 < down[0] < 21.0


# Measures, on traces whose answers are known.


def trace_of(spill_at, *, duration_s=100.0):
    class Scripted(Fixed):
        def decide(self, now):
            spill = spill_at(now)
            return Decision(
                shares=(1.0 - spill, spill, 0.0),
                spill=spill,
                weights=((1.0, 1.0), (1.0,)),
                ceilings=((1.0, 1.0), (1.0,)),
                levels=("healthy", "healthy"),
                next_deadline=now + 0.25,
            )

    return run(spec(duration_s=duration_s), Scripted(), 0)


def test_settled_is_the_time_until_the_mean_spill_stays_near_the_ideal():
    trace = trace_of(lambda now: 0.4 if now >= 20.0 else 0.0)
    settled = measure.settled(trace, 10.0, 90.0, ideal=0.4, tolerance=0.1)
    assert 13.0 < settled < 15.5
    assert measure.settled(trace, 30.0, 90.0, ideal=0.4, tolerance=0.1) == 0.0
    assert measure.settled(trace, 10.0, 90.0, ideal=0.9, tolerance=0.1) == 80.0


def test_overshoot_is_the_largest_excess_over_the_ideal():
    trace = trace_of(lambda now: 0.6 if 20.0 <= now < 22.0 else 0.4)
    assert measure.overshoot(trace, 10.0, 90.0, ideal=0.4) == pytest.approx(0.2)
    assert measure.overshoot(trace, 10.0, 90.0, ideal=0.7) == 0.0


def test_a_jump_is_a_move_of_a_size_within_a_time_and_counts_once():
    def jumps(spill_at):
        trace = trace_of(spill_at)
        return measure.jumps_per_min(trace, 10.0, 70.0, size=0.25, within_s=5.0)

    assert jumps(lambda now: 0.3 if now >= 20.0 else 0.0) == 1.0
    assert jumps(lambda now: 0.3 if 20.0 <= now < 40.0 else 0.0) == 2.0
    assert jumps(lambda now: min(0.6, now / 100.0)) == 0.0


def test_utilization_share_and_waits_are_what_the_requests_saw():
    trace = run(
        spec(duration_s=300.0), Fixed(shares=(1.0, 0.0, 0.0), weights=((1.0, 1.0), (1.0,))), 0
    )
    assert measure.utilization(trace, 60.0, 300.0) == pytest.approx(0.8, abs=0.08)
    assert measure.served_elsewhere(trace, 60.0, 300.0) == 0.0
    waits = [measure.queue_wait(trace, 60.0, 300.0, q) for q in (0.0, 0.5, 0.99, 1.0)]
    assert waits == sorted(waits)
    assert waits[0] == 0.0


@pytest.mark.parametrize(("rho", "ideal"), [(0.0, 0.0), (0.9, 0.0), (1.25, 0.24), (2.0, 0.525)])
def test_the_ideal_spill_leaves_a_tier_at_95_percent(rho, ideal):
    assert measure.ideal_spill(rho) == pytest.approx(ideal)
