"""Which class of requests gets which tier."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.plans import a_model, a_model_plan, a_plan, a_topology
from xds_server.core import classes
from xds_server.core.model import ClassName, ModelName, RequestClass, WhenCritical
from xds_server.core.plan import TIER_WEIGHT_TOTAL, Level, Plan

CHAT = ModelName("chat")
NOW = 100.0


def named(*names, **settings):
    return tuple(RequestClass(name=ClassName(name), **settings) for name in names)


CORE_FIRST = named("core", "elastic", "best_effort")


def divided(division, split, *, level=Level.HEALTHY):
    """Divide the plan of a model whose tiers get `split`; return the class plans."""
    model = a_model_plan(a_model(), split)
    first = replace(model.tiers[0], level=level)
    plan = Plan(models=(replace(model, tiers=(first, *model.tiers[1:])),), next_deadline=None)
    return classes.divide(division, plan)[1].models[0].classes


def demand_of(*ratios):
    return tuple(
        replace(each, demand_ratio=ratio) for each, ratio in zip(CORE_FIRST, ratios, strict=True)
    )


SPLITS = {
    "nothing spills": ([1000, 0, 0], [(1000, 0, 0)] * 3),
    "the last class spills a part": (
        [900, 100, 0],
        [(1000, 0, 0), (1000, 0, 0), (500, 500, 0)],
    ),
    "the last class spills all of it": (
        [800, 200, 0],
        [(1000, 0, 0), (1000, 0, 0), (0, 1000, 0)],
    ),
    "two classes spill, the last into the static tier": (
        [650, 200, 150],
        [(1000, 0, 0), (500, 500, 0), (0, 250, 750)],
    ),
    "even the first class spills": (
        [250, 250, 500],
        [(500, 500, 0), (0, 0, 1000), (0, 0, 1000)],
    ),
    "only the static tier is left": ([0, 0, 1000], [(0, 0, 1000)] * 3),
}


@pytest.mark.parametrize(("split", "expected"), SPLITS.values(), ids=SPLITS.keys())
def test_the_least_critical_class_spills_first(split, expected):
    division = classes.initial(demand_of(0.5, 0.3, 0.2))
    assert [plan.weights for plan in divided(division, split)] == expected


shares_of = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6).filter(lambda x: sum(x) > 0.01)


def unit(parts):
    return [part / sum(parts) for part in parts]


@given(shares_of.map(unit), shares_of)
def test_classes_keep_the_totals_of_the_tiers_and_each_adds_up(shares, demand):
    demand = classes._normal(demand)
    parts = classes.split(shares, demand)
    for part in parts:
        assert sum(part) == pytest.approx(1.0)
        assert all(0.0 <= share <= 1.0 for share in part)
    for tier, share in enumerate(shares):
        given_ = sum(ratio * part[tier] for ratio, part in zip(demand, parts, strict=True))
        assert given_ == pytest.approx(share, abs=1e-9)


@given(shares_of.map(unit), shares_of)
def test_no_class_is_served_lower_than_a_less_critical_one(shares, demand):
    parts = classes.split(shares, classes._normal(demand))
    for more, less in pairwise(parts):
        lowest = max(tier for tier, share in enumerate(more) if share > 1e-9)
        highest = min(tier for tier, share in enumerate(less) if share > 1e-9)
        assert lowest <= highest


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=3).filter(any), shares_of)
def test_the_weights_of_every_class_add_up(split, demand):
    stated = classes._normal(demand[:3] + [0.2] * (3 - len(demand[:3])))
    for plan in divided(classes.initial(demand_of(*stated)), split):
        assert sum(plan.weights) == TIER_WEIGHT_TOTAL
        assert min(plan.weights) >= 0


BELIEFS = {
    "nothing stated": ([None, None, None], [1 / 3, 1 / 3, 1 / 3]),
    "one stated": ([0.5, None, None], [0.5, 0.25, 0.25]),
    "all stated": ([0.5, 0.3, 0.2], [0.5, 0.3, 0.2]),
    "too little stated": ([0.1, 0.1, 0.2], [0.25, 0.25, 0.5]),
}


@pytest.mark.parametrize(("stated", "expected"), BELIEFS.values(), ids=BELIEFS.keys())
def test_before_anything_was_seen_shares_are_as_configured_or_equal(stated, expected):
    assert classes.believed(demand_of(*stated)) == pytest.approx(expected)


def test_a_class_of_which_nothing_is_left_still_has_a_place():
    last = classes.believed(demand_of(0.6, 0.4, None))[-1]
    assert last == pytest.approx(classes.DEMAND_MIN, rel=0.01)


def observed(counts, *, after_s=0.0, division=None):
    division = division or classes.initial(CORE_FIRST)
    return classes.observe(division, CHAT, counts, NOW + after_s)


def test_what_was_observed_soon_overrules_what_was_believed():
    few = classes.ratios(observed({"core": 9, "elastic": 1}), CHAT)
    assert 1 / 3 < few[0] < 0.9
    many = classes.ratios(observed({"core": 900, "elastic": 100}), CHAT)
    assert many == pytest.approx([0.9, 0.1, 0.0], abs=0.02)


def test_older_observations_fade_and_the_last_few_hundred_stay():
    division = observed({"core": 1000})
    division = observed({"elastic": 1000}, division=division, after_s=300.0)
    seen = division.observed[CHAT].counts
    assert seen == pytest.approx((classes.KEPT_REQUESTS, 1000.0, 0.0))
    calm = observed({}, division=observed({"core": 10}), after_s=1e6)
    assert calm.observed[CHAT].counts == (10.0, 0.0, 0.0)


def test_before_a_plan_nothing_has_to_follow():
    assert not classes.has_moved(observed({"core": 1000}), CHAT)


def test_nothing_seen_leaves_the_belief():
    division = observed({}, division=observed({}), after_s=1.0)
    assert classes.ratios(division, CHAT) == classes.believed(CORE_FIRST)


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf")])
def test_counts_that_are_none_are_refused(count):
    with pytest.raises(ValueError, match=r"chat: counts .*; expected finite numbers"):
        observed({"core": count})


def test_requests_of_unknown_classes_change_nothing():
    assert observed({"other": 5}).observed[CHAT].counts == (0.0, 0.0, 0.0)


def test_without_classes_the_plan_is_the_one_that_was_given():
    plan = a_plan(a_topology())
    division = classes.initial(())
    assert classes.divide(division, plan) == (division, plan)
    assert classes.divide(division, plan)[1] is plan
    assert classes.observe(division, CHAT, {"x": 1}, NOW) is division


def test_what_did_not_move_keeps_its_object():
    first, second = a_model("one"), a_model("two")
    plan = a_plan(a_topology(first, second), [700, 200, 100])
    division, once = classes.divide(classes.initial(CORE_FIRST), plan)
    division, again = classes.divide(division, plan)
    assert again.models is once.models
    # Another tuple of the same plans, as after a change elsewhere.
    division, again = classes.divide(division, replace(plan, models=(*plan.models,)))
    assert again.models is once.models
    # An equal plan in a new object.
    renewed = (a_model_plan(first, [700, 200, 100]), plan.models[1])
    division, again = classes.divide(division, replace(plan, models=renewed))
    assert again.models is once.models
    moved = (a_model_plan(first, [600, 300, 100]), plan.models[1])
    division, again = classes.divide(division, replace(plan, models=moved))
    assert again.models[0] is not once.models[0]
    assert again.models[1] is once.models[1]


def test_small_moves_of_the_shares_are_not_published():
    plan = a_plan(a_topology(), [700, 200, 100])
    division, once = classes.divide(
        observed({"core": 1000, "elastic": 1000, "best_effort": 1000}), plan
    )
    little = classes.observe(division, CHAT, {"core": 20}, NOW)
    little, still = classes.divide(little, plan)
    assert still.models is once.models
    # Also when the tiers move: only what they must.
    moved = a_plan(a_topology(), [690, 210, 100])
    _, after = classes.divide(little, moved)
    _, alone = classes.divide(division, moved)
    assert after.models[0].classes == alone.models[0].classes
    assert not classes.has_moved(little, CHAT)
    much = classes.observe(little, CHAT, {"core": 1000}, NOW)
    assert classes.has_moved(much, CHAT)
    _, after = classes.divide(much, plan)
    assert after.models[0].classes[0].demand_ratio > 0.45


CRITICAL = {
    WhenCritical.SERVE: ((0, 1000, 0), False, "class_spills"),
    WhenCritical.STATIC: ((0, 0, 1000), False, "class_shed"),
    WhenCritical.REJECT: ((0, 0, 1000), True, "class_shed"),
}


@pytest.mark.parametrize(("does", "expected"), CRITICAL.items(), ids=CRITICAL.keys())
def test_while_the_first_tier_is_critical_a_class_may_be_shed(does, expected):
    core, elastic, last = demand_of(0.5, 0.3, 0.2)
    division = classes.initial((core, elastic, replace(last, when_critical=does)))
    before = divided(division, [800, 200, 0])
    assert [(plan.reason.rule, plan.is_rejected) for plan in before] == [
        ("class_fits", False),
        ("class_fits", False),
        ("class_spills", False),
    ]
    *others, shed = divided(division, [800, 200, 0], level=Level.CRITICAL)
    assert (shed.weights, shed.is_rejected, shed.reason.rule) == expected
    second = (1000, 0, 0) if does is WhenCritical.SERVE else (467, 533, 0)
    assert [each.weights for each in others] == [(1000, 0, 0), second], "totals are of the rest"


def test_shedding_a_class_and_serving_it_again_are_events():
    core, elastic, last = demand_of(0.5, 0.3, 0.2)
    shed = replace(last, when_critical=WhenCritical.STATIC)
    division = classes.initial((core, elastic, shed))
    seen = []
    for level in (Level.HEALTHY, Level.CRITICAL, Level.CRITICAL, Level.DEGRADED, Level.HEALTHY):
        model = a_model_plan(a_model(), [800, 200, 0])
        first = replace(model.tiers[0], level=level)
        plan = replace(
            a_plan(a_topology()), models=(replace(model, tiers=(first, *model.tiers[1:])),)
        )
        division, after = classes.divide(division, plan)
        seen += [(each.name, each.tier, each.after, each.reason.rule) for each in after.events]
    assert seen == [
        ("class_shed", "primary", "best_effort", "class_shed"),
        ("class_served", "primary", "best_effort", "class_spills"),
    ]


def test_every_class_may_be_shed():
    shed = named("core", "rest", when_critical=WhenCritical.STATIC)
    plans = divided(classes.initial(shed), [800, 200, 0], level=Level.CRITICAL)
    assert [each.weights for each in plans] == [(0, 0, 1000)] * 2


def test_every_class_says_why_it_has_its_weights():
    division = classes.initial(demand_of(0.5, 0.3, 0.2))
    core, elastic, last = divided(division, [600, 400, 0])
    assert (core.reason.rule, core.weights) == ("class_fits", (1000, 0, 0))
    assert core.reason.text == "All of it fits primary."
    assert (elastic.reason.rule, elastic.weights) == ("class_spills", (333, 667, 0))
    assert elastic.reason.text == "A part of it fits primary, beside the classes before it."
    assert last.reason.text == "The classes before it take all that primary is given."
    assert last.reason.inputs == pytest.approx({"demand_ratio": 0.2, "first_tier_share": 0.6})


def test_a_restart_goes_on_with_the_same_weights():
    plan = a_plan(a_topology(), [700, 200, 100])
    division = observed({"core": 500, "elastic": 300, "best_effort": 100})
    division, before = classes.divide(division, plan)
    division = classes.observe(division, CHAT, {"core": 10}, NOW)  # too little to publish
    division, before = classes.divide(division, plan)
    restored = classes.restore(CORE_FIRST, classes.dump(division), NOW + 50.0)
    restored, after = classes.divide(restored, plan)
    assert after.models == before.models
    assert restored.observed[CHAT].counts == division.observed[CHAT].counts


def test_a_restart_before_anything_was_seen_knows_the_beliefs():
    division, _ = classes.divide(classes.initial(CORE_FIRST), a_plan(a_topology(), [700, 300, 0]))
    restored = classes.restore(CORE_FIRST, classes.dump(division), NOW)
    assert classes.ratios(restored, CHAT) == classes.believed(CORE_FIRST)


def test_other_classes_keep_what_was_observed_of_those_that_stay():
    division, _ = classes.divide(observed({"core": 500, "elastic": 300}), a_plan(a_topology()))
    others = named("elastic", "new")
    for after in (
        classes.retarget(division, others),
        classes.restore(others, classes.dump(division), NOW),
    ):
        assert after.classes == others
        assert after.observed[CHAT].counts == (300.0, 0.0)
    same = classes.retarget(division, CORE_FIRST)
    assert same.observed == division.observed


BROKEN = {
    "nothing": ([], r"state.classes: \[\]; expected names and models"),
    "no names": ({"models": {}}, "state.classes: .*; expected names and models"),
    "no models": ({"names": []}, "state.classes: .*; expected names and models"),
    "no counts": (
        {"names": ["a"], "models": {"chat": {}}},
        "state.classes.models.chat.counts: None; expected 1 numbers of at least 0",
    ),
    "not a model": (
        {"names": ["a"], "models": {"chat": 5}},
        "state.classes.models.chat.counts: None; expected",
    ),
    "too few": (
        {"names": ["a"], "models": {"chat": {"counts": []}}},
        r"chat.counts: \[\]; expected 1",
    ),
    "negative": (
        {"names": ["a"], "models": {"chat": {"counts": [1], "ratios": [-1]}}},
        r"chat.ratios: \[-1\]; expected 1",
    ),
    "text": (
        {"names": ["a"], "models": {"chat": {"counts": ["1"]}}},
        r"chat.counts: \['1'\]; expected 1",
    ),
    "not finite": (
        {"names": ["a"], "models": {"chat": {"counts": [float("nan")]}}},
        r"chat.counts: \[nan\]; expected 1",
    ),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_data_that_are_none_of_ours_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        classes.restore(CORE_FIRST, data, NOW)
