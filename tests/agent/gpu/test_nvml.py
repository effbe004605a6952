"""The NVML reader over pynvml and the in-process fake: facts, memory, ranges, MIG."""

from __future__ import annotations

import pynvml
import pytest
from structlog.testing import capture_logs

from sidecar_agent.gpu.facts import DriverState, FactStatus, GpuHealth, MemoryKind
from sidecar_agent.gpu.meminfo import MeminfoError
from sidecar_agent.gpu.nvml import NvmlReader
from tests.fakes.nvml import (
    GIB,
    LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    FakeGpu,
    only,
    opened,
)

V1, V2 = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"
HANDLE = "nvmlDeviceGetHandleByIndex_v2"


def test_all_facts_of_a_healthy_gpu(nvml, reader, clock):
    nvml.gpus = [
        FakeGpu(uuid="GPU-a", used=GIB, reserved=GIB, utilization=55, milliwatts=350_500),
    ]
    snapshot = opened(reader).read()
    gpu = only(snapshot)
    assert (snapshot.driver, snapshot.driver_version) == (DriverState.OK, "580.95.05")
    assert snapshot.read_at == clock.now
    assert (gpu.uuid, gpu.index, gpu.name) == ("GPU-a", 0, "NVIDIA Fake")
    assert (gpu.health, gpu.memory_kind) == (GpuHealth.OK, MemoryKind.DEDICATED)
    assert gpu.memory_total_bytes.number == 80 * GIB
    assert gpu.memory_used_bytes.number == gpu.memory_reserved_bytes.number == GIB
    assert gpu.memory_free_bytes.number == 78 * GIB
    assert gpu.utilization_ratio.number == 0.55
    assert gpu.temperature_celsius.number == 40
    assert gpu.power_watts.number == 350.5
    assert gpu.clocks_event_reasons.number == gpu.recovery_action.number == 0


