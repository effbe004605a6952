"""Recordings: what is played is what was decided, and another policy is seen beside it."""

from __future__ import annotations

import gzip
import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.fakes.recorded_fleet import CONFIG, config, drive, written
from xds_server.cli import app
from xds_server.core.plan import Freshness, Level
from xds_server.fleet import Evaluated, Fleet, Reconfigured, Saw
from xds_server.recording import codec
from xds_server.recording import format as recordings
from xds_server.recording.codec import CodecError, decode, encode
from xds_server.recording.comparison import document
from xds_server.recording.format import (
    Digests,
    Recording,
    RecordingError,
)
from xds_server.recording.replay import MisfitError, fitted, replay

# The codec.


def test_a_memory_is_read_back_equal_and_shares_its_parts_as_before(fleet):
    memory = fleet.remember()
    again = decode(json.loads(json.dumps(encode(memory))))
    assert again == memory
    state, division, plan = again
    assert plan.models is division.plans
    assert state.plans is division.given
    for model, known in zip(state.models, memory[0].models, strict=True):
        for step, tier, old, old_tier in zip(
            model.steps, model.tiers, known.steps, known.tiers, strict=True
        ):
            assert (step.state is tier) == (old.state is old_tier)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from([*Level, *Freshness]),
    lambda each: (
        st.lists(each)
        | st.lists(each).map(tuple)
        | st.dictionaries(st.text(), each)
        | st.frozensets(st.integers())
    ),
    max_leaves=20,
)


@given(VALUES)
def test_whatever_is_recorded_is_read_back(value):
    again = decode(json.loads(json.dumps(encode(value))))
    assert again == value
    assert repr(again) == repr(value) or "frozenset" in repr(value)


def test_nothing_but_values_of_the_core_is_recorded_or_read():
    @dataclass
    class Stranger:
        x: int = 1

    for value in (Stranger(), object(), {1j: 2}, Path("x")):
        with pytest.raises(TypeError, match="cannot record"):
            encode(value)
    for document_ in (
        {"classes": [["os:system", []]], "nodes": [["d", 0, []]], "root": [0]},
        {"classes": [["plan:Level", ["x"]]], "nodes": [], "root": None},
        {"classes": [["sample:Sample", ["instance"]]], "nodes": [], "root": None},
    ):
        with pytest.raises(CodecError, match="another version"):
            decode(document_)
    for document_ in (
        {},
        {"classes": [], "nodes": [["d", 0, []]], "root": [0]},
        {"classes": [["plan:Level", []]], "nodes": [["e", 0, "dreadful"]], "root": [0]},
        {"classes": [], "nodes": [["x", []]], "root": [0]},
        {"classes": [], "nodes": [], "root": [3]},
        {"classes": [], "nodes": [7], "root": [0]},
    ):
        with pytest.raises(CodecError, match="not a recorded value"):
            decode(document_)
    assert math.isinf(decode(encode(math.inf)))
    assert codec._known()["plan:Level"] is Level


# Playing.


def test_played_through_the_same_policy_every_decision_is_the_same_byte_for_byte(fleet, path):
    steps = written(path, fleet, lambda it: drive(it, start=100.0, seconds=60))
    assert {type(each) for each in steps} == {Evaluated, Saw}
    found = replay(path, None, None)
    assert (found.evaluations, found.same_as_recorded) == (240, 240)
    assert found.is_same_policy
    assert found.is_whole
    assert found.recorded == found.other
    names = {"level_changed", "spill_started", "instance_recovering"}
    assert names <= set(found.recorded.events)
    # So it is with the configuration file that it was made with.
    loaded = config()
    again = replay(path, loaded.topology, loaded.policy)
    assert again.is_same_policy
    assert again.other == found.recorded
    # And the plans themselves are equal, not only their names.
    played = Fleet(fleet.topology, fleet.policy, 100.0)
    recording = Recording(path)
    played.recall(recording.head.memory)
    for one, each in zip(steps, recording.steps(), strict=True):
        if isinstance(one, Evaluated):
            assert repr(played.evaluate(each.step.inputs, each.step.now)) == repr(one.plan)
        else:
            played.saw_requests(each.step.model, each.step.counts, each.step.now)


def test_another_policy_is_seen_beside_it(fleet, path):
    written(path, fleet, lambda it: drive(it, start=100.0, seconds=60))
    loaded = config(CONFIG + "policy: {kv: {high: 0.2, critical: 0.4}}\n")
    found = replay(path, loaded.topology, loaded.policy)
    assert not found.is_same_policy
    assert found.same_as_recorded == found.evaluations
    ours, theirs = (run.curves["chat", "primary"] for run in (found.recorded, found.other))
    assert theirs.pressed_s.get(Level.HEALTHY, 0.0) < ours.pressed_s.get(Level.HEALTHY, 0.0)
    assert sum(theirs.pressed_s.values()) == pytest.approx(found.span_s)
    assert theirs.mean(found.span_s) <= ours.mean(found.span_s)
    told = document(found)
    assert [each["tier"] for each in told["other"]["tiers"]] == ["primary", "fallback", "static"]
    json.dumps(told)


