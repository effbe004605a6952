"""The promise to whoever reads a stream: what the control plane decides never cuts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.live_streams import live_streams

pytestmark = pytest.mark.envoy

PLAIN: dict[str, Any] = {}
GATED = {"limit": {"requests_per_second": 1000, "concurrency": 500}}
SESSIONS = {"affinity": {"policy": "maglev", "header": "x-session-id"}}


@pytest.mark.parametrize(
    ("delta", "first_tier"),
    [
        pytest.param(False, PLAIN, id="state of the world"),
        pytest.param(True, GATED, id="delta, behind a gate"),
        pytest.param(True, SESSIONS, id="delta, with affinity"),
    ],
)
async def test_no_stream_is_cut_across_a_hundred_pushes_a_drain_a_fault_and_its_recovery(
    tmp_path: Path, delta: bool, first_tier: dict[str, Any]
) -> None:
    run = await live_streams(tmp_path, streams=24, pushes=100, delta=delta, first_tier=first_tier)
    assert (run.cut, run.ended_early) == (0, 0)
    assert run.pushes >= 100
    assert run.rejected == {}
    # Whoever came meanwhile was answered, by an engine.
    assert run.others.total() > 20
    assert set(run.others) <= {"a", "b", "c", "d"}
