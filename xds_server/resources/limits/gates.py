"""A gate: the internal listener in front of a tier that has a limit of its own.

A tier is chosen by the router, per attempt and long after the listener's filters ran, and Envoy 1.40 has no limiter
among the filters that run then. So a tier with a limit is entered through an internal listener whose limiter
sees everything that reaches the tier: what the control plane sends there and what fails over by itself, from
whatever chain, count in one bucket. What is over the limit gets a 429, and what finds all of `concurrency` and
`queue` taken a 503: inside a chain both are answers like any engine's, so the request goes on to the next tier.
(A circuit breaker's overflow in the chain itself would end it: no retry takes that up.)

The tier's time limits are kept here too, a little earlier than the route's own: an attempt that the route gives up
looks like a client that left, and would never eject a hung engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from xds_server.core.model import Model, Tier
from xds_server.core.policy import EvidencePolicy
from xds_server.resources import affinity, headers
from xds_server.resources.access_log import every_attempt_log
from xds_server.resources.bodies.rewrite import ROOM_BYTES
from xds_server.resources.clusters import BUFFER_LIMIT_BYTES
from xds_server.resources.limits.admission import TOKENS_HEADER, limiter_filter, limiter_name
from xds_server.resources.limits.entrances import gate_name
from xds_server.resources.limits.refusals import over_limit_reply
from xds_server.resources.local_replies import local_replies, said
from xds_server.resources.names import GATE_ROUTE, cluster_name
from xds_server.resources.proto import Listener, Route, duration, pack, serialize, to_upb, typed
from xds_server.resources.snapshot import Resource
from xds_server.resources.static.static_tier import filter_chains

PATIENCE_HEADER = "x-fleet-patience"
"""Tells a gate which of a model's time limits hold for a request. Routes set it, whatever a client says."""
EARLIER = 0.95
"""Part of the route's time after which the gate gives an attempt up."""

BROKEN = ("UH", "UF", "UC", "UR", "LR", "UPE", "NC")
"""Envoy's flags of requests that no endpoint of the tier answered: none is well, or the connection failed."""
BAD_GATEWAY = 502
"""What the gate says then. Envoy would say 503, which outside the gate is an engine's word for a full queue."""


class Patience(NamedTuple):
    """The time limits of an attempt; 0 = none."""

    headers_s: float
    silence_s: float

    @classmethod
    def of(cls, route: Route) -> Patience:
        """Return what a route allows."""
        policy = route.route.retry_policy
        return cls(
            policy.per_try_timeout.ToTimedelta().total_seconds(),
            policy.per_try_idle_timeout.ToTimedelta().total_seconds(),
        )

    def __str__(self) -> str:
        """The header's value."""
        return f"{self.headers_s:g}/{self.silence_s:g}"


def gate_listener(
    model: Model, tier: Tier, patiences: Iterable[Patience], evidence: EvidencePolicy
) -> Resource:
    """Return the internal listener of a tier's gate.

    Args:
        model: Whose tier it is.
        tier: One with a limit.
        patiences: The time limits of the model's routes.
        evidence: Whether attempts are logged. The chain only knows that it went to a gate.
    """
    known = sorted(set(patiences))
    routes = [_route(model, tier, each, said=str(each)) for each in known]
    # While a change of the times is under way, routes may still tell what this listener knows no more.
    routes.append(_route(model, tier, known[-1]))
    name = gate_name(model, tier)
    manager = typed.hcm.HttpConnectionManager(
        stat_prefix="gate",
        route_config=typed.route.RouteConfiguration(
            name=name,
            virtual_hosts=[typed.route.VirtualHost(name="gate", domains=["*"], routes=routes)],
        ),
        http_filters=[
            *([limiter_filter(limiter_name(model, tier))] if tier.limit.has_rate else []),
            _router(evidence),
        ],
        local_reply_config=_replies(tier),
        # The outer listener has said and done all of this already.
        server_header_transformation=(
            typed.hcm.HttpConnectionManagerServerHeaderTransformation.PASS_THROUGH
        ),
        generate_request_id=False,
        skip_xff_append=True,
        stream_idle_timeout=duration(0),
    )
    listener = typed.listener.Listener(
        name=name,
        internal_listener=typed.listener.ListenerInternalListenerConfig(),
        per_connection_buffer_limit_bytes=BUFFER_LIMIT_BYTES + ROOM_BYTES,
        filter_chains=filter_chains(manager),
    )
    return Resource.of(name, serialize(to_upb(Listener, listener)))


def _replies(tier: Tier) -> Any:
    """Author what the gate says when the tier is over its limit, full, or cannot answer.

    Who forbids a fallback is told which of these it was.
    """
    replies = [over_limit_reply()] if tier.limit.has_rate else []
    if tier.limit.concurrency is not None:
        full = typed.hcm.ResponseMapper(
            filter=_has_flag("UO"),
            headers_to_add=[headers.add(headers.OVERLOADED, "true")],
            body_format_override=said(503),
        )
        replies.append(full)
    broken = typed.hcm.ResponseMapper(
        filter=_has_flag(*BROKEN), status_code=BAD_GATEWAY, body_format_override=said(BAD_GATEWAY)
    )
    return local_replies([*replies, broken], statuses=[504])


def _has_flag(*names: str) -> Any:
    access = typed.accesslog
    flags = access.ResponseFlagFilter(flags=list(names))
    return access.AccessLogFilter(response_flag_filter=flags)


def _router(evidence: EvidencePolicy) -> Any:
    log = every_attempt_log(evidence)
    config = typed.router.Router(upstream_log=log, suppress_envoy_headers=True)
    return typed.hcm.HttpFilter(name="envoy.filters.http.router", typed_config=pack(config))


def _route(model: Model, tier: Tier, patience: Patience, *, said: str | None = None) -> Any:
    """Author the route of requests that say this of their patience; of all that are left when it is None."""
    r = typed.route
    match = r.RouteMatch(prefix="/")
    if said is not None:
        exact = typed.matcher.StringMatcher(exact=said)
        match.headers = [r.HeaderMatcher(name=PATIENCE_HEADER, string_match=exact)]
    policy = r.RetryPolicy(num_retries=0)
    if patience.headers_s:
        policy.per_try_timeout = duration(patience.headers_s * EARLIER)
    if patience.silence_s:
        policy.per_try_idle_timeout = duration(patience.silence_s * EARLIER)
    action = r.RouteAction(
        cluster=cluster_name(model.name, tier.name),
        timeout=duration(0),
        idle_timeout=duration(0),
        retry_policy=policy,
    )
    affinity.set_hash_policy(action, affinity.of(model))
    return r.Route(
        name=GATE_ROUTE,
        match=match,
        route=action,
        request_headers_to_remove=[PATIENCE_HEADER, TOKENS_HEADER],
    )
