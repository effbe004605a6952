from __future__ import annotations

import pytest

from xds_server.core.hysteresis import OFF, Latch, interrupt, step


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
    assert interrupt(on) is on


def test_an_interruption_forgets_the_evidence_but_not_the_position():
    assert interrupt(Latch(on=True, since=4.0)) == Latch(on=True)
