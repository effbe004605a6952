"""A real process under the stub library, while its GPUs change: research scenarios, end to end."""

from __future__ import annotations

import itertools
import shutil
import signal
import time

import pytest

from tests.fakes.nvml import GIB, LOST, MIB, MISMATCH, NO_PERMISSION, NOT_SUPPORTED, UNKNOWN

A, B, C, D = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abcd")
H100_TOTAL = 81559 * MIB
MEMORY, MEMORY_V2 = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"


def ok(line):
    return line["kind"] == "read" and line["driver"] == "ok"


def health(uuid, wanted):
    return lambda line: uuid in line.get("gpus", {}) and line["gpus"][uuid]["health"] == wanted


def number(line, uuid, fact):
    found = line["gpus"][uuid][fact]
    return found["value"] if found["status"] == "ok" else None


def test_an_idle_h100_has_nothing_in_use_but_what_the_driver_reserves(run, state):
    state.gpu(0, uuid=A, total=H100_TOTAL, reserved=479 * MIB, used=0)
    line = run(instances={"one": [A]}).wait_for(ok)
    assert number(line, A, "memory_used_bytes") == 0
    assert number(line, A, "memory_reserved_bytes") == 479 * MIB
    assert line["groups"]["one"]["vram_ratio"] == pytest.approx(0.0059, abs=1e-4)


def test_an_old_driver_is_read_by_version_1_and_said_once(run, state, old_library):
    for index, uuid in enumerate([A, B]):
        state.gpu(index, uuid=uuid, total=80 * GIB, reserved=GIB, used=39 * GIB, throttle=0x40)
    process = run(using=old_library, instances={"one": [A, B]})
    process.wait_for(ok)
    line = process.wait_for(lambda line: process.calls.get(MEMORY, 0) > 20)
    assert number(line, A, "memory_used_bytes") == 40 * GIB
    assert line["gpus"][A]["memory_reserved_bytes"]["status"] == "unsupported"
    assert line["groups"]["one"]["vram_ratio"] == 0.5
    assert line["gpus"][A]["health"] == "throttled", "the old name of the call works too"
    assert number(line, A, "temperature_celsius") == 40
    assert process.stop() == 0
    assert len(process.logged("call=nvmlDeviceGetMemoryInfo_v2")) == 1


def test_on_wsl2_version_2_fails_and_version_1_is_used(run, state):
    state.gpu(0, uuid=A, total=80 * GIB, reserved=GIB, used=39 * GIB)
    state.fail(0, UNKNOWN, function=MEMORY_V2)
    process = run()
    line = process.wait_for(lambda line: process.calls.get(MEMORY, 0) > 5)
    assert number(line, A, "memory_used_bytes") == 40 * GIB
    assert line["gpus"][A]["health"] == "ok"
    assert process.calls[MEMORY_V2] == 1


def test_a_gb10_uses_the_systems_memory_and_stays_out_of_the_vram_rule(run, state):
    state.gpu(0, uuid=A, name="NVIDIA GB10", util=30)
    state.fail(0, NOT_SUPPORTED, function=MEMORY)
    state.fail(0, NOT_SUPPORTED, function=MEMORY_V2)
    process = run(instances={"one": [A]})
    line = process.wait_for(ok)
    total, free = number(line, A, "memory_total_bytes"), number(line, A, "memory_free_bytes")
    assert line["gpus"][A]["memory_kind"] == "unified"
    assert 0 < free <= total
    group = line["groups"]["one"]
    assert (group["health"], group["memory_kind"], group["vram_ratio"]) == ("ok", "unified", None)
    process.wait_for(lambda _: process.calls["nvmlDeviceGetCount_v2"] > 10)
    assert process.calls[MEMORY] == process.calls[MEMORY_V2] == 1


def with_mig(state):
    """An H200 in MIG mode as an unprivileged caller sees it: holes, two CIs of one GPU instance."""
    state.gpu(0, uuid=A, mig=1)
    for function in (MEMORY, MEMORY_V2, "nvmlDeviceGetUtilizationRates"):
        state.fail(0, NO_PERMISSION, function=function)
    for slot, name, instance in [(0, "MIG-1", 1), (2, "MIG-2a", 2), (5, "MIG-2b", 2)]:
        fields = {"uuid": name, "gi": instance, "total": 71424 * MIB, "used": 22 * MIB}
        state.update({f"gpu0.mig{slot}.{key}": value for key, value in fields.items()})


