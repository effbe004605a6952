"""System memory, for GPUs that have none of their own. Pure: text in, numbers out.

GB10 (DGX Spark) and other unified-memory devices answer "not supported" to every memory query. What the
GPU can use there is what the kernel says is *available*: free memory alone leaves out reclaimable page
cache and reads as full on any host that has been up for a while (nvtop#449, nvitop#208).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMemory:
    """Memory that the CPU and the GPU share, as far as this container may use it."""

    total_bytes: int
    available_bytes: int


class MeminfoError(ValueError):
    """The text lacks what was expected; the message says which part."""


def parse_meminfo(text: str) -> SystemMemory:
    """Parse /proc/meminfo.

    Raises:
        MeminfoError: MemTotal or MemAvailable is missing or no amount in kB.
    """
    return SystemMemory(
        total_bytes=_amount(text, "MemTotal"), available_bytes=_amount(text, "MemAvailable")
    )


def _amount(text: str, key: str) -> int:
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name.strip() != key:
            continue
        parts = rest.split()
        if len(parts) == 2 and parts[0].isascii() and parts[0].isdigit() and parts[1] == "kB":
            return int(parts[0]) * 1024
        raise MeminfoError(f"/proc/meminfo: {key} is {rest.strip()!r}, expected an amount in kB")
    raise MeminfoError(f"/proc/meminfo: no line {key}")


def parse_cgroup_bytes(text: str) -> int | None:
    """Parse memory.max or memory.current of cgroup v2; None for "max" (no limit).

    Raises:
        MeminfoError: It is neither "max" nor a count of bytes.
    """
    value = text.strip()
    if value == "max":
        return None
    if value.isascii() and value.isdigit():
        return int(value)
    raise MeminfoError(f"cgroup memory: {value!r}, expected bytes or max")


def capped(
    memory: SystemMemory, *, limit_bytes: int | None, used_bytes: int | None
) -> SystemMemory:
    """Reduce a host's memory to what a cgroup lets this container use.

    Args:
        memory: The host's.
        limit_bytes: memory.max; None where there is none.
        used_bytes: memory.current; None where unknown.
    """
    if limit_bytes is None or limit_bytes >= memory.total_bytes:
        return memory
    room = limit_bytes if used_bytes is None else max(0, limit_bytes - used_bytes)
    return SystemMemory(total_bytes=limit_bytes, available_bytes=min(memory.available_bytes, room))
