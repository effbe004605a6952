"""The config source's gRPC server: one stream per istiod, on a port of its own.

State of the world only: istiod has a client for deltas and does not use it for configuration.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from xds_server import logs
from xds_server.clock import Clock
from xds_server.config.addresses import format_address
from xds_server.config.tls import Tls
from xds_server.istio.mcp.catalog import Catalog
from xds_server.istio.mcp.kinds import Asked, NotIstioError
from xds_server.istio.mcp.proto import (
    BadRequestError,
    McpRequest,
    encode_response,
    parse_request,
)
from xds_server.istio.mcp.session import Answer, McpSession, Said, TooManyTypesError
from xds_server.listening import StartError, bound, credentials
from xds_server.observability.history import History
from xds_server.observability.metrics import Tally
from xds_server.xds.transport import make_server

SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
LISTEN_KEY = "istio.config_source.listen"
OTHER = "other"
"""Label of types that istiods are not known to ask for: clients name them, and labels must be few."""


class McpServer:
    """Serves a catalog to istiods. Used on one event loop."""

    def __init__(self, *, tally: Tally, history: History, clock: Clock) -> None:
        self.catalog: Catalog | None = None
        """What is served; None = nobody is answered yet."""
        self.streams: set[Stream] = set()
        self.port: int | None = None
        """Where it listens; None = it does not."""
        self._tally = tally
        self._history = history
        self._clock = clock
        self._server: Any = None
        self._log = logs.get("config-source")

    def listen(self, host: str, port: int, tls: Tls | None = None) -> int:
        """Take the port, without serving yet; return it. To be called on the event loop.

        Raises:
            StartError: The address cannot be had, or the certificate not be used.
        """
        address = format_address(host, port)
        bound(host, port, purpose="the config source", flag=LISTEN_KEY).close()
        server = make_server()
        methods = {
            "StreamAggregatedResources": grpc.stream_stream_rpc_method_handler(self._serve),
            "DeltaAggregatedResources": grpc.stream_stream_rpc_method_handler(_no_deltas),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        if tls is not None and (trouble := tls.trouble()):
            raise StartError(f"istio.config_source.certificate_file {tls.cert}: {trouble}")
        try:
            got: int = (
                server.add_insecure_port(address)
                if tls is None
                else server.add_secure_port(address, credentials(tls))
            )
        except RuntimeError as error:
            raise StartError(
                f"cannot listen on {address} for the config source (choose another with {LISTEN_KEY})"
            ) from error
        self._server, self.port = server, got
        return got

    async def start(self) -> None:
        """Serve."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """End all streams; istiods keep what they have and come again."""
        server, self._server, self.port = self._server, None, None
        if server is not None:
            await server.stop(grace_s)

    def publish(self, catalog: Catalog) -> None:
        """Serve another catalog; istiods get the types that changed."""
        self.catalog = catalog
        for each in self.streams:
            each.wake.set()

    async def _serve(self, requests: Any, context: Any) -> None:
        stream = Stream(context.peer())
        self.streams.add(stream)
        reading = asyncio.create_task(self._read(requests, stream), name="istiod-requests")
        try:
            while not stream.is_over:
                await stream.wake.wait()
                stream.wake.clear()
                for answer in stream.session.due(self.catalog, self._clock()):
                    await self._send(context, answer)
            if stream.trouble is None:
                return
            code, text = stream.trouble
            self._tally.add("fleet_istio_streams_refused_total")
            self._log.warning(logs.ISTIOD_REFUSED, peer=stream.peer, reason=text)
            await context.abort(code, text)
        finally:
            self.streams.discard(stream)
            reading.cancel()
            if stream.name:
                self._log.info(logs.ISTIOD_DISCONNECTED, istiod=stream.name)
                self._history.mesh(logs.ISTIOD_DISCONNECTED, f"{stream.name} left.")

    async def _send(self, context: Any, answer: Answer) -> None:
        resources = [each.resource for each in answer.catalog.of_kind(answer.kind)]
        raw = encode_response(
            type_url=answer.type_url,
            version=answer.version,
            nonce=answer.nonce,
            resources=resources,
        )
        await context.write(raw)
        self._tally.add("fleet_istio_responses_total", answer.kind or OTHER)

    async def _read(self, requests: Any, stream: Stream) -> None:
        try:
            async for raw in requests:
                self._heard(stream, parse_request(raw))
                stream.wake.set()
        except (BadRequestError, NotIstioError, TooManyTypesError) as error:
            stream.trouble = (grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except grpc.RpcError:
            pass  # Whatever ended it: it is over.
        finally:
            stream.is_over = True
            stream.wake.set()

    def _heard(self, stream: Stream, request: McpRequest) -> None:
        if request.node and not stream.name:
            self._greet(stream, request)
        said = stream.session.heard(request)
        known = stream.session.types.get(request.type_url)
        if known is None:
            return
        kind = known.asked.kind or OTHER
        match said:
            case Said.ASKED if not known.asked.is_known:
                self._wonder(stream, known.asked)
            case Said.ACKED:
                self._tally.observe("fleet_istio_ack_seconds", self._clock() - known.sent_at)
            case Said.REFUSED:
                self._tally.add("fleet_istio_refusals_total", kind)
                self._log.error(
                    logs.ISTIOD_REFUSES,
                    istiod=stream.name,
                    type=request.type_url,
                    reason=request.error,
                )
                self._history.mesh(
                    logs.ISTIOD_REFUSES,
                    f"{stream.name} refuses {known.asked.name}: {request.error}",
                    type=request.type_url,
                )

    def _greet(self, stream: Stream, request: McpRequest) -> None:
        # sidecar~<ip>~<pod>.<namespace>~<domain>
        parts = request.node.split("~")
        stream.name = parts[2] if len(parts) == 4 else request.node
        self._log.info(
            logs.ISTIOD_CONNECTED,
            istiod=stream.name,
            peer=stream.peer,
            revision=request.revision,
            answered=self.catalog is not None,
        )
        self._history.mesh(
            logs.ISTIOD_CONNECTED,
            f"{stream.name} asks for configuration.",
            revision=request.revision,
        )

    def _wonder(self, stream: Stream, asked: Asked) -> None:
        """An unknown type is answered, with nothing: istiod would wait for it for ever."""
        self._tally.add("fleet_istio_unknown_types_total")
        name = f"{asked.group}/{asked.version}/{asked.name}"
        note = "it gets an empty answer; a newer Istio may ask for more kinds than we know"
        self._log.warning(logs.ISTIOD_ASKS_UNKNOWN, istiod=stream.name, type=name, note=note)
        self._history.mesh(logs.ISTIOD_ASKS_UNKNOWN, f"{stream.name} asks for {name}: {note}.")


class Stream:
    """One istiod."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.name = ""
        """Pod and namespace; empty until its first request."""
        self.session = McpSession()
        self.wake = asyncio.Event()
        self.is_over = False
        self.trouble: tuple[grpc.StatusCode, str] | None = None
        """Why it is cut."""


async def _no_deltas(_requests: Any, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNIMPLEMENTED,
        "the config source speaks state of the world only, as istiod does (StreamAggregatedResources)",
    )
