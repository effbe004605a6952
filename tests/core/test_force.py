"""An operator gives one tier all requests: for a time, and only while it can serve."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.fakes.brain import Brain, model, sample, small_fleet, tier, topology
from xds_server.core import classes, persist
from xds_server.core.evaluate import evaluate
from xds_server.core.explain import explain
from xds_server.core.inputs import Force
from xds_server.core.model import ClassName, ModelName, RequestClass, TierName, WhenCritical
from xds_server.core.plan import Level
from xds_server.core.sample import EngineState

EVERY = ("a", "b", "c", "f")
UNIX_S = 1_700_000_000.0


def order(name: str | None, *, until: float = 100.0, chat: str = "chat", **said: str) -> Force:
    return Force(
        model=ModelName(chat),
        tier=None if name is None else TierName(name),
        until=until,
        until_unix_s=UNIX_S + until,
        **{"who": "ann", "why": "new weights"} | said,
    )


def shares(brain: Brain) -> dict[str, int]:
    return {each.name: each.weight for each in brain.model().tiers}


@pytest.fixture
def brain() -> Brain:
    made = Brain(small_fleet())
    made.run(EVERY, until=10.0)
    return made


@pytest.mark.parametrize("name", ["primary", "fallback", "static"])
def test_a_forced_tier_gets_everything_until_its_time_is_over(brain, name):
    brain.feed(order(name, until=20.0))
    assert shares(brain) == {"primary": 0, "fallback": 0, "static": 0} | {name: 1000}
    assert brain.model().tiers[0].spill == (0.0 if name == "primary" else 1.0)
    for each in brain.model().tiers:
        assert each.reason.rule == "forced"
        assert each.reason.inputs == {
            "tier": name,
            "who": "ann",
            "why": "new weights",
            "until": "2023-11-14T22:13:40Z",
        }
    assert brain.plan.next_deadline is not None
    assert brain.plan.next_deadline <= 20.0
    # What goes to the static answer reaches no engine: their counters stand still.
    still = {"finished_total": 20.0, "running": 0.0} if name == "static" else {}
    brain.run(EVERY, until=19.0, **still)
    assert shares(brain)[name] == 1000
    brain.until(20.0)
    assert shares(brain)["primary"] == 1000
    assert brain.tier().reason.rule != "forced"
    [(_, begun)], [(at, ended)] = brain.named("tier_forced"), brain.named("force_ended")
    assert (begun.tier, begun.before, begun.after) == (name, "", name)
    assert (at, ended.before, ended.reason.rule) == (20.0, name, "force_over")


def test_an_order_says_who_and_why_in_every_explanation(brain):
    brain.feed(order("fallback"))
    for subject in ("chat/primary", "chat/fallback", "chat/static"):
        found = explain(brain.plan, subject)
        assert found["sentence"] == (
            "ann gives all requests to fallback until 2023-11-14T22:15:00Z: new weights."
        )
        assert "unforce" in found["changes_when"]


def test_another_order_replaces_the_first_and_its_reason(brain):
    brain.feed(order("fallback"))
    brain.feed(order("fallback", who="bob", why="longer", until=200.0))
    assert "bob" in brain.tier().reason.text
    brain.feed(order("static"))
    assert shares(brain)["static"] == 1000
    assert [each.before for _, each in brain.named("tier_forced")] == ["", "fallback", "fallback"]


def test_what_does_not_change_an_order_publishes_nothing_new(brain):
    brain.feed(order("fallback"))
    before = brain.model()
    brain.run(EVERY, until=15.0)
    assert brain.model().tiers[2] is before.tiers[2]


@pytest.mark.parametrize(
    ("why", "text"), [("done", "bob takes it back: done."), ("", "bob takes it back.")]
)
def test_an_order_that_is_taken_back_ends_at_once(brain, why, text):
    brain.feed(order("fallback"))
    brain.feed(order(None, who="bob", why=why))
    assert shares(brain)["primary"] == 1000
    [(_, event)] = brain.named("force_ended")
    assert (event.reason.rule, event.reason.text) == ("unforced", text)


@pytest.mark.parametrize(
    "nothing",
    [
        pytest.param(order(None), id="nothing-to-take-back"),
        pytest.param(order("nowhere"), id="unknown-tier"),
        pytest.param(order("fallback", chat="nobody"), id="unknown-model"),
    ],
)
def test_orders_that_mean_nothing_change_nothing(brain, nothing):
    before = brain.model()
    brain.feed(nothing)
    assert brain.model() is before
    assert brain.named("tier_forced") == brain.named("force_ended") == []


def test_other_models_are_left_alone():
    brain = Brain(topology(model("chat", tier("primary", "a")), model("code", tier("big", "z"))))
    brain.feed(order("static", chat="code"))
    assert brain.tier().weight == 1000
    assert brain.tier("static", "code").weight == 1000


def test_a_forced_tier_that_can_serve_nothing_is_left_at_once(brain):
    brain.feed(order("fallback"))
    brain.feed(sample("f", 11.0, state=EngineState.DOWN), at=11.0)
    assert shares(brain) == {"primary": 1000, "fallback": 0, "static": 0}
    [(_, event)] = brain.named("force_ended")
    assert event.reason.rule == "no_capacity"
    brain.run(("a", "b", "c", "f"), until=60.0)
    assert shares(brain)["primary"] == 1000, "it is not taken up again"


def test_an_order_survives_a_reload_as_long_as_its_tier_does(brain):
    brain.feed(order("fallback"))
    brain.retarget(topology(model("chat", tier("primary", "a", "b"), tier("fallback", "f"))))
    assert shares(brain)["fallback"] == 1000
    assert brain.named("force_ended") == []
    brain.retarget(topology(model("chat", tier("primary", "a", "b"))))
    assert shares(brain) == {"primary": 1000, "static": 0}
    [(_, event)] = brain.named("force_ended")
    assert (event.tier, event.reason.rule) == ("fallback", "removed")


def test_an_order_survives_a_restart_and_ends_when_it_was_said_to(brain):
    brain.feed(order("fallback", until=40.0))
    kept = json.loads(json.dumps(persist.dump(brain.state, brain.plan, 10.0)))
    state = persist.restore(small_fleet(), brain.policy, kept, 1000.0, away_s=10.0)
    assert state.pending == ()
    state, plan = evaluate(state, brain.policy, 1000.0)
    assert [each.weight for each in plan.models[0].tiers] == [0, 1000, 0]
    assert "ann" in plan.models[0].tiers[0].reason.text
    _, plan = evaluate(state, brain.policy, 1019.9)
    assert plan.models[0].tiers[1].weight == 1000
    _, plan = evaluate(state, brain.policy, 1020.0)
    assert plan.models[0].tiers[1].weight == 0


def test_an_order_that_ended_while_nobody_ran_is_told_at_the_start(brain):
    brain.feed(order("fallback", until=40.0))
    kept = persist.dump(brain.state, brain.plan, 10.0)
    state = persist.restore(small_fleet(), brain.policy, kept, 1000.0, away_s=60.0)
    _, plan = evaluate(state, brain.policy, 1000.0)
    assert [each.name for each in plan.events] == ["force_ended"]
    assert plan.models[0].tiers[0].weight == 1000


@pytest.mark.parametrize("kept", ["absent", "none"])
def test_a_state_without_an_order_has_none(brain, kept):
    data = persist.dump(brain.state, brain.plan, 10.0)
    if kept == "absent":
        del data["models"]["chat"]["forced"]
    state = persist.restore(small_fleet(), brain.policy, data, 1000.0)
    assert state.models[0].forced is None


def test_an_order_with_an_impossible_date_is_refused(brain):
    brain.feed(order("fallback"))
    data = persist.dump(brain.state, brain.plan, 10.0)
    data["models"]["chat"]["forced"]["until_unix_s"] = 1e300
    with pytest.raises(ValueError, match=r"state\.models\.chat\.forced\.until_unix_s"):
        persist.restore(small_fleet(), brain.policy, data, 1000.0)


def test_demand_is_still_known_after_everything_went_to_the_static_answer(brain):
    brain.run(EVERY, until=60.0)
    before = brain.state.models[0].spill.demand
    assert before
    brain.feed(order("static", until=120.0))
    for at in range(61, 120):
        # No request reaches an engine: its counters stand still.
        brain.feed(*[sample(n, at, finished_total=120.0, running=0.0) for n in EVERY], at=float(at))
    assert brain.state.models[0].spill.unseen_ratio > 0.9
    assert brain.state.models[0].spill.demand == before


def test_classes_that_are_shed_while_the_first_tier_is_critical_follow_an_order_too(brain):
    request_classes = (
        RequestClass(name=ClassName("core"), header="x-class", value="core"),
        RequestClass(name=ClassName("rest"), when_critical=WhenCritical.REJECT),
    )
    brain.feed(order("fallback"))
    critical = replace(
        brain.plan,
        models=(
            replace(
                brain.model(),
                tiers=(
                    replace(brain.tier(), level=Level.CRITICAL),
                    *brain.model().tiers[1:],
                ),
            ),
        ),
    )
    _, plan = classes.divide(classes.initial(request_classes), critical)
    assert [each.weights for each in plan.models[0].classes] == [(0, 1000, 0)] * 2
    assert not any(each.is_shed for each in plan.models[0].classes)
