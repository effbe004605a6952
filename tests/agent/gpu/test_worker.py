"""The thread that reads: one call in flight, deadlines, and an end that never waits for the driver."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from structlog.testing import capture_logs

from sidecar_agent.gpu.backend import GpuBackend, make_worker
from sidecar_agent.gpu.facts import (
    DriverState,
    Fact,
    FactStatus,
    GpuHealth,
    GpuReading,
    GpuSnapshot,
)
from sidecar_agent.gpu.reader import NoGpuReader
from sidecar_agent.gpu.worker import GpuWorker
from sidecar_agent.gpu.xid import Place, XidLedger
from tests.fakes.nvml import FakeGpu
from tests.fakes.waiting import PATIENCE_S

GPU = GpuReading(
    uuid="GPU-a",
    index=0,
    health=GpuHealth.OK,
    memory_used_bytes=Fact(FactStatus.OK, 5.0),
)


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)


class Scripted:
    """A reader whose calls wait for `gate` and may raise."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.log = []
        self.threads = set()
        self.error = None
        self.reading = GPU
        self.inside = 0
        self.most_inside = 0

    def _step(self, name):
        self.log.append(name)
        self.threads.add(threading.get_ident())
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.gate.wait()
        self.inside -= 1

    def open(self):
        self._step("open")

    def read(self):
        at = time.monotonic()
        self._step("read")
        if self.error:
            raise self.error
        return GpuSnapshot(driver=DriverState.OK, read_at=at, gpus=(self.reading,))

    def close(self):
        self._step("close")


@pytest.fixture
def scripted():
    return Scripted()


@pytest.fixture
def worker(scripted):
    def make(**more):
        made.append(GpuWorker(scripted, **({"interval_s": 0.01, "deadline_s": 0.1} | more)))
        return made[-1]

    made = []
    yield make
    scripted.gate.set()
    for one in made:
        one.close(grace_s=5)
        if one._thread.is_alive():  # it was overdue, so closing did not wait for it
            one._thread.join(PATIENCE_S)


def test_before_the_first_reading_it_is_starting(worker):
    assert worker().latest() == GpuSnapshot(driver=DriverState.STARTING)
    assert worker().xids == {}


def test_readings_come_from_one_thread_again_and_again(worker, scripted):
    one = worker()
    one.start()
    until(lambda: scripted.log.count("read") > 3)
    assert one.latest().driver is DriverState.OK
    assert scripted.log[:2] == ["open", "read"]
    assert len(scripted.threads) == 1
    assert threading.get_ident() not in scripted.threads


def test_a_request_does_not_wait_for_the_interval(worker, scripted):
    one = worker(interval_s=60)
    one.start()
    until(lambda: scripted.log.count("read") == 1)
    one.request()
    until(lambda: scripted.log.count("read") == 2)


def test_a_call_past_its_deadline_is_stalled_and_shows_no_numbers(worker, scripted):
    one = worker()
    one.start()
    until(lambda: one.latest().driver is DriverState.OK)
    scripted.gate.clear()
    until(lambda: one.latest().driver is DriverState.STALLED)
    snapshot = one.latest()
    assert snapshot.detail == "the driver has not answered within 0.1 s"
    assert snapshot.gpus[0].health is GpuHealth.UNKNOWN
    assert snapshot.gpus[0].memory_used_bytes.number is None
    reads = scripted.log.count("read")
    one.request()
    with capture_logs() as logs:
        scripted.gate.set()
        until(lambda: one.latest().driver is DriverState.OK)
        until(lambda: scripted.log.count("read") > reads)
    assert scripted.most_inside == 1, "one call in flight"
    assert [log["event"] for log in logs] == ["gpu_driver_was_slow"]


def test_after_a_slow_call_the_next_one_does_not_wait(worker, scripted):
    one = worker(interval_s=60)
    scripted.gate.clear()
    one.start()
    until(lambda: scripted.log == ["open"])
    scripted.gate.set()
    until(lambda: scripted.log == ["open", "read"])
    scripted.gate.clear()
    one.request()
    until(lambda: one.latest().driver is DriverState.STALLED)
    released_at = time.monotonic()
    scripted.gate.set()
    until(lambda: scripted.log.count("read") == 3)
    until(lambda: one.latest().read_at >= released_at)  # not as old as the call that hung


def test_opening_may_take_longer_than_reading(worker, scripted):
    one = worker(deadline_s=0.01, open_deadline_s=0.3)
    scripted.gate.clear()
    started = time.monotonic()
    one.start()
    until(lambda: one.latest().driver is DriverState.STALLED)
    assert time.monotonic() - started >= 0.3
    assert scripted.log == ["open"]


def test_latest_returns_at_once_while_a_call_hangs(worker, scripted):
    one = worker()
    one.start()
    until(lambda: one.latest().driver is DriverState.OK)
    scripted.gate.clear()
    until(lambda: one.latest().driver is DriverState.STALLED)
    started = time.monotonic()
    for _ in range(100):
        one.latest()
    assert time.monotonic() - started < 20


def test_closing_leaves_a_hung_driver_behind(worker, scripted):
    one = worker()
    one.start()
    until(lambda: one.latest().driver is DriverState.OK)
    scripted.gate.clear()
    until(lambda: one.latest().driver is DriverState.STALLED)
    with capture_logs() as logs:
        started = time.monotonic()
        assert one.close(grace_s=30) is False
        assert time.monotonic() - started < 20
    assert [log["event"] for log in logs] == ["gpu_driver_left_behind"]


