"""LDS: where proxies listen for clients, and the internal listeners of the static tiers.

Nothing here follows the weights: a changed listener does not reach connections that are already open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xds_server.core.model import Topology
from xds_server.core.policy import FailurePolicy, Policy
from xds_server.resources.access_log import attempt_log, request_log
from xds_server.resources.bodies.request_facts import STREAM, Reading, facts_filters, merge
from xds_server.resources.bodies.rewrite import ROOM_BYTES
from xds_server.resources.bodies.token_cost import counting
from xds_server.resources.capability import Capability
from xds_server.resources.clusters import BUFFER_LIMIT_BYTES, ads
from xds_server.resources.limits.admission import (
    counts_tokens,
    limiter_filter,
    limits_clients,
    listener_limiters,
)
from xds_server.resources.limits.refusals import over_limit_reply
from xds_server.resources.limits.tenants import tenant_filters
from xds_server.resources.local_replies import local_replies
from xds_server.resources.names import LISTENER_NAME, ROUTE_CONFIG_NAME
from xds_server.resources.proto import Listener, pack, serialize, to_upb, typed
from xds_server.resources.routing.model_routing import model_readings
from xds_server.resources.routing.request_classes import sheds_any
from xds_server.resources.snapshot import Resource
from xds_server.resources.static.last_net import author_last_net
from xds_server.resources.static.static_tier import filter_chains, router, static_listener
from xds_server.resources.stream_errors import stream_error_filters, understood


def listener_resources(
    topology: Topology, policy: Policy, capability: Capability
) -> Iterator[Resource]:
    """Yield the listener for clients and those of the static tiers, or what gRPC clients ask for."""
    if capability is Capability.GRPC:
        domains = {domain for model in topology.models for domain in model.domains}
        exact = sorted(domain for domain in domains if "*" not in domain)
        for name in dict.fromkeys([LISTENER_NAME, *exact]):
            yield _resource(name, author_api_listener(name))
        return
    yield _resource(LISTENER_NAME, author_listener(topology, understood(policy, capability)))
    for model in topology.models:
        for tier in model.tiers:
            if tier.is_static:
                yield static_listener(model, tier)


def _resource(name: str, authored: Any) -> Resource:
    return Resource.of(name, serialize(to_upb(Listener, authored)))


def author_listener(topology: Topology, policy: Policy) -> Any:
    """Author the listener that clients reach."""
    address = typed.core.SocketAddress(
        address=topology.listener_host, port_value=topology.listener_port
    )
    http_filters = [
        *facts_filters(
            merge(_readings(topology, policy.failures)),
            counting(policy.admission) if counts_tokens(topology) else None,
        ),
        *tenant_filters(topology.tenants),
        *(limiter_filter(name) for name in listener_limiters(topology)),
        *author_last_net(topology.models, policy.failures),
        *stream_error_filters(policy.evidence),
    ]
    manager = typed.hcm.HttpConnectionManager(
        stat_prefix=LISTENER_NAME,
        rds=_rds(),
        http_filters=[*http_filters, router(attempt_log(policy.evidence))],
        local_reply_config=local_replies([over_limit_reply()] if limits_clients(topology) else []),
        access_log=request_log(policy.evidence),
        normalize_path=True,  # prefixes decide, so `/x/../v1/` may not pass for something else
    )
    return typed.listener.Listener(
        name=LISTENER_NAME,
        address=typed.core.Address(socket_address=address),
        per_connection_buffer_limit_bytes=BUFFER_LIMIT_BYTES + ROOM_BYTES,
        filter_chains=filter_chains(manager),
    )


def _readings(topology: Topology, failures: FailurePolicy) -> Iterator[Reading]:
    """Yield what the parts of the configuration need to know of a request's body."""
    yield from model_readings(topology.models)
    # A rejection before the body was read would close the connection.
    rejects = sheds_any(topology.classes) or limits_clients(topology)
    if failures.answer_timeout_s is not None or rejects:
        yield STREAM


def author_api_listener(name: str) -> Any:
    """Author the listener that a proxyless gRPC client asks for, by the name it dials."""
    manager = typed.hcm.HttpConnectionManager(rds=_rds(), http_filters=[router()])
    return typed.listener.Listener(
        name=name, api_listener=typed.listener.ApiListener(api_listener=pack(manager))
    )


def _rds() -> Any:
    return typed.hcm.Rds(config_source=ads(), route_config_name=ROUTE_CONFIG_NAME)
