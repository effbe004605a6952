"""What becomes a row, and what does not."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from xds_server.commands.admin_client import AskError, Server, get
from xds_server.commands.timeline import plain, show_events
from xds_server.config.load import load_text
from xds_server.core.inputs import Drain
from xds_server.core.model import InstanceId
from xds_server.fleet import Fleet
from xds_server.observability.history import MOST_TEXT, WEIGHTS_GAP_S, History
from xds_server.observability.proxy_history import ProxyHistory
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER, ROUTE
from xds_server.store.incident import export, markdown
from xds_server.store.row import Kind, Row
from xds_server.xds.answer import Protocol
from xds_server.xds.node import Proxy
from xds_server.xds.observer import Silent

CONFIG = """
models:
  - name: chat
    tiers:
      - {name: primary, serves: big, instances: [{name: a0, address: "10.0.0.1:80"}]}
      - {name: static, answer: {json: {busy: true}}}
"""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def rows():
    return []


@pytest.fixture
def wall():
    return Clock()


@pytest.fixture
def history(rows, wall):
    topology = load_text(CONFIG, source="test").topology
    return History(rows.append, topology=lambda: topology, wall=wall)


def plan_with(share: float):
    from dataclasses import replace

    loaded = load_text(CONFIG, source="test")
    plan = Fleet(loaded.topology, loaded.policy, 0.0).evaluate([], 0.0)
    (model,) = plan.models
    first, last = model.tiers
    weight = round(1000 * share)
    tiers = (replace(first, weight=weight), replace(last, weight=1000 - weight))
    return replace(plan, models=(replace(model, tiers=tiers),))


def test_weights_are_told_when_they_change_and_at_most_once_a_second(history, rows, wall):
    history.planned(plan_with(1.0))
    history.planned(plan_with(1.0))  # Another object that says the same.
    for share in (0.9, 0.8, 0.7):
        history.planned(plan_with(share))
    assert [row.after for row in rows] == ["primary=100% static=0%"]
    history.flush_weights()
    assert len(rows) == 1
    wall.now += WEIGHTS_GAP_S
    history.flush_weights()
    assert [(row.before, row.after) for row in rows[1:]] == [
        ("primary=100% static=0%", "primary=70% static=30%")
    ]
    assert rows[1].data["tiers"]["static"]["weight"] == 300
    wall.now -= 500.0  # A wall clock that is set back holds nothing up.
    history.planned(plan_with(0.5))
    assert rows[-1].after == "primary=50% static=50%"


def test_a_drain_names_the_place_of_its_instance(history, rows):
    for name in ("a0", "gone"):
        history.drained(Drain(instance=InstanceId(name), draining=False, who="ann", why="ok"))
    assert [(row.name, row.model, row.tier) for row in rows] == [
        ("undrain_requested", "chat", "primary"),
        ("undrain_requested", "", ""),
    ]


def test_long_texts_are_cut(history, rows):
    history.proxy("xds_nack_received", "edge", "x" * 10 * MOST_TEXT)
    assert len(rows[0].text) == MOST_TEXT


def test_a_proxy_that_refuses_again_and_again_is_one_row_per_reason(history, rows):
    observer = ProxyHistory(Silent(), history)
    proxy = Proxy("edge", "fleet", "envoy", "1.40", Capability.COMPOSITE)
    other = Proxy("edge", "fleet", "envoy", "1.40", Capability.COMPOSITE)

    def nack(error: str, type_url: str = CLUSTER):
        observer.nacked(
            proxy=proxy, type_url=type_url, version="1", error=error, names=frozenset({"b", "a"})
        )

    observer.stream_opened(protocol=Protocol.SOTW)
    observer.request(proxy=proxy, type_url=CLUSTER)
    observer.request(proxy=proxy, type_url=ROUTE)
    observer.request(proxy=other, type_url=CLUSTER)  # A second stream of the same proxy.
    observer.response_sent(proxy=proxy, type_url=CLUSTER, size_bytes=1)
    observer.acked(proxy=proxy, type_url=CLUSTER, version="1", lag_s=0.1)
    for _ in range(5):
        nack("bad")
    nack("worse")
    nack("bad", ROUTE)
    observer.acked(proxy=proxy, type_url=CLUSTER, version="2", lag_s=0.1)
    observer.ignored(proxy=proxy, type_url="x", reason="unknown_type")
    observer.refused(proxy=None, peer="p", reason="no node")
    observer.stream_closed(protocol=Protocol.SOTW, proxy=None)
    observer.stream_closed(protocol=Protocol.SOTW, proxy=proxy)
    observer.stream_closed(protocol=Protocol.SOTW, proxy=other)
    observer.stream_closed(protocol=Protocol.SOTW, proxy=other)
    assert [(row.name, row.text) for row in rows] == [
        ("proxy_connected", ""),
        ("xds_nack_received", "bad"),
        ("xds_nack_received", "worse"),
        ("xds_nack_received", "bad"),
        ("xds_nack_cleared", "It takes Cluster again."),
        ("proxy_disconnected", ""),
    ]
    assert rows[1].data["resources"] == ["a", "b"]
    assert rows[4].data["refused"] == 6
    observer.request(proxy=proxy, type_url=CLUSTER)
    nack("bad", ROUTE)  # Nothing is remembered of a proxy that left.
    assert [row.name for row in rows[6:]] == ["proxy_connected", "xds_nack_received"]


# The timeline.


def event(**fields) -> dict:
    values = {"at_unix_s": 1000.0, "kind": Kind.DECISION, "name": "instance_down"} | fields
    return Row(**values).document()


def test_a_terminal_gets_colors_and_no_control_characters():
    events = [
        event(id=7, instance="a0", before="healthy", after="down", text="It is \x1b[2J gone."),
        event(name="telemetry_returned", model="chat"),
        event(kind=Kind.OPERATOR, name="drain_requested", who="ann"),
    ]
    out = io.StringIO()
    show_events(events, Console(file=out, force_terminal=True, width=200, color_system="standard"))
    lines = out.getvalue().splitlines()
    assert "\x1b[1;31minstance_down" in lines[0]
    assert "\x1b[32mtelemetry_returned" in lines[1]
    assert "\x1b[35mdrain_requested" in lines[2]
    assert "\x1b[2J" not in out.getvalue()
    assert "healthy -> down" in lines[0]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_the_times_stand_in_one_column(width):
    text = "proxies saw its requests fail (3 in a row: 3 broken; its agent says it is up). " * 2
    events = [
        event(id=7, model="chat", tier="primary", instance="a100-0", text=text, after="down"),
        event(id=8, kind=Kind.WEIGHTS, name="weights_changed", before="a=1%", after="a=2% b=98%"),
        event(id=9, name="spill_stopped"),
    ]
    out = io.StringIO()
    show_events(events, Console(file=out, force_terminal=True, width=width, color_system=None))
    lines = [each.rstrip() for each in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert sum("01-01 00:16:40.000Z" in each for each in lines) == 3
    assert " ".join(" ".join(lines).split()).count("its agent says it is up") == 2
    assert "a=2% b=98%" in out.getvalue()
    assert "a=1%" not in out.getvalue()


def test_a_pipe_gets_one_line_per_event():
    out = io.StringIO()
    show_events([event(text="a\nb " * 200)], Console(file=out, width=40))
    assert len(out.getvalue().splitlines()) == 1
    assert plain(event(id=3)) == "3  1970-01-01T00:16:40.000Z  instance_down"


# An incident.


def test_an_incident_of_too_many_events_says_that_it_is_cut(monkeypatch):
    monkeypatch.setattr("xds_server.store.incident.MOST", 2)
    rows = [Row(id=n, at_unix_s=float(n), kind=Kind.DECISION, name="x") for n in range(5)]

    def read(query):
        return [row for row in rows if query.fits(row)][: query.limit]

    found = export(read, at_unix_s=2.0, around_s=10.0, event=rows[2])
    assert found["is_cut"]
    assert len(found["timeline"]) == 2
    assert found["config_version"] is None
    text = markdown(found)
    assert "Only the first 2 events" in text
    assert "# Incident 2: x at 1970-01-01T00:00:02.000Z" in text
    assert text.count("Nothing in this time.") == 2


def test_what_engines_and_proxies_say_does_not_break_the_table():
    row = Row(
        id=1, at_unix_s=1.0, kind=Kind.PROXY, name="xds_nack_received", proxy="e|1",
        text="<script>\n| x `y`",
    )  # fmt: skip

    def read(query):
        return [row] if query.fits(row) else []

    text = markdown(export(read, at_unix_s=1.0, around_s=5.0, event=None))
    (line,) = [each for each in text.splitlines() if "xds_nack" in each]
    assert line.count(" | ") == 4
    assert r"\<script> \| x \`y\`" in line


@pytest.mark.parametrize(
    ("admin", "code", "text"),
    [("ftp://x", 2, "expected an http address"), ("127.0.0.1:1", 1, "is it running?")],
)
def test_who_does_not_answer_is_told(admin, code, text):
    with pytest.raises(AskError, match=text) as caught:
        get(Server(admin), "/api/events")
    assert caught.value.code == code
    assert caught.value.is_gone is (code == 1)
