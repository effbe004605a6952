"""Reading single numbers of a device: what is unsupported is asked once, what is absurd is refused.

Some queries write a line to the kernel's log every time they are refused (vGPU guests,
nvidia_gpu_exporter#384), and drivers return garbage now and then (dcgm-exporter#418: a utilization of
808334905 %). So each (device, call) that is unsupported is remembered until the library is opened anew,
and a number outside of its range is missing and counted, never passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from sidecar_agent.gpu.calls import NvmlCalls
from sidecar_agent.gpu.facts import Fact, FactStatus
from sidecar_agent.gpu.notices import Notices
from sidecar_agent.gpu.status import (
    FATAL,
    LOST,
    UNSUPPORTED,
    NvmlStatus,
    NvmlStatusError,
    status_text,
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One way to get a number: a call on the device's handle and what to take from its answer."""

    call: str
    take: Callable[[Any], Any] = float
    args: tuple[Any, ...] = ()
    symbol: str = ""
    """The driver's symbol, where one call of the bindings stands for several."""

    @property
    def key(self) -> str:
        """What is remembered as unsupported."""
        return self.symbol or self.call


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A number of a device: ways to ask for it, newest first, and the range it must be in."""

    name: str
    asks: tuple[Ask, ...]
    low: float
    high: float
    scale: float = 1.0
    """What the raw number is divided by."""


RECOVERY_ACTION_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""

_GPU_TEMPERATURE = 0
"""NVML_TEMPERATURE_GPU."""

UTILIZATION = Field(
    name="utilization_ratio",
    asks=(Ask(call="nvmlDeviceGetUtilizationRates", take=lambda rates: float(rates.gpu)),),
    low=0,
    high=100,
    scale=100,
)
TEMPERATURE = Field(
    name="temperature_celsius",
    asks=(
        Ask(call="nvmlDeviceGetTemperatureV", args=(_GPU_TEMPERATURE,)),
        Ask(call="nvmlDeviceGetTemperature", args=(_GPU_TEMPERATURE,)),
    ),
    low=-50,
    high=200,
)
POWER = Field(
    name="power_watts",
    asks=(Ask(call="nvmlDeviceGetPowerUsage"),),
    low=0,
    high=20_000_000,
    scale=1000,
)
CLOCKS_EVENT_REASONS = Field(
    name="clocks_event_reasons",
    asks=(
        Ask(call="nvmlDeviceGetCurrentClocksEventReasons"),
        Ask(call="nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
    low=0,
    high=0xFFFF,  # bits up to 0x400 are known; all ones is a driver's way to say "no value"
)


def _field_value(values: Any) -> float:
    """Take the one value of a field query; its own status says whether the device has it."""
    value = values[0]
    if value.nvmlReturn:
        # An old driver calls a field it does not know an invalid argument.
        unknown = value.nvmlReturn == NvmlStatus.INVALID_ARGUMENT
        status = NvmlStatus.NOT_SUPPORTED if unknown else value.nvmlReturn
        raise NvmlStatusError(status, f"field {value.fieldId}")
    wide = value.valueType in _WIDE_TYPES
    return float(value.value.ullVal if wide else value.value.uiVal)


_WIDE_TYPES = frozenset({2, 3, 4})
"""NVML_VALUE_TYPE_UNSIGNED_LONG, _UNSIGNED_LONG_LONG and _SIGNED_LONG_LONG."""

RECOVERY_ACTION = Field(
    name="recovery_action",
    asks=(
        Ask(call="nvmlDeviceGetFieldValues", args=([RECOVERY_ACTION_FIELD],), take=_field_value),
    ),
    low=0,
    high=255,
)


class FieldReader:
    """Asks devices for numbers, for as long as the library stays open. One thread."""

    def __init__(self, calls: NvmlCalls, notices: Notices) -> None:
        self._calls = calls
        self._notices = notices
        self._unsupported: dict[tuple[str, str], int] = {}
        self.rejected = 0
        """Numbers that were out of range since this reader was made."""

    def forget(self) -> None:
        """Ask for everything again: the library was opened anew."""
        self._unsupported.clear()

    def ask(self, uuid: str, handle: Any, ask: Ask) -> Any:
        """Ask one way.

        Raises:
            NvmlStatusError: Anything but success; an unsupported call is answered from memory when
                it is asked again.
        """
        remembered = self._unsupported.get((uuid, ask.key))
        if remembered is not None:
            raise NvmlStatusError(remembered, ask.key)
        try:
            return ask.take(self._calls.call(ask.call, handle, *ask.args))
        except NvmlStatusError as error:
            if error.status in UNSUPPORTED:
                self.give_up(uuid, ask, error.status)
            raise

    def give_up(self, uuid: str, ask: Ask, status: int) -> None:
        """Do not ask a device this again; said once per call, not per device."""
        self._unsupported[uuid, ask.key] = status
        if self._notices.changed(f"unsupported {ask.key}", status):
            log.info("gpu_call_unsupported", call=ask.key, reason=status_text(status), gpu=uuid)

    def read(self, uuid: str, handle: Any, field: Field) -> Fact:
        """Read a number in any way the device supports.

        Raises:
            NvmlStatusError: Only with a status that concerns the whole device or the library.
        """
        reason = ""
        for ask in field.asks:
            try:
                raw = self.ask(uuid, handle, ask)
            except NvmlStatusError as error:
                if concerns_device(error.status):
                    raise
                if error.status not in UNSUPPORTED:
                    return Fact(FactStatus.ERROR, error=error.text)
                reason = reason or error.text
            else:
                return self.checked(field, raw)
        return Fact(FactStatus.UNSUPPORTED, error=reason)

    def checked(self, field: Field, raw: float) -> Fact:
        """Return a number that is in its range; one that is not is missing, and counted."""
        if field.low <= raw <= field.high:
            return Fact(FactStatus.OK, raw / field.scale)
        self.rejected += 1
        if self._notices.changed(f"out of range {field.name}", True):
            log.warning(
                "gpu_value_rejected", field=field.name, value=raw, low=field.low, high=field.high
            )
        return Fact(FactStatus.ERROR, error=f"out of range: {raw:.0f}")


def concerns_device(status: int) -> bool:
    """Tell whether a status says something about the whole device, not about one number."""
    return status in LOST or status in FATAL or status == NvmlStatus.RESET_REQUIRED
