"""What a request costs in tokens, before it is admitted: estimated prompt plus what it may generate.

    cost = prompts x max(n, best_of) x the largest limit told, or the default where none is
           + bytes of the body x tokens per byte

Limits are `max_tokens`, `max_completion_tokens`, `max_output_tokens` (Responses) and `n_predict` (llama.cpp,
where it wins over the others). `prompt` of a text completion can be a list of prompts, each of which is answered.

It is counted where the body is read (`request_facts`): an expression of Envoy's (CEL) costs as much again each
time a limit asks, and the limits of a model, a tenant and a tier each ask. A limit that can be talked out of is
none, so what cannot be counted is refused before it is routed: a body that is no JSON object, and numbers that
are negative, text, or beyond any engine. The content type is not believed, a chunked body is counted like any
other, and of a key written twice the last counts, as it does in engines. All of it was seen on Envoy 1.40;
`tests/integration/test_admission_bodies.py` keeps it true.
"""

from __future__ import annotations

from typing import Any

from xds_server.core.policy import AdmissionPolicy
from xds_server.resources.bodies.request_facts import Counting, Fact, key_is
from xds_server.resources.names import METADATA

TOKENS_MAX = 1_000_000
"""More than any engine generates; a larger number is refused, as engines do."""
CHOICES_MAX = 128
"""The most answers to one prompt: OpenAI's own bound of `n`."""
COST_MOST = 999_999_999
"""What Envoy takes off a bucket at once; of more it would take nothing."""
TOKENS = "tokens"
"""Key of the cost in the metadata of a request; a text."""
CHOICES = (Fact.CHOICES, Fact.BEST_OF)
_LIMITS = (Fact.MAX_TOKENS, Fact.MAX_COMPLETION_TOKENS, Fact.MAX_OUTPUT_TOKENS, Fact.N_PREDICT)
_COUNTED = (*_LIMITS, *CHOICES)


def counting(policy: AdmissionPolicy) -> Counting:
    """Return what the filter of facts needs to count requests."""
    return Counting(
        facts=_COUNTED,
        lists=("prompt",),
        program="bodies/cost.lua",
        constants=(
            ("DEFAULT_TOKENS", float(policy.default_max_tokens)),
            ("TOKENS_PER_BYTE", policy.prompt_tokens_per_byte),
            ("TOKENS_MOST", float(TOKENS_MAX)),
            ("CHOICES_MOST", float(CHOICES_MAX)),
            ("COST_MOST", float(COST_MOST)),
        ),
    )


def uncountable() -> list[tuple[Fact, Any]]:
    """Return route conditions that hold for requests whose cost nobody can tell, by the fact at fault."""
    return [(fact, key_is("uncountable", fact.value)) for fact in _COUNTED]


def cost_command() -> str:
    """Return the format command whose value is the cost, a whole number of at least 1.

    Only for requests that are not `uncountable`.
    """
    return f"%DYNAMIC_METADATA({METADATA}:{TOKENS})%"
