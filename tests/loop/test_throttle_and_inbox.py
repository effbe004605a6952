from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.core.inputs import Drain, Evidence
from xds_server.core.model import InstanceId
from xds_server.core.sample import EngineFacts, EngineState, Sample
from xds_server.loop.inbox import Inbox
from xds_server.loop.throttle import MIN_GAP_S, Throttle


def sample(name: str = "a", state: EngineState = EngineState.UP, at: float = 0.0) -> Sample:
    return Sample(instance=InstanceId(name), observed_at=at, engine=EngineFacts(state=state))


DOWN = EngineState.DOWN


class Waker:
    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1


def test_an_isolated_change_waits_for_nothing():
    assert Throttle(0.05).earliest < 0
    assert Throttle(0.05).push_earliest < 0


@pytest.mark.parametrize(
    ("proxies", "gap_s"),
    [
        pytest.param(0, 0.05, id="nobody"),
        pytest.param(100, 0.05, id="few proxies: the configured gap"),
        pytest.param(1000, 0.3, id="many: half a core of pushes"),
        pytest.param(5000, 1.5, id="very many"),
    ],
)
def test_after_a_push_the_next_one_waits_for_the_gap_or_for_what_the_push_costs(proxies, gap_s):
    throttle = Throttle(0.05)
    throttle.pushed(at=10.0, proxies=proxies)
    assert throttle.push_earliest == pytest.approx(10.0 + gap_s)
    assert throttle.earliest < 0, "samples are decided upon meanwhile"


def test_an_evaluation_that_changed_nothing_costs_only_what_it_took():
    throttle = Throttle(0.05)
    throttle.evaluated(ended=10.0001, cost_s=0.0001)
    assert throttle.earliest == pytest.approx(10.0001 + MIN_GAP_S)
    throttle.evaluated(ended=10.01, cost_s=0.01)
    assert throttle.earliest == pytest.approx(10.04)
    throttle.evaluated(ended=11.0, cost_s=1.0)
    assert throttle.earliest == pytest.approx(11.05)


def test_a_busy_machine_does_not_make_evaluations_rarer():
    throttle = Throttle(0.05)
    throttle.evaluated(ended=10.04, cost_s=0.001)
    assert throttle.earliest == pytest.approx(10.041)


@given(st.lists(st.floats(0, 0.2), max_size=60), st.integers(0, 3000))
def test_under_a_storm_there_is_at_most_one_push_per_gap(waits, proxies):
    throttle, now, pushes = Throttle(0.05), 0.0, []
    for wait_s in waits:
        now = max(now + wait_s, throttle.push_earliest)
        pushes.append(now)
        throttle.pushed(at=now, proxies=proxies)
    gap_s = max(0.05, 0.0003 * proxies)
    assert all(b - a >= gap_s - 1e-9 for a, b in itertools.pairwise(pushes))


def test_only_the_newest_sample_of_an_instance_is_kept():
    inbox = Inbox(Waker())
    for at in range(1000):
        inbox.offer(sample("a", at=at))
        inbox.offer(sample("b", at=at))
    assert [each.observed_at for each in inbox.take()] == [999, 999]
    assert not inbox
    assert inbox.take() == []


def test_the_loop_is_woken_once_for_many_samples():
    waker = Waker()
    inbox = Inbox(waker)
    for at in range(100):
        inbox.offer(sample(f"i{at}", at=at))
    assert waker.count == 1
    inbox.take()
    inbox.offer(sample())
    assert waker.count == 2


def test_a_fault_is_urgent_once_and_not_with_every_sample_that_repeats_it():
    waker = Waker()
    inbox = Inbox(waker)
    inbox.offer(sample("b"))
    inbox.offer(sample("a", DOWN))
    assert inbox.is_urgent
    assert waker.count == 2
    inbox.take()
    assert not inbox.is_urgent
    inbox.offer(sample("a", DOWN))
    assert not inbox.is_urgent
    inbox.offer(sample("a"))
    inbox.offer(sample("a", DOWN))
    assert inbox.is_urgent


def test_a_fault_is_never_lost_behind_a_later_good_sample():
    inbox = Inbox(Waker())
    inbox.offer(sample("a", DOWN, at=1))
    inbox.offer(sample("a", at=2))
    assert [each.engine.state for each in inbox.take()] == [DOWN, EngineState.UP]


def test_a_command_does_not_wait_and_comes_first():
    waker = Waker()
    inbox = Inbox(waker)
    inbox.offer(sample())
    drain = Drain(instance=InstanceId("a"), draining=True, who="me")
    inbox.command(drain)
    assert inbox.is_urgent
    assert waker.count == 2
    assert inbox.take()[0] is drain


def test_what_proxies_saw_against_an_instance_does_not_wait_and_praise_does():
    waker = Waker()
    inbox = Inbox(waker)
    praise = Evidence(instance=InstanceId("a"), observed_at=1.0, cause="")
    inbox.hear(praise)
    inbox.hear(praise)
    assert not inbox.is_urgent
    assert waker.count == 1
    inbox.hear(Evidence(instance=InstanceId("a"), observed_at=2.0, cause="proxies_failure_rate"))
    assert inbox.is_urgent
    assert waker.count == 2
    assert [each.cause for each in inbox.take()] == ["", "", "proxies_failure_rate"]


def test_an_instance_that_left_and_came_back_is_faulty_anew():
    inbox = Inbox(Waker())
    inbox.offer(sample("a", DOWN))
    inbox.offer(sample("b", DOWN))
    inbox.take()
    inbox.keep({InstanceId("b")})
    inbox.offer(sample("b", DOWN))
    assert not inbox.is_urgent, "it was known to be down"
    inbox.offer(sample("a", DOWN))
    assert inbox.is_urgent