def test_the_library_is_initialized_once_for_many_readings(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-a")]
    made = opened(reader)
    for _ in range(50):
        made.read()
    assert nvml.calls["nvmlInitWithFlags"] == 1


def test_the_older_calls_are_used_where_the_newer_are_missing(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-a", throttle=0x8, used=GIB, reserved=GIB)]
    nvml.absent = {
        V2,
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetFieldValues",
    }
    gpu = only(opened(reader).read())
    assert gpu.memory_used_bytes.number == 2 * GIB
    assert gpu.memory_reserved_bytes.status is FactStatus.UNSUPPORTED
    assert gpu.temperature_celsius.number == 40
    assert gpu.health is GpuHealth.THROTTLED
    assert gpu.recovery_action.status is FactStatus.UNSUPPORTED


def test_a_recovery_action_that_an_old_driver_does_not_know_is_unsupported(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-a", recovery=None)]
    made = opened(reader)
    assert only(made.read()).recovery_action.status is FactStatus.UNSUPPORTED
    made.read()
    assert nvml.calls["nvmlDeviceGetFieldValues"] == 1


@pytest.mark.parametrize(
    ("field", "value", "fact"),
    [
        ("utilization", 101, "utilization_ratio"),
        ("utilization", 808334905, "utilization_ratio"),
        ("temperature", 2_000_000, "temperature_celsius"),
        ("milliwatts", 4294967295, "power_watts"),
        ("throttle", 0xFFFFFFFFFFFFFFFF, "clocks_event_reasons"),
        ("recovery", 4294967295, "recovery_action"),
        ("total", 9223372036854775794, "memory_total_bytes"),
        ("used", 81 * GIB, "memory_used_bytes"),
    ],
)
def test_a_number_out_of_range_is_missing_and_counted_and_said_once(
    nvml, reader, field, value, fact
):
    gpu = FakeGpu(uuid="GPU-a")
    setattr(gpu, field, value)
    nvml.gpus = [gpu]
    with capture_logs() as logs:
        made = opened(reader)
        made.read()
        snapshot = made.read()
    read = getattr(only(snapshot), fact)
    assert read.status is FactStatus.ERROR
    assert read.number is None
    assert read.error == f"out of range: {value:.0f}" or fact == "memory_total_bytes"
    assert snapshot.rejected == 2
    assert len([log for log in logs if log["event"] == "gpu_value_rejected"]) == 1
    assert only(snapshot).health is GpuHealth.OK


@pytest.mark.parametrize("status", [NOT_SUPPORTED, NO_PERMISSION])
def test_what_is_unsupported_is_asked_once_per_opening(nvml, reader, status):
    nvml.gpus = [FakeGpu(uuid="GPU-a", errors={"nvmlDeviceGetPowerUsage": status})]
    made = opened(reader)
    for _ in range(5):
        assert only(made.read()).power_watts.status is FactStatus.UNSUPPORTED
    assert nvml.calls["nvmlDeviceGetPowerUsage"] == 1
    made.close()
    made.open()
    nvml.gpus[0].errors.clear()
    assert only(made.read()).power_watts.number == 100


def test_memory_that_may_not_be_read_is_unsupported_and_not_unified(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-a", errors={V1: NO_PERMISSION, V2: NO_PERMISSION})]
    gpu = only(opened(reader).read())
    assert gpu.memory_kind is MemoryKind.UNKNOWN
    assert gpu.memory_total_bytes.status is FactStatus.UNSUPPORTED
    assert gpu.memory_total_bytes.error == "no permission"


def test_a_call_that_the_bindings_lack_is_unsupported(nvml, reader, monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperatureV")
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperature")
    nvml.gpus = [FakeGpu(uuid="GPU-a")]
    assert only(opened(reader).read()).temperature_celsius.status is FactStatus.UNSUPPORTED


def test_a_passing_error_is_no_answer_and_is_asked_again(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-a", errors={"nvmlDeviceGetPowerUsage": UNKNOWN})]
    made = opened(reader)
    power = only(made.read()).power_watts
    assert (power.status, power.error) == (FactStatus.ERROR, "unknown driver error")
    nvml.gpus[0].errors.clear()
    assert only(made.read()).power_watts.number == 100


def test_version_2_that_fails_is_not_called_again_but_both_failing_is_a_fault(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-a", errors={V2: UNKNOWN, V1: UNKNOWN})]
    made = opened(reader)
    gpu = only(made.read())
    assert gpu.memory_used_bytes.status is FactStatus.ERROR
    assert gpu.memory_kind is MemoryKind.UNKNOWN
    nvml.gpus[0].errors = {V2: UNKNOWN}
    for _ in range(3):
        assert only(made.read()).memory_used_bytes.status is FactStatus.OK
    assert nvml.calls[V2] == 2


@pytest.mark.parametrize(
    "gpu",
    [
        FakeGpu(uuid="GPU-a", errors={V1: NOT_SUPPORTED, V2: NOT_SUPPORTED}),
        FakeGpu(uuid="GPU-a", total=0, reserved=0),
    ],
    ids=["not supported", "total of zero"],
)
def test_unified_memory_is_the_systems(nvml, reader, gpu):
    nvml.gpus = [gpu]
    read = only(opened(reader).read())
    assert read.memory_kind is MemoryKind.UNIFIED
    assert read.memory_total_bytes.number == 128 * GIB
    assert read.memory_free_bytes.number == 96 * GIB
    assert read.memory_used_bytes.number == 32 * GIB
    assert read.memory_reserved_bytes.status is FactStatus.UNSUPPORTED


def test_system_memory_that_cannot_be_read_is_an_error_and_no_number(nvml, clock):
    def broken():
        raise MeminfoError("/proc/meminfo: no line MemTotal")

    nvml.gpus = [FakeGpu(uuid="GPU-a", errors={V1: NOT_SUPPORTED, V2: NOT_SUPPORTED})]
    made = NvmlReader(system_memory=broken, clock=clock)
    made.open()
    total = only(made.read()).memory_total_bytes
    made.close()
    assert (total.status, total.error) == (FactStatus.ERROR, "/proc/meminfo: no line MemTotal")


@pytest.mark.parametrize(
    ("mode", "kind"),
    [(0, MemoryKind.DEDICATED), (1, MemoryKind.DEDICATED), (2, MemoryKind.COHERENT)],
    ids=["none", "hmm", "ats"],
)
def test_memory_that_is_coherent_with_the_cpu_is_told_apart(nvml, reader, mode, kind):
    nvml.gpus = [FakeGpu(uuid="GPU-a", addressing=mode)]
    made = opened(reader)
    made.read()
    assert only(made.read()).memory_kind is kind
    assert nvml.calls["nvmlDeviceGetAddressingMode"] == 1


def test_an_addressing_mode_that_fails_is_asked_again(nvml, reader):
    nvml.gpus = [
        FakeGpu(uuid="GPU-a", addressing=2, errors={"nvmlDeviceGetAddressingMode": UNKNOWN})
    ]
    made = opened(reader)
    assert only(made.read()).memory_kind is MemoryKind.DEDICATED
    nvml.gpus[0].errors.clear()
    assert only(made.read()).memory_kind is MemoryKind.COHERENT


@pytest.mark.parametrize(
    ("status", "health"),
    [
        (LOST, GpuHealth.LOST),
        (28, GpuHealth.LOST),
        (RESET_REQUIRED, GpuHealth.RESET_REQUIRED),
        (UNKNOWN, GpuHealth.UNKNOWN),
    ],
)
@pytest.mark.parametrize("function", ["", HANDLE], ids=["every call", "the handle"])
def test_one_gpu_that_does_not_answer_hides_no_other(nvml, reader, status, health, function):
    nvml.gpus = [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", used=GIB)]
    made = opened(reader)
    made.read()
    nvml.gpus[0].errors[function] = status
    snapshot = made.read()
    by_uuid = {gpu.uuid: gpu for gpu in snapshot.gpus}
    assert by_uuid["GPU-a"].health is health
    assert by_uuid["GPU-a"].memory_used_bytes.number is None
    assert by_uuid["GPU-b"].health is GpuHealth.OK
    assert by_uuid["GPU-b"].memory_used_bytes.number == GIB
    nvml.gpus[0].errors.clear()
    assert {gpu.health for gpu in made.read().gpus} == {GpuHealth.OK}
    assert nvml.calls["nvmlInitWithFlags"] == 1


@pytest.mark.parametrize(
    "call", [V2, "nvmlDeviceGetAddressingMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetPowerUsage"]
)
def test_a_gpu_that_is_lost_in_the_middle_of_a_reading_shows_no_number(nvml, reader, call):
    nvml.gpus = [FakeGpu(uuid="GPU-a", errors={call: LOST}), FakeGpu(uuid="GPU-b")]
    gpu, other = opened(reader).read().gpus
    assert other.health is GpuHealth.OK
    assert (gpu.health, gpu.memory_used_bytes.number) == (GpuHealth.LOST, None)


def test_a_gpu_that_never_answered_is_told_by_its_index(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", errors={HANDLE: LOST})]
    snapshot = opened(reader).read()
    assert only(snapshot).uuid == "GPU-a"
    assert snapshot.detail == "GPU at index 1 does not answer: the GPU is lost (fell off the bus)"


def test_a_driver_without_gpus_says_so(nvml, reader):
    snapshot = opened(reader).read()
    assert (snapshot.driver, snapshot.detail) == (DriverState.OK, "the driver lists no GPU")


def test_a_health_that_changes_is_logged_and_one_that_stays_is_not(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")]
    made = opened(reader)
    with capture_logs() as logs:
        for status in (0, LOST, LOST, LOST, 0, 0):
            nvml.gpus[0].errors = {"": status}
            made.read()
    changes = [log["health"] for log in logs if log["event"] == "gpu_health_changed"]
    assert changes == ["lost", "ok"]


def test_names_that_cannot_be_read_cost_nothing(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-a", name=b"\xff\xfe"), FakeGpu(uuid="GPU-b")]
    made = opened(reader)
    assert [gpu.name for gpu in made.read().gpus] == ["", "NVIDIA Fake"]


# --- MIG ---------------------------------------------------------------------------------------------


def mig_gpu(*devices, **more):
    return FakeGpu(uuid="GPU-a", mig=list(devices), **more)


def test_mig_slots_have_holes(nvml, reader):
    first = FakeGpu(uuid="MIG-1", gpu_instance=1)
    last = FakeGpu(uuid="MIG-2", gpu_instance=2)
    nvml.gpus = [mig_gpu(None, first, None, None, last)]
    gpus = opened(reader).read().gpus
    assert [(gpu.uuid, gpu.parent_uuid, gpu.gpu_instance_id) for gpu in gpus] == [
        ("GPU-a", "", None),
        ("MIG-1", "GPU-a", 1),
        ("MIG-2", "GPU-a", 2),
    ]


def test_a_legacy_mig_uuid_tells_its_gpu_instance(nvml, reader):
    nvml.gpus = [mig_gpu(FakeGpu(uuid="MIG-GPU-0a1b/7/0"), FakeGpu(uuid="MIG-other"))]
    gpus = opened(reader).read().gpus
    assert [gpu.gpu_instance_id for gpu in gpus] == [None, 7, None]


def test_a_mig_device_shares_the_fate_of_its_gpu(nvml, reader):
    child = FakeGpu(uuid="MIG-1", gpu_instance=1)
    nvml.gpus = [mig_gpu(child), FakeGpu(uuid="GPU-b")]
    made = opened(reader)
    made.read()
    for recovery, throttle, status, health in [
        (0, 0x40, 0, GpuHealth.THROTTLED),
        (1, 0, 0, GpuHealth.RESET_REQUIRED),
        (0, 0, LOST, GpuHealth.LOST),
        (0, 0, 0, GpuHealth.OK),
    ]:
        nvml.gpus[0].recovery, nvml.gpus[0].throttle = recovery, throttle
        nvml.gpus[0].errors = {"": status}
        by_uuid = {gpu.uuid: gpu for gpu in made.read().gpus}
        assert by_uuid["MIG-1"].health is health
        assert by_uuid["GPU-b"].health is GpuHealth.OK


def test_a_mig_device_that_was_taken_apart_is_forgotten(nvml, reader):
    nvml.gpus = [mig_gpu(FakeGpu(uuid="MIG-1"), FakeGpu(uuid="MIG-2"))]
    made = opened(reader)
    made.read()
    nvml.gpus[0].mig[1] = None
    assert [gpu.uuid for gpu in made.read().gpus] == ["GPU-a", "MIG-1"]
    nvml.gpus[0].mig = []
    assert [gpu.uuid for gpu in made.read().gpus] == ["GPU-a"]


def test_a_mig_device_that_cannot_be_listed_is_unknown_and_not_gone(nvml, reader):
    nvml.gpus = [mig_gpu(FakeGpu(uuid="MIG-1"))]
    made = opened(reader)
    made.read()
    for call in ("nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetMaxMigDeviceCount"):
        nvml.gpus[0].errors = {call: UNKNOWN}
        assert made.read().gpus[1].detail == "its GPU does not list it now"
        gpus = made.read().gpus
        assert [(gpu.uuid, gpu.health) for gpu in gpus] == [
            ("GPU-a", GpuHealth.OK),
            ("MIG-1", GpuHealth.UNKNOWN),
        ]


def test_mig_devices_of_a_gpu_that_is_no_longer_listed_are_lost(nvml, reader):
    nvml.gpus = [FakeGpu(uuid="GPU-b"), mig_gpu(FakeGpu(uuid="MIG-1"))]
    made = opened(reader)
    made.read()
    nvml.gpus.pop()
    gpus = {gpu.uuid: gpu for gpu in made.read().gpus}
    assert gpus["GPU-a"].health is gpus["MIG-1"].health is GpuHealth.LOST
