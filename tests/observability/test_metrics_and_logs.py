from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

import xds_server
from xds_server import logs
from xds_server.observability.metrics import METRICS, Exposition, Tally


@pytest.fixture(autouse=True)
def _restore_logging():
    yield
    structlog.reset_defaults()


def families(tally: Tally, gauges=()):
    text = Exposition(tally, lambda: gauges).take().text().decode()
    return {each.name: each for each in text_string_to_metric_families(text)}


def test_every_name_of_the_table_is_exposed_with_its_help():
    found = families(Tally())
    for name, metric in METRICS.items():
        family = found[name.removesuffix("_total") if metric.kind == "counter" else name]
        assert family.type == metric.kind
        assert family.documentation == metric.help


def test_names_follow_the_conventions():
    for name, metric in METRICS.items():
        assert name.startswith(("fleet_", "process_"))
        assert not {"instance", "job", "le"} & set(metric.labels), "Prometheus sets these itself"
        assert name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert metric.help.endswith(".")
        assert metric.unit


def test_somebody_counts_or_reads_every_name_of_the_table():
    root = Path(xds_server.__file__).parent
    tables = [root / f"observability/{name}.py" for name in ("metric_table", "mesh_metrics")]
    code = "".join(path.read_text() for path in root.rglob("*.py") if path not in tables)
    assert [name for name in METRICS if f'"{name}"' not in code] == [
        name for name in METRICS if name.startswith("process_")
    ]


def test_a_counter_that_alerts_need_begins_at_zero():
    samples = families(Tally())["fleet_xds_nacks"].samples
    assert {each.labels["type"]: each.value for each in samples}["Cluster"] == 0
    tally = Tally()
    tally.add("fleet_xds_nacks_total", "Cluster")
    samples = families(tally)["fleet_xds_nacks"].samples
    assert [each.value for each in samples if each.labels["type"] == "Cluster"] == [1]


def test_what_is_known_of_the_process_is_shown():
    found = families(Tally())
    assert found["process_resident_memory_bytes"].samples[0].value > 1e6
    assert found["process_cpu_seconds"].samples[0].value > 0


def test_what_is_many_is_read_when_the_text_is_made():
    read = []

    def later():
        read.append("read")
        yield "fleet_instance_weight", ("chat", "primary", "a"), 7.0

    scrape = Exposition(Tally(), list, later).take()
    assert not read
    assert b'engine_instance="a",model="chat",tier="primary"} 7.0' in scrape.text()


def test_counters_and_gauges_carry_their_labels():
    tally = Tally()
    tally.add("fleet_telemetry_refused_total", "oversize")
    tally.add("fleet_telemetry_refused_total", "oversize", by=2)
    found = families(tally, [("fleet_tier_share_ratio", ("chat", "primary"), 0.5)])
    (refused,) = found["fleet_telemetry_refused"].samples
    assert (refused.labels, refused.value) == ({"reason": "oversize"}, 3)
    (share,) = found["fleet_tier_share_ratio"].samples
    assert (share.labels, share.value) == ({"model": "chat", "tier": "primary"}, 0.5)


def test_histograms_are_cumulative_and_end_with_infinity():
    tally = Tally()
    for value in (0.0001, 0.003, 0.003, 99.0):
        tally.observe("fleet_evaluation_seconds", value)
    samples = families(tally)["fleet_evaluation_seconds"].samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name.endswith("_bucket")}
    assert buckets["0.0005"] == 1
    assert buckets["0.005"] == 3
    assert buckets["10"] == 3
    assert buckets["+Inf"] == 4
    sums = {s.name: s.value for s in samples}
    assert sums["fleet_evaluation_seconds_count"] == 4
    assert sums["fleet_evaluation_seconds_sum"] == pytest.approx(99.0061)


def test_logs_are_one_json_object_per_line_with_level_and_time():
    out = io.StringIO()
    logs.set_up(style="json", level="info", stream=out)
    log = logs.get("server")
    log.debug("too_quiet")
    log.info(logs.SERVER_STARTED, port=1)
    (line,) = out.getvalue().splitlines()
    event = json.loads(line)
    assert (event["event"], event["level"], event["part"]) == ("server_started", "info", "server")
    assert event["timestamp"].endswith("Z")


def test_auto_means_json_where_there_is_no_terminal():
    out = io.StringIO()
    logs.set_up(style="auto", level="info", stream=out)
    logs.get("x").info("something_happened")
    assert json.loads(out.getvalue())


def test_console_is_for_people():
    out = io.StringIO()
    logs.set_up(style="console", level="info", stream=out)
    logs.get("x").info("something_happened", why="because")
    assert "something_happened" in out.getvalue()
    assert "why=because" in out.getvalue()


def test_event_names_are_snake_case():
    names = {
        key: value for key, value in vars(logs).items() if key.isupper() and isinstance(value, str)
    }
    assert names
    for key, value in names.items():
        assert value == key.lower()
