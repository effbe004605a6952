"""Parts on their way from one proxy to another: together never more than there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.core.handover import Handover
from xds_server.core.policy import AdmissionPolicy
from xds_server.core.shares import RESERVE, Shares

PATIENCE_S = 10.0


def update(handover, wanted, accepted="", now=0.0, patience_s=PATIENCE_S):
    return handover.update(wanted, accepted=set(accepted), patience_s=patience_s, now=now)


def test_first_parts_are_served_at_once():
    handover = Handover({})
    assert update(handover, {"a": 0.5, "b": 0.5})
    assert handover.served == {"a": 0.5, "b": 0.5}
    assert handover.is_done
    assert not update(handover, {"a": 0.5, "b": 0.5})


def test_what_is_given_was_let_go_before():
    handover = Handover({"a": 1.0})
    wanted = {"a": 0.5, "b": 0.5}
    assert update(handover, wanted)
    assert handover.served == {"a": 0.5}
    assert not handover.is_done
    assert not update(handover, wanted, now=1.0), "it has not accepted less yet"
    assert update(handover, wanted, "a", now=1.1)
    assert handover.served == wanted
    assert handover.is_done


def test_a_proxy_that_accepts_nothing_is_waited_for_no_longer_than_that():
    handover = Handover({"a": 1.0})
    wanted = {"a": 0.5, "b": 0.5}
    update(handover, wanted)
    assert not update(handover, wanted, now=PATIENCE_S - 0.1)
    assert update(handover, wanted, now=PATIENCE_S)
    assert handover.served == wanted


def test_one_that_is_slow_holds_up_no_more_than_what_it_has():
    handover = Handover(dict.fromkeys("abc", 1 / 3))
    wanted = dict.fromkeys("abcdef", 1 / 6)
    update(handover, wanted)
    update(handover, wanted, "ab")
    assert len(handover.served) == 5, "two have let go of what two of the three shall have"
    update(handover, wanted, "c")
    assert handover.served == wanted


def test_who_was_served_less_and_then_more_again_may_have_what_it_never_let_go():
    handover = Handover({"a": 0.5, "b": 0.5})
    update(handover, {"a": 0.25, "b": 0.75})
    assert handover.served == {"a": 0.25, "b": 0.5}
    assert update(handover, {"a": 0.5, "b": 0.5}, now=0.1)
    assert handover.served == {"a": 0.5, "b": 0.5}
    update(handover, {"a": 0.75, "b": 0.25}, now=0.2)
    update(handover, {"a": 0.75, "b": 0.25}, "ab", now=0.3)
    assert handover.served == {"a": 0.75, "b": 0.25}


def test_the_part_of_a_proxy_that_is_forgotten_is_free():
    handover = Handover({"a": 0.5, "b": 0.5})
    update(handover, {"a": 0.25, "b": 0.75})
    assert update(handover, {"b": 1.0})
    assert handover.served == {"b": 1.0}


def test_without_patience_everything_is_served_at_once():
    handover = Handover({"a": 1.0})
    assert update(handover, {"a": 0.5, "b": 0.5}, patience_s=0.0)
    assert handover.served == {"a": 0.5, "b": 0.5}


class Proxy:
    """Runs on what it accepted last; may be slow to."""

    def __init__(self) -> None:
        self.runs_on = 0.0

    def accept(self, part: float) -> None:
        self.runs_on = part


NAMES = "abcdef"
STEPS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(NAMES)),
        st.sets(st.sampled_from(NAMES)),
        st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1e3)),
        st.floats(0.01, 20.0),
    ),
    min_size=1,
    max_size=40,
)


@given(STEPS)
def test_all_together_never_run_on_more_than_there_is_whoever_is_slow_comes_or_goes(steps):
    """Whatever was divided: a proxy runs on its old part until it accepts, and is believed to until it is forgotten."""
    shares, now = Shares(AdmissionPolicy()), 0.0
    handover = Handover({})
    proxies: dict[str, Proxy] = {}
    for there, prompt, demand, wait_s in steps:
        now += wait_s
        for name in there & prompt & handover.served.keys():
            proxies.setdefault(name, Proxy()).accept(handover.served[name])
        accepted = {
            name
            for name in there & handover.served.keys()
            if name in proxies and proxies[name].runs_on == handover.served[name]
        }
        shares.update(there, demand, now)
        handover.update(shares.parts, accepted=accepted, patience_s=1e9, now=now)
        for gone in proxies.keys() - shares.parts.keys():
            del proxies[gone]
        most = [
            max(handover.served.get(name, 0.0), proxies[name].runs_on if name in proxies else 0.0)
            for name in proxies.keys() | handover.served.keys()
        ]
        assert sum(most) <= 1 + RESERVE + 1e-6
        # Once all have accepted, two more steps are enough for everybody to have its part.
        assert handover.is_done or handover.served.keys() <= shares.parts.keys()


@given(STEPS)
def test_where_everybody_accepts_the_next_step_serves_all_parts(steps):
    shares, now = Shares(AdmissionPolicy()), 0.0
    handover = Handover({})
    for there, _, demand, wait_s in steps:
        now += wait_s
        shares.update(there, demand, now)
        for _ in range(2):
            handover.update(shares.parts, accepted=set(handover.served), patience_s=1e9, now=now)
        assert handover.served == shares.parts
        assert handover.is_done


@pytest.mark.parametrize("count", [1, 3000])
def test_thousands_come_at_once(count):
    handover = Handover({"first": 1.0})
    wanted = dict.fromkeys(["first", *map(str, range(count))], 1 / (count + 1))
    update(handover, wanted)
    update(handover, wanted, ["first"])
    assert handover.served == wanted
