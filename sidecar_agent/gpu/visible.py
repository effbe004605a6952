"""Which GPUs CUDA_VISIBLE_DEVICES means: UUIDs, unique prefixes, or indices that mean something. Pure.

CUDA numbers GPUs fastest first, NVML by PCI order, and neither survives a reboot or a container as it
is: the same index can be another GPU (pynvml#28, dask-cuda#671). So an index is taken only where CUDA
was told to use PCI order, or where there is no choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar_agent.gpu.facts import GpuReading

_PCI_ORDER = "PCI_BUS_ID"
_PREFIXES = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What the variable means on this host."""

    uuids: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be understood: the value, and what was expected."""


def canonical_uuid(uuid: str) -> str:
    """Return the UUID of the device itself: time-slicing hands out `UUID::N` to several pods."""
    return uuid.strip().partition("::")[0]


def resolve_cuda_visible(
    value: str | None, *, gpus: Sequence[GpuReading], device_order: str | None = None
) -> Resolution:
    """Resolve the CUDA_VISIBLE_DEVICES of an engine, by CUDA's rules.

    Unset means every GPU; empty or -1 none. CUDA stops reading at the first entry it does not understand,
    and shows no GPU at all where one is listed twice. An index that cannot be believed is refused.

    Args:
        value: The variable's text, None where it is unset.
        gpus: The host's.
        device_order: The engine's CUDA_DEVICE_ORDER.
    """
    if value is None:
        return Resolution(uuids=tuple(gpu.uuid for gpu in gpus if not gpu.parent_uuid))
    uuids: list[str] = []
    for entry in value.split(",") if value.strip() else ():
        if entry.strip() == "-1":
            break
        found, problem = _resolve(entry, gpus=gpus, device_order=device_order)
        if problem:
            hidden = f"CUDA_VISIBLE_DEVICES={value}: {problem}; later entries are ignored"
            return Resolution(uuids=tuple(uuids), problems=(hidden,))
        if found in uuids:
            twice = f"CUDA_VISIBLE_DEVICES={value}: {found} is listed twice, so CUDA shows no GPU"
            return Resolution(problems=(twice,))
        uuids.append(found)
    return Resolution(uuids=tuple(uuids))


def _resolve(
    entry: str, *, gpus: Sequence[GpuReading], device_order: str | None
) -> tuple[str, str]:
    """Return the UUID an entry means and no problem, or a problem."""
    text = canonical_uuid(entry)
    if text.lstrip("+-").isdecimal():
        return _by_index(text, gpus=gpus, device_order=device_order)
    if not text.startswith(_PREFIXES):
        return "", f"{entry!r} is no GPU, expected GPU-..., MIG-... or an index"
    matches = [gpu.uuid for gpu in gpus if gpu.uuid == text] or [
        gpu.uuid for gpu in gpus if gpu.uuid.startswith(text)
    ]
    if len(matches) == 1:
        return matches[0], ""
    if matches:
        return "", f"{text} is the start of {len(matches)} GPUs: {', '.join(matches)}"
    there = ", ".join(gpu.uuid for gpu in gpus) or "none"
    return "", f"{text} is not on this host, which has: {there}"


def _by_index(
    text: str, *, gpus: Sequence[GpuReading], device_order: str | None
) -> tuple[str, str]:
    whole = [gpu for gpu in gpus if not gpu.parent_uuid]
    match = next((gpu for gpu in whole if gpu.index == int(text)), None)
    if match is None:
        return "", f"index {text} is not on this host, which has {len(whole)} GPUs"
    if device_order != _PCI_ORDER and len(whole) > 1:
        order = device_order or "unset, which means FASTEST_FIRST"
        return "", (
            f"index {text} is ambiguous: CUDA and NVML number GPUs differently while CUDA_DEVICE_ORDER "
            f"is {order}; give the UUID (nvidia-smi -L), or set CUDA_DEVICE_ORDER={_PCI_ORDER}"
        )
    return match.uuid, ""
