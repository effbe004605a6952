"""The alert rules, judged by promtool, and their runbook."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from typer.main import get_command

from sidecar_agent.cli import app as agent_app
from tests.fakes.prometheus import ROOT, labels_of, metrics_of, promtool
from xds_server.cli import app as server_app

RULES = ROOT / "deploy/prometheus/rules.yaml"
CASES = ROOT / "deploy/prometheus/rules.test.yaml"
RUNBOOK = (ROOT / "docs/alerts.md").read_text()
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}


@pytest.mark.prometheus
def test_promtool_accepts_the_rules():
    said = promtool("check", "rules", RULES)
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{len(ALERTS)} rules found" in said.stdout


@pytest.mark.prometheus
def test_promtool_accepts_what_compose_scrapes():
    said = promtool("check", "config", "--syntax-only", "deploy/prometheus/prometheus.yaml")
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.prometheus
def test_every_alert_fires_and_stays_quiet_as_the_cases_say():
    said = promtool("test", "rules", CASES)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.prometheus
def test_promtool_judges_the_cases_and_does_not_only_read_them(tmp_path):
    """A rule that never fires must fail the run, or the runs that succeed say nothing."""
    (tmp_path / "rules.yaml").write_text(RULES.read_text().replace("> 0.01", "> 0.5"))
    (tmp_path / CASES.name).write_text(CASES.read_text())
    said = promtool("test", "rules", tmp_path / CASES.name)
    assert said.returncode != 0
    assert "FleetDegradedAnswers" in said.stdout + said.stderr


LASTING = [name for name, rule in ALERTS.items() if "keep_firing_for" in rule]
GOOD = " 0+0x40"


def _wave(case: dict[str, Any], name: str) -> dict[str, Any]:
    """Let the series that make an alert fire be good again after ten minutes, for ten minutes."""
    series = [
        each | {"values": _ten_minutes(each["values"]) + GOOD} for each in case["input_series"]
    ]
    [firing] = [each for each in case["alert_rule_test"] if each["exp_alerts"]]
    return case | {
        "name": f"{name} lasts through a wave",
        "input_series": series,
        "alert_rule_test": [
            firing | {"eval_time": "12m"},
            {"eval_time": "18m", "alertname": name, "exp_alerts": []},
        ],
    }


def _ten_minutes(values: str) -> str:
    start, step = re.match(r"(-?[\d.]+)\+(-?[\d.]+)x", values).groups()
    return f"{start}+{step}x39"


@pytest.mark.prometheus
def test_what_follows_load_is_one_alert_and_not_one_per_wave(tmp_path):
    document = yaml.safe_load(CASES.read_text())
    firing = {
        each["alertname"]: case
        for case in document["tests"]
        for each in case["alert_rule_test"]
        if each["exp_alerts"]
    }
    document["tests"] = [_wave(firing[name], name) for name in LASTING]
    (tmp_path / "rules.yaml").write_text(RULES.read_text())
    cases = tmp_path / CASES.name
    cases.write_text(yaml.safe_dump(document))
    said = promtool("test", "rules", cases)
    assert said.returncode == 0, said.stdout + said.stderr
    assert {"FleetStaticAnswers", "FleetDegradedAnswers", "FleetTierCritical"} <= set(LASTING)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_case_that_fires_one_too_early_and_one_that_is_quiet(name):
    cases = [
        each
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for each in test["alert_rule_test"]
        if each["alertname"] == name
    ]
    assert sum(bool(each["exp_alerts"]) for each in cases) == 1
    assert sum(not each["exp_alerts"] for each in cases) >= 2


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_is_wrong_and_where_to_read_on(name):
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"warning", "critical"}
    texts = rule["annotations"]
    assert set(texts) == {"summary", "description", "runbook"}
    assert len(texts["summary"]) < 80
    assert texts["description"].endswith(".")
    page, _, anchor = texts["runbook"].partition("#")
    assert page == "docs/alerts.md"
    assert re.search(rf"^## {name}$", RUNBOOK, re.MULTILINE)
    assert anchor == name.lower(), "as GitHub makes it from the heading"


def test_the_runbook_is_about_these_alerts_and_no_others():
    assert re.findall(r"^## (Fleet\w+)$", RUNBOOK, re.MULTILINE) == list(ALERTS)


def test_the_runbook_names_commands_and_pages_that_there_are():
    commands = {
        "xds-server": set(get_command(server_app).commands),
        "sidecar-agent": set(get_command(agent_app).commands),
    }
    for program, command in re.findall(r"`(xds-server|sidecar-agent) ([a-z-]+)", RUNBOOK):
        assert command in commands[program], f"{program} {command}"
    pages = (ROOT / "xds_server/admin/server.py").read_text()
    for page in re.findall(r"`(/(?:debug/\w+|readyz|healthz|metrics))", RUNBOOK):
        assert f'"{page}"' in pages, page


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_only_labels_that_it_has(name):
    rule = ALERTS[name]
    said = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert said <= labels_of(rule["expr"])


@pytest.mark.parametrize(
    ("expression", "metrics", "labels"),
    [
        pytest.param("absent(a_b)", {"a_b"}, set(), id="function"),
        pytest.param('max by (x, y) (a{z="by (q) c"}) > 0', {"a"}, {"x", "y", "z"}, id="labels"),
        pytest.param(
            "histogram_quantile(0.9, sum by (le) (rate(h_bucket[5m])))",
            {"h_bucket"},
            {"le"},
            id="histogram",
        ),
        pytest.param("a offset 5m and on(x) b unless c", {"a", "b", "c"}, {"x"}, id="sets"),
        pytest.param('a{m=~"$model"}[$__rate_interval]', {"a"}, {"m"}, id="Grafana"),
        pytest.param("1e9 * a / 0x1f", {"a"}, set(), id="numbers"),
    ],
)
def test_names_are_found_in_promql(expression, metrics, labels):
    assert metrics_of(expression) == metrics
    assert labels_of(expression) == labels
