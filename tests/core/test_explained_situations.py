"""What `explain` says in the situations people on call meet: the rule and the numbers that really decided.

Each situation is played to the brain sample by sample. Its explanation has to name the rule of the plan, its numbers
have to give the weight that proxies are sent, and the sentence has to reach who asks on the command line. Then the
cause is taken away, and the rule has to go with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.core.test_force import order
from tests.fakes.brain import GIB, Brain, gpu, sample, small_fleet
from xds_server.commands.explanation import told
from xds_server.core.evidence import IN_ROW, RATE
from xds_server.core.explain import explain
from xds_server.core.inputs import Evidence
from xds_server.core.model import InstanceId
from xds_server.core.sample import EngineState, GpuHealth

ALL = ("a", "b", "c", "f")
WARM_S = 10.0
Script = Callable[[Brain], object]


def says(**facts: object) -> Script:
    """Return what feeds one sample of `a` a moment later, the others as ever."""

    def script(brain: Brain) -> None:
        at = brain.now + 1.0
        others = [sample(name, at) for name in "bcf"]
        brain.feed(sample("a", at, **facts), *others, at=at)

    return script


def says_for(seconds: float, **facts: object) -> Script:
    """The same once a second."""

    def script(brain: Brain) -> None:
        for _ in range(round(seconds)):
            says(**facts)(brain)

    return script


def silent_for(seconds: float, *names: str) -> Script:
    """Return what lets some be silent and the others go on."""

    def script(brain: Brain) -> None:
        others = [name for name in ALL if name not in names]
        brain.run(others, until=brain.now + seconds)
        brain.until(brain.now)

    return script


def well_for(seconds: float) -> Script:
    return lambda brain: brain.run(ALL, until=brain.now + seconds)


def seen(cause: str, detail: str) -> Script:
    def script(brain: Brain) -> None:
        at = brain.now + 0.2
        failed = Evidence(instance=InstanceId("a"), observed_at=at, cause=cause, detail=detail)
        brain.feed(failed, at=at)

    return script


def then(*scripts: Script) -> Script:
    def script(brain: Brain) -> None:
        for each in scripts:
            each(brain)

    return script


WELL_AGAIN = well_for(200.0)
DIES = says(state=EngineState.DOWN, out_of_memory=True, detail="exit code 137")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What happens, and what is to be said of it."""

    name: str
    happens: Script
    rule: str
    ends: Script = WELL_AGAIN
    """Takes the cause away: the rule has to be another one after it."""
    subject: str = "a"
    numbers: tuple[str, ...] = ()
    """Names that must be among the inputs."""
    words: str = ""
    """Must be in the sentence."""


