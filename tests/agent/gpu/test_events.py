"""The XID watcher over pynvml and the in-process fake."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from sidecar_agent.gpu.calls import NvmlCalls
from sidecar_agent.gpu.devices import Device
from sidecar_agent.gpu.events import XidWatcher
from sidecar_agent.gpu.nvml import load_bindings
from sidecar_agent.gpu.xid import XidLedger
from tests.fakes.nvml import LOST, NOT_SUPPORTED, UNKNOWN, WAIT, FakeGpu
from tests.fakes.waiting import PATIENCE_S

WHOLE = 0xFFFFFFFF


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)


class Watched:
    """A watcher on an open library, what it recorded and how often it asked for a reading."""

    def __init__(self, nvml, gpus):
        self.nvml = nvml
        nvml.gpus = gpus
        self.calls = NvmlCalls(load_bindings())
        self.calls.call("nvmlInit")
        self.ledger = XidLedger()
        self.troubles = 0
        self.watcher = XidWatcher(self.calls, self.ledger, on_trouble=self._trouble)

    def _trouble(self):
        self.troubles += 1

    def devices(self):
        found = []
        for index in range(len(self.nvml.gpus)):
            handle = self.calls.call("nvmlDeviceGetHandleByIndex", index)
            uuid = self.calls.call("nvmlDeviceGetUUID", handle)
            found.append(Device(uuid=uuid, index=index, handle=handle))
        return found

    def listen(self):
        self.watcher.listen(self.devices())
        return self.watcher.is_listening


@pytest.fixture
def watched(nvml):
    def make(*gpus):
        made.append(Watched(nvml, list(gpus)))
        return made[-1]

    made = []
    yield make
    nvml.errors.clear()
    for one in made:
        one.watcher.stop()
        one.calls.call("nvmlShutdown")


def test_events_reach_the_ledger_with_their_place(watched):
    a, b = FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")
    one = watched(a, b)
    assert one.listen()
    one.nvml.events += [(b, 79, WHOLE), (a, 31, 3), (a, 31, 3)]
    until(lambda: one.ledger.counts == {("GPU-b", 79): 1, ("GPU-a", 31): 2})
    assert {seen.place.gpu_instance_id for seen in one.ledger._recent} == {None, 3}


def test_an_event_of_a_gpu_that_is_not_listed_is_placed_by_asking(watched):
    one = watched(FakeGpu(uuid="GPU-a"))
    assert one.listen()
    one.nvml.events.append((FakeGpu(uuid="GPU-new"), 79, WHOLE))
    until(lambda: one.ledger.counts == {("GPU-new", 79): 1})


def test_an_event_that_cannot_be_placed_is_said_and_survived(watched):
    one = watched(FakeGpu(uuid="GPU-a"))
    with capture_logs() as logs:
        assert one.listen()
        one.nvml.events.append((FakeGpu(uuid="GPU-x", errors={"": LOST}), 79, WHOLE))
        one.nvml.events.append((one.nvml.gpus[0], 31, WHOLE))
        until(lambda: one.ledger.counts == {("GPU-a", 31): 1})
    assert "gpu_xid_unplaced" in [log["event"] for log in logs]


@pytest.mark.parametrize(
    ("gpu", "errors"),
    [
        (FakeGpu(uuid="GPU-a", events=0x10), {}),
        (FakeGpu(uuid="GPU-a", errors={"nvmlDeviceRegisterEvents": NOT_SUPPORTED}), {}),
        (FakeGpu(uuid="GPU-a", errors={"nvmlDeviceGetSupportedEventTypes": UNKNOWN}), {}),
        (FakeGpu(uuid="GPU-a"), {"nvmlEventSetCreate": NOT_SUPPORTED}),
    ],
    ids=["not supported", "not registered", "not told", "no event sets"],
)
def test_where_nothing_can_be_heard_there_is_no_watcher_and_one_line(watched, gpu, errors):
    one = watched(gpu)
    one.nvml.errors.update(errors)
    with capture_logs() as logs:
        assert not one.listen()
        assert not one.listen()
    assert [log["event"] for log in logs] == ["gpu_xid_watch_unavailable"]
    assert one.nvml.calls[WAIT] == 0


def test_one_deaf_gpu_does_not_deafen_the_others(watched):
    a, b = FakeGpu(uuid="GPU-a", events=0), FakeGpu(uuid="GPU-b")
    one = watched(a, b)
    assert one.listen()
    one.nvml.events.append((b, 79, WHOLE))
    until(lambda: one.ledger.counts)


def test_a_gpu_that_comes_later_is_listened_to_as_well(watched):
    one = watched(FakeGpu(uuid="GPU-a"))
    assert one.listen()
    thread = one.watcher._thread
    assert one.listen()
    assert one.watcher._thread is thread, "nothing new, nothing done"
    one.nvml.gpus.append(FakeGpu(uuid="GPU-b"))
    assert one.listen()
    one.nvml.events.append((one.nvml.gpus[1], 79, WHOLE))
    until(lambda: one.ledger.counts == {("GPU-b", 79): 1})
    assert one.nvml.calls["nvmlEventSetFree"] == 1


def test_a_wait_that_tells_of_a_lost_gpu_asks_for_a_reading(watched):
    one = watched(FakeGpu(uuid="GPU-a"))
    with capture_logs() as logs:
        assert one.listen()
        one.nvml.errors[WAIT] = LOST
        until(lambda: one.troubles)
    assert one.watcher.is_listening
    assert [log["event"] for log in logs] == ["gpu_xid_watch_failed"]


@pytest.mark.parametrize("status", [NOT_SUPPORTED, 13, 1])
def test_a_wait_that_will_never_work_ends_the_watcher(watched, status):
    one = watched(FakeGpu(uuid="GPU-a"))
    one.nvml.errors[WAIT] = status
    one.listen()
    until(lambda: not one.watcher.is_listening)
    assert one.nvml.calls[WAIT] == 1
    assert one.nvml.calls["nvmlEventSetFree"] == 1


def test_a_wait_that_fails_is_tried_again_after_a_pause(watched):
    one = watched(FakeGpu(uuid="GPU-a"))
    one.nvml.errors[WAIT] = UNKNOWN
    assert one.listen()
    until(lambda: one.nvml.calls[WAIT] == 1)
    one.nvml.errors.clear()
    one.nvml.events.append((one.nvml.gpus[0], 31, WHOLE))
    until(lambda: one.ledger.counts)


def test_other_events_are_none_of_ours(watched):
    one = watched(FakeGpu(uuid="GPU-a"))
    one.watcher._take(SimpleNamespace(eventType=0x10))
    assert one.ledger.counts == {}


def test_stopping_gives_the_event_set_back_and_a_failure_to_is_survived(watched):
    one = watched(FakeGpu(uuid="GPU-a"))
    assert one.listen()
    one.nvml.errors["nvmlEventSetFree"] = UNKNOWN
    with capture_logs() as logs:
        one.watcher.stop()
    assert not one.watcher.is_listening
    assert [log["event"] for log in logs] == ["gpu_xid_watch_not_freed"]


def test_a_wait_that_hangs_is_left_behind_and_frees_nothing_later(watched):
    one = watched(FakeGpu(uuid="GPU-a"))
    one.nvml.wait_hang.clear()
    assert one.listen()
    until(lambda: one.nvml.calls[WAIT])
    thread = one.watcher._thread
    one.watcher.stop()
    assert thread.is_alive()
    one.nvml.wait_hang.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert one.nvml.calls["nvmlEventSetFree"] == 0


def test_what_was_said_once_is_not_said_again_when_the_library_is_opened_anew(watched):
    one = watched(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-deaf", events=0))
    one.nvml.errors.update({WAIT: NOT_SUPPORTED, "nvmlEventSetFree": UNKNOWN})
    with capture_logs() as logs:
        for _ in range(2):
            one.listen()
            until(lambda: not one.watcher.is_listening)
            one.watcher.stop()
    assert one.nvml.calls["nvmlEventSetFree"] == 2
    assert sorted(log["event"] for log in logs) == [
        "gpu_xid_watch_failed",
        "gpu_xid_watch_not_freed",
        "gpu_xid_watch_unavailable",
    ]
