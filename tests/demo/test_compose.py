"""What compose.yaml runs of the demo besides its processes."""

from __future__ import annotations

import asyncio
import sys

import pytest
import yaml

from demo import compose
from demo.outcome import Kind, Outcome
from demo.play import PARTS
from demo.scene import Scene
from demo.stage import ROOT
from tests.fakes.waiting import PATIENCE_S
from xds_server.config.load import load_file

ADDRESSES = [f"{part.name}=10.0.0.{number}:8001" for number, part in enumerate(PARTS, 1)]


def test_configure_writes_a_configuration_that_other_containers_reach(tmp_path):
    path = tmp_path / "fleet.yaml"
    assert compose.main(["configure", *ADDRESSES, "--write", str(path)]) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["fleet.yaml"]
    assert yaml.safe_load(path.read_text())["listener"] == {"address": "0.0.0.0", "port": 10000}
    tiers = yaml.safe_load(path.read_text())["models"][0]["tiers"]
    found = [each for tier in tiers for each in tier.get("instances", ())]
    assert [f"{each['name']}={each['address']}" for each in found] == ADDRESSES
    assert len(list(load_file(path).topology.instances())) == len(PARTS)
    # The control plane runs as another user.
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "addresses",
    [ADDRESSES[:-1], [*ADDRESSES, "b200-0=10.0.0.9:8001"], [*ADDRESSES[:-1], "l4-0="]],
    ids=["one is missing", "one too many", "one without an address"],
)
def test_engines_that_are_not_those_of_the_play_are_told(tmp_path, capsys, addresses):
    path = tmp_path / "fleet.yaml"
    assert compose.main(["configure", *addresses, "--write", str(path)]) == 1
    assert "expected a100-0=... a100-1=... l4-0=..." in capsys.readouterr().err
    assert not path.exists()


def test_between_two_performances_nothing_is_recorded():
    outcome = Outcome(
        kind=Kind.PLAIN,
        proxy="sotw",
        started_s=1,
        ended_s=2,
        headers_s=None,
        first_byte_s=None,
        status=200,
        model="",
        is_downgraded=False,
        reason="",
        engine="",
        is_complete=True,
        error="",
    )
    records = compose.Records()
    records(outcome)
    scene = Scene(watch=None, tiers={})
    records.scene = scene
    records(outcome)
    assert scene.outcomes == [outcome]


async def test_a_performance_waits_for_its_stage_and_ends_with_its_container():
    flags = [f"--engine={part.name}=http://127.0.0.1:9" for part in PARTS]
    flags += [f"--address={each}" for each in ADDRESSES]
    flags += [
        f"--{kind}={name}=http://127.0.0.1:9"
        for kind in ("proxy", "proxy-admin")
        for name in ("sotw", "delta")
    ]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "demo.compose", "perform", "--server=http://127.0.0.1:9", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
    )
    try:
        said = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        assert said == b"Waiting until the stage answers.\n"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 130
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