def test_closing_waits_for_its_grace_when_a_call_has_just_begun(worker, scripted):
    one = worker(deadline_s=60)
    scripted.gate.clear()
    one.start()
    until(lambda: scripted.log == ["open"])
    assert one.close(grace_s=0.05) is False
    scripted.gate.set()
    assert one.close(grace_s=5) is True
    assert scripted.log == ["open", "close"], "nothing is read once it is closing"


def test_closing_lets_go_of_the_driver_and_can_be_repeated(worker, scripted):
    one = worker()
    assert one.close() is True
    two = worker()
    two.start()
    until(lambda: "read" in scripted.log)
    assert two.close() is True
    assert two.close() is True
    assert scripted.log.count("close") == 1


def test_a_reader_that_breaks_is_a_failed_reading_said_once(worker, scripted):
    one = worker()
    one.start()
    until(lambda: one.latest().driver is DriverState.OK)
    with capture_logs() as logs:
        scripted.error = ZeroDivisionError("oops")
        until(lambda: one.latest().driver is DriverState.FAILED)
        reads = scripted.log.count("read")
        until(lambda: scripted.log.count("read") > reads + 3)
    assert one.latest().detail == "internal: ZeroDivisionError('oops')"
    assert one.latest().gpus[0].memory_used_bytes.number is None
    assert [log["event"] for log in logs] == ["gpu_reader_failed"]
    scripted.error = None
    until(lambda: one.latest().driver is DriverState.OK)


def test_releasing_closes_the_driver_until_it_is_taken_up_again(worker, scripted):
    one = worker()
    one.start()
    until(lambda: one.latest().driver is DriverState.OK)
    one.release()
    until(lambda: one.latest().driver is DriverState.RELEASED)
    assert scripted.log[-1] == "close"
    assert one.latest().gpus[0].health is GpuHealth.UNKNOWN
    one.request()
    one.reacquire()
    until(lambda: one.latest().driver is DriverState.OK)
    closed = scripted.log.index("close")
    assert scripted.log[closed : closed + 3] == ["close", "open", "read"]


def test_a_worker_that_is_released_can_be_closed(worker, scripted):
    one = worker()
    one.release()
    one.start()
    until(lambda: one.latest().driver is DriverState.RELEASED)
    assert one.close() is True
    assert scripted.log == []


async def test_every_reading_calls_back_on_the_event_loop(worker, scripted):
    one = worker()
    called = asyncio.Queue()
    one.attach(asyncio.get_running_loop(), lambda: called.put_nowait(threading.get_ident()))
    one.start()
    for _ in range(3):
        assert await asyncio.wait_for(called.get(), PATIENCE_S) == threading.get_ident()


def test_a_loop_that_is_closed_is_forgotten(worker, scripted):
    loop = asyncio.new_event_loop()
    loop.close()
    one = worker()
    one.attach(loop, lambda: None)
    one.start()
    until(lambda: scripted.log.count("read") > 2)
    assert one.latest().driver is DriverState.OK


async def test_a_fault_calls_back_even_while_a_call_hangs(worker, scripted):
    ledger = XidLedger()
    one = worker(ledger=ledger)
    one.start()
    until(lambda: one.latest().driver is DriverState.OK)
    scripted.gate.clear()
    until(lambda: one.latest().driver is DriverState.STALLED)
    called = asyncio.Event()
    one.attach(asyncio.get_running_loop(), called.set)
    ledger.record(Place("GPU-a"), 79, now=time.monotonic())
    await asyncio.wait_for(called.wait(), PATIENCE_S)
    assert one.latest().gpus[0].health is GpuHealth.RESET_REQUIRED
    assert one.xids == {("GPU-a", 79): 1}


def test_a_broken_gpu_stays_broken_while_the_driver_hangs(worker, scripted):
    scripted.reading = GpuReading(uuid="GPU-a", index=0, health=GpuHealth.LOST, detail="gone")
    one = worker()
    one.start()
    until(lambda: one.latest().driver is DriverState.OK)
    scripted.gate.clear()
    until(lambda: one.latest().driver is DriverState.STALLED)
    assert (one.latest().gpus[0].health, one.latest().gpus[0].detail) == (GpuHealth.LOST, "gone")


def test_without_gpus_there_is_a_snapshot_all_the_same():
    reader = NoGpuReader(clock=lambda: 7.0)
    reader.open()
    assert reader.read() == GpuSnapshot(
        driver=DriverState.ABSENT, detail="GPU reading is switched off", read_at=7.0
    )
    reader.close()


def test_the_nvml_worker_reads_at_once_when_a_wait_tells_of_trouble(nvml):
    nvml.gpus = [FakeGpu(uuid="GPU-a")]
    one = make_worker(GpuBackend.NVML, interval_s=60)
    one.start()
    try:
        until(lambda: nvml.calls["nvmlEventSetWait_v2"] and one.latest().gpus)
        nvml.gpus[0].errors[""] = 15
        nvml.errors["nvmlEventSetWait_v2"] = 15
        until(lambda: one.latest().gpus[0].health is GpuHealth.LOST)
    finally:
        nvml.errors.clear()
        assert one.close(grace_s=5)
    assert nvml.refcount == 0
