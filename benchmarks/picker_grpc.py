"""The picker over grpc.aio, to compare with: the same decisions, the library's own transport."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from xds_server.istio.picker.decide import Desk
from xds_server.istio.picker.exchange import Exchange
from xds_server.istio.picker.server import EXT_PROC_SERVICE, MAX_MESSAGE_BYTES
from xds_server.xds.transport import TransportSettings, options


class GrpcPickerServer:
    """Serves a desk's decisions."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._server: Any = None

    def listen(self, host: str, port: int) -> int:
        """Take the port and return it."""
        self._server = grpc.aio.server(
            options=options(TransportSettings(max_receive_bytes=MAX_MESSAGE_BYTES))
        )
        process = grpc.stream_stream_rpc_method_handler(self._process)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(EXT_PROC_SERVICE, {"Process": process}),)
        )
        got: int = self._server.add_insecure_port(f"{host}:{port}")
        return got

    async def start(self) -> None:
        """Serve."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Stop."""
        await self._server.stop(grace_s)

    async def _process(self, _: Any, context: Any) -> None:
        exchange = Exchange(self._desk)
        read, write, take = context.read, context.write, exchange.take
        try:
            while (raw := await read()) is not grpc.aio.EOF:
                for answer in take(raw):
                    await write(answer)
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            pass  # The gateway is gone.
        finally:
            exchange.close()
