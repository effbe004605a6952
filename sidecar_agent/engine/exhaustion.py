"""Suspects memory exhaustion when an engine ends right after its memory was full (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sidecar_agent.engine.facts import EngineFacts

KV_FULL_RATIO: Final = 0.98
VRAM_FLOOR_BYTES: Final = 256 * 2**20
"""Less free VRAM than this is near OOM whatever the ratio."""
SUSPECT_WITHIN_S: Final = 5.0
"""An engine that ends this soon after a sign is suspected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The last signs of full memory."""

    sign: str = ""
    sign_at: float | None = None
    preemptions_total: float | None = None


def heard(memory: Memory, facts: EngineFacts, *, vram_free_bytes: int | None, at: float) -> Memory:
    """Take in a page and the free VRAM of the same moment."""
    before, after = memory.preemptions_total, facts.preemptions_total
    sign = ""
    if facts.kv_ratio is not None and facts.kv_ratio >= KV_FULL_RATIO:
        sign = f"KV cache {facts.kv_ratio:.0%} full"
    elif vram_free_bytes is not None and vram_free_bytes < VRAM_FLOOR_BYTES:
        sign = f"{vram_free_bytes / 2**20:.0f} MiB of VRAM free"
    elif before is not None and after is not None and after > before:
        sign = "preemptions rising"
    return Memory(
        sign=sign or memory.sign,
        sign_at=at if sign else memory.sign_at,
        preemptions_total=after,
    )


def suspicion(memory: Memory, *, at: float) -> str:
    """Return the sign that makes an end at `at` suspicious, or an empty string."""
    recent = memory.sign_at is not None and at - memory.sign_at <= SUSPECT_WITHIN_S
    return memory.sign if recent else ""