def test_mig_devices_are_read_where_their_gpu_refuses(run, state):
    with_mig(state)
    line = run(instances={"both": ["MIG-2a", "MIG-2b"], "one": ["MIG-1"]}).wait_for(ok)
    assert list(line["gpus"]) == [A, "MIG-1", "MIG-2a", "MIG-2b"]
    mig = line["gpus"]["MIG-2b"]
    assert (mig["parent_uuid"], mig["gpu_instance_id"], mig["health"]) == (A, 2, "ok")
    assert line["gpus"][A]["memory_total_bytes"]["status"] == "unsupported"
    assert line["groups"]["both"]["memory_total_bytes"] == 71424 * MIB, "one memory, counted once"
    assert line["groups"]["one"]["vram_free_bytes"] == 71402 * MIB


def test_mig_utilization_is_absent_and_never_zero(run, state):
    with_mig(state)
    line = run(instances={"one": ["MIG-1"]}).wait_for(ok)
    assert line["gpus"]["MIG-1"]["utilization_ratio"]["status"] == "unsupported"
    assert line["groups"]["one"]["utilization_max"] is None


def test_two_instances_on_one_mig_gpu_instance_share_its_memory(run, state):
    with_mig(state)
    line = run(instances={"a": ["MIG-2a"], "b": ["MIG-2b"], "c": ["MIG-1"]}).wait_for(ok)
    assert [line["groups"][name]["shared"] for name in "abc"] == [True, True, False]


def test_a_lost_gpu_breaks_its_instance_within_one_interval_and_no_other(run, state):
    for index, uuid in enumerate([A, B, C, D]):
        state.gpu(index, uuid=uuid, total=80 * GIB, used=index * GIB)
    process = run(interval_s=0.2, instances={"tp4": [A, B, C, D], "other": [B, C]})
    process.wait_for(ok)
    changed_at = time.monotonic()
    state.fail(0, LOST)
    line = process.wait_for(health(A, "lost"))
    assert line["at"] - changed_at < 10.0, "one interval of 0.2 s, and time for a busy machine"
    assert line["groups"]["tp4"]["health"] == "lost"
    assert A in line["groups"]["tp4"]["detail"]
    assert line["groups"]["other"]["health"] == "ok"
    assert [number(line, uuid, "memory_used_bytes") for uuid in (A, B, C, D)] == [
        None,
        GIB,
        2 * GIB,
        3 * GIB,
    ]
    state.fail(0, None)
    process.wait_for(health(A, "ok"))
    assert process.calls["nvmlInitWithFlags"] == 1


def test_a_gpu_that_vanishes_from_the_list_is_lost_and_not_absent(run, state):
    state.gpu(0, uuid=A, total=80 * GIB)
    state.gpu(1, uuid=B, total=80 * GIB)
    process = run()
    process.wait_for(health(B, "ok"))
    state.set("count", 1)
    line = process.wait_for(health(B, "lost"))
    assert line["gpus"][B]["detail"] == "no longer listed by the driver"
    assert line["gpus"][A]["health"] == "ok"


def watching(process):
    """Wait until the XID watcher waits: an event before that nobody hears."""
    process.wait_for(lambda _: process.calls.get("nvmlEventSetWait_v2", 0) > 0)


def test_xid_79_takes_a_gpu_out_at_once(run, state):
    state.gpu(0, uuid=A, total=80 * GIB)
    state.gpu(1, uuid=B, total=80 * GIB)
    process = run(interval_s=60, instances={"one": [A], "two": [B]})
    watching(process)
    state.xid(0, 79)
    line = process.wait_for(health(A, "reset_required"))  # the next reading is a minute away
    assert line["groups"]["one"]["detail"] == "XID 79: held for 60 s"
    assert line["groups"]["two"]["health"] == "ok"


def test_a_gpu_comes_back_after_its_hold(run, state):
    state.gpu(0, uuid=A, total=80 * GIB)
    process = run(hold_s=0.3)
    watching(process)
    raised_at = time.monotonic()
    state.xid(0, 79)
    process.wait_for(health(A, "reset_required"))
    line = process.wait_for(health(A, "ok"))
    assert line["at"] - raised_at > 0.3
    assert process.stop() == 0
    assert len(process.logged("gpu_xid_received")) == 1
    assert len(process.logged("gpu_xid_cleared")) == 1


def test_a_gpu_stays_out_while_the_driver_asks_for_its_recovery(run, state):
    state.gpu(0, uuid=A, total=80 * GIB)
    process = run(hold_s=0.1)
    watching(process)
    state.update({"gpu0.recovery": 1})
    state.xid(0, 95)
    line = process.wait_for(health(A, "reset_required"))
    reads = process.calls["nvmlDeviceGetCount_v2"]
    line = process.wait_for(lambda _: process.calls["nvmlDeviceGetCount_v2"] > reads + 8)
    assert line["gpus"][A]["health"] == "reset_required"
    state.set("gpu0.recovery", 0)
    process.wait_for(health(A, "ok"))


