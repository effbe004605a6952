"""What one sample says about an instance's ability to serve."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from xds_server.core.sample import EngineFacts, EngineState, GpuHealth, Sample, TokenResult


class Condition(StrEnum):
    """What one sample says about an instance."""

    GOOD = "good"
    UNKNOWN = "unknown"
    LOADING = "loading"
    SLEEPING = "sleeping"
    FAULT = "fault"


class Finding(NamedTuple):
    """A condition with the stable name of its cause and the agent's own words."""

    condition: Condition
    cause: str
    detail: str


def judge(sample: Sample) -> Finding:
    """Say what a sample means for the ability to serve. The worst cause wins, the GPU first."""
    engine, gpu = sample.engine, sample.gpu
    if gpu is not None:
        if gpu.health is GpuHealth.LOST:
            return Finding(Condition.FAULT, "gpu_lost", gpu.detail)
        if gpu.health is GpuHealth.RESET_REQUIRED:
            return Finding(Condition.FAULT, "gpu_reset_required", gpu.detail)
    state = engine.state
    if state is EngineState.UP:
        return Finding(Condition.GOOD, "engine_up", engine.detail)
    if engine.out_of_memory:
        return Finding(Condition.FAULT, "out_of_memory", engine.detail)
    if state is EngineState.DOWN or state is EngineState.HUNG:
        return Finding(Condition.FAULT, _cause(engine), engine.detail)
    if state is EngineState.LOADING:
        return Finding(Condition.LOADING, "engine_loading", engine.detail)
    if state is EngineState.SLEEPING:
        return Finding(Condition.SLEEPING, "engine_sleeping", engine.detail)
    return Finding(Condition.UNKNOWN, "engine_unknown", engine.detail)


def _cause(engine: EngineFacts) -> str:
    """Tell what the agent read apart from what it found out by asking for a token."""
    result = None if engine.token_probe is None else engine.token_probe.result
    if result is TokenResult.SILENT:
        return "token_late"
    if result is TokenResult.FAILED:
        return "token_failed"
    return "engine_down" if engine.state is EngineState.DOWN else "engine_hung"
