"""Load reports as they arrive from proxies: into the brain, into metrics, into words."""

from __future__ import annotations

import pytest

from tests.fakes.brain import sample
from xds_server.core.model import InstanceId, ModelName, TierName
from xds_server.core.policy import TelemetryPolicy
from xds_server.evidence.entry import EndpointLoad
from xds_server.evidence.load_reports import FORGET_S, LoadReports
from xds_server.evidence.orca import KV, WAITING
from xds_server.evidence.places import Place
from xds_server.observability.metrics import Tally

A = InstanceId("a")
PLACE = Place(ModelName("chat"), TierName("primary"), A)


class Desk:
    """Reports in; samples, events and metrics out."""

    def __init__(self):
        self.latest = {}
        self.samples = []
        self.events = []
        self.tally = Tally()
        self.reports = LoadReports(
            latest=self.latest.get,
            offer=self.samples.append,
            tell=self.events.append,
            policy=TelemetryPolicy,
            tally=self.tally,
        )

    def report(self, now, *, kv=0.5, waiting=2.0, answers=10, running=4, source="edge-1"):
        metrics = {KV[0]: (kv * answers, answers), WAITING[0]: (waiting * answers, answers)}
        load = EndpointLoad("chat/primary", ("h", 1), answers, answers, 0, running, metrics)
        self.reports.take(source, PLACE, load, now)


@pytest.fixture
def desk():
    return Desk()


def test_an_instance_without_agent_lives_on_reports(desk):
    desk.report(1.0)
    (made,) = desk.samples
    assert (made.engine.kv_ratio, made.engine.waiting, made.engine.running) == (0.5, 2.0, 2.0)
    assert desk.tally.count("fleet_engine_reports_total", "chat", "primary") == 10
    assert desk.reports.note(A, 1.0) == ""
    assert list(desk.reports.readings(1.0)) == []


def test_an_endpoint_without_reports_costs_nothing_and_says_nothing(desk):
    load = EndpointLoad("chat/primary", ("h", 1), 5, 5, 0, 1, {})
    desk.reports.take("edge-1", PLACE, load, 1.0)
    assert desk.samples == []


def test_counts_go_on_in_intervals_without_a_report(desk):
    desk.report(1.0, answers=10)
    streams = EndpointLoad("chat/primary", ("h", 1), 5, 5, 0, 1, {})
    desk.reports.take("edge-1", PLACE, streams, 2.0)
    desk.report(3.0, answers=1)
    assert desk.samples[-1].engine.finished_total == 16


def test_a_report_that_cannot_be_true_is_counted_and_nothing_else(desk):
    desk.report(1.0, kv=17.0, waiting=-1.0)
    assert desk.samples == []
    assert desk.tally.count("fleet_evidence_refused_total", "bad_report") == 1


def test_a_lying_agent_is_an_event_a_metric_and_a_sentence(desk):
    for second in range(13):
        desk.latest[A] = sample("a", float(second), kv_ratio=0.0, waiting=0.0)
        desk.report(float(second), kv=0.9, waiting=2.0)
    (event,) = desk.events
    assert (event.name, event.model, event.tier, event.instance) == (
        *("agent_contradicted", "chat", "primary", "a"),
    )
    assert (event.before, event.after) == ("unknown", "contradicted")
    assert desk.samples == [], "the agent is still the one that the brain hears"
    assert desk.reports.note(A, 13.0) == (
        "Its agent is contradicted: its engine reports KV usage 90%, while the agent says 0% to 0%."
    )
    assert list(desk.reports.readings(13.0)) == [
        ("fleet_agent_doubted", ("chat", "primary", "a", "contradicted"), 1.0),
        ("fleet_agent_doubted", ("chat", "primary", "a", "silent"), 0.0),
    ]
    assert desk.reports.note(A, 13.0 + FORGET_S) == "", "reports ended: nothing is known any more"
    assert list(desk.reports.readings(13.0 + FORGET_S)) == []


def test_a_dead_agent_is_told_and_reports_take_over(desk):
    desk.latest[A] = sample("a", 0.0, kv_ratio=0.5, waiting=2.0)
    desk.report(1.0)
    assert desk.samples == []
    desk.report(6.0)
    assert [event.name for event in desk.events] == ["agent_silent"]
    assert desk.samples[-1].engine.kv_ratio == 0.5
    assert "is silent: nothing for 6 s" in desk.reports.note(A, 6.0)


def test_an_instance_that_left_is_forgotten(desk):
    desk.report(1.0)
    desk.latest[A] = sample("a", 0.0)
    desk.report(9.0)
    desk.reports.keep(frozenset())
    assert list(desk.reports.readings(9.0)) == []
    assert desk.reports.note(A, 9.0) == ""


def test_what_a_proxy_had_in_progress_ends_with_its_next_report(desk):
    desk.report(1.0, running=8, waiting=0.0)
    desk.report(1.0, running=4, waiting=0.0, source="edge-2")
    assert desk.samples[-1].engine.running == 12
    for source in ("edge-1", "edge-2"):  # As before each report, and at the end of a stream.
        desk.reports.forget(source)
    desk.report(2.0, running=4, waiting=0.0, source="edge-2")
    assert desk.samples[-1].engine.running == 4
