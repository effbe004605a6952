"""What a request costs in tokens, before it is admitted: estimated prompt plus what it may generate.

    cost = n x max(max_tokens, max_completion_tokens, or the default where neither is told)
           + bytes of the body x tokens per byte

Everything is native: one filter reads the body (`request_facts`), a CEL expression adds up. A limit that can be
talked out of is none, so what cannot be counted is refused before it is routed: a body that is no JSON, and
numbers that are negative, text, or beyond any engine. The content type is not believed, a chunked body is
counted like any other, and of a key written twice Envoy reads the last, as Python's engines do. All of it was
seen on Envoy 1.40; `tests/integration/test_admission_bodies.py` keeps it true.
"""

from __future__ import annotations

from typing import Any

from xds_server.core.policy import AdmissionPolicy
from xds_server.resources.names import METADATA
from xds_server.resources.proto import typed
from xds_server.resources.request_facts import Fact, Reading

TOKENS_MAX = 1_000_000
"""More than any engine generates; a larger number is refused, as engines do."""
CHOICES_MAX = 128
"""The most answers to one prompt: OpenAI's own bound of `n`."""

_UNREADABLE = "unreadable"
"""In place of every fact of a body that is no JSON: no number, so refused."""
_RANGES = {
    Fact.MAX_TOKENS: (0, TOKENS_MAX),
    Fact.MAX_COMPLETION_TOKENS: (0, TOKENS_MAX),
    Fact.CHOICES: (1, CHOICES_MAX),
}
_MISSING = {Fact.MAX_TOKENS: 0.0, Fact.MAX_COMPLETION_TOKENS: 0.0, Fact.CHOICES: 1.0}


def cost_readings() -> list[Reading]:
    """Return what has to be known of a body to count it."""
    return [
        Reading(fact=fact, missing=missing, error=_UNREADABLE, any_content_type=True)
        for fact, missing in _MISSING.items()
    ]


def uncountable() -> list[tuple[Fact, Any]]:
    """Return route conditions that hold for requests whose cost nobody can tell, by the fact at fault."""
    m = typed.matcher
    conditions = []
    for fact, (least, most) in _RANGES.items():
        bounds = typed.type.DoubleRange(start=least, end=most + 1)
        conditions.append(
            (
                fact,
                m.MetadataMatcher(
                    filter=METADATA,
                    path=[m.MetadataMatcherPathSegment(key=fact.value)],
                    value=m.ValueMatcher(double_match=m.DoubleMatcher(range=bounds)),
                    invert=True,
                ),
            )
        )
    return conditions


def cost_command(policy: AdmissionPolicy) -> str:
    """Return the format command whose value is the cost, a whole number of at least 1.

    Only for requests that are not `uncountable`.
    """
    facts = f"metadata.filter_metadata['{METADATA}']"
    asked, completion = f"{facts}['max_tokens']", f"{facts}['max_completion_tokens']"
    default = float(policy.default_max_tokens)
    output = f"({asked} > {completion} ? {asked} : ({completion} > 0.0 ? {completion} : {default}))"
    prompt = f"double(request.size) * {policy.prompt_tokens_per_byte!r}"
    return f"%CEL(int({output} * {facts}['n'] + {prompt}) + 1)%"
