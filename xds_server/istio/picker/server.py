"""The picker's gRPC server: ext_proc and the three names that gateways and probes ask the health of.

On a port of its own, but on the event loop of the control plane: a plan is obeyed with the next request.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from xds_server import logs
from xds_server.config.addresses import format_address
from xds_server.istio.picker.decide import Desk
from xds_server.istio.picker.exchange import Exchange
from xds_server.istio.picker.proto import BadMessageError
from xds_server.listening import StartError, bound
from xds_server.xds.transport import TransportSettings, options

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS = "liveness"
READINESS = "readiness"
"""Names of the endpoint picker protocol's health checks, besides the service's own."""
SAY_EVERY_S = 1.0
"""Gateways that cannot be served are counted each, but logged at most this often."""
MAX_MESSAGE_BYTES = 64 * 2**20
"""Envoy sends as much of a body at once as its buffers hold: a megabyte, or what the operator has set."""


class PickerServer:
    """Serves a desk's decisions."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._server: Any = None
        self._health: Any = None
        self._is_serving: bool | None = None
        self._say_at = float("-inf")
        self._log = logs.get("picker")
        self.streams = 0
        """Requests that gateways talk about now."""
        self.port: int | None = None
        """Where it listens; None = it does not."""

    def listen(self, host: str, port: int) -> int:
        """Take the port, without serving yet; return it. To be called on the event loop.

        Raises:
            StartError: The address cannot be had.
        """
        bound(
            host, port, purpose="the endpoint picker", flag="istio.endpoint_picker.listen"
        ).close()
        server = grpc.aio.server(
            options=[*options(TransportSettings(max_receive_bytes=MAX_MESSAGE_BYTES))]
        )
        process = grpc.stream_stream_rpc_method_handler(self._process)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(EXT_PROC_SERVICE, {"Process": process}),)
        )
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        reflection.enable_server_reflection(
            (EXT_PROC_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        try:
            got: int = server.add_insecure_port(format_address(host, port))
        except RuntimeError as error:
            raise StartError(
                f"cannot listen on {format_address(host, port)} for the endpoint picker "
                "(choose another with istio.endpoint_picker.listen)"
            ) from error
        self._server, self._health, self._is_serving, self.port = server, servicer, None, got
        return got

    async def start(self) -> None:
        """Serve; not ready yet."""
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(ready=False)
        await self._server.start()

    async def set_ready(self, *, ready: bool) -> None:
        """Tell gateways and probes whether requests shall come."""
        if ready == self._is_serving:
            return
        self._is_serving = ready
        status = health_pb2.HealthCheckResponse
        for name in ("", READINESS, EXT_PROC_SERVICE):
            await self._health.set(name, status.SERVING if ready else status.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, and let those under way end for so long."""
        if self._server is None:
            return
        server, self._server, self.port = self._server, None, None
        await self.set_ready(ready=False)
        await server.stop(grace_s)

    async def _process(self, _: Any, context: Any) -> None:
        exchange = Exchange(self._desk)
        read, write, take = context.read, context.write, exchange.take
        self.streams += 1
        try:
            while (raw := await read()) is not grpc.aio.EOF:
                for answer in take(raw):
                    await write(answer)
        except BadMessageError as error:
            self._refused(context.peer(), str(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:300])
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            pass  # The gateway is gone; gRPC has told it all there is.
        finally:
            self.streams -= 1
            exchange.close()

    def _refused(self, peer: str, reason: str) -> None:
        self._desk.tally.add("fleet_picker_refusals_total", "", "bad_message")
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + SAY_EVERY_S
            self._log.warning(logs.PICKER_REFUSED, peer=peer, reason=reason[:300])
