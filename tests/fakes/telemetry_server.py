"""A real grpc.aio telemetry server that records what agents send; it can refuse, stop and return."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Self

import grpc

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.waiting import PATIENCE_S


@dataclass
class Stream:
    """One stream as it was seen."""

    hello: pb.Hello
    metadata: dict[str, str]
    samples: list[pb.Sample] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    """Monotonic arrival of every sample."""
    messages: int = 0
    ended: bool = False
    clean: bool = False
    """The agent closed its side; it was not cut off."""

    def of(self, instance: str) -> list[pb.Sample]:
        return [one for one in self.samples if one.instance == instance]


class TelemetryServer:
    """Start with `async with`; `restart()` keeps the port."""

    def __init__(
        self,
        *,
        interval_ms: int = 200,
        ack: bool = True,
        refuse_stream: pb.Refusal | None = None,
        refuse: list[pb.Refusal] | None = None,
        token: str = "",
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.interval_ms = interval_ms
        self.ack = ack
        self.refuse_stream = refuse_stream
        self.refuse = refuse or []
        self.token = token
        self.credentials = credentials
        self.drained: set[str] = set()
        self.streams: list[Stream] = []
        self.port = 0
        self.silent = False
        """Accept and read, but never welcome."""
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def samples(self) -> list[pb.Sample]:
        return [sample for stream in self.streams for sample in stream.samples]

    async def start(self) -> None:
        server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_ping_strikes", 0),
            ]
        )
        handler = grpc.stream_stream_rpc_method_handler(self._report)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "fleet.telemetry.v1.Telemetry", {"Report": handler}
                ),
            )
        )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                wanted = f"127.0.0.1:{self.port}"
                port = (
                    server.add_insecure_port(wanted)
                    if self.credentials is None
                    else server.add_secure_port(wanted, self.credentials)
                )
                break
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
        self.port = port
        self._server = server
        await server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _report(self, requests, context):
        metadata = dict(context.invocation_metadata())
        if self.token and metadata.get("authorization") != f"Bearer {self.token}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "bad token")
        stream: Stream | None = None
        try:
            async for raw in requests:
                message = pb.AgentMessage.FromString(raw)
                if stream is None:
                    assert message.WhichOneof("message") == "hello", "hello comes first"
                    stream = Stream(message.hello, metadata)
                    self.streams.append(stream)
                    if self.silent:
                        continue
                    if self.refuse_stream is not None:
                        yield pb.ServerMessage(refusal=self.refuse_stream).SerializeToString()
                        return
                    yield pb.ServerMessage(
                        welcome=pb.Welcome(
                            interval_ms=self.interval_ms, server_version="fake", protocol=1
                        )
                    ).SerializeToString()
                    for refusal in self.refuse:
                        yield pb.ServerMessage(refusal=refusal).SerializeToString()
                    continue
                now = time.monotonic()
                stream.messages += 1
                for sample in message.samples.samples:
                    stream.samples.append(sample)
                    stream.arrived.append(now)
                if self.ack:
                    ack = pb.Ack(
                        taken=[
                            pb.Ack.Taken(
                                instance=one.instance,
                                sequence=one.sequence,
                                drained=one.draining and one.instance in self.drained,
                            )
                            for one in message.samples.samples
                        ]
                    )
                    yield pb.ServerMessage(ack=ack).SerializeToString()
            if stream is not None:
                await asyncio.sleep(0.05)  # a stream that is cut also reads as ended at first
                stream.clean = not context.cancelled()
        finally:
            if stream is not None:
                stream.ended = True
