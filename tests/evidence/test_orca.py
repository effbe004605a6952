"""From engines' load reports to samples: what is read, and when it may stand in for an agent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.brain import gpu, sample
from xds_server.core.model import InstanceId
from xds_server.core.policy import TelemetryPolicy
from xds_server.core.sample import EngineState, GpuHealth
from xds_server.evidence.entry import EndpointLoad
from xds_server.evidence.orca import KV, SPEAKER, WAITING, Report, StandIn, read

A = InstanceId("a")
REPORT = Report(0.5, 3.0, 4)
POLICY = TelemetryPolicy()
NAN = float("nan")


@pytest.mark.parametrize(
    ("metrics", "report"),
    [
        pytest.param({KV[0]: (2.0, 4), WAITING[0]: (12.0, 4)}, Report(0.5, 3.0, 4), id="vLLM"),
        pytest.param({KV[1]: (1.5, 2)}, Report(0.75, None, 2), id="Triton, without a queue"),
        pytest.param({WAITING[0]: (0.0, 3)}, Report(None, 0.0, 3), id="zero is a number"),
        pytest.param({KV[0]: (1.005, 1)}, Report(1.0, None, 1), id="rounding of one"),
        pytest.param({KV[0]: (50.0, 1)}, None, id="percent is no ratio"),
        pytest.param({KV[0]: (-0.1, 1)}, None, id="below zero"),
        pytest.param({KV[0]: (NAN, 1)}, None, id="no number"),
        pytest.param({KV[0]: (9.0, 1), WAITING[0]: (1.0, 1)}, Report(None, 1.0, 1), id="half bad"),
        pytest.param({KV[0]: (0.0, 0)}, None, id="no answer carried it"),
        pytest.param({"named_metrics.other": (1.0, 1)}, None, id="of something else"),
        pytest.param({}, None, id="nothing"),
    ],
)
def test_the_mean_of_what_engines_report_is_read_and_nonsense_is_missing(metrics, report):
    assert read(metrics) == report


@given(
    st.dictionaries(
        st.sampled_from([*KV, *WAITING]), st.tuples(st.floats(), st.integers(-5, 10)), max_size=3
    )
)
def test_whatever_is_reported_only_believable_numbers_come_out(metrics):
    report = read(metrics)
    if report is not None:
        assert report.kv_ratio is None or 0.0 <= report.kv_ratio <= 1.0
        assert report.waiting is None or 0.0 <= report.waiting < 1e16
        assert report.answers > 0


def stand_in(last=None):
    return StandIn(latest=lambda _: last, policy=lambda: POLICY)


def load(*, ok=0, failed=0, running=0):
    return EndpointLoad("c", ("127.0.0.1", 1), ok + failed, ok, failed, running, {})


def test_without_an_agent_reports_are_the_telemetry():
    reports = stand_in()
    reports.counted(A, "edge-1", load(ok=7, failed=1, running=6))
    reports.counted(A, "edge-2", load(ok=2, running=4))
    made = reports.sample(A, REPORT, 10.0)
    assert (made.instance, made.observed_at, made.agent) == ("a", 10.0, SPEAKER)
    engine = made.engine
    assert engine.state is EngineState.UP
    assert (engine.kv_ratio, engine.waiting) == (0.5, 3.0)
    assert engine.running == 7.0, "ten at the engine, three of them wait inside"
    assert engine.finished_total == 9.0, "what failed is no completion"


def test_what_a_proxy_that_is_gone_had_in_progress_is_forgotten():
    reports = stand_in()
    reports.counted(A, "edge-1", load(running=6))
    reports.forget("edge-1")
    assert reports.sample(A, REPORT, 1.0).engine.running == 0.0


def test_what_one_proxy_has_in_progress_is_the_sum_of_what_it_says_until_it_says_it_anew():
    reports = stand_in()
    for running in (6, 1, 0):
        reports.counted(A, "edge-1", load(running=running))
    reports.counted(A, "edge-2", load(running=2))
    assert reports.sample(A, REPORT._replace(waiting=0.0), 1.0).engine.running == 9.0
    reports.forget("edge-1")
    reports.counted(A, "edge-1", load(running=3))
    assert reports.sample(A, REPORT._replace(waiting=0.0), 2.0).engine.running == 5.0


def test_an_instance_that_left_and_came_back_has_nothing_in_progress():
    reports = stand_in()
    reports.counted(A, "edge-1", load(running=6))
    reports.keep(frozenset())
    reports.keep(frozenset([A]))
    reports.counted(A, "edge-2", load(running=5))
    reports.forget("edge-1")
    assert reports.sample(A, REPORT, 1.0).engine.running == 2.0


def test_while_the_agent_is_heard_only_it_is_believed():
    reports = stand_in(sample("a", 9.0))
    assert reports.sample(A, REPORT, 10.0) is None
    assert reports.sample(A, REPORT, 12.5) is not None, "silent for more than three intervals"


def test_a_stand_in_keeps_what_only_the_agent_knows():
    """A counter of restarts that fell and rose again would end in quarantine."""
    made = stand_in(sample("a", 0.0, restarts=3, slots=40.0)).sample(A, REPORT, 10.0)
    assert (made.engine.restarts, made.engine.slots) == (3, 40.0)


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(sample("a", 0.0, state=EngineState.DOWN), id="engine down"),
        pytest.param(sample("a", 0.0, state=EngineState.HUNG), id="engine hung"),
        pytest.param(sample("a", 0.0, state=EngineState.LOADING), id="engine loading"),
        pytest.param(sample("a", 0.0, gpu=gpu(GpuHealth.LOST)), id="GPU lost"),
        pytest.param(sample("a", 0.0, draining=True), id="draining"),
    ],
)
def test_an_answer_that_began_before_does_not_overrule_a_last_word_of_a_fault_or_a_drain(last):
    assert stand_in(last).sample(A, REPORT, 1000.0) is None


def test_its_own_samples_are_not_taken_for_an_agents():
    agent = sample("a", 0.0)
    latest = agent
    reports = StandIn(latest=lambda _: latest, policy=lambda: POLICY)
    latest = reports.sample(A, REPORT, 10.0)
    assert reports.agent(A) is agent
    assert reports.sample(A, REPORT, 11.0) is not None
    latest = replace(agent, observed_at=11.5)
    assert reports.sample(A, REPORT, 12.0) is None, "the agent is back"
