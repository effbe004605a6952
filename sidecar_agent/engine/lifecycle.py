"""Folds the outcomes of scrapes into what can be said about one engine (pure).

| outcome | said |
|---|---|
| page | its facts; HUNG when there was work and nothing moved for `hang_s` |
| refused | DOWN at once, with a suspicion of memory exhaustion if its memory was full just before |
| loading | LOADING at once |
| silent | nothing; HUNG once `silence_s` passed, over at least three scrapes |
| unreachable | nothing; DOWN once `silence_s` passed, over at least three scrapes |
| bad page | nothing: a broken metrics page says nothing about the engine (vllm#49983) |
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from sidecar_agent.engine import exhaustion, restarts, watchdog
from sidecar_agent.engine.exhaustion import Memory
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.outcome import Outcome, OutcomeKind
from sidecar_agent.engine.restarts import Lifetime
from sidecar_agent.engine.watchdog import Watch

DEFAULT_HANG_S: Final = 15.0
_ENDED: Final = frozenset({EngineState.DOWN, EngineState.LOADING, EngineState.HUNG})
"""States whose end in a refusal says nothing about memory: a hung engine's KV usage is frozen, and
killing it is what an operator does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long nothing may happen."""

    hang_s: float = DEFAULT_HANG_S
    """Work without progress; 0 turns this watchdog off."""
    silence_s: float = DEFAULT_HANG_S
    """Unanswered scrapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What is remembered and said about one engine."""

    watch: Watch = field(default_factory=Watch)
    lifetime: Lifetime = field(default_factory=Lifetime)
    memory: Memory = field(default_factory=Memory)
    facts: EngineFacts | None = None
    """What the last outcome lets us say; None = nothing."""
    state: EngineState = EngineState.UNKNOWN
    """The last state that was said."""
    exhausted: str = ""
    """Why the engine's end looks like memory exhaustion; empty while it runs."""


def observe(
    engine: Engine,
    outcome: Outcome,
    *,
    limits: Limits,
    vram_free_bytes: int | None = None,
    expected_end: bool = False,
) -> Engine:
    """Fold one outcome in. `expected_end`: the instance drains, so its end is no exhaustion."""
    match outcome.kind:
        case OutcomeKind.PAGE:
            assert outcome.facts is not None
            return _heard(
                engine, outcome.facts, at=outcome.at, limits=limits, vram_free=vram_free_bytes
            )
        case OutcomeKind.REFUSED:
            exhausted = engine.exhausted
            if not expected_end and engine.state not in _ENDED:
                exhausted = exhaustion.suspicion(engine.memory, at=outcome.at)
            detail = f"{outcome.detail}; {exhausted} just before" if exhausted else outcome.detail
            return Engine(
                lifetime=restarts.gone(engine.lifetime),
                facts=EngineFacts(state=EngineState.DOWN, detail=detail),
                state=EngineState.DOWN,
                exhausted=exhausted,
            )
        case OutcomeKind.LOADING:
            return Engine(
                lifetime=restarts.gone(engine.lifetime),
                facts=EngineFacts(state=EngineState.LOADING, detail=outcome.detail),
                state=EngineState.LOADING,
                exhausted=engine.exhausted,
            )
        case OutcomeKind.SILENT | OutcomeKind.UNREACHABLE:
            return _unheard(engine, outcome, limits=limits)
        case OutcomeKind.BAD_PAGE:
            # It answers, so it is not silent; whether it works stays unknown.
            watch = replace(engine.watch, silent_since=None, silent_scrapes=0)
            return replace(engine, watch=watch, facts=None)


def _heard(
    engine: Engine, facts: EngineFacts, *, at: float, limits: Limits, vram_free: int | None
) -> Engine:
    if facts.state is EngineState.UNKNOWN:
        # A page without the engine's numbers proves only that something answers.
        return replace(engine, watch=Watch(), facts=facts, state=facts.state)
    watch = watchdog.heard(engine.watch, facts, at=at)
    still = watch.still(at)
    if limits.hang_s and still >= limits.hang_s:
        facts = replace(
            facts, state=EngineState.HUNG, detail=f"work but no progress for {still:.0f} s"
        )
    return Engine(
        watch=watch,
        lifetime=restarts.heard(engine.lifetime, facts),
        memory=exhaustion.heard(engine.memory, facts, vram_free_bytes=vram_free, at=at),
        facts=facts,
        state=facts.state,
    )


def _unheard(engine: Engine, outcome: Outcome, *, limits: Limits) -> Engine:
    watch = watchdog.unheard(engine.watch, at=outcome.at)
    silent = watch.silent(outcome.at)
    if silent < limits.silence_s:
        return replace(engine, watch=watch, facts=None)
    unreachable = outcome.kind is OutcomeKind.UNREACHABLE
    state = EngineState.DOWN if unreachable else EngineState.HUNG
    detail = f"{outcome.detail} for {silent:.0f} s"
    return replace(engine, watch=watch, facts=EngineFacts(state=state, detail=detail), state=state)
