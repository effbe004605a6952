"""Two NVMLs without a driver.

`FakeNvml` stands in for the library inside the test's own process: pynvml asks it for functions by their
C names and passes real ctypes structures, so everything above the ABI is the real thing. The stub library
(`demo.nvmlstub`) is a real libnvidia-ml.so.1 for subprocesses; `GpuProcess` runs one under it.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pynvml
import pytest

from demo.nvmlstub import StubState, build, environment, read_calls
from tests.fakes.waiting import PATIENCE_S

GIB = 1 << 30
MIB = 1 << 20

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT = 3, 4, 6, 10
LOST, RESET_REQUIRED, MISMATCH, UNKNOWN = 15, 16, 18, 999
WAIT = "nvmlEventSetWait_v2"


@dataclass(eq=False)
class FakeGpu:
    """One GPU or MIG device; plain attributes are what the driver says."""

    uuid: str
    total: int = 80 * GIB
    used: int = 0
    reserved: int = 479 * MIB
    utilization: int = 0
    temperature: int = 40
    milliwatts: int = 100_000
    throttle: int = 0
    recovery: int | None = 0
    addressing: int | None = None
    mig: list[FakeGpu | None] | None = None
    gpu_instance: int | None = None
    events: int = 0x8
    name: bytes = b"NVIDIA Fake"
    errors: dict[str, int] = field(default_factory=dict)
    """Status by C symbol; "" for every call on the device."""
    is_mig: bool = False


class FakeNvml:
    """The C library: `pynvml.nvmlLib` is set to it. State is changed by assigning attributes."""

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.errors: dict[str, int] = {}
        """Status by C symbol, whatever the device."""
        self.absent: set[str] = set()
        """Symbols that the driver does not have."""
        self.calls: Counter[str] = Counter()
        self.device_calls: Counter[tuple[str, str]] = Counter()
        self.refcount = 0
        self.hang = threading.Event()
        self.hang.set()
        """Cleared: calls do not come back until it is set; waits for events have their own."""
        self.wait_hang = threading.Event()
        self.wait_hang.set()
        self.events: list[tuple[FakeGpu, int, int]] = []
        """(GPU, XID, GPU instance) that the next waits deliver."""
        self._addresses: dict[int, FakeGpu] = {}

    def __getattr__(self, symbol: str) -> Callable[..., int]:
        if symbol.startswith("__") or symbol in self.absent:
            raise AttributeError(symbol)
        implementation = getattr(type(self), f"_{symbol}", None)
        if implementation is None:
            raise AttributeError(symbol)

        def call(*args: Any) -> int:
            self.calls[symbol] += 1
            (self.wait_hang if symbol == WAIT else self.hang).wait()
            if symbol in self.errors:
                return self.errors[symbol]
            if symbol != "nvmlInitWithFlags" and not self.refcount:
                return 1
            device = self._addresses.get(_address(args[0])) if args else None
            if device is not None:
                self.device_calls[device.uuid, symbol] += 1
                status = device.errors.get("", 0) or device.errors.get(symbol, 0)
                if status:
                    return status
            return implementation(self, *args) or 0

        return call

    def _gpu(self, handle: Any) -> FakeGpu:
        return self._addresses[_address(handle)]

    def _give(self, out: Any, gpu: FakeGpu) -> None:
        address = id(gpu)
        self._addresses[address] = gpu
        pointer = ctypes.c_void_p(address)
        ctypes.memmove(ctypes.addressof(out), ctypes.addressof(pointer), ctypes.sizeof(pointer))

    def _nvmlInitWithFlags(self, flags: int) -> None:
        self.refcount += 1

    def _nvmlShutdown(self) -> None:
        self.refcount -= 1

    def _nvmlSystemGetDriverVersion(self, out: Any, size: Any) -> None:
        out.value = b"580.95.05"

    def _nvmlDeviceGetCount_v2(self, out: Any) -> None:
        out._obj.value = len(self.gpus)

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> int:
        gpu = self.gpus[index.value]
        status = gpu.errors.get("nvmlDeviceGetHandleByIndex_v2", 0)
        if not status:
            self._give(out._obj, gpu)
        return status

    def _nvmlDeviceGetUUID(self, device: Any, out: Any, size: Any) -> None:
        out.value = self._gpu(device).uuid.encode()

    def _nvmlDeviceGetName(self, device: Any, out: Any, size: Any) -> None:
        out.value = self._gpu(device).name

    def _nvmlDeviceGetMemoryInfo(self, device: Any, out: Any) -> None:
        gpu, info = self._gpu(device), out._obj
        info.total, info.used = gpu.total, gpu.used + gpu.reserved
        info.free = max(0, gpu.total - gpu.used - gpu.reserved)

    def _nvmlDeviceGetMemoryInfo_v2(self, device: Any, out: Any) -> int:
        gpu, info = self._gpu(device), out._obj
        if info.version != 0x2000028:
            return 25
        info.total, info.used, info.reserved = gpu.total, gpu.used, gpu.reserved
        info.free = max(0, gpu.total - gpu.used - gpu.reserved)
        return 0

    def _nvmlDeviceGetUtilizationRates(self, device: Any, out: Any) -> None:
        out._obj.gpu = self._gpu(device).utilization

    def _nvmlDeviceGetTemperatureV(self, device: Any, out: Any) -> None:
        out._obj.temperature = self._gpu(device).temperature

    def _nvmlDeviceGetTemperature(self, device: Any, sensor: Any, out: Any) -> None:
        out._obj.value = self._gpu(device).temperature

    def _nvmlDeviceGetPowerUsage(self, device: Any, out: Any) -> None:
        out._obj.value = self._gpu(device).milliwatts

    def _nvmlDeviceGetCurrentClocksEventReasons(self, device: Any, out: Any) -> None:
        out._obj.value = self._gpu(device).throttle

    def _nvmlDeviceGetCurrentClocksThrottleReasons(self, device: Any, out: Any) -> None:
        out._obj.value = self._gpu(device).throttle

    def _nvmlDeviceGetFieldValues(self, device: Any, count: Any, out: Any) -> None:
        action, value = self._gpu(device).recovery, out._obj[0]
        value.nvmlReturn = 2 if action is None else 0
        value.valueType = 1
        value.value.uiVal = action or 0

    def _nvmlDeviceGetAddressingMode(self, device: Any, out: Any) -> int:
        mode = self._gpu(device).addressing
        out._obj.value = mode or 0
        return NOT_SUPPORTED if mode is None else 0

    def _nvmlDeviceGetMigMode(self, device: Any, current: Any, pending: Any) -> int:
        gpu = self._gpu(device)
        current._obj.value = pending._obj.value = int(bool(gpu.mig))
        return NOT_SUPPORTED if gpu.mig is None else 0

    def _nvmlDeviceGetMaxMigDeviceCount(self, device: Any, out: Any) -> None:
        out._obj.value = 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, slot: Any, out: Any) -> int:
        slots = self._gpu(device).mig or []
        there = slots[slot.value] if slot.value < len(slots) else None
        if there is None:
            return NOT_FOUND
        self._give(out._obj, there)
        return 0

    def _nvmlDeviceGetGpuInstanceId(self, device: Any, out: Any) -> int:
        instance = self._gpu(device).gpu_instance
        out._obj.value = instance or 0
        return NOT_SUPPORTED if instance is None else 0

    def _nvmlDeviceGetSupportedEventTypes(self, device: Any, out: Any) -> None:
        out._obj.value = self._gpu(device).events

    def _nvmlEventSetCreate(self, out: Any) -> None:
        pass

    def _nvmlEventSetFree(self, events: Any) -> None:
        pass

    def _nvmlDeviceRegisterEvents(self, device: Any, types: Any, events: Any) -> None:
        pass

    def _nvmlEventSetWait_v2(self, events: Any, out: Any, timeout: Any) -> int:
        if not self.events:
            time.sleep(0.005)
            return TIMEOUT
        gpu, xid, instance = self.events.pop(0)
        event = out._obj
        self._give_event(event, gpu)
        event.eventType, event.eventData, event.gpuInstanceId = 8, xid, instance
        return 0

    def _give_event(self, event: Any, gpu: FakeGpu) -> None:
        self._addresses[id(gpu)] = gpu
        event.device = ctypes.cast(ctypes.c_void_p(id(gpu)), pynvml.c_nvmlDevice_t)


def _address(handle: Any) -> int:
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value or 0
    except (ctypes.ArgumentError, TypeError):
        return 0


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml) -> FakeNvml:
    """Make pynvml use the fake for the rest of the test."""
    monkeypatch.setattr(pynvml, "nvmlLib", fake)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return fake


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Longest(random.Random):
    """Jitter that always waits as long as it may."""

    def uniform(self, a, b):
        return b


def opened(make, **settings):
    made = make(**settings)
    made.open()
    return made


def only(snapshot):
    (gpu,) = snapshot.gpus
    return gpu


def stub_library(directory: Path, *, old_driver: bool = False) -> Path:
    """Build the stub, or skip the test where the machine has no C compiler."""
    library = build(directory, old_driver=old_driver)
    if library is None:
        pytest.skip("no C compiler: the NVML stub cannot be built")
    return library


class GpuProcess:
    """A process that reads GPUs under the stub and prints JSON lines; ends with the `with` block."""

    def __init__(
        self,
        script: Path,
        *,
        library: Path,
        state: StubState,
        calls: Path,
        arguments: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.calls_path = calls
        self.lines: list[dict[str, Any]] = []
        self.log: list[str] = []
        self._changed = threading.Condition()
        root = Path(__file__).resolve().parents[2]
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=os.environ
            | environment(library, state, calls=calls)
            | {"PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"}
            | dict(variables or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    @property
    def calls(self) -> dict[str, int]:
        """The stub's counters."""
        return read_calls(self.calls_path)

    def wait_for(
        self, condition: Callable[[dict[str, Any]], bool], *, timeout_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Return the next line (from now on, or the newest) that meets a condition."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            position = max(0, len(self.lines) - 1)
            while True:
                for line in self.lines[position:]:
                    if condition(line):
                        return line
                position = len(self.lines)
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    last = self.lines[-1] if self.lines else None
                    raise AssertionError(f"not within {timeout_s} s; last: {last}; log: {self.log}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def stop(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Ask the process to end; returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.ended(timeout_s=timeout_s)

    def ended(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the process to end by itself and for all it wrote; returns its exit code."""
        code = self.process.wait(timeout_s)
        for thread in self._threads:
            thread.join()
        return code

    def logged(self, event: str) -> list[str]:
        """Return the log lines of an event so far."""
        return [line for line in self.log if event in line]
