from __future__ import annotations

from math import inf

import pytest

from xds_server.core.hysteresis import OFF, Latch, deadline, settled, silence, step


def test_a_latch_moves_only_after_its_hold():
    latch = step(OFF, changing=True, hold_s=60.0, now=0.0)
    assert latch == Latch(since=0.0)
    assert step(latch, changing=True, hold_s=60.0, now=59.9) is latch
    assert step(latch, changing=True, hold_s=60.0, now=60.0) == Latch(on=True)


def test_opposite_evidence_starts_the_hold_anew():
    latch = step(OFF, changing=True, hold_s=60.0, now=0.0)
    latch = step(latch, changing=False, hold_s=60.0, now=30.0)
    assert latch == OFF
    latch = step(latch, changing=True, hold_s=60.0, now=31.0)
    assert not step(latch, changing=True, hold_s=60.0, now=61.0).on


@pytest.mark.parametrize("on", [False, True], ids=["off", "on"])
def test_without_a_hold_it_moves_at_once_in_both_directions(on):
    assert step(Latch(on=on), changing=True, hold_s=0.0, now=5.0) == Latch(on=not on)


def test_nothing_new_keeps_the_object():
    on = Latch(on=True)
    assert step(on, changing=False, hold_s=1.0, now=1.0) is on
    assert silence(OFF, forget_s=30.0, now=1.0) is OFF
    silent = silence(on, forget_s=30.0, now=1.0)
    assert silence(silent, forget_s=30.0, now=2.0) is silent


def test_what_is_off_is_always_the_same_object():
    assert settled(on=False) is OFF
    assert step(Latch(on=True), changing=True, hold_s=0.0, now=1.0) is OFF
    assert step(Latch(since=1.0), changing=False, hold_s=9.0, now=2.0) is OFF
    assert silence(Latch(since=1.0), forget_s=30.0, now=2.0) is OFF


def test_silence_forgets_the_evidence_at_once_and_the_position_after_a_while():
    growing = Latch(on=True, since=4.0)
    silent = silence(growing, forget_s=30.0, now=5.0)
    assert silent == Latch(on=True, silent_since=5.0)
    assert silence(silent, forget_s=30.0, now=34.9) is silent
    assert silence(silent, forget_s=30.0, now=35.0) is OFF


@pytest.mark.parametrize("changing", [False, True])
def test_a_reading_ends_the_silence(changing):
    silent = silence(Latch(on=True), forget_s=30.0, now=5.0)
    after = step(silent, changing=changing, hold_s=60.0, now=20.0)
    assert after.on
    assert after.silent_since is None
    assert silence(after, forget_s=30.0, now=40.0).on


@pytest.mark.parametrize(
    ("latch", "due"),
    [
        pytest.param(OFF, inf, id="off"),
        pytest.param(Latch(on=True), inf, id="on"),
        pytest.param(Latch(since=4.0), 64.0, id="evidence"),
        pytest.param(Latch(on=True, since=4.0), 64.0, id="evidence of the end"),
        pytest.param(Latch(on=True, silent_since=4.0), 34.0, id="silence"),
    ],
)
def test_the_deadline_is_when_it_moves_by_itself(latch, due):
    assert deadline(latch, hold_s=60.0, forget_s=30.0) == due
