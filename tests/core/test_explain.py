from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.fakes.brain import Brain, gpu, sample, small_fleet
from xds_server.core import classes, faults, reasons
from xds_server.core.explain import UnknownSubjectError, changes_when, explain
from xds_server.core.model import ClassName, RequestClass, WhenCritical
from xds_server.core.plan import FaultState, Level, Plan
from xds_server.core.sample import EngineState, GpuHealth

ALL = ("a", "b", "c", "f")


@pytest.fixture
def brain() -> Brain:
    brain = Brain(small_fleet())
    brain.run(ALL, until=5.0)
    brain.feed(
        sample("a", 6.0, kv_ratio=0.7),
        sample("b", 6.0, state=EngineState.DOWN, out_of_memory=True, detail="exit code 137"),
        sample("c", 6.0, kv_ratio=0.3),
        sample("f", 6.0),
        at=6.0,
    )
    return brain


def test_an_instance_is_explained_from_inputs_to_weight(brain):
    told = explain(brain.plan, "a")
    assert told["rule"] == "load_above_mean"
    assert told["inputs"] == {"slots": 40.0, "correction": 0.8, "pressure": 0.7, "mean": 0.5}
    assert told["weight"] == 800
    assert told["calculation"].startswith(
        "capacity 40 x ceiling 100% x correction 0.80 = weight 800"
    )
    assert "pressure" in told["changes_when"]


def test_an_instance_that_is_out_weighs_nothing(brain):
    told = explain(brain.plan, "b")
    assert (told["weight"], told["health"], told["rule"]) == (0, "unhealthy", "out_of_memory")
    assert told["sentence"] == "It gets nothing: its engine ran out of memory (exit code 137)."
    assert told["inputs"]["detail"] == "exit code 137"
    assert told["pressure"] is None, "what it said before has no age that anybody knows"
    assert "fresh sample" in told["changes_when"]


def test_a_ramping_instance_says_when_the_next_stage_comes(brain):
    brain.feed(sample("b", 7.0), at=7.0)
    told = explain(brain.plan, "b")
    assert told["sentence"].startswith("10% of its capacity for now: its engine ran out of memory")
    assert f"The hold of this ramp is {told['inputs']['hold_s']:.1f} s." in told["changes_when"]
    assert told["inputs"]["stage"] == 0.0
    brain.feed(sample("b", 8.0, state=EngineState.DOWN), at=8.0)
    assert explain(brain.plan, "b")["inputs"]["relapses"] == 1.0


def test_a_tier_and_a_model_are_explained(brain):
    tier = explain(brain.plan, "chat/primary")
    assert (tier["kind"], tier["weight"], tier["of"]) == ("tier", 1000, 1000)
    assert [i["weight"] for i in tier["instances"]] == [800, 0, 1200]
    model = explain(brain.plan, "chat")
    assert model["sentence"].startswith(
        "Requests go to primary 100.0%, fallback 0.0%, static 0.0%."
    )
    assert [t["subject"] for t in model["tiers"]] == [
        "chat/primary",
        "chat/fallback",
        "chat/static",
    ]


@pytest.mark.parametrize("subject", ["chat", "chat/primary", "chat/static", "a", "b"])
def test_explanations_are_plain_json(brain, subject):
    assert json.loads(json.dumps(explain(brain.plan, subject)))["subject"] == subject


def test_an_unknown_subject_is_answered_with_what_there_is(brain):
    with pytest.raises(
        UnknownSubjectError,
        match=r"subject: 'x'; expected a model \(chat\), a tier \(chat/primary, .*instance \(a, b, c",
    ):
        explain(brain.plan, "x")
    with pytest.raises(LookupError, match=r"a model \(none\), a tier \(none\)"):
        explain(Plan(models=(), next_deadline=None), "x")


def test_a_tier_with_nobody_left_says_so():
    brain = Brain(small_fleet())
    brain.feed(*[sample(n, 1.0, state=EngineState.HUNG) for n in ALL], at=1.0)
    told = explain(brain.plan, "chat/primary")
    assert (told["rule"], told["weight"], told["spill"]) == ("no_capacity", 0, 1.0)
    assert told["changes_when"] == "An instance of the tier becoming able to take requests."
    assert explain(brain.plan, "a")["calculation"].endswith("0.0% of its tier, 0.0% of the model")


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"state": EngineState.LOADING}, "It gets nothing: its engine is loading the model."),
        ({"state": EngineState.SLEEPING}, "It gets nothing: its engine is asleep."),
        ({"gpu": gpu(GpuHealth.LOST)}, "It gets nothing: it lost a GPU."),
        (
            {"restarts": 3},
            "It gets nothing for a while, because it failed too often; at last its engine restarted.",
        ),
        ({"draining": True}, "No new requests, running ones may finish: its agent drains it."),
    ],
)
def test_sentences_of_what_takes_an_instance_out(facts, sentence):
    brain = Brain(small_fleet())
    brain.run(ALL, until=3.0)
    brain.feed(sample("a", 4.0, **facts), at=4.0)
    assert brain.instance("a").reason.text == sentence


def test_what_would_change_it_is_the_same_wherever_it_is_told(brain):
    for tier in brain.plan.models[0].tiers:
        assert changes_when(tier) == explain(brain.plan, f"chat/{tier.name}")["changes_when"]
        for instance in tier.instances:
            assert changes_when(instance) == explain(brain.plan, instance.id)["changes_when"]


def test_an_unknown_cause_reads_as_itself():
    track = replace(faults.present(0.0), state=FaultState.DOWN, cause="many_resets")
    assert reasons.track_sentence(track, 0.0) == "It gets nothing: many resets."
    assert reasons.track_sentence(faults.present(0.0), 1.0).endswith("it was there at the start.")


def test_the_classes_of_a_model_are_explained(brain):
    division = classes.initial(
        tuple(RequestClass(name=ClassName(name)) for name in ("core", "rest"))
    )
    moved = tuple(
        replace(tier, share=share)
        for tier, share in zip(brain.plan.models[0].tiers, (0.75, 0.25, 0.0), strict=True)
    )
    given = replace(brain.plan, models=(replace(brain.plan.models[0], tiers=moved),))
    _, plan = classes.divide(division, given)
    told = explain(plan, "chat/rest")
    assert (told["kind"], told["rule"]) == ("class", "class_spills")
    assert told["weights"] == {"primary": 500, "fallback": 500, "static": 0}
    assert told["calculation"] == (
        "50.0% of the model's requests; of them go to primary 50.0%, fallback 50.0%, static 0.0%"
    )
    assert [each["subject"] for each in explain(plan, "chat")["classes"]] == [
        "chat/core",
        "chat/rest",
    ]
    assert "classes" not in explain(brain.plan, "chat")


def test_a_class_that_is_rejected_says_so(brain):
    division = classes.initial(
        (RequestClass(name=ClassName("all"), when_critical=WhenCritical.REJECT),)
    )
    first, *others = brain.plan.models[0].tiers
    critical = replace(brain.plan.models[0], tiers=(replace(first, level=Level.CRITICAL), *others))
    _, plan = classes.divide(division, replace(brain.plan, models=(critical,)))
    told = explain(plan, "chat/all")
    assert told["is_rejected"]
    assert told["sentence"] == "primary is critical: requests of this class get a 429."
    assert told["calculation"].endswith("; all of it is rejected for now")
