"""A request hop through Python, to compare with: an ext_proc server that reads headers and body and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire

from benchmarks.commands import obey, say

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
ANSWERS = {
    kind: wire.ProcessingResponse(
        **{kind: getattr(wire, "HeadersResponse" if "headers" in kind else "BodyResponse")()}
    ).SerializeToString()
    for kind in ("request_headers", "request_body")
}


async def process(
    requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
) -> AsyncIterator[bytes]:
    """Answer each message of one request with "go on"."""
    del context
    async for data in requests:
        yield ANSWERS[wire.ProcessingRequest.FromString(data).WhichOneof("request")]


async def serve() -> None:
    """Serve until standard input closes."""
    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Process": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say({"port": port})
    await obey({})
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(serve())