def test_applications_xids_are_counted_and_take_nothing_out(run, state):
    state.gpu(0, uuid=A, total=80 * GIB)
    process = run()
    watching(process)
    xids = [13, 31, 43, 45, 94, 31]
    for xid in xids:
        state.xid(0, xid)
    line = process.wait_for(lambda line: line["gpus"][A]["recent_xids"] == xids)
    assert line["gpus"][A]["health"] == "ok"
    assert process.stop() == 0
    assert {line["gpus"][A]["health"] for line in process.lines if A in line.get("gpus", {})} == {
        "ok"
    }


def test_a_driver_that_is_installed_later_is_picked_up(run, state, tmp_path, library):
    directory = tmp_path / "driver"
    directory.mkdir()
    state.gpu(0, uuid=A, total=80 * GIB)
    process = run(using=directory / library.name)
    line = process.wait_for(lambda line: line["driver"] == "absent")
    assert line["detail"] == "libnvidia-ml.so.1 was not found"
    shutil.copy(library, directory / library.name)
    line = process.wait_for(ok)
    assert line["gpus"][A]["health"] == "ok"
    assert process.stop() == 0
    assert len(process.logged("gpu_driver_absent")) == 1
    assert len(process.logged("gpu_driver_opened")) == 1


def test_a_host_without_gpus_is_told_in_one_line(run, state, tmp_path):
    process = run(using=tmp_path / "libnvidia-ml.so.1", instances={"one": [A]})
    process.wait_for(lambda line: line["driver"] == "absent")
    lines = len(process.lines)
    line = process.wait_for(lambda _: len(process.lines) > lines + 20)
    assert line["groups"]["one"]["health"] == "unknown", "missing is not bad"
    assert process.stop() == 0
    assert [line for line in process.log if "gpu_" in line] == process.logged("gpu_driver_absent")


def test_no_gpu_asked_for_is_no_gpu_read(run, state):
    process = run(backend="none")
    process.wait_for(lambda line: line["detail"] == "GPU reading is switched off")
    assert process.stop() == 0
    assert process.calls == {}


def test_a_mismatched_driver_ends_the_process_with_75_and_shows_nothing_stale(run, state):
    state.gpu(0, uuid=A, total=80 * GIB, used=40 * GIB)
    process = run(restart_after=4, instances={"one": [A]})
    process.wait_for(ok)
    state.update({"err.nvmlInitWithFlags": MISMATCH, "err.nvmlDeviceGetCount_v2": MISMATCH})
    line = process.wait_for(lambda line: line["driver"] == "failed")
    assert "upgraded underneath" in line["detail"]
    assert number(line, A, "memory_used_bytes") is None
    assert line["groups"]["one"]["vram_ratio"] is None
    assert line["groups"]["one"]["health"] == "unknown"
    assert process.ended() == 75
    assert len(process.logged("gpu_driver_failed")) == 1
    assert process.calls["refcount"] == 0


def test_a_call_that_hangs_stalls_the_snapshot_and_nothing_else(run, state):
    state.gpu(0, uuid=A, total=80 * GIB, used=40 * GIB)
    process = run(deadline_s=0.3, instances={"one": [A]})
    process.wait_for(ok)
    state.set("hang", MEMORY_V2)
    line = process.wait_for(lambda line: line["driver"] == "stalled")
    assert line["kind"] == "beat"
    assert line["groups"]["one"]["vram_ratio"] is None
    assert line["groups"]["one"]["health"] == "unknown"
    first = len(process.lines)
    process.wait_for(lambda _: len(process.lines) > first + 20)
    beats = [line["at"] for line in process.lines[first:]]
    assert max(b - a for a, b in itertools.pairwise(beats)) < 0.5, "always on time"
    assert process.calls["peak_in_flight"] == 1, "no second call behind the one that hangs"
    state.set("hang", None)
    process.wait_for(ok)
    assert process.calls["nvmlInitWithFlags"] == 1


def test_sigterm_does_not_wait_for_a_driver_that_hangs(run, state):
    state.gpu(0, uuid=A, total=80 * GIB)
    process = run(deadline_s=0.3)
    process.wait_for(ok)
    state.set("hang", 1)
    process.wait_for(lambda line: line["driver"] == "stalled")
    assert process.stop() == 0
    assert process.lines[-1] == {
        "kind": "end",
        "let_go": False,
        "took_s": pytest.approx(0, abs=0.2),
    }


def test_a_xid_is_heard_while_a_reading_hangs(run, state):
    state.gpu(0, uuid=A, total=80 * GIB)
    process = run(deadline_s=0.2, instances={"one": [A]})
    watching(process)
    state.set("hang", MEMORY_V2)
    process.wait_for(lambda line: line["driver"] == "stalled")
    state.xid(0, 79)
    line = process.wait_for(health(A, "reset_required"))
    assert line["groups"]["one"]["health"] == "reset_required"