def test_a_decision_that_comes_out_otherwise_is_told(fleet, path):
    written(path, fleet, lambda it: drive(it, start=100.0, seconds=5))
    lines = gzip.decompress(path.read_bytes()).splitlines()
    step = json.loads(lines[2])
    assert "digest" in step
    lines[2] = json.dumps(step | {"digest": "0" * 16}).encode()
    path.write_bytes(b"\n".join(lines))  # Not packed: that is read too.
    found = replay(path, None, None)
    assert (found.evaluations, found.same_as_recorded) == (20, 19)


def test_a_change_of_configuration_in_the_middle_is_followed(fleet, path):
    tighter = config(CONFIG + "policy: {kv: {high: 0.2, critical: 0.4}}\n")
    grown = CONFIG.replace(
        '[{name: l0, address: "10.0.0.3:80", capacity: 20}]',
        '[{name: l0, address: "10.0.0.3:80", capacity: 20}, {name: l1, address: "10.0.0.4:80"}]',
    )

    def run(it: Fleet) -> None:
        drive(it, start=100.0, seconds=10)
        it.reconfigure(tighter.topology, tighter.policy, 111.0)
        drive(it, start=112.0, seconds=10)

    steps = written(path, fleet, run)
    assert Reconfigured in {type(each) for each in steps}
    found = replay(path, None, None)
    assert found.same_as_recorded == found.evaluations == 80
    assert found.other == found.recorded
    loaded = config(CONFIG + "policy: {kv: {high: 0.5, critical: 0.9}}\n")
    assert replay(path, loaded.topology, loaded.policy).same_as_recorded == 80

    def grow(it: Fleet) -> None:
        it.reconfigure(config(grown).topology, it.policy, 130.0)
        drive(it, start=131.0, seconds=2)

    written(path, fleet, grow, start=130.0)
    with pytest.raises(MisfitError, match=r"recorded instance l1 of chat/fallback is not config"):
        replay(path, loaded.topology, loaded.policy)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(CONFIG.replace("name: chat", "name: talk"), "model talk was not", id="model"),
        pytest.param(
            CONFIG.replace("name: primary", "name: first"), "tier chat/first was not", id="tier"
        ),
        pytest.param(
            CONFIG.replace("name: a1", "name: a9"), "instance a9 of chat/primary was", id="instance"
        ),
        pytest.param(
            CONFIG.replace('          - {name: a1, address: "10.0.0.2:80", capacity: 40}\n', ""),
            "recorded instance a1 of chat/primary is not configured",
            id="missing",
        ),
    ],
)
def test_a_configuration_of_another_fleet_is_refused_with_what_differs(fleet, text, reason):
    with pytest.raises(MisfitError, match=reason):
        fitted(config(text).topology, fleet.topology)


def test_many_differences_are_counted(fleet):
    names = [f'{{name: n{n}, address: "10.1.0.{n}:80"}}' for n in range(1, 9)]
    text = CONFIG.replace(
        '[{name: l0, address: "10.0.0.3:80", capacity: 20}]', f"[{', '.join(names)}]"
    )
    with pytest.raises(MisfitError, match=r"n5 of chat/fallback was not recorded and 4 more"):
        fitted(config(text).topology, fleet.topology)


def test_registered_instances_and_addresses_are_taken_from_the_recording(fleet):
    text = CONFIG.replace(
        '[{name: l0, address: "10.0.0.3:80", capacity: 20}]', "{discover: agents}"
    )
    text = text.replace("10.0.0.1:80, capacity: 40", "10.9.9.9:80, capacity: 7")
    found = fitted(config(text).topology, fleet.topology)
    recorded = {each.id: each for _, _, each in fleet.topology.instances()}
    for _, tier, each in found.instances():
        assert replace(each, capacity=recorded[each.id].capacity) == recorded[each.id]
        assert tier.name != "fallback" or each.id == "l0"


# Files that cannot be played.


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(None, "No such file", id="missing"),
        pytest.param(b"", "it is empty", id="empty"),
        pytest.param(b"hello", "expected what `xds-server record` wrote", id="text"),
        pytest.param(b"[1]", "line 1 is not of a recording", id="list"),
        pytest.param(b'{"recording": 9}', "no recording of format 1", id="format"),
        pytest.param(b'{"recording": 1}', "damaged line: KeyError", id="short"),
        pytest.param(gzip.compress(b"x" * 999)[:20], "it breaks off in its first line", id="half"),
        pytest.param(b"\x1f\x8b\x08" + b"\x00" * 99, "it is no recording", id="spoiled"),
        pytest.param(
            b'{"recording":1,"start":1,"unix_s":1,"config_version":"x",'
            b'"brain":{"classes":[["gone:Gone",[]]],"nodes":[],"root":null}}',
            "made by another version, whose 'gone:Gone'",
            id="version",
        ),
    ],
)
def test_what_is_no_recording_is_refused_in_one_sentence(tmp_path, path, content, reason):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordingError, match=reason):
        Recording(path)
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("*.svg"))


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 1}',
        b'{"step": "x", "inputs": {"classes": [], "nodes": [], "root": null}, "digest": ""}',
        b'{"requests": 1, "model": "chat", "counts": 3}',
        b'{"config": 1, "topology": {}, "policy": {}}',
        b"{}",
        b'{"step": 200, "inputs": {"classes": [], "nodes": [], "root": null}, "digest": ""}',
    ],
)
def test_a_damaged_line_is_told(fleet, path, line):
    written(path, fleet, lambda it: drive(it, start=100.0, seconds=1), end=None)
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(text + line + b"\n")
    with pytest.raises(RecordingError, match=r"damaged line|not a recorded value|cannot be played"):
        replay(path, None, None)


