"""The response headers that tell a client who answered, and why not the model it asked for.

Every endpoint carries metadata: `model` (what serves), `downgraded` below the first tier, `final` where the
answer is not to be retried, and one key per tier above its own (`below_0`, `below_1`, ...). A chain copies them
into headers by a filter on the chain itself (Envoy runs no filter of a chain's members). The chain that starts at
tier k reads `below_k`, which only endpoints further down have: so Envoy's own fail-over is named whatever caused
it, a retry, an ejection or an empty tier. Where the control plane chose a lower tier, the route adds its reason if
none is there yet.
"""

from __future__ import annotations

from typing import Any

from xds_server.resources.bodies.rewrite import KEY as REWRITE
from xds_server.resources.bodies.rewrite import instruct, rewrite_filter
from xds_server.resources.names import METADATA
from xds_server.resources.proto import pack, typed

SERVED_MODEL = "x-served-model"
DOWNGRADED = "x-model-downgraded"
DEGRADE_REASON = "x-degrade-reason"
MODEL_ROUTE = "x-model-route"
"""Which model route matched; the last net picks its answer by it."""
OVERLOADED = "x-envoy-overloaded"
"""On a 503: a circuit breaker was open, there is no room."""
ATTEMPTS = "x-attempt-count"
"""How many attempts a proxy made for this answer: on engines, on tiers that were full, and on the static tier.
What is known to be out (ejected, empty) takes none; 1 also where nobody was left to ask."""
STATIC_TEMPLATE = "x-static-template"
"""Which of a static tier's templates answered; see `static_routes`."""
RATE_LIMITED = "x-envoy-ratelimited"
"""Envoy does not retry an answer that carries this. An engine behind a limiter of its own sends it, where it would
keep requests from the next tier; a chain believes only its endpoints' metadata."""

FAILOVER = "failover"
"""`x-degrade-reason` when Envoy left a failing tier by itself."""
LIMITED = "rate_limited"
"""`x-degrade-reason` of a 429 from a limiter."""


def tier_metadata(
    *, index: int, model: str, instance: str = "", final: bool = False, rewrite: str = ""
) -> dict[str, str]:
    """Return what the endpoints of a tier say about themselves, keys in order.

    Args:
        index: position of the tier in its chain.
        model: what serves.
        instance: which one, where there are several.
        final: whatever the endpoint answers, it is not retried.
        rewrite: what becomes of bodies on their way to it, see `resources.bodies.rewrite`.
    """
    facts = {f"below_{above}": FAILOVER for above in range(index)}
    if index:
        facts["downgraded"] = "true"
    if final:
        facts["final"] = "true"
    if instance:
        facts["instance"] = instance
    if rewrite:
        facts[REWRITE] = rewrite
    facts["model"] = model
    return dict(sorted(facts.items()))


def metadata(facts: dict[str, str]) -> Any:
    """Return endpoint metadata as a typed message."""
    value = typed.protobuf.Value
    fields = {key: value(string_value=text) for key, text in facts.items()}
    return typed.core.Metadata(filter_metadata={METADATA: typed.protobuf.Struct(fields=fields)})


def add(name: str, value: str, *, keep: bool = False) -> Any:
    """Return a typed instruction to set a header; `keep` leaves one that is there alone."""
    action = typed.core.HeaderValueOptionHeaderAppendAction
    return typed.core.HeaderValueOption(
        header=typed.core.HeaderValue(key=name, value=value),
        append_action=action.ADD_IF_ABSENT if keep else action.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def attempts() -> Any:
    """Return the instruction to say how many attempts an answer took."""
    return add(ATTEMPTS, "%UPSTREAM_REQUEST_ATTEMPT_COUNT%")


def literal(text: str) -> str:
    """Escape a text for a header value, where `%` starts a command."""
    return text.replace("%", "%%")


def chain_filters(start: int, *, rewrites: bool = False) -> list[Any]:
    """Return the upstream filters of the chain that starts at tier `start`; `rewrites`: of bodies too.

    An engine's own headers of these names are dropped, unless it sits behind a gateway of this kind
    they could only mislead.
    """
    mutation = typed.mutation_rules.HeaderMutation

    def from_metadata(header: str, key: str) -> list[Any]:
        command = f"%UPSTREAM_METADATA({METADATA}:{key})%"
        return [mutation(remove=header), mutation(append=add(header, command))]

    changes = [
        *from_metadata(SERVED_MODEL, "model"),
        *from_metadata(DOWNGRADED, "downgraded"),
        *from_metadata(DEGRADE_REASON, f"below_{start}"),
        *from_metadata(RATE_LIMITED, "final"),
    ]
    mutate = typed.header_mutation.HeaderMutation(
        mutations=typed.header_mutation.Mutations(
            request_mutations=instruct() if rewrites else [], response_mutations=changes
        )
    )
    http_filter = typed.hcm.HttpFilter
    return [
        http_filter(name="envoy.filters.http.header_mutation", typed_config=pack(mutate)),
        *([rewrite_filter()] if rewrites else []),
        http_filter(
            name="envoy.filters.http.upstream_codec",
            typed_config=pack(typed.upstream_codec.UpstreamCodec()),
        ),
    ]
