"""The memory of one device: version 2 of the query, else version 1, else the system's.

Version 1 counts what the driver and firmware reserve as used; version 2 tells it apart, as nvidia-smi
does since R510 (gpustat#141: 308 MB "in use" on an idle GPU). On WSL2 version 2 exists and fails
(nvitop#30). Unified-memory devices support neither, or report a total of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from sidecar_agent.gpu.facts import Fact, FactStatus, MemoryKind
from sidecar_agent.gpu.fields import Ask, Field, FieldReader, concerns_device
from sidecar_agent.gpu.meminfo import MeminfoError, SystemMemory
from sidecar_agent.gpu.status import UNSUPPORTED, NvmlStatus, NvmlStatusError

_CALL = "nvmlDeviceGetMemoryInfo"
_ATS = 2
"""NVML_DEVICE_ADDRESSING_MODE_ATS: coherent with the CPU; page cache can sit in it (vllm#35313)."""

_BYTES = Field(name="memory_bytes", asks=(), low=0, high=2.0**44)  # 16 TiB
_ADDRESSING = Ask(call="nvmlDeviceGetAddressingMode")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """What one device said about its memory; all facts of one moment."""

    kind: MemoryKind
    total: Fact
    used: Fact
    reserved: Fact
    free: Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class _Info:
    total: float
    used: float
    free: float
    reserved: float | None


class MemoryReader:
    """Reads devices' memory while the library is open. One thread."""

    def __init__(
        self, fields: FieldReader, *, v2_version: int, system_memory: Callable[[], SystemMemory]
    ) -> None:
        self._fields = fields
        self._v1 = Ask(call=_CALL, take=_v1)
        self._v2 = Ask(call=_CALL, args=(v2_version,), take=_v2, symbol=f"{_CALL}_v2")
        self._system_memory = system_memory
        self._coherent: dict[str, bool] = {}

    def forget(self) -> None:
        """Find everything out again: the library was opened anew."""
        self._coherent.clear()

    def read(self, uuid: str, handle: Any) -> DeviceMemory:
        """Read the memory of a device.

        Raises:
            NvmlStatusError: Only with a status that concerns the whole device or the library.
        """
        try:
            info = self._info(uuid, handle)
        except NvmlStatusError as error:
            if concerns_device(error.status):
                raise
            if error.status == NvmlStatus.NO_PERMISSION:
                return _all(MemoryKind.UNKNOWN, Fact(FactStatus.UNSUPPORTED, error=error.text))
            if error.status in UNSUPPORTED:
                return self._unified()
            return _all(MemoryKind.UNKNOWN, Fact(FactStatus.ERROR, error=error.text))
        if info.total == 0:
            return self._unified()
        kind = MemoryKind.COHERENT if self._is_coherent(uuid, handle) else MemoryKind.DEDICATED
        return self._checked(kind, info)

    def _info(self, uuid: str, handle: Any) -> _Info:
        try:
            return cast("_Info", self._fields.ask(uuid, handle, self._v2))
        except NvmlStatusError as error:
            if error.status not in UNSUPPORTED and error.status != NvmlStatus.UNKNOWN:
                raise
            info = cast("_Info", self._fields.ask(uuid, handle, self._v1))
            if error.status == NvmlStatus.UNKNOWN:
                # WSL2: version 1 works where version 2 never will. If both fail it is a fault.
                self._fields.give_up(uuid, self._v2, NvmlStatus.NOT_SUPPORTED)
            return info

    def _is_coherent(self, uuid: str, handle: Any) -> bool:
        """Ask once per opening: the mode is a property of the machine."""
        known = self._coherent.get(uuid)
        if known is None:
            try:
                known = self._fields.ask(uuid, handle, _ADDRESSING) == _ATS
            except NvmlStatusError as error:
                if concerns_device(error.status):
                    raise
                if error.status not in UNSUPPORTED:
                    return False
                known = False
            self._coherent[uuid] = known
        return known

    def _checked(self, kind: MemoryKind, info: _Info) -> DeviceMemory:
        total = self._fields.checked(_BYTES, info.total)
        if total.number is None:
            return _all(kind, total)
        share = replace(_BYTES, high=total.number)
        reserved = Fact(FactStatus.UNSUPPORTED, error="the driver counts it as used")
        if info.reserved is not None:
            reserved = self._fields.checked(share, info.reserved)
        used = self._fields.checked(share, info.used)
        free = self._fields.checked(share, info.free)
        return DeviceMemory(kind=kind, total=total, used=used, reserved=reserved, free=free)

    def _unified(self) -> DeviceMemory:
        try:
            memory = self._system_memory()
        except (OSError, MeminfoError) as error:
            return _all(MemoryKind.UNIFIED, Fact(FactStatus.ERROR, error=str(error)))
        available = min(memory.available_bytes, memory.total_bytes)
        return DeviceMemory(
            kind=MemoryKind.UNIFIED,
            total=Fact(FactStatus.OK, memory.total_bytes),
            used=Fact(FactStatus.OK, memory.total_bytes - available),
            reserved=Fact(FactStatus.UNSUPPORTED, error="unified memory"),
            free=Fact(FactStatus.OK, available),
        )


def _all(kind: MemoryKind, fact: Fact) -> DeviceMemory:
    return DeviceMemory(kind=kind, total=fact, used=fact, reserved=fact, free=fact)


def _v1(info: Any) -> _Info:
    return _Info(total=info.total, used=info.used, free=info.free, reserved=None)


def _v2(info: Any) -> _Info:
    return _Info(total=info.total, used=info.used, free=info.free, reserved=info.reserved)
