"""What must hold for every history, however strange the engines, agents and operators are."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fakes.brain import Brain, gpu, model, sample, small_fleet, step, tier, topology
from xds_server.core.inputs import Drain
from xds_server.core.persist import dump, restore
from xds_server.core.plan import TIER_WEIGHT_TOTAL, EndpointHealth, FaultState
from xds_server.core.policy import Policy
from xds_server.core.sample import EngineState, GpuHealth, MemoryKind

NAMES = ("a", "b", "c", "f")
NUMBER = st.one_of(st.none(), st.floats(0.0, 200.0))
RATIO = st.one_of(st.none(), st.floats(0.0, 1.0))
GPU = st.one_of(
    st.none(),
    st.builds(
        gpu,
        st.sampled_from(list(GpuHealth)),
        ratio=RATIO,
        free=st.one_of(st.none(), st.integers(0, 1 << 33)),
        kind=st.sampled_from(list(MemoryKind)),
        shared=st.booleans(),
    ),
)
FACTS = st.fixed_dictionaries(
    {
        "state": st.one_of(st.just(EngineState.UP), st.sampled_from(list(EngineState))),
        "kv_ratio": RATIO,
        "waiting": NUMBER,
        "running": NUMBER,
        "finished_total": NUMBER,
        "slots": st.one_of(st.none(), st.floats(1.0, 500.0)),
        "reserved_ratio": RATIO,
        "restarts": st.integers(0, 3),
        "out_of_memory": st.booleans(),
        "gpu": GPU,
        "draining": st.booleans(),
    }
)
NEWS = st.tuples(st.sampled_from(NAMES), st.floats(0.0, 60.0), FACTS)
ORDER = st.tuples(st.sampled_from((*NAMES, "nobody")), st.booleans())
STEP = st.tuples(st.floats(0.0, 90.0), st.lists(NEWS, max_size=4), st.one_of(st.none(), ORDER))
HISTORY = st.lists(STEP, max_size=12)
FEW = settings(max_examples=30, deadline=None)
FEWER = settings(max_examples=8, deadline=None)


def inputs_of(item, now):
    _, news, order = item
    inputs = [sample(name, now - age_s, **facts) for name, age_s, facts in news]
    if order is not None:
        name, draining = order
        inputs.append(Drain(instance=name, draining=draining, who="ann"))
    return inputs


def live(history, brain=None):
    brain = brain or Brain(small_fleet())
    for item in history:
        now = brain.now + item[0]
        brain.feed(*inputs_of(item, now), at=now)
    return brain


def check(plan, fleet):
    """One plan by itself."""
    for planned, configured in zip(plan.models, fleet.models, strict=True):
        assert sum(t.weight for t in planned.tiers) == TIER_WEIGHT_TOTAL
        assert abs(sum(t.share for t in planned.tiers) - 1.0) < 1e-9
        for tier_plan, tier_of in zip(planned.tiers, configured.tiers, strict=True):
            assert (tier_plan.weight > 0) == (tier_plan.share > 0.0)
            assert 0.0 <= tier_plan.spill <= 1.0
            assert tier_plan.reason.text
            able = [i for i in tier_plan.instances if i.health is EndpointHealth.HEALTHY]
            assert tier_plan.weight == 0 or able or tier_of.is_static
            for one in tier_plan.instances:
                assert one.weight >= 1
                assert 0.0 <= one.ceiling <= 1.0
                assert (one.health is EndpointHealth.HEALTHY) == (one.ceiling > 0.0)
                assert (one.health is EndpointHealth.DRAINING) == (one.state is FaultState.DRAINING)
                assert one.reason.rule
                assert one.reason.text


@FEW
@given(HISTORY)
def test_every_plan_is_sound_and_every_deadline_lies_ahead(history):
    brain = live(history)
    for _, plan in brain.plans:
        check(plan, brain.state.topology)
    brain.until(brain.now + 3000.0)
    check(brain.plan, brain.state.topology)


@FEW
@given(HISTORY)
def test_the_same_history_gives_the_same_plans(history):
    assert live(history).plans == live(history).plans


@FEW
@given(HISTORY, STEP)
def test_evaluating_again_at_the_same_moment_changes_nothing(history, item):
    brain = live(history)
    now = brain.now + item[0]
    brain.until(now)
    brain.feed(*inputs_of(item, now), at=now)
    state, plan = brain.state, brain.plan
    again, same = step(state, [], brain.policy, now)
    assert again is state
    assert same.models is plan.models
    assert same.next_deadline == plan.next_deadline
    assert same.events == ()
    # The last word on every instance, said once more, is no news either.
    last = [s.sample for m in state.models for t in m.tiers for s in t.instances if s.sample]
    again, same = step(state, last, brain.policy, now)
    assert again.models == state.models
    assert same.models is plan.models
    assert same.events == ()


@FEW
@given(HISTORY)
def test_a_model_that_nothing_happens_to_keeps_its_objects(history):
    other = model("other", tier("primary", "x", "y"))
    brain = Brain(topology(small_fleet().models[0], other))
    brain.feed(sample("x", 0.0), sample("y", 0.0), at=0.0)
    before = brain.state.models[1]
    for item in history:
        now = min(brain.now + item[0] / 90.0, 2.9)
        brain.feed(*inputs_of(item, now), at=now)
    assert brain.state.models[1] is before
    assert brain.plan.models[1] is before.plan


@FEWER
@given(HISTORY)
def test_everything_recovers_when_all_is_well_for_long_enough(history):
    brain = live(history)
    for name in NAMES:
        brain.drain(name, draining=False)
    # Idle: numbers that ignore how much traffic they are given would be no engine that exists.
    steady = {"restarts": 3, "gpu": gpu(), "reserved_ratio": 0.92, "running": 0.0}
    steady["finished_total"] = 1e6
    brain.run(NAMES, until=brain.now + 2400.0, every=2.0, **steady)
    for tier_plan in brain.model().tiers[:2]:
        assert {i.state for i in tier_plan.instances} == {FaultState.HEALTHY}
        assert {i.ceiling for i in tier_plan.instances} == {1.0}
        assert tier_plan.level == "healthy"
    assert brain.tier().weight == TIER_WEIGHT_TOTAL


@FEWER
@given(HISTORY)
def test_silence_alone_takes_nobody_out(history):
    brain = live(history)
    serving = {i.id for t in brain.model().tiers for i in t.instances if i.ceiling > 0.0}
    brain.until(brain.now + 5000.0)
    after = {i.id for t in brain.model().tiers for i in t.instances if i.ceiling > 0.0}
    assert serving <= after


@FEW
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30),
    st.sampled_from("abc"),
)
@example(
    [(name, state == "-") for name, state in ("a-", "c-", "a+", "a-", "a+", "b-", "b+", "c+")], "a"
)
@example([(name, state == "-") for name, state in ("a+", "a+", "b-", "b+", "a-", "b-")], "b")
def test_a_healthier_instance_never_lowers_what_its_tier_is_given(outages, name):
    brain = Brain(small_fleet())
    states = dict.fromkeys(NAMES, EngineState.UP)
    for at, (victim, is_down) in enumerate(outages):
        states[victim] = EngineState.DOWN if is_down else EngineState.UP
        brain.feed(*[sample(n, float(at), state=s) for n, s in states.items()], at=float(at))
    now = brain.now + 1.0
    brain.until(now)
    plans = []
    for state in (EngineState.DOWN, EngineState.UP):
        news = [sample(n, now, state=s) for n, s in (states | {name: state}).items()]
        _, plan = step(brain.state, news, brain.policy, now)
        plans.append(plan.models[0].tiers[0])
    down, up = plans
    # An instance that is up admits requests again: more may be offered to the whole model, and of more a
    # smaller share is not less.
    grown = max(1.0, (up.demand or 0.0) / (down.demand or 1.0)) if down.demand else 1.0
    # Of what just fits nothing is passed on; of what just does not, all beyond the target, which is less.
    exceeds = up.reason.rule == "demand_exceeds_capacity"
    kept = brain.policy.spill.target if exceeds else 1.0
    assert up.share * grown >= kept * down.share - 1e-9


@FEW
@given(HISTORY, st.floats(0.0, 1e6))
def test_a_restarted_control_plane_continues_with_the_published_numbers(history, now):
    brain = live(history)
    document = json.loads(json.dumps(dump(brain.state, brain.plan, brain.now)))
    restored = restore(brain.state.topology, brain.policy, document, now)
    _, plan = step(restored, [], brain.policy, now)
    check(plan, restored.topology)
    for old, new in zip(brain.plan.models[0].tiers, plan.models[0].tiers, strict=True):
        assert new.weight == old.weight
        for was, is_now in zip(old.instances, new.instances, strict=True):
            assert (is_now.id, is_now.health, is_now.ceiling) == (was.id, was.health, was.ceiling)
            if was.ceiling > 0.0:
                assert is_now.weight == was.weight


@FEW
@given(HISTORY)
def test_corrections_stay_within_their_bounds(history):
    policy = Policy()
    brain = live(history)
    lowest, highest = policy.weights.correction_min, policy.weights.correction_max
    for model_state in brain.state.models:
        for tier_state in model_state.tiers:
            assert all(lowest <= c <= highest for c in tier_state.corrections)


@FEW
@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=2, max_size=60))
def test_small_moves_are_not_published(loads):
    """Where a published weight differs, some weight of the tier moved by more than the threshold."""
    brain = Brain(topology(model("chat", tier("primary", "a", "b"))))
    before = None
    for number, (one, other) in enumerate(loads):
        at = 1.0 + number
        brain.feed(sample("a", at, kv_ratio=one), sample("b", at, kv_ratio=other), at=at)
        weights = brain.weights()
        if before is not None and weights != before:
            assert any(abs(weights[n] - before[n]) > 0.02 * before[n] for n in weights)
        before = weights


def test_inputs_of_unknown_instances_are_ignored():
    brain = live([])
    state, plan = step(brain.state, [sample("nobody", 0.0)], brain.policy, 0.0)
    assert state is brain.state
    assert plan == replace(brain.plan, events=())