@pytest.mark.slow
def test_ten_thousand_readings_leak_nothing_and_initialize_once(run, state):
    state.gpu(0, uuid=A, total=80 * GIB)
    process = run(interval_s=0, lines=False)

    def reads(count):
        return lambda _: process.calls.get("nvmlDeviceGetCount_v2", 0) >= count

    early = process.wait_for(reads(500), timeout_s=60)
    late = process.wait_for(reads(10_000), timeout_s=60)
    assert late["files"] == early["files"]
    assert late["resident"] - early["resident"] < 2 * MIB
    assert process.calls["nvmlInitWithFlags"] == 1
    assert process.calls["peak_in_flight"] == 1
    assert process.calls.get("foreign_calls", 0) == 0, "no fork with the library open"
    assert process.stop() == 0
    assert process.calls["refcount"] == 0


def test_instances_are_mapped_by_uuid_whatever_the_order_of_the_driver(run, state):
    state.gpu(0, uuid=B, total=80 * GIB, used=10 * GIB, reserved=0)
    state.gpu(1, uuid=A, total=80 * GIB, used=40 * GIB, reserved=0)
    line = run(instances={"a": [A], "b": [B]}).wait_for(ok)
    assert line["groups"]["a"]["vram_ratio"] == 0.5
    assert line["groups"]["b"]["vram_ratio"] == 0.125


def test_a_tensor_parallel_pair_is_as_full_as_its_fuller_gpu(run, state):
    state.gpu(0, uuid=A, total=100 * GIB, used=95 * GIB)
    state.gpu(1, uuid=B, total=100 * GIB, used=86 * GIB)
    process = run(instances={"tp2": [A, B]})
    line = process.wait_for(ok)
    assert line["groups"]["tp2"]["vram_ratio"] == pytest.approx(0.95)
    assert line["groups"]["tp2"]["vram_free_bytes"] == 5 * GIB
    state.set("count", 1)
    line = process.wait_for(health(B, "lost"))
    assert line["groups"]["tp2"]["health"] == "lost", "not half as full"


def test_a_vgpu_guest_is_asked_for_what_it_lacks_once(run, state):
    state.gpu(0, uuid=A, total=80 * GIB, recovery=99, events=0)
    lacking = [
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ]
    for function in lacking:
        state.fail(0, NOT_SUPPORTED, function=function)
    process = run()
    line = process.wait_for(lambda _: process.calls.get(MEMORY_V2, 0) > 10)
    assert line["gpus"][A]["health"] == "ok"
    assert line["gpus"][A]["power_watts"]["status"] == "unsupported"
    once = [*lacking, "nvmlDeviceGetFieldValues", "nvmlDeviceGetSupportedEventTypes"]
    assert {process.calls[function] for function in once} == {1}
    assert process.stop() == 0
    assert len(process.logged("gpu_xid_watch_unavailable")) == 1


def test_pods_that_are_time_sliced_onto_one_gpu_share_it(run, state):
    state.gpu(0, uuid=A, total=80 * GIB, used=40 * GIB, reserved=0)
    line = run(instances={"a": [f"{A}::0"], "b": [f"{A}::1"]}).wait_for(ok)
    assert {group["shared"] for group in line["groups"].values()} == {True}
    assert {group["vram_ratio"] for group in line["groups"].values()} == {0.5}


def test_only_the_hardwares_brakes_throttle(run, state):
    state.gpu(0, uuid=A, total=80 * GIB)
    process = run()
    brakes = {"hardware thermal": 0x40, "power brake": 0x80, "hardware slowdown": 0x8}
    normal = {"power cap": 0x4, "software thermal": 0x20, "idle": 0x1}
    for name, bits in (brakes | normal).items():
        state.gpu(0, throttle=bits)
        line = process.wait_for(
            lambda line, bits=bits: ok(line) and number(line, A, "clocks_event_reasons") == bits
        )
        assert line["gpus"][A]["health"] == ("throttled" if name in brakes else "ok"), name


def test_sigusr1_lets_go_of_the_driver_and_takes_it_up_again(run, state):
    state.gpu(0, uuid=A, total=80 * GIB)
    process = run(instances={"one": [A]})
    watching(process)
    process.signal(signal.SIGUSR1)
    line = process.wait_for(lambda line: line["driver"] == "released")
    assert process.calls["refcount"] == 0, "rmmod would work now"
    assert process.calls["nvmlEventSetFree"] == 1
    assert line["groups"]["one"]["health"] == "unknown"
    process.signal(signal.SIGUSR1)
    process.wait_for(ok)
    assert process.calls["refcount"] == 1
    assert process.stop() == 0
    assert process.calls["refcount"] == 0
