"""Enumerating and reading the devices of an open NVML session.

Identity is the UUID; the index is a label that may mean another GPU after a reboot. One GPU that does
not answer never hides the others: every failure stays with its device, and a known GPU that vanishes is
LOST, not absent (dcgm-exporter#348).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import structlog

from sidecar_agent.gpu import fields as f
from sidecar_agent.gpu.calls import NvmlCalls
from sidecar_agent.gpu.facts import Fact, GpuHealth, GpuReading, MemoryKind
from sidecar_agent.gpu.health import BROKEN, badness, judge
from sidecar_agent.gpu.memory import MemoryReader
from sidecar_agent.gpu.notices import Notices
from sidecar_agent.gpu.reader import faded_gpu
from sidecar_agent.gpu.status import (
    FATAL,
    LOST,
    UNSUPPORTED,
    NvmlStatus,
    NvmlStatusError,
    status_text,
)

log = structlog.get_logger(__name__)

_MIG_MODE = f.Ask(call="nvmlDeviceGetMigMode", take=lambda modes: modes[0])
_MIG_SLOTS = f.Ask(call="nvmlDeviceGetMaxMigDeviceCount", take=int)
_GPU_INSTANCE = f.Ask(call="nvmlDeviceGetGpuInstanceId", take=int)
_NAME = f.Ask(call="nvmlDeviceGetName", take=str)

_HOLES = frozenset({NvmlStatus.NOT_FOUND, NvmlStatus.INVALID_ARGUMENT})
"""What an empty MIG slot answers; slots after it may be taken."""

_LEGACY_MIG = re.compile(r"MIG-GPU-[0-9a-fA-F-]+/(\d+)/\d+")
"""MIG UUIDs before R470 spell out parent, GPU instance and compute instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that can be asked, in the session that its handle belongs to."""

    uuid: str
    index: int
    handle: Any
    parent_uuid: str = ""
    gpu_instance_id: int | None = None


@dataclass(frozen=True, slots=True)
class _MigDevices:
    devices: tuple[Device, ...]
    is_complete: bool
    """Whether a MIG device that is not here does not exist any more."""


class DeviceReader:
    """Reads all devices of a session; remembers the ones it has seen. One thread."""

    def __init__(
        self, calls: NvmlCalls, *, fields: f.FieldReader, memory: MemoryReader, notices: Notices
    ) -> None:
        self._calls = calls
        self._fields = fields
        self._memory = memory
        self._notices = notices
        self._known: dict[str, GpuReading] = {}
        self._names: dict[str, str] = {}
        self.gpus: tuple[Device, ...] = ()
        """Physical GPUs that answered to the last `read`."""
        self.unidentified = ""
        """GPUs in the driver's list that do not answer and were never seen, in words."""

    def forget(self) -> None:
        """Ask for everything again: the library was opened anew. Known GPUs stay known."""
        self._fields.forget()
        self._memory.forget()
        self._names.clear()
        self.gpus = ()

    def read(self) -> tuple[GpuReading, ...]:
        """Read every device, in the driver's order; those that vanished come last.

        Raises:
            NvmlStatusError: The driver as a whole does not answer.
        """
        found, failed = self._enumerate()
        readings: dict[str, GpuReading] = {}
        complete: set[str] = set()
        for gpu in found:
            reading = self._read(gpu)
            readings[gpu.uuid] = reading
            if reading.health is GpuHealth.LOST:
                continue
            try:
                mig = self._mig_devices(gpu)
            except NvmlStatusError as error:
                if error.status in FATAL:
                    raise
                if f.concerns_device(error.status):
                    readings[gpu.uuid] = _unanswering(reading, error.status)
                continue
            if mig.is_complete:
                complete.add(gpu.uuid)
            for device in mig.devices:
                readings[device.uuid] = _with_parent(self._read(device), reading)
        for known in self._known.values():
            if known.uuid in readings or known.parent_uuid in complete:
                continue
            # A GPU is known before its MIG devices, so that its own reading is there by now.
            gpu_reading = readings[known.parent_uuid] if known.parent_uuid else None
            readings[known.uuid] = _vanished(known, gpu_reading, failed)
        self.gpus = found
        self._known = readings
        self._describe(failed)
        return tuple(readings.values())

    def _enumerate(self) -> tuple[tuple[Device, ...], dict[int, NvmlStatusError]]:
        found: list[Device] = []
        failed: dict[int, NvmlStatusError] = {}
        for index in range(self._calls.call("nvmlDeviceGetCount")):
            try:
                handle = self._calls.call("nvmlDeviceGetHandleByIndex", index)
                uuid = self._calls.call("nvmlDeviceGetUUID", handle)
            except NvmlStatusError as error:
                if error.status in FATAL:
                    raise
                failed[index] = error
            else:
                found.append(Device(uuid=uuid, index=index, handle=handle))
        return tuple(found), failed

    def _describe(self, failed: dict[int, NvmlStatusError]) -> None:
        """Say which of the driver's GPUs cannot even be named."""
        seen = {gpu.index for gpu in self._known.values() if not gpu.parent_uuid}
        self.unidentified = "; ".join(
            f"GPU at index {index} does not answer: {error.text}"
            for index, error in failed.items()
            if index not in seen
        )
        if self._notices.changed("unidentified", self.unidentified, initially=""):
            log.warning("gpu_unidentified", detail=self.unidentified or "all GPUs answer")

    def _mig_devices(self, gpu: Device) -> _MigDevices:
        """List a GPU's MIG devices.

        Raises:
            NvmlStatusError: The GPU does not say.
        """
        try:
            enabled = bool(self._fields.ask(gpu.uuid, gpu.handle, _MIG_MODE))
        except NvmlStatusError as error:
            if error.status in UNSUPPORTED:
                return _MigDevices((), is_complete=True)
            raise
        if not enabled:
            return _MigDevices((), is_complete=True)
        devices: list[Device] = []
        is_complete = True
        for slot in range(self._fields.ask(gpu.uuid, gpu.handle, _MIG_SLOTS)):
            try:
                devices.append(self._mig_device(gpu, slot))
            except NvmlStatusError as error:
                if error.status in FATAL:
                    raise
                is_complete = is_complete and error.status in _HOLES
        return _MigDevices(tuple(devices), is_complete)

    def _mig_device(self, gpu: Device, slot: int) -> Device:
        handle = self._calls.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu.handle, slot)
        uuid = self._calls.call("nvmlDeviceGetUUID", handle)
        try:
            instance = self._fields.ask(uuid, handle, _GPU_INSTANCE)
        except NvmlStatusError:
            legacy = _LEGACY_MIG.fullmatch(uuid)
            instance = int(legacy[1]) if legacy else None
        return Device(
            uuid=uuid,
            index=gpu.index,
            handle=handle,
            parent_uuid=gpu.uuid,
            gpu_instance_id=instance,
        )

    def _read(self, device: Device) -> GpuReading:
        """Read one device; a status that concerns all of it is its health."""
        identity = GpuReading(
            uuid=device.uuid,
            index=device.index,
            name=self._name(device),
            parent_uuid=device.parent_uuid,
            gpu_instance_id=device.gpu_instance_id,
        )
        try:
            return self._facts(identity, device)
        except NvmlStatusError as error:
            if error.status in FATAL:
                raise
            return _unanswering(identity, error.status)

    def _facts(self, identity: GpuReading, device: Device) -> GpuReading:
        uuid, handle = device.uuid, device.handle
        memory = self._memory.read(uuid, handle)
        utilization = self._fields.read(uuid, handle, f.UTILIZATION)
        temperature = self._fields.read(uuid, handle, f.TEMPERATURE)
        power = self._fields.read(uuid, handle, f.POWER)
        reasons = self._fields.read(uuid, handle, f.CLOCKS_EVENT_REASONS)
        action = self._fields.read(uuid, handle, f.RECOVERY_ACTION)
        # Unified memory comes from the system: it proves nothing about the device.
        own = memory.total if memory.kind is not MemoryKind.UNIFIED else Fact()
        facts = (own, utilization, temperature, power, reasons, action)
        health, detail = judge(
            reasons=reasons,
            action=action,
            answered=any(fact.number is not None for fact in facts),
        )
        return replace(
            identity,
            health=health,
            detail=detail,
            memory_kind=memory.kind,
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.used,
            memory_reserved_bytes=memory.reserved,
            memory_free_bytes=memory.free,
            utilization_ratio=utilization,
            temperature_celsius=temperature,
            power_watts=power,
            clocks_event_reasons=reasons,
            recovery_action=action,
        )

    def _name(self, device: Device) -> str:
        """Return the product name, asked once per session: it is for people only."""
        if device.uuid not in self._names:
            try:
                self._names[device.uuid] = self._fields.ask(device.uuid, device.handle, _NAME)
            except NvmlStatusError:
                return ""
        return self._names[device.uuid]


