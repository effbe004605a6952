from __future__ import annotations

from dataclasses import replace

import pytest

from demo.incident import header_faults
from demo.outcome import Kind, Outcome
from demo.play import FALLBACK, PRIMARY, VICTIM
from demo.story import FAILOVER, Marks, effects
from demo.watch import Farewell

TIERS = {"llama-3-70b": PRIMARY, "llama-3-8b": FALLBACK}
ACTS = {"normal": 0.0, "overload": 10.0, "oom": 20.0, "both full": 30.0, "recovery": 40.0}
MARKS = Marks(
    acts=ACTS,
    died_s=20.0,
    back_s=36.0,
    whole_s=41.0,
    farewell=Farewell(last_attempt_after_s=0.2, attempts=3, told_after_s=0.4),
)


def at(started_s: float, model: str, *, reason: str = "", engine: str = "") -> Outcome:
    return Outcome(
        kind=Kind.PLAIN,
        proxy="sotw",
        started_s=started_s,
        ended_s=started_s + 0.1,
        status=200,
        model=model,
        reason=reason,
        engine=engine,
        is_complete=True,
    )


PLAY = [
    at(1, "llama-3-70b"),
    at(10.1, "llama-3-8b", reason=FAILOVER),
    at(10.5, "llama-3-8b", reason="demand"),
    at(30.7, "static", reason="demand"),
    at(36.4, "llama-3-70b", engine=VICTIM),
    at(40.5, "llama-3-8b", reason="demand"),
    at(41.0, "llama-3-70b"),
    at(41.5, "static", reason="demand"),
    at(42.0, "llama-3-70b"),
    at(45.1, "llama-3-70b"),
    at(46.0, "llama-3-8b", reason="critical_minimum"),
]
SETTLED = "the 70B answers everything again (for 3 s at least)"


def by_effect(outcomes, marks=MARKS) -> dict[str, float | None]:
    return {each.effect: each.after_s for each in effects(outcomes, marks, TIERS)}


def test_every_cause_has_the_time_of_the_first_request_that_obeyed():
    assert by_effect(PLAY) == {
        "first request that the control plane sent to the 8B": pytest.approx(0.5),
        "Envoy's own last attempt to reach it (3 in vain, none seen by a client)": pytest.approx(
            0.2
        ),
        "the control plane has taken it away from both Envoys": pytest.approx(0.4),
        "first static answer": pytest.approx(0.7),
        "first request that it answered": pytest.approx(0.4),
        "it has its whole share": pytest.approx(5.0),
        SETTLED: pytest.approx(2.0),
    }


def test_what_envoy_did_by_itself_is_not_the_control_planes_doing():
    alone = [at(10.1, "llama-3-8b", reason=FAILOVER)]

    assert by_effect(alone)["first request that the control plane sent to the 8B"] is None


def test_a_recovery_that_never_settles_is_never():
    unsettled = [*PLAY, at(44, "llama-3-8b")]

    assert by_effect(unsettled)[SETTLED] is None


def test_without_a_return_nothing_is_said_about_it():
    found = by_effect(PLAY, replace(MARKS, back_s=None, whole_s=None))

    assert not any("answered" in effect for effect in found)


@pytest.mark.parametrize(
    ("model", "is_downgraded", "reason", "faults"),
    [
        pytest.param("llama-3-70b", False, "", 0, id="the model that was asked for"),
        pytest.param("llama-3-8b", True, "demand", 0, id="a lower tier that says so"),
        pytest.param("llama-3-8b", False, "", 1, id="a lower tier in secret"),
        pytest.param("static", True, "", 1, id="a lower tier without a reason"),
        pytest.param("llama-3-70b", True, "failover", 1, id="the first tier that calls itself low"),
        pytest.param("", False, "", 1, id="nobody says who answered"),
    ],
)
def test_clients_must_be_told_who_answered_and_why(model, is_downgraded, reason, faults):
    outcome = replace(at(1, model, reason=reason), is_downgraded=is_downgraded)

    assert len(header_faults([outcome])) == faults