SITUATIONS = (
    Situation(
        name="as busy as the others",
        happens=well_for(5.0),
        rule="load_balanced",
        ends=DIES,
        numbers=("slots", "correction", "pressure", "mean"),
    ),
    Situation(
        name="busier than the others",
        happens=says_for(10.0, kv_ratio=0.8),
        rule="load_above_mean",
        numbers=("slots", "correction", "pressure", "mean"),
        words="Busier",
    ),
    Situation(
        name="less busy than the others",
        happens=says_for(10.0, kv_ratio=0.05),
        rule="load_below_mean",
        numbers=("slots", "correction", "pressure", "mean"),
    ),
    Situation(
        name="an engine that does not say how busy it is",
        happens=says_for(40.0, kv_ratio=None, waiting=None, running=None),
        rule="load_unknown",
        numbers=("slots", "correction"),
    ),
    Situation(
        name="an agent that has just fallen silent",
        happens=silent_for(5.0, "a"),
        rule="telemetry_hold",
        words="stale",
    ),
    Situation(
        name="an agent that has been silent for long",
        happens=silent_for(120.0, "a"),
        rule="telemetry_blind",
        words="no telemetry",
    ),
    Situation(
        name="most of a tier's agents are silent",
        happens=silent_for(120.0, "a", "b"),
        rule="tier_frozen",
    ),
    Situation(
        name="telemetry that was lost while it was busy",
        happens=then(says_for(20.0, kv_ratio=0.8), silent_for(33.0, "a")),
        rule="telemetry_easing",
    ),
    Situation(
        name="an engine that is gone",
        happens=says(state=EngineState.DOWN, detail="connection refused"),
        rule="engine_down",
        numbers=("ceiling", "detail"),
        words="connection refused",
    ),
    Situation(
        name="out of memory",
        happens=DIES,
        rule="out_of_memory",
        numbers=("ceiling", "detail"),
        words="exit code 137",
    ),
    Situation(
        name="an engine that hangs",
        happens=says(state=EngineState.HUNG),
        rule="engine_hung",
        numbers=("ceiling",),
    ),
    Situation(
        name="an engine that loads",
        happens=says(state=EngineState.LOADING, kv_ratio=None, running=None),
        rule="engine_loading",
        numbers=("ceiling",),
    ),
    Situation(
        name="an engine that sleeps",
        happens=says(state=EngineState.SLEEPING),
        rule="engine_sleeping",
        numbers=("ceiling",),
    ),
    Situation(
        name="a GPU that fell off the bus",
        happens=says(gpu=gpu(GpuHealth.LOST)),
        rule="gpu_lost",
        numbers=("ceiling",),
    ),
    Situation(
        name="a GPU that needs a reset",
        happens=says(gpu=gpu(GpuHealth.RESET_REQUIRED)),
        rule="gpu_reset_required",
        numbers=("ceiling",),
    ),
    Situation(
        name="a GPU that its hardware throttles",
        happens=says_for(60.0, gpu=gpu(GpuHealth.THROTTLED)),
        ends=says_for(60.0, gpu=gpu(GpuHealth.OK)),
        rule="gpu_throttled",
        numbers=("slots", "correction", "ceiling"),
    ),
    Situation(
        name="GPU memory that runs short",
        happens=then(
            says_for(5.0, gpu=gpu(ratio=0.9, free=8 * GIB)),
            says_for(30.0, gpu=gpu(ratio=0.999, free=GIB // 20)),
        ),
        rule="vram_pressure",
        ends=says_for(200.0, gpu=gpu(ratio=0.9, free=8 * GIB)),
        numbers=("slots", "correction", "ceiling"),
    ),
    Situation(
        name="an engine that restarts again and again",
        happens=says(restarts=3),
        rule="engine_restarted",
        ends=then(says_for(1000.0, restarts=3)),
        numbers=("ceiling",),
        words="failed too often",
    ),
    Situation(
        name="an agent that drains",
        happens=says(draining=True),
        rule="agent_drain",
        words="agent drains",
    ),
    Situation(
        name="an operator who drains",
        happens=lambda brain: brain.drain("a", who="ann", why="new driver"),
        rule="operator_drain",
        ends=then(lambda brain: brain.drain("a", draining=False), well_for(200.0)),
        words="new driver",
    ),
    Situation(
        name="the first step back after out of memory",
        happens=then(DIES, well_for(1.0)),
        rule="out_of_memory",
        numbers=("ceiling", "stage", "hold_s"),
        words="10% of its capacity",
    ),
    Situation(
        name="back for good",
        happens=then(DIES, well_for(150.0)),
        rule="load_balanced",
        ends=DIES,
    ),
    Situation(
        name="three requests in a row that proxies saw fail",
        happens=seen(IN_ROW, "3 in a row: 3 error"),
        rule=IN_ROW,
        numbers=("ceiling", "detail"),
        words="3 in a row",
    ),
    Situation(
        name="too many failed requests",
        happens=seen(RATE, "12 of 20 failed"),
        rule=RATE,
        numbers=("ceiling", "detail"),
        words="12 of 20 failed",
    ),
    Situation(
        name="a tier in which everything fits",
        happens=well_for(5.0),
        rule="fits",
        ends=lambda brain: brain.feed(
            *[sample(n, brain.now + 1, state=EngineState.DOWN) for n in "abc"], at=brain.now + 1
        ),
        subject="chat/primary",
    ),
    Situation(
        name="a tier that nobody of is left",
        happens=lambda brain: brain.feed(
            *[sample(n, brain.now + 1, state=EngineState.DOWN) for n in "abc"], at=brain.now + 1
        ),
        rule="no_capacity",
        subject="chat/primary",
    ),
    Situation(
        name="more demand than a tier can take",
        happens=lambda brain: _overload(brain, 60.0),
        rule="demand_exceeds_capacity",
        subject="chat/primary",
    ),
    Situation(
        name="a tier that an operator forces",
        happens=lambda brain: brain.feed(order("fallback", until=brain.now + 20.0), at=brain.now),
        rule="forced",
        ends=well_for(30.0),
        subject="chat/fallback",
        numbers=("tier", "who", "why", "until"),
    ),
    Situation(
        name="a forced static answer, seen from the tier that gets nothing",
        happens=lambda brain: brain.feed(order("static", until=brain.now + 5.0), at=brain.now),
        rule="forced",
        ends=well_for(30.0),
        subject="chat/primary",
        numbers=("tier", "who", "why", "until"),
    ),
)


def _overload(brain: Brain, seconds: float) -> None:
    """A tier whose engines are full and whose queues grow, finishing 6 requests a second each."""
    for step in range(round(seconds)):
        at = brain.now + 1.0
        finished = 20.0 + 6.0 * step
        full = {"kv_ratio": 0.97, "running": 40.0, "waiting": 10.0 + 2.0 * step}
        brain.feed(
            *[sample(name, at, finished_total=finished, **full) for name in "abc"],
            sample("f", at),
            at=at,
        )


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.name)
def test_explain_names_the_rule_and_the_numbers_that_decided(situation):
    brain = Brain(small_fleet())
    brain.run(ALL, until=WARM_S)
    situation.happens(brain)
    answer = json.loads(json.dumps(explain(brain.plan, situation.subject)))
    assert answer["rule"] == situation.rule, answer
    assert answer["rule"] == _decided(brain, situation.subject), "the core's own reason"
    assert set(situation.numbers) <= set(answer["inputs"]), answer
    assert situation.words in answer["sentence"]
    lines = told(answer)
    assert answer["sentence"] in lines
    assert answer["calculation"] in lines
    assert f"What changes it: {answer['changes_when']}" in lines
    if answer["kind"] == "instance":
        _assert_that_the_numbers_give_the_weight(brain, answer)
    else:
        _assert_that_shares_give_the_weight(brain, answer)
    situation.ends(brain)
    assert explain(brain.plan, situation.subject)["rule"] != situation.rule


def _decided(brain: Brain, subject: str) -> str:
    if "/" in subject:
        return brain.tier(subject.partition("/")[2]).reason.rule
    return brain.instance(subject).reason.rule


def _assert_that_the_numbers_give_the_weight(brain: Brain, answer) -> None:
    """The ratio to a well instance of the tier has to follow from what is said of both."""
    if answer["ceiling"] == 0.0 or answer["health"] != "healthy":
        assert answer["weight"] == 0
        return
    other = explain(brain.plan, "c")

    def effect(one) -> float:
        inputs = one["inputs"]
        return inputs.get("slots", 40.0) * one["ceiling"] * inputs.get("correction", 1.0)

    assert answer["weight"] / other["weight"] == pytest.approx(
        effect(answer) / effect(other), rel=0.02
    )


def _assert_that_shares_give_the_weight(brain: Brain, answer) -> None:
    assert answer["weight"] == pytest.approx(answer["share"] * answer["of"], abs=1)
    assert answer["weight"] == brain.tier(answer["subject"].partition("/")[2]).weight
