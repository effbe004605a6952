from __future__ import annotations

from math import inf

import pytest

from tests.fakes.brain import GIB, gpu, sample
from xds_server.core import vram
from xds_server.core.policy import VramMode, VramPolicy
from xds_server.core.sample import GpuHealth, MemoryKind

POLICY = VramPolicy()


class Memory:
    """One instance's memory, read once per second."""

    def __init__(self, policy=POLICY, reserved=0.92):
        self.policy, self.reserved = policy, reserved
        self.watch, self.now = vram.UNSEEN, 0.0

    def read(self, seconds=1, **facts):
        for _ in range(seconds):
            self.now += 1.0
            one = sample("a", self.now, gpu=gpu(**facts), reserved_ratio=self.reserved)
            self.watch = vram.observe(self.watch, one, self.policy, self.now, forget_s=30.0)
        return self.watch.latch.on


def test_an_idle_default_engine_at_its_reservation_never_trips():
    memory = Memory()
    assert not memory.read(600, ratio=0.926)
    assert memory.watch.latch.since is None


def test_memory_above_the_reservation_trips_after_a_minute_and_clears_after_one():
    memory = Memory()
    memory.read(10, ratio=0.92)
    assert not memory.read(60, ratio=0.97)
    assert vram.deadline(memory.watch, POLICY, forget_s=30.0) == 71.0
    assert memory.read(1, ratio=0.97)
    assert memory.read(200, ratio=0.935)
    assert memory.read(60, ratio=0.92)
    assert not memory.read(1, ratio=0.92)


def test_a_short_peak_does_not_trip():
    memory = Memory()
    memory.read(59, ratio=0.99)
    memory.read(1, ratio=0.92)
    assert not memory.read(59, ratio=0.99)


@pytest.mark.parametrize(
    ("reserved", "ratio", "trips"),
    [
        pytest.param(0.50, 0.91, False, id="below high though far above the reservation"),
        pytest.param(0.50, 0.93, True, id="above high"),
        pytest.param(0.95, 0.97, False, id="a large reservation"),
        pytest.param(0.95, 0.99, True, id="above a large reservation"),
    ],
)
def test_the_trip_point_is_the_larger_of_watermark_and_reservation(reserved, ratio, trips):
    assert Memory(reserved=reserved).read(100, ratio=ratio) is trips


def test_absolute_mode_is_the_literal_rule():
    memory = Memory(VramPolicy(mode=VramMode.ABSOLUTE))
    assert memory.read(61, ratio=0.925)


def test_a_configured_reservation_stands_in_for_a_silent_engine():
    assert not Memory(VramPolicy(reserved_ratio=0.92), reserved=None).read(100, ratio=0.94)
    assert Memory(VramPolicy(reserved_ratio=0.80), reserved=None).read(100, ratio=0.94)


def test_the_baseline_is_learned_from_the_least_ratio_after_the_start():
    memory = Memory(reserved=None)
    memory.read(60, ratio=0.95)
    memory.read(60, ratio=0.93)
    assert not memory.read(100, ratio=0.955)
    assert memory.watch.least == 0.93
    assert memory.read(61, ratio=0.97)


def test_nothing_trips_by_ratio_while_the_baseline_is_being_learned():
    memory = Memory(reserved=None)
    assert not memory.read(120, ratio=0.99)
    memory.watch = vram.restart(memory.watch)
    assert not memory.read(119, ratio=0.99)


def test_little_free_memory_trips_at_once_and_clears_after_a_minute():
    memory = Memory()
    assert memory.read(1, ratio=0.92, free=200 << 20)
    assert memory.read(60, ratio=0.92)
    assert not memory.read(1, ratio=0.92)


def test_little_free_memory_keeps_it_tripped():
    memory = Memory()
    memory.read(1, free=200 << 20)
    assert memory.read(500, ratio=0.92, free=255 << 20)


@pytest.mark.parametrize(
    "kind", [MemoryKind.UNIFIED, MemoryKind.COHERENT, MemoryKind.UNKNOWN], ids=str
)
def test_only_dedicated_memory_counts(kind):
    assert not Memory().read(100, ratio=0.99, free=0, kind=kind)


def test_a_shared_gpu_counts_only_by_its_free_floor():
    memory = Memory()
    assert not memory.read(100, ratio=0.99, shared=True)
    assert memory.read(1, ratio=0.999, free=100 << 20, shared=True)
    assert not memory.read(61, ratio=0.99, shared=True)


def test_missing_readings_neither_trip_nor_clear():
    memory = Memory()
    memory.read(59, ratio=0.97)
    memory.read(1, ratio=None, free=None)
    assert not memory.read(59, ratio=0.97)
    assert memory.read(5, ratio=0.97)
    assert memory.read(30, ratio=None, free=None)
    assert not memory.read(1, ratio=None, free=None)


def test_a_tripped_instance_without_a_ratio_clears_by_its_free_memory():
    memory = Memory()
    memory.read(1, free=200 << 20)
    assert not memory.read(61, ratio=None, free=10 * GIB)


def test_vanished_gpu_facts_interrupt_the_evidence():
    memory = Memory()
    memory.read(30, ratio=0.97)
    memory.watch = vram.observe(
        memory.watch, sample("a", 31.0, gpu=None), POLICY, 31.0, forget_s=30.0
    )
    assert vram.deadline(memory.watch, POLICY, forget_s=30.0) == inf


def test_nothing_new_keeps_the_object():
    memory = Memory()
    memory.read(1)
    before = memory.watch
    memory.read(5)
    assert memory.watch is before
    assert vram.silence(before, forget_s=30.0, now=memory.now) is before


def test_health_does_not_matter_here():
    assert Memory().read(61, ratio=0.97, health=GpuHealth.THROTTLED)
