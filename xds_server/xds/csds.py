"""The client status discovery service: /debug/syncz for tools that speak `envoy.service.status.v3`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import grpc

from xds_server.xds.proto import (
    BadRequestError,
    GenericStatus,
    csds_config,
    csds_node_ids,
    csds_response,
)
from xds_server.xds.syncz import ProxyStatus, SyncState, TypeStatus

CSDS_SERVICE = "envoy.service.status.v3.ClientStatusDiscoveryService"

_STATUS = {
    SyncState.SYNCED: "SYNCED",
    SyncState.STALE: "STALE",
    SyncState.NOT_SENT: "NOT_SENT",
    SyncState.ERROR: "ERROR",
}


def csds_handler(status: Callable[[], Iterable[ProxyStatus]]) -> grpc.GenericRpcHandler:
    """Return the handler of both CSDS methods.

    Args:
        status: Called for every request; the state of all streams.
    """

    async def answer(raw: bytes, context: Any) -> bytes:
        try:
            ids = csds_node_ids(raw)
        except BadRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return csds_response(
            csds_config(each.proxy, map(_generic, each.types))
            for each in status()
            if ids is None or each.proxy.id in ids
        )

    async def stream(_requests: Any, context: Any) -> None:
        while (raw := await context.read()) is not grpc.aio.EOF:
            await context.write(await answer(raw, context))

    return grpc.method_handlers_generic_handler(
        CSDS_SERVICE,
        {
            "FetchClientStatus": grpc.unary_unary_rpc_method_handler(answer),
            "StreamClientStatus": grpc.stream_stream_rpc_method_handler(stream),
        },
    )


def _generic(each: TypeStatus) -> GenericStatus:
    return GenericStatus(
        type_url=each.type_url,
        version=each.acked_version,
        status=_STATUS[each.state],
        error=each.error,
        error_version=each.error_version,
    )
