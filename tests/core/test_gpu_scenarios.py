"""Timelines on a manual clock: what GPUs do to the instances on them."""

from __future__ import annotations

import pytest

from tests.fakes.brain import (
    GIB,
    Brain,
    gpu,
    model,
    sample,
    tier,
    topology,
    warm,
)
from xds_server.core.plan import EndpointHealth, Level
from xds_server.core.sample import GpuHealth


def test_an_idle_default_engine_trips_only_when_somebody_else_takes_memory():
    brain = Brain(topology(model("chat", tier("primary", "a"), tier("fallback", "f"))))
    total = 80 * GIB

    def live(seconds, used):
        for _ in range(seconds):
            at = brain.now + 1.0
            memory = gpu(ratio=used / total, free=int(total - used))
            brain.feed(
                sample("a", at, gpu=memory, reserved_ratio=0.92, kv_ratio=0.0, running=0.0),
                sample("f", at),
                at=at,
            )

    live(600, 0.92 * total)
    assert brain.named("vram_tripped") == []
    assert (brain.tier().level, brain.instance("a").ceiling) == (Level.HEALTHY, 1.0)
    live(60, 0.92 * total + 4 * GIB)
    assert brain.named("vram_tripped") == []
    live(1, 0.92 * total + 4 * GIB)
    assert [at for at, _ in brain.named("vram_tripped")] == [661.0]
    assert (brain.tier().level, brain.instance("a").ceiling) == (Level.DEGRADED, 0.5)
    assert brain.instance("a").reason.rule == "vram_pressure"
    assert brain.instance("a").health is EndpointHealth.HEALTHY
    live(120, 0.94 * total)
    assert brain.named("vram_cleared") == []
    live(61, 0.92 * total)
    assert len(brain.named("vram_cleared")) == 1
    assert (brain.tier().level, brain.instance("a").ceiling) == (Level.HEALTHY, 1.0)


def test_a_throttled_gpu_halves_its_instance_after_a_while():
    brain = warm()
    for at in range(11, 80):
        health = GpuHealth.THROTTLED if at < 30 else GpuHealth.OK
        brain.feed(
            sample("a", float(at), gpu=gpu(health)),
            *[sample(n, float(at)) for n in "bcf"],
            at=float(at),
        )
        ceiling = brain.instance("a").ceiling
        assert ceiling == (0.5 if 16 <= at < 60 else 1.0)
        if ceiling < 1.0:
            assert brain.instance("a").reason.rule == "gpu_throttled"
    assert [at for at, _ in brain.named("gpu_throttled")] == [16.0]
    assert [at for at, _ in brain.named("gpu_unthrottled")] == [60.0]


@pytest.mark.parametrize(
    ("silence", "ended_at"),
    [
        pytest.param({"gpu": None}, 70.0, id="the agent reads no GPU any more"),
        pytest.param(
            {"gpu": gpu(GpuHealth.UNKNOWN, ratio=None, free=None)}, 70.0, id="its GPU says nothing"
        ),
        pytest.param(
            None, 71.5, id="the agent says nothing, 30 s from when its telemetry is stale"
        ),
    ],
)
def test_what_a_gpu_said_last_makes_no_instance_small_for_ever(silence, ended_at):
    brain = warm()
    bad = gpu(GpuHealth.THROTTLED, free=GIB // 8)
    for at in range(11, 80):
        telling = [sample(n, float(at)) for n in "bcf"]
        if at < 40:
            telling.append(sample("a", float(at), gpu=bad))
        elif silence is not None:
            telling.append(sample("a", float(at), **silence))
        brain.feed(*telling, at=float(at))
        brain.until(float(at) + 0.99)
    for name in ("vram_cleared", "gpu_unthrottled"):
        ((at, event),) = brain.named(name)
        assert at == pytest.approx(ended_at, abs=1.0)
        assert "not read any more" in event.reason.text
    assert brain.instance("a").ceiling == 1.0


@pytest.mark.parametrize(
    ("ratio", "free", "said"),
    [
        (0.999, GIB // 8, {"vram_ratio": 0.999, "vram_free_bytes": float(GIB // 8)}),
        (None, GIB // 8, {"vram_free_bytes": float(GIB // 8)}),
    ],
    ids=["both", "no ratio"],
)
def test_a_trip_says_what_was_measured(ratio, free, said):
    brain = warm()
    brain.feed(sample("a", 11.0, gpu=gpu(ratio=ratio, free=free)), at=11.0)
    (_, event) = brain.named("vram_tripped")[0]
    assert event.reason.inputs == said


def test_a_trip_by_ratio_alone_says_so():
    brain = warm()
    for at in range(11, 80):
        memory = gpu(ratio=0.99, free=None)
        brain.feed(sample("a", float(at), gpu=memory, reserved_ratio=0.9), at=float(at))
    assert brain.named("vram_tripped")[0][1].reason.inputs == {"vram_ratio": 0.99}
