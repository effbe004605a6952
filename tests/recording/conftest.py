from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.recorded_fleet import config, drive
from xds_server.fleet import Fleet


@pytest.fixture
def fleet() -> Fleet:
    """A fleet that has seen something already: a recording begins in the middle."""
    loaded = config()
    made = Fleet(loaded.topology, loaded.policy, 0.0)
    drive(made, start=0.0, seconds=25, seed=7)
    return made


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "incident.jsonl.gz"
