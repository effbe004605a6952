from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from demo.incident import Incident
from demo.outcome import Death, Kind, Outcome
from demo.play import ACTS, FALLBACK_MODEL, PRIMARY_MODEL, VICTIM
from demo.report import Phase
from demo.scene import Scene
from demo.watch import Farewell, InstanceView, TierView, Watch

ADDRESS = "127.0.0.1:8002"


def at(second: float, model: str = PRIMARY_MODEL, **changes) -> Outcome:
    is_lower = model != PRIMARY_MODEL
    outcome = Outcome(
        kind=Kind.STREAM,
        proxy="sotw",
        started_s=second,
        headers_s=second,
        first_byte_s=second + 0.1,
        ended_s=second + 0.5,
        status=200,
        model=model,
        is_downgraded=is_lower,
        reason="demand_exceeds_capacity" if is_lower else "",
        engine="" if model == "static" else "a100-0",
        is_complete=True,
    )
    return replace(outcome, **changes)


GOOD = [
    at(1, kind=Kind.PLAIN),
    at(11, FALLBACK_MODEL),
    at(31, "static"),
    at(34, engine=VICTIM),
    *(at(40 + second) for second in range(5)),
]


def played(outcomes: list[Outcome], **seen) -> tuple[list[str], str]:
    """Report a play of which the acts began at 0, 10, 20, 30 and 40 s."""
    watch = Watch(None, server="", engines={}, proxies={})  # type: ignore[arg-type]
    scene = Scene(watch=watch, tiers={}, started_s=0.0)
    scene.outcomes = outcomes
    scene.deaths = [Death(engine=VICTIM, at_s=20.0)]
    incident = Incident(None, scene, None, ACTS)  # type: ignore[arg-type]
    incident.phases = [
        Phase(name=act.name, start_s=10.0 * index, end_s=10.0 * index + 10)
        for index, act in enumerate(ACTS)
    ]
    incident.farewell = Farewell(last_attempt_after_s=0.0, attempts=0, told_after_s=0.2)
    watch.engines = {VICTIM: {"deaths": [{"at_s": 20.0, "back_at_s": 33.0}]}}
    victim = InstanceView(
        name=VICTIM,
        state=seen.get("state", "healthy"),
        health="healthy",
        ceiling=1.0,
        weight=1000,
        pressure=None,
        reason="",
    )
    watch.tiers = (
        TierView(
            name="primary",
            level="healthy",
            share=1.0,
            pressure=0.0,
            spill=0.0,
            reason="",
            instances=(victim,),
        ),
    )
    incident.narrate()
    console = Console(file=io.StringIO(), width=150)
    return incident.report(console), console.file.getvalue()


def test_a_good_play_has_no_fault():
    faults, text = played(GOOD)

    assert faults == []
    assert "a100-1 has reloaded and listens again" in text
    assert "Through the Envoy that speaks state of the world: 9 requests, 0 failed." in text


def test_a_stream_that_the_death_cut_is_no_fault_and_counted():
    faults, text = played([*GOOD, at(19.8, engine=VICTIM, ended_s=20.1, is_complete=False)])

    assert faults == []
    assert "cut" in text


def test_every_failed_request_is_named_with_its_time_and_error():
    refused = at(12.5, status=503, is_complete=False, error="status 503: b'no healthy upstream'")
    faults, _ = played([*GOOD, refused])

    assert faults == [
        "failed: stream request through sotw at 12.5 s: status 503: b'no healthy upstream'"
    ]


def test_what_never_happened_is_a_fault():
    faults, _ = played([each for each in GOOD if each.model != "static"])

    assert faults == [
        "never seen: first static answer (after: more load than both models can take)"
    ]


def test_an_instance_that_does_not_get_its_share_back_is_a_fault():
    faults, _ = played(GOOD, state="recovering")

    assert faults == ["never seen: it has its whole share (after: a100-1 serves again)"]


def test_a_play_without_plain_requests_proves_too_little():
    faults, _ = played([replace(each, kind=Kind.STREAM) for each in GOOD])

    assert faults == ["never sent: a plain request"]
