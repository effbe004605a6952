"""The NVML reader as a whole: opening, failing, trying again, and asking for a new process."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sidecar_agent.gpu import nvml as backend
from sidecar_agent.gpu.facts import DriverState, GpuHealth
from sidecar_agent.gpu.nvml import NvmlReader, host_memory
from tests.fakes.nvml import (
    GIB,
    LOST,
    MISMATCH,
    NO_PERMISSION,
    UNKNOWN,
    FakeGpu,
    only,
    opened,
)
from tests.fakes.waiting import PATIENCE_S

V2 = "nvmlDeviceGetMemoryInfo_v2"
COUNT, HANDLE = "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"


@pytest.mark.parametrize(
    ("status", "driver"),
    [
        (9, DriverState.ABSENT),
        (12, DriverState.ABSENT),
        (MISMATCH, DriverState.FAILED),
        (NO_PERMISSION, DriverState.FAILED),
        (UNKNOWN, DriverState.FAILED),
    ],
)
def test_a_driver_that_cannot_be_opened_is_told_once_and_tried_with_back_off(
    nvml, reader, clock, status, driver
):
    nvml.gpus = [FakeGpu(uuid="GPU-a")]
    nvml.errors["nvmlInitWithFlags"] = status
    with capture_logs() as logs:
        made = opened(reader, backoff_base_s=2, backoff_cap_s=20)
        attempts = []
        for second in range(61):
            clock.now = 1000.0 + second
            before = nvml.calls["nvmlInitWithFlags"]
            snapshot = made.read()
            if nvml.calls["nvmlInitWithFlags"] > before:
                attempts.append(second)
            assert snapshot.driver is driver
            assert snapshot.read_at == clock.now
    assert attempts == [2, 6, 14, 30, 50], "2, 4, 8, 16, then 20 s apart at the longest"
    assert len([log for log in logs if log["event"].startswith("gpu_driver")]) == 1
    nvml.errors.clear()
    clock.now = 1070.0
    assert made.read().driver is DriverState.OK


def test_pauses_are_jittered_from_zero(nvml, clock):
    nvml.errors["nvmlInitWithFlags"] = 9
    pauses = []
    for seed in range(20):
        made = NvmlReader(clock=clock, rng=random.Random(seed))
        made.open()
        pauses.append(made._retry_at - clock.now)
    assert 0 <= min(pauses) < 0.5
    assert 1.5 < max(pauses) <= 2.0


@pytest.mark.parametrize("status", [1, 9, MISMATCH, LOST, UNKNOWN])
def test_a_driver_that_stops_answering_is_opened_anew(nvml, reader, clock, status):
    nvml.gpus = [FakeGpu(uuid="GPU-a", used=GIB)]
    made = opened(reader)
    made.read()
    nvml.errors[COUNT] = status
    snapshot = made.read()
    assert snapshot.driver is DriverState.FAILED
    assert only(snapshot).memory_used_bytes.number is None
    assert only(snapshot).health is GpuHealth.UNKNOWN
    assert nvml.refcount == 0
    nvml.errors.clear()
    assert made.read().driver is DriverState.FAILED, "not before its time"
    clock.now += 2
    assert made.read().driver is DriverState.OK
    assert (nvml.calls["nvmlInitWithFlags"], nvml.refcount) == (2, 1)


@pytest.mark.parametrize(
    "call", [HANDLE, V2, "nvmlDeviceGetMigMode", "nvmlDeviceGetMigDeviceHandleByIndex"]
)
def test_a_library_that_says_it_is_not_initialized_is_opened_anew(nvml, reader, call):
    nvml.gpus = [FakeGpu(uuid="GPU-a", mig=[FakeGpu(uuid="MIG-1")])]
    made = opened(reader)
    made.read()
    nvml.gpus[0].errors[call] = 1
    assert made.read().driver is DriverState.FAILED
    assert nvml.refcount == 0


@pytest.mark.parametrize(
    ("status", "was_read", "needs_restart"),
    [
        (MISMATCH, True, True),
        (MISMATCH, False, True),
        (UNKNOWN, True, True),
        (UNKNOWN, False, False),
        (9, True, False),
    ],
    ids=["upgraded", "upgraded before", "lost its devices", "never had them", "unloaded"],
)
def test_only_what_a_new_process_can_heal_asks_for_one(
    nvml, reader, clock, *, status, was_read, needs_restart
):
    made = reader(restart_after=3)
    if was_read:
        made.open()
        made.read()
        nvml.errors[COUNT] = status
    nvml.errors["nvmlInitWithFlags"] = status
    if not was_read:
        made.open()
    asked = []
    for _ in range(4):
        asked.append(made.read().restart_needed)
        clock.now += 100
    assert asked[0] is False
    assert asked[-1] is needs_restart


def test_a_driver_that_opens_but_says_no_version_is_closed_again(nvml, reader):
    nvml.errors["nvmlSystemGetDriverVersion"] = UNKNOWN
    made = opened(reader)
    assert made.read().driver is DriverState.FAILED
    assert nvml.refcount == 0


def test_a_shutdown_that_fails_is_said_and_survived(nvml, clock):
    made = NvmlReader(clock=clock)
    made.open()
    nvml.errors["nvmlShutdown"] = UNKNOWN
    with capture_logs() as logs:
        made.close()
        made.close()
        assert nvml.calls["nvmlShutdown"] == 1
        made.open()
        made.close()
    said = [log["event"] for log in logs]
    assert said.count("gpu_driver_shutdown_failed") == 1


def test_when_every_gpu_is_gone_the_library_is_opened_anew_now_and_then(nvml, reader, clock):
    nvml.gpus = [FakeGpu(uuid="GPU-a")]
    made = opened(reader, backoff_base_s=2, lost_backoff_cap_s=8)
    made.read()
    nvml.gpus[0].errors[""] = LOST
    attempts = []
    for second in range(31):
        clock.now = 1000.0 + second
        before = nvml.calls["nvmlInitWithFlags"]
        assert only(made.read()).health is GpuHealth.LOST
        if nvml.calls["nvmlInitWithFlags"] > before:
            attempts.append(second)
    assert attempts == [2, 6, 14, 22, 30]
    nvml.errors["nvmlInitWithFlags"] = UNKNOWN
    clock.now = 1038.0
    made.read()
    snapshot = made.read()
    assert snapshot.driver is DriverState.FAILED
    assert only(snapshot).health is GpuHealth.LOST, "what was broken stays broken while unread"
    nvml.errors.clear()
    nvml.gpus[0].errors.clear()
    clock.now = 1100.0
    assert only(made.read()).health is GpuHealth.OK


def test_a_reader_that_nobody_listens_to_survives_trouble(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-a")]
    nvml.errors["nvmlEventSetWait_v2"] = LOST
    made = opened(reader)
    made.read()
    deadline = time.monotonic() + PATIENCE_S
    while not nvml.calls["nvmlEventSetWait_v2"] and time.monotonic() < deadline:
        time.sleep(0.002)
    made.close()
    assert nvml.calls["nvmlEventSetWait_v2"] == 1
    assert nvml.calls["nvmlEventSetFree"] == 1


def test_host_memory_is_this_hosts(monkeypatch, tmp_path):
    assert 0 < host_memory().available_bytes <= host_memory().total_bytes


@pytest.mark.parametrize(("text", "wanted"), [("1048576\n", 1 << 20), ("max\n", None)])
def test_a_cgroups_limit_is_read_where_there_is_one(monkeypatch, tmp_path, text, wanted):
    (tmp_path / "memory.max").write_text(text)
    monkeypatch.setattr(backend, "CGROUP", tmp_path)
    assert backend._cgroup_bytes("memory.max") == wanted
    assert backend._cgroup_bytes("memory.current") is None


def test_bindings_are_found_without_touching_a_driver():
    assert Path(backend.load_bindings().__file__).name == "pynvml.py"
