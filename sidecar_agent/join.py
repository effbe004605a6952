"""Joins what an engine said with what its GPUs said into one sample (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar_agent.engine.facts import EngineFacts
from sidecar_agent.engine.lifecycle import Engine
from sidecar_agent.engine.token_watch import TokenWatch, applied
from sidecar_agent.gpu.facts import GpuHealth
from sidecar_agent.gpu.reduce import GpuGroup

_FAULTS = frozenset({GpuHealth.RESET_REQUIRED, GpuHealth.LOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What is sent about one instance."""

    instance: str
    observed_at: float
    """Monotonic seconds of the engine's page; its age travels, never a wall clock."""
    sequence: int
    engine: EngineFacts
    restarts: int = 0
    out_of_memory: bool = False
    gpu: GpuGroup | None = None
    draining: bool = False


def join(
    engine: Engine,
    gpu: GpuGroup | None,
    *,
    instance: str,
    observed_at: float,
    sequence: int,
    draining: bool,
    tokens: TokenWatch | None = None,
) -> Sample | None:
    """Return the sample to publish, or None: a failed read publishes nothing.

    Two things are said even when the engine could not be read, then without any engine fact: a GPU
    fault, which is usually why the engine does not answer, and a drain, which is the operator's word.
    """
    facts = engine.facts
    if facts is None:
        if not draining and (gpu is None or gpu.health not in _FAULTS):
            return None
        facts = EngineFacts()
    elif tokens is not None and not draining:
        facts = applied(facts, tokens)
    return Sample(
        instance=instance,
        observed_at=observed_at,
        sequence=sequence,
        engine=facts,
        restarts=engine.lifetime.count,
        out_of_memory=bool(engine.exhausted),
        gpu=gpu,
        draining=draining,
    )
