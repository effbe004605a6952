"""The play: which load in which order, and what the stage looks like. Values only.

Two engines serve the 70B, one the 8B. Their sizes are chosen so that one machine with two cores can
play all parts: the 70B pool completes about 24 requests/s, the 8B about 20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

MODEL = "chat"
PRIMARY_MODEL = "llama-3-70b"
FALLBACK_MODEL = "llama-3-8b"
PRIMARY, FALLBACK, STATIC = "primary", "fallback", "static"

RELOAD_S = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One simulated engine of the play."""

    name: str
    tier: str
    model: str
    slots: int
    kv_tokens: int
    tokens_per_s: float


PARTS = (
    Part(
        name="a100-0", tier=PRIMARY, model=PRIMARY_MODEL, slots=12, kv_tokens=1536, tokens_per_s=30
    ),
    Part(
        name="a100-1", tier=PRIMARY, model=PRIMARY_MODEL, slots=12, kv_tokens=1536, tokens_per_s=30
    ),
    Part(
        name="l4-0", tier=FALLBACK, model=FALLBACK_MODEL, slots=12, kv_tokens=1536, tokens_per_s=50
    ),
)

VICTIM = "a100-1"
"""The instance that runs out of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A stretch of the play with one load."""

    name: str
    seconds: float
    rate: float
    """Requests/s of all clients together."""
    says: str
    """What the audience shall look at."""
    kills: bool = False
    """The act begins with the death of the victim."""


ACTS = (
    Act(
        name="normal",
        seconds=6,
        rate=8,
        says="a third of what the 70B pool can do: everything is answered by the 70B",
    ),
    Act(
        name="overload",
        seconds=14,
        rate=28,
        says="the 70B pool runs out of KV cache; the control plane spills to the 8B",
    ),
    Act(
        name="oom",
        seconds=8,
        rate=20,
        says=f"{VICTIM} runs out of memory and dies under load; it needs {RELOAD_S:.0f} s to reload",
        kills=True,
    ),
    Act(
        name="both full",
        seconds=12,
        rate=56,
        says="more than both models can take: what is left over gets the static answer",
    ),
    Act(
        name="recovery",
        seconds=20,
        rate=8,
        says=f"the load falls, {VICTIM} returns in stages, the 70B takes everything back",
    ),
)


def paced(acts: tuple[Act, ...], seconds: float) -> tuple[Act, ...]:
    """Return the acts stretched or shortened so that they last `seconds` together."""
    factor = seconds / sum(act.seconds for act in acts)
    return tuple(replace(act, seconds=act.seconds * factor) for act in acts)


def configuration(addresses: Mapping[str, str]) -> dict[str, Any]:
    """Return the control plane's configuration; `addresses` holds ip:port by part name.

    Holds are short, so that a recovery that takes minutes in real life fits into the play.
    """

    def instances(tier: str) -> list[dict[str, Any]]:
        return [
            {"name": part.name, "address": addresses[part.name], "capacity": part.slots}
            for part in PARTS
            if part.tier == tier
        ]

    busy = "The service is busy, please try again shortly."
    answer = {"choices": [{"message": {"role": "assistant", "content": busy}}]}
    return {
        # Port 0: each of the two proxies takes a free port of its own.
        "listener": {"address": "127.0.0.1", "port": 0},
        "models": [
            {
                "name": MODEL,
                "match": {"domains": ["*"], "prefix": "/v1/"},
                "tiers": [
                    {"name": PRIMARY, "serves": PRIMARY_MODEL, "instances": instances(PRIMARY)},
                    {"name": FALLBACK, "serves": FALLBACK_MODEL, "instances": instances(FALLBACK)},
                    {"name": STATIC, "answer": {"status": 200, "json": answer}},
                ],
            }
        ],
        "policy": {
            "kv": {"hold_s": 1.5},
            "recovery": {"hold_s": 2},
            "spill": {"capacity_window_s": 15},
        },
    }