# The commands.


def run(*arguments: str):
    return CliRunner().invoke(app, arguments)


def test_replay_prints_a_table_and_draws_a_plot(fleet, path, tmp_path):
    written(path, fleet, lambda it: drive(it, start=100.0, seconds=30))
    new = tmp_path / "new.yaml"
    new.write_text(CONFIG + "policy: {kv: {high: 0.2, critical: 0.4}}\n")
    done = run("replay", str(path), "--config", str(new))
    assert done.exit_code == 0, done.output
    assert "chat/primary" in done.stdout
    assert "new.yaml" in done.stdout
    assert "120 of 120 decisions are the ones that were made" in done.stdout
    drawn = ET.fromstring((tmp_path / "incident.svg").read_text())
    texts = {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"chat: as recorded", "chat: new.yaml"} <= texts
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) == 12
    plot = tmp_path / "other.svg"
    done = run("replay", str(path), "--json", "--plot", str(plot))
    assert done.exit_code == 0
    assert json.loads(done.stdout)["is_same_policy"] is True
    assert plot.read_text().count("chat: ") == 1


@pytest.mark.parametrize(
    ("text", "extra", "code", "reason"),
    [
        pytest.param("models: 1", (), 2, "new.yaml: 1 problem", id="config"),
        pytest.param(
            CONFIG.replace("name: chat", "name: talk"), (), 2, "does not fit the rec", id="fit"
        ),
        pytest.param(CONFIG, ("--plot", "/nowhere/x.svg"), 1, "No such file", id="plot"),
    ],
)
def test_what_cannot_be_compared_is_told(fleet, path, text, extra, code, reason):  # noqa: PLR0917
    written(path, fleet, lambda it: drive(it, start=100.0, seconds=1))
    new = path.with_name("new.yaml")
    new.write_text(text)
    done = run("replay", str(path), "--config", str(new), *extra)
    assert (done.exit_code, done.stdout) == (code, "")
    assert reason in done.stderr


def test_a_recording_without_its_end_is_played_as_far_as_it_goes(fleet, path):
    written(path, fleet, lambda it: drive(it, start=100.0, seconds=2), end=None)
    done = run("replay", str(path))
    assert done.exit_code == 0
    assert "breaks off" in done.stderr
    assert "8 of 8 decisions" in done.stdout


@pytest.mark.parametrize("packed", [True, False], ids=["gzip", "plain"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9, 0.99])
def test_a_recording_that_a_full_disk_cut_is_played_up_to_there(fleet, path, packed, part):
    written(path, fleet, lambda it: drive(it, start=100.0, seconds=30))
    whole = path.read_bytes() if packed else gzip.decompress(path.read_bytes())
    head = len(gzip.decompress(path.read_bytes()).splitlines()[0])
    path.write_bytes(whole[: round(part * len(whole))])
    done = run("replay", str(path))
    if not packed and round(part * len(whole)) < head:
        assert done.exit_code == 2
        return
    if done.exit_code == 2:
        # So early that the packing had given nothing away yet.
        assert part == 0.3
        assert "breaks off" in done.stderr
        return
    assert (done.exit_code, "breaks off" in done.stderr) == (0, True)
    played, of = re.search(r"(\d+) of (\d+) decisions", done.stdout).groups()
    assert played == of
    assert 0 < int(of) < 120


def test_a_recording_that_ends_before_anything_was_decided_is_nothing_to_play(fleet, path):
    written(path, fleet, lambda it: None, end=None)
    done = run("replay", str(path))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "it breaks off before the first evaluation" in done.stderr


def test_decisions_that_differ_are_explained(fleet, path):
    written(path, fleet, lambda it: drive(it, start=100.0, seconds=2))
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(text.replace(b'"digest":"', b'"digest":"x'))
    done = run("replay", str(path))
    assert "0 of 8 decisions" in done.stdout
    assert "decides otherwise" in done.stderr


def test_digests_tell_plans_apart(fleet):
    plans = drive(fleet, start=100.0, seconds=30)
    digests = Digests()
    assert len({digests.of(each) for each in plans}) == len({repr(each) for each in plans})
    assert recordings.FORMAT == 1
