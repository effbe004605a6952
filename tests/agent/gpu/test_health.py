"""From facts to health."""

from __future__ import annotations

import pytest

from sidecar_agent.gpu.facts import Fact, FactStatus, GpuHealth
from sidecar_agent.gpu.health import badness, judge
from sidecar_agent.gpu.status import NvmlStatus, NvmlStatusError, status_text

NONE = Fact(FactStatus.UNSUPPORTED)


def is_(value):
    return Fact(FactStatus.OK, value)


@pytest.mark.parametrize(
    ("reasons", "action", "answered", "health", "detail"),
    [
        (NONE, NONE, True, GpuHealth.OK, ""),
        (is_(0x1), is_(0), True, GpuHealth.OK, ""),
        (is_(0x4), is_(0), True, GpuHealth.OK, ""),
        (is_(0x44), is_(0), True, GpuHealth.THROTTLED, "hardware thermal slowdown"),
        (is_(0x88), is_(0), True, GpuHealth.THROTTLED, "power brake, hardware slowdown"),
        (is_(0x40), is_(4), True, GpuHealth.RESET_REQUIRED, "the driver asks for: drain and reset"),
        (NONE, is_(99), True, GpuHealth.RESET_REQUIRED, "the driver asks for: recovery action 99"),
        (NONE, NONE, False, GpuHealth.UNKNOWN, "no number could be read"),
    ],
    ids=["bare", "idle", "power cap", "thermal", "brake", "reset", "unheard of", "silent"],
)
def test_health_follows_the_facts(reasons, action, answered, health, detail):
    assert judge(reasons=reasons, action=action, answered=answered) == (health, detail)


def test_unknown_is_worse_than_ok_and_better_than_known_trouble():
    ranked = sorted(GpuHealth, key=badness)
    assert ranked == [
        GpuHealth.OK,
        GpuHealth.UNKNOWN,
        GpuHealth.THROTTLED,
        GpuHealth.RESET_REQUIRED,
        GpuHealth.LOST,
    ]


def test_every_status_has_words():
    assert all(not status_text(status).startswith("NVML status") for status in NvmlStatus)
    assert status_text(4711) == "NVML status 4711"


def test_a_status_error_can_be_hashed_and_compared():
    error = NvmlStatusError(15, "nvmlDeviceGetUUID")
    assert len({error, error}) == 1
    assert error != ValueError()
    assert str(error) == "nvmlDeviceGetUUID: the GPU is lost (fell off the bus)"
