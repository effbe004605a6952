"""From a host's GPUs to an instance's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar_agent.gpu.facts import (
    DriverState,
    Fact,
    FactStatus,
    GpuHealth,
    GpuReading,
    GpuSnapshot,
    MemoryKind,
)
from sidecar_agent.gpu.health import badness
from sidecar_agent.gpu.reduce import reduce_gpus, reduce_instances, vram_ratio

MISSING = Fact(FactStatus.ERROR, error="unknown driver error")


def is_(value):
    return Fact(FactStatus.OK, value)


def gpu(uuid, *, used=0, total=100, reserved=0, busy=None, **more):
    return GpuReading(
        **{
            "uuid": uuid,
            "index": 0,
            "health": GpuHealth.OK,
            "memory_kind": MemoryKind.DEDICATED,
            "memory_total_bytes": is_(total),
            "memory_used_bytes": is_(used),
            "memory_reserved_bytes": is_(reserved),
            "memory_free_bytes": is_(total - used - reserved),
            "utilization_ratio": Fact() if busy is None else is_(busy),
        }
        | more
    )


def snapshot(*gpus, driver=DriverState.OK, detail=""):
    return GpuSnapshot(driver=driver, detail=detail, read_at=5.0, gpus=gpus)


def test_the_fullest_gpu_and_the_least_free_memory_count():
    group = reduce_gpus(snapshot(gpu("a", used=95), gpu("b", used=86)), ["a", "b"])
    assert (group.vram_ratio, group.vram_free_bytes) == (0.95, 5)
    assert (group.health, group.detail, group.read_at) == (GpuHealth.OK, "", 5.0)
    assert group.memory_kind is MemoryKind.DEDICATED
    assert [device.uuid for device in group.devices] == ["a", "b"]


def test_a_gpu_that_is_missing_breaks_the_instance_and_is_not_averaged():
    group = reduce_gpus(snapshot(gpu("a", used=95)), ["a", "b"])
    assert group.health is GpuHealth.LOST
    assert group.detail == "b: not on this host"
    assert group.vram_ratio == 0.95


@pytest.mark.parametrize("driver", [state for state in DriverState if state is not DriverState.OK])
def test_while_the_driver_is_not_read_a_gpu_is_unknown_and_not_lost(driver):
    group = reduce_gpus(snapshot(driver=driver, detail="why"), ["a", "b"])
    assert (group.health, group.detail, group.vram_ratio) == (GpuHealth.UNKNOWN, "why", None)
    assert group.read_at is None


def test_the_worst_gpu_gives_its_words():
    throttled = gpu("a", health=GpuHealth.THROTTLED, detail="power brake")
    lost = gpu("b", health=GpuHealth.LOST, detail="gone")
    assert reduce_gpus(snapshot(throttled, lost), ["a", "b"]).detail == "b: gone"
    assert reduce_gpus(snapshot(throttled), ["a"]).detail == "power brake"


@pytest.mark.parametrize("kind", [MemoryKind.UNIFIED, MemoryKind.COHERENT])
def test_memory_that_is_not_the_gpus_own_stays_out_of_the_vram_rule(kind):
    group = reduce_gpus(snapshot(gpu("a", used=99, memory_kind=kind)), ["a"])
    assert (group.memory_kind, group.vram_ratio, group.vram_free_bytes) == (kind, None, None)
    assert group.devices[0].memory_used_bytes.number == 99, "for people"


def test_of_a_mixed_pair_the_dedicated_one_counts():
    unified = gpu("a", used=99, memory_kind=MemoryKind.UNIFIED)
    group = reduce_gpus(snapshot(unified, gpu("b", used=10)), ["a", "b"])
    assert (group.memory_kind, group.vram_ratio) == (MemoryKind.DEDICATED, 0.1)


def test_a_number_that_could_not_be_read_is_missing_and_not_zero():
    broken = gpu("a", memory_used_bytes=MISSING, memory_free_bytes=MISSING)
    group = reduce_gpus(snapshot(broken), ["a"])
    assert (group.vram_ratio, group.vram_free_bytes) == (None, None)
    assert reduce_gpus(snapshot(broken, gpu("b", used=40)), ["a", "b"]).vram_ratio == 0.4


def test_a_straggler_shows_as_a_minimum_far_below_the_maximum():
    group = reduce_gpus(snapshot(gpu("a", busy=0.1), gpu("b", busy=1.0), gpu("c")), ["a", "b", "c"])
    assert (group.utilization_min, group.utilization_max) == (0.1, 1.0)


def test_totals_count_the_memory_of_a_mig_gpu_instance_once():
    slices = [
        gpu(name, total=70, parent_uuid="a", gpu_instance_id=instance)
        for name, instance in [("m1", 1), ("m2", 1), ("m3", 2)]
    ]
    group = reduce_gpus(snapshot(*slices), ["m1", "m2", "m3"])
    assert group.memory_total_bytes == 140
    loose = [replace(one, gpu_instance_id=None) for one in slices]
    assert reduce_gpus(snapshot(*loose), ["m1", "m2"]).memory_total_bytes == 140


def test_an_instance_without_gpus_has_no_group():
    assert reduce_instances(snapshot(), {"cpu": []}) == {}
    group = reduce_gpus(snapshot(detail="none here"), [])
    assert (group.health, group.detail) == (GpuHealth.UNKNOWN, "none here")


def test_instances_that_use_one_gpu_are_told_that_they_share_it():
    groups = reduce_instances(
        snapshot(gpu("a"), gpu("b")), {"x": ["a", "b"], "y": ["b"], "z": ["c"], "w": ["c::1"]}
    )
    assert {name: group.shared for name, group in groups.items()} == {
        "x": True,
        "y": True,
        "z": True,
        "w": True,
    }
    alone = reduce_instances(snapshot(gpu("a")), {"x": ["a", "a"], "y": ["b"]})
    assert not any(group.shared for group in alone.values())
    assert len(alone["x"].devices) == 1


@pytest.mark.parametrize(
    ("reading", "ratio"),
    [
        (gpu("a", used=70, reserved=5), 0.75),
        (gpu("a", used=70, memory_reserved_bytes=Fact(FactStatus.UNSUPPORTED)), 0.7),
        (gpu("a", used=99, reserved=5), 1.0),
        (gpu("a", memory_used_bytes=MISSING), None),
        (gpu("a", memory_total_bytes=MISSING), None),
        (gpu("a", total=0), None),
    ],
    ids=["version 2", "version 1", "rounding", "no use", "no total", "total of zero"],
)
def test_the_ratio_counts_what_the_driver_reserves(reading, ratio):
    assert vram_ratio(reading) == ratio


readings = st.builds(
    gpu,
    st.sampled_from("abcdef"),
    used=st.integers(0, 90),
    reserved=st.integers(0, 10),
    health=st.sampled_from(GpuHealth),
    memory_kind=st.sampled_from(MemoryKind),
)


@given(st.lists(readings, unique_by=lambda one: one.uuid), st.sets(st.sampled_from("abcdef")))
def test_another_gpu_never_makes_an_instance_look_better(gpus, wanted):
    whole = snapshot(*gpus)
    group = reduce_gpus(whole, sorted(wanted))
    assert group == replace(
        reduce_gpus(whole, sorted(wanted, reverse=True)),
        devices=group.devices,
        detail=group.detail,
    )
    for uuid in "abcdef":
        more = reduce_gpus(whole, sorted(wanted | {uuid}))
        if wanted:
            assert badness(more.health) >= badness(group.health)
        if group.vram_ratio is not None:
            assert more.vram_ratio >= group.vram_ratio
            assert more.vram_free_bytes <= group.vram_free_bytes
