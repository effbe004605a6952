"""Judges the answers to one-token requests: hung, failing, or only busy (pure).

Metric pages cannot tell an idle engine that hangs from one that rests: a frozen vLLM answers /health and
/metrics for ever. Only work shows it, so where it is switched on the agent asks for one token now and then.

| answer | means | counts |
|---|---|---|
| a token | it works | ends the row |
| 429 or 503 | its own limit: a full queue is no fault | neither way: it proves no token, and no fault |
| late, and others have work in it | busy: the token waits its turn; the watchdog sees work without progress | neither way |
| late, and its load is unknown | could be either | neither way |
| late, and nobody else has work in it | it hangs | to the row: HUNG |
| another 5xx, a cut answer, an error or an abort inside a 200 | it fails | to the row: DOWN |
| another 4xx | the agent asks wrongly (model, key): no word about the engine | ends the row |
| nobody listens | said by the scrapes already | neither way |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sidecar_agent.engine.facts import EngineFacts, EngineState, TokenProbe, TokenResult


class Reply(StrEnum):
    """How a one-token request ended."""

    GIVEN = "given"
    REJECTED = "rejected"
    LATE = "late"
    BROKEN = "broken"
    UNUSABLE = "unusable"
    UNREACHED = "unreached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One reply, with the numbers for people."""

    reply: Reply
    took_s: float
    detail: str = ""


ROW: Final = 3
"""Answers in a row that make a fault, as many as proxies need (`failures.consecutive`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWatch:
    """What is remembered of one engine's answers."""

    said: TokenProbe | None = None
    """None = nothing that could be said."""
    detail: str = ""
    state: EngineState | None = None
    """What the row proves: HUNG or DOWN; None = no fault."""

    @property
    def is_well(self) -> bool:
        """Whether the last word was a token, or there is none."""
        return self.said is None or self.said.result is TokenResult.OK


def observe(
    watch: TokenWatch, answer: Answer, *, before: EngineFacts, after: EngineFacts
) -> TokenWatch:
    """Take in an answer.

    Args:
        watch: What is remembered.
        answer: The reply.
        before: The engine's page when the request was sent.
        after: Its newest page when the reply came, or did not.
    """
    row = 0 if watch.said is None else watch.said.row
    match answer.reply:
        case Reply.GIVEN:
            return TokenWatch(said=TokenProbe(TokenResult.OK, 0, answer.took_s))
        case Reply.UNUSABLE:
            return TokenWatch(detail=answer.detail)
        case Reply.UNREACHED:
            return watch
        case Reply.BROKEN:
            return _counted(TokenResult.FAILED, row + 1, EngineState.DOWN, answer)
        case Reply.LATE if is_idle(before, after):
            return _counted(TokenResult.SILENT, row + 1, EngineState.HUNG, answer)
        case _:
            return replace(
                watch,
                said=TokenProbe(TokenResult.BUSY, row, answer.took_s),
                detail=watch.detail if watch.state else answer.detail,
            )


def _counted(result: TokenResult, row: int, state: EngineState, answer: Answer) -> TokenWatch:
    detail = f"asked for one token: {answer.detail}, {row} times in a row"
    return TokenWatch(
        said=TokenProbe(result, row, answer.took_s),
        detail=detail,
        state=state if row >= ROW else None,
    )


def is_idle(before: EngineFacts, after: EngineFacts) -> bool:
    """Whether nobody but the agent had work in the engine from one page to the other.

    Missing is not zero: an engine that does not say what runs is never called idle.
    """
    if before.running is None or after.running is None:
        return False
    if before.running + (before.waiting or 0.0) > 0.0:
        return False
    # The agent's own request may be on the newer page.
    if after.running + (after.waiting or 0.0) > 1.0:
        return False
    return all(
        old is None or new is None or old == new
        for old, new in (
            (before.progress_total, after.progress_total),
            (before.generation_tokens_total, after.generation_tokens_total),
            (before.finished_total, after.finished_total),
        )
    )


def applied(facts: EngineFacts, watch: TokenWatch) -> EngineFacts:
    """Return the facts with what the answers prove. Only an engine that seems up can be proven wrong."""
    if facts.state is not EngineState.UP:
        return facts
    if watch.state is None:
        return facts if watch.said is None else replace(facts, token_probe=watch.said)
    return replace(facts, token_probe=watch.said, state=watch.state, detail=watch.detail)
