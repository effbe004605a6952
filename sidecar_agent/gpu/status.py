"""What the driver's status codes mean to the agent. Pure; values are those of `nvml.h`."""

from __future__ import annotations

from enum import IntEnum


class NvmlStatus(IntEnum):
    """The `nvmlReturn_t` values that the agent tells apart."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


UNSUPPORTED = frozenset(
    {
        NvmlStatus.NOT_SUPPORTED,
        NvmlStatus.NO_PERMISSION,
        NvmlStatus.FUNCTION_NOT_FOUND,
        NvmlStatus.ARGUMENT_VERSION_MISMATCH,
        NvmlStatus.DEPRECATED,
    }
)
"""Will not change while the library stays open: asking again only fills the kernel's log."""

LOST = frozenset({NvmlStatus.GPU_IS_LOST, NvmlStatus.GPU_NOT_FOUND})
"""This one GPU is gone; the others keep answering."""

FATAL = frozenset(
    {
        NvmlStatus.UNINITIALIZED,
        NvmlStatus.DRIVER_NOT_LOADED,
        NvmlStatus.LIBRARY_NOT_FOUND,
        NvmlStatus.LIB_RM_VERSION_MISMATCH,
    }
)
"""The library must be initialized anew before anything answers."""

ABSENT = frozenset({NvmlStatus.DRIVER_NOT_LOADED, NvmlStatus.LIBRARY_NOT_FOUND})
"""At start: this host has no driver (yet)."""

RESTART_ALWAYS = frozenset({NvmlStatus.LIB_RM_VERSION_MISMATCH})
"""If re-initializing keeps failing so, only a new process can heal it: this one has mapped a library
that is older than the driver in the kernel, and a library is never unmapped."""

RESTART = RESTART_ALWAYS | {NvmlStatus.UNKNOWN}
"""The same for a driver that was read before: a container that lost its access to the devices (after
`systemctl daemon-reload` on the host, nvidia-docker#1730) gets it back only by a restart."""

_TEXTS: dict[int, str] = {
    NvmlStatus.UNINITIALIZED: "the library is not initialized",
    NvmlStatus.INVALID_ARGUMENT: "invalid argument",
    NvmlStatus.NOT_SUPPORTED: "not supported",
    NvmlStatus.NO_PERMISSION: "no permission",
    NvmlStatus.NOT_FOUND: "not found",
    NvmlStatus.DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    NvmlStatus.TIMEOUT: "timed out",
    NvmlStatus.LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found",
    NvmlStatus.FUNCTION_NOT_FOUND: "the driver is too old for this call",
    NvmlStatus.GPU_IS_LOST: "the GPU is lost (fell off the bus)",
    NvmlStatus.RESET_REQUIRED: "the GPU needs a reset",
    NvmlStatus.LIB_RM_VERSION_MISMATCH: (
        "the driver's library and kernel module have different versions (upgraded underneath?)"
    ),
    NvmlStatus.ARGUMENT_VERSION_MISMATCH: "the driver does not know this version of the call",
    NvmlStatus.DEPRECATED: "the driver no longer has this call",
    NvmlStatus.GPU_NOT_FOUND: "the GPU was not found",
    NvmlStatus.UNKNOWN: "unknown driver error",
}


def status_text(status: int) -> str:
    """Say a status in words, without asking the driver."""
    return _TEXTS.get(status, f"NVML status {status}")


class NvmlStatusError(Exception):
    """A call into the driver answered a status other than success.

    Unlike pynvml's own errors it is hashable and compares by identity.
    """

    def __init__(self, status: int, call: str) -> None:
        super().__init__(f"{call}: {status_text(status)}")
        self.status = status
        self.call = call

    @property
    def text(self) -> str:
        """The status in words."""
        return status_text(self.status)