def _unanswering(gpu: GpuReading, status: int) -> GpuReading:
    """Return a reading of a GPU that answered nothing but a status."""
    if status in LOST:
        health = GpuHealth.LOST
    elif status == NvmlStatus.RESET_REQUIRED:
        health = GpuHealth.RESET_REQUIRED
    else:
        health = GpuHealth.UNKNOWN
    return replace(faded_gpu(gpu), health=health, detail=status_text(status))


def _vanished(
    known: GpuReading, parent: GpuReading | None, failed: dict[int, NvmlStatusError]
) -> GpuReading:
    """Return a reading of a device that is not in the driver's list, or not to be had."""
    if parent is not None:
        silent = replace(known, health=GpuHealth.UNKNOWN)
        return _with_parent(faded_gpu(silent, detail="its GPU does not list it now"), parent)
    error = failed.get(known.index)
    if error is None:
        detail = "no longer listed by the driver"
        return replace(faded_gpu(known), health=GpuHealth.LOST, detail=detail)
    return _unanswering(known, error.status)


def _with_parent(device: GpuReading, gpu: GpuReading) -> GpuReading:
    """Pass what is wrong with a GPU on to its MIG devices; they share its clocks and its fate."""
    bad = gpu.health in BROKEN or gpu.health is GpuHealth.THROTTLED
    if not bad or badness(device.health) >= badness(gpu.health):
        return device
    return replace(device, health=gpu.health, detail=f"its GPU {gpu.uuid}: {gpu.detail}")
