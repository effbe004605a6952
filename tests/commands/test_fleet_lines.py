"""`status` on terminals of every width: the verdict, the reason and what is next are always there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from xds_server.commands.fleet_lines import MANY, lines
from xds_server.commands.verdict import verdict

WHY = {
    "rule": "load_balanced",
    "sentence": "At its tier's mean pressure.",
    "changes_when": "Its pressure moving.",
}


def an_instance(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "instance": name,
        "state": "healthy",
        "telemetry": "fresh",
        "health": "healthy",
        "weight": 1000,
        "share": 0.25,
        "ceiling": 1.0,
        "pressure": 0.4,
        "age_s": 0.3,
        "running": 3.0,
        **WHY,
    } | changes


DOWN: dict[str, Any] = {
    "state": "down",
    "ceiling": 0.0,
    "share": 0.0,
    "pressure": None,
    "rule": "engine_down",
    "sentence": "It gets nothing: its engine does not answer.",
    "changes_when": "A fresh sample that says the engine is up.",
}


def a_fleet(*instances: dict[str, Any], **changes: Any) -> dict[str, Any]:
    tier = {
        "tier": "primary",
        "level": "healthy",
        "pressure": 0.4,
        "weight": 750,
        "of": 1000,
        "spill": 0.25,
        **WHY,
        "instances": list(instances),
    }
    static = tier | {"tier": "static", "weight": 250, "spill": 0.0, "instances": []}
    request_class = {
        "class": "core",
        "demand_ratio": 0.5,
        "weights": {"primary": 1000, "static": 0},
        "of": 1000,
        "is_shed": False,
        "is_rejected": False,
        **WHY,
    }
    model = {"model": "chat", "tiers": [tier, static], "classes": [request_class]}
    found = {
        "unix_s": 1e9,
        "warm": True,
        "not_ready": None,
        "config_valid": True,
        "history_trouble": "",
        "stale_s": 3.0,
        "proxies": {"connected": 2, "behind": 0, "refusing": 0, "refusing_first": []},
        "models": [model],
    }
    return found | changes


def shown(found: dict[str, Any], width: int | None = 80, *, everything: bool = False) -> str:
    return "\n".join(
        each.plain.rstrip() for each in lines(found, width=width, everything=everything)
    )


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_the_reason_and_what_is_next_are_there(width):
    long = "vllm-llama-3-70b-instruct-6d4f9c7b8-x2x9z"
    text = shown(a_fleet(an_instance("a100-0"), an_instance(long, **DOWN)), width)
    assert max(map(cell_len, text.splitlines())) <= width
    flat = " ".join(text.split())
    assert "It gets nothing: its engine does not answer. (engine_down)" in flat
    assert "Next: A fresh sample that says the engine is up." in flat
    assert "x2x9z" in text, "what tells names apart is at their end"
    assert "75.0%" in text


def test_on_a_pipe_each_row_is_one_line_with_everything():
    many = [an_instance(f"gpu-{number}") for number in range(50)]
    text = shown(a_fleet(*many, an_instance("z", **DOWN)), None, everything=True)
    rows = [each for each in text.splitlines() if each.strip()]
    assert len(rows) == 1 + 1 + 51 + 1 + 1
    [down] = [each for each in rows if each.startswith("    z ")]
    assert "engine_down" in down
    assert "Next: " in down


def test_of_many_instances_those_that_somebody_must_look_at_are_shown_and_the_others_summed_up():
    calm = [an_instance(f"calm-{number}", age_s=number / 100) for number in range(100)]
    odd = {
        "out": DOWN,
        "ramp": {"state": "recovering", "ceiling": 0.3},
        "blind": {"telemetry": "blind", "pressure": None},
        "unheard": {"age_s": None, "pressure": None},
        "old": {"age_s": 90.0},
        "short": {"ceiling": 0.5},
    }
    text = shown(a_fleet(*calm, *(an_instance(name, **changes) for name, changes in odd.items())))
    for name in odd:
        assert f"    {name} " in text
    assert "100 more" in text
    assert "≤1.0 s" in text
    assert "calm-" not in text
    assert "calm-99" in shown(a_fleet(*calm), everything=True)
    assert "calm-3" in shown(a_fleet(*calm[:MANY]))


def test_an_instance_that_was_never_heard_has_no_number_without_an_age():
    text = shown(a_fleet(an_instance("new", age_s=None, pressure=None)))
    [row] = [each for each in text.splitlines() if each.startswith("    new ")]
    assert row.split() == ["new", "healthy", "25.0%", "-", "100%", "never"]


@pytest.mark.parametrize(("running", "said"), [(3.0, "It still runs 3."), (0.0, "It is empty.")])
def test_whether_a_drained_instance_is_empty_is_said(running, said):
    assert said in shown(a_fleet(an_instance("a", state="draining", running=running)))


@given(st.integers(60, 220), st.text(min_size=1, max_size=80), st.text(max_size=300))
def test_whatever_names_and_reasons_say_nothing_is_wider_and_no_control_character_is_left(
    width, name, sentence
):
    text = shown(a_fleet(an_instance(name, **(DOWN | {"sentence": sentence}))), width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert all(each.isprintable() for each in text.replace("\n", ""))


def _in_trouble(**changes: Any) -> dict[str, Any]:
    return a_fleet(an_instance("a", **changes))


def _tier(found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    found = copy.deepcopy(found)
    found["models"][0]["tiers"][0] |= {"spill": 0.0} | changes
    return found


CALM = _tier(a_fleet(an_instance("a"), an_instance("b")))
VERDICTS = {
    "calm": (CALM, "● all well: 2 instances, 2 proxies"),
    "no plan": (CALM | {"models": []}, "● there is no plan yet"),
    "passes on": (_in_trouble(), "▲ chat/primary passes on 25%"),
    "down": (_in_trouble(**DOWN), "✕ a down · chat/primary passes on 25%"),
    "critical": (
        _tier(CALM, level="critical", spill=0.4),
        "✕ chat/primary critical, passes on 40%",
    ),
    "forced": (_tier(CALM, rule="forced", weight=1000), "▲ chat/primary is forced"),
    "many down": (
        _tier(a_fleet(*(an_instance(str(number), **DOWN) for number in range(7)))),
        "✕ 7 down",
    ),
    "returning": (_tier(_in_trouble(state="recovering")), "▲ a returning"),
    "draining": (_tier(_in_trouble(state="draining")), "▲ a draining"),
    "silent": (_tier(_in_trouble(telemetry="blind")), "▲ a not heard of"),
    "one proxy": (
        CALM | {"proxies": {"connected": 2, "behind": 0, "refusing": 1, "refusing_first": ["e-1"]}},
        "✕ e-1 refuses the configuration",
    ),
    "many proxies": (
        CALM | {"proxies": {"connected": 9, "behind": 0, "refusing": 5, "refusing_first": ["e-1"]}},
        "✕ 5 proxies refuse the configuration",
    ),
    "bad configuration": (
        CALM | {"config_valid": False},
        "▲ the changed configuration is refused, the last good one serves",
    ),
    "history": (CALM | {"history_trouble": "disk is full"}, "▲ history: disk is full"),
    "cold": (
        CALM | {"warm": False, "not_ready": "waiting for telemetry of a"},
        "✕ proxies are not answered yet: waiting for telemetry of a",
    ),
}


@pytest.mark.parametrize(("found", "said"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_says_the_worst_that_is_true(found, said):
    assert verdict(found).plain == said
