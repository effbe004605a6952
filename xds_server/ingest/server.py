"""The telemetry service: agents' streams in, samples out, acknowledgements back.

Bytes are parsed here with upb messages; what they mean is decided in `decode.py` and `registry.py`.
Anything that an agent gets wrong costs that agent its message or its stream and nobody else.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Collection

import grpc
import grpc.aio

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from xds_server import __version__, logs
from xds_server.clock import Clock
from xds_server.core.model import InstanceId
from xds_server.core.policy import TelemetryPolicy
from xds_server.core.sample import Sample
from xds_server.ingest.decode import Hello, Rejected, decode_hello, decode_sample, parse
from xds_server.ingest.registry import Code, Refused, Registry, Speaker
from xds_server.observability.metrics import Tally

SERVICE = "fleet.telemetry.v1.Telemetry"
PROTOCOL = 1
HELLO_TIMEOUT_S = 10.0
ACK_INTERVALS = 5
"""A write costs more than reading ten samples, and agents only want to know that they are heard."""
MAX_TOLD = 200
"""Refusals that one stream is told (and that are logged): whoever invents names fills no disk."""
CLOSE_S = 0.05
"""How long to wait after the end of a stream to see whether it was broken."""

_CODES = {
    Code.UNAUTHENTICATED: pb.Refusal.UNAUTHENTICATED,
    Code.UNKNOWN_INSTANCE: pb.Refusal.UNKNOWN_INSTANCE,
    Code.OWNED_BY_ANOTHER_AGENT: pb.Refusal.OWNED_BY_ANOTHER_AGENT,
    Code.STALE_EPOCH: pb.Refusal.STALE_EPOCH,
    Code.BAD_MESSAGE: pb.Refusal.BAD_MESSAGE,
}
_STATUS = {
    Code.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Code.STALE_EPOCH: grpc.StatusCode.FAILED_PRECONDITION,
}


class TelemetryServer:
    """Serves `Report` on whatever gRPC server it is added to."""

    def __init__(
        self,
        *,
        registry: Registry,
        offer: Callable[[Sample], None],
        registered: Callable[[], None],
        policy: TelemetryPolicy,
        clock: Clock,
        tally: Tally,
        token: str | None = None,
    ) -> None:
        """Serve into `offer`; `registered` is called when agents registered other instances."""
        self.policy = policy
        self._registry = registry
        self._offer = offer
        self._registered = registered
        self._clock = clock
        self._tally = tally
        self._token = token
        self._streams: set[_Stream] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained: Collection[InstanceId] = frozenset()
        self._log = logs.get("telemetry")

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return what `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        report = grpc.stream_stream_rpc_method_handler(self._report)
        return grpc.method_handlers_generic_handler(SERVICE, {"Report": report})

    def drained(self, instances: Collection[InstanceId]) -> None:
        """Learn which instances take no new requests any more, as published to the proxies."""
        fresh = set(instances) - set(self._drained)
        self._drained = instances
        for stream in self._streams if fresh else ():
            told = fresh & stream.speaker.claims.keys()
            if told:
                stream.taken.update({name: stream.sequences.get(name, 0) for name in told})
                task = asyncio.create_task(self._ack(stream), name="telemetry-drained-ack")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    async def _report(self, _: object, context: grpc.aio.ServicerContext) -> None:
        self._tally.add("fleet_telemetry_streams_total")
        if not self._is_authorized(context):
            reason = "the bearer token in the metadata `authorization` is missing or wrong"
            await self._refuse_stream(context, Refused("", Code.UNAUTHENTICATED, reason), agent="")
        hello = await self._read_hello(context)
        speaker, refused = self._hello(hello)
        if speaker is None:
            await self._refuse_stream(context, refused[0], agent=hello.agent)
        assert speaker is not None
        # From here on it owns instances: whatever happens to the stream has to end that.
        stream = _Stream(context, speaker)
        is_clean = False
        try:
            await self._welcome(stream, refused)
            self._streams.add(stream)
            while (body := await context.read()) is not grpc.aio.EOF:
                await self._take(stream, body)
            # A cancelled or broken stream also reads as ended, a moment before this task is cancelled.
            await asyncio.sleep(CLOSE_S)
            is_clean = not context.cancelled()
        finally:
            self._streams.discard(stream)
            self._registry.closed(stream.speaker, self._clock(), clean=is_clean)
            self._log.info(logs.AGENT_DISCONNECTED, agent=hello.agent, clean=is_clean)

    def _is_authorized(self, context: grpc.aio.ServicerContext) -> bool:
        if self._token is None:
            return True
        metadata = dict(context.invocation_metadata() or ())
        given = metadata.get("authorization", "")
        given = given if isinstance(given, str) else ""
        return hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode())

    async def _read_hello(self, context: grpc.aio.ServicerContext) -> Hello:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                body = await context.read()
        except TimeoutError:
            body = grpc.aio.EOF
        if body is grpc.aio.EOF:
            reason = f"no hello within {HELLO_TIMEOUT_S:g} s"
            await self._refuse_stream(context, Refused("", Code.BAD_MESSAGE, reason), agent="")
        message = parse(body)
        hello = message if isinstance(message, Rejected) else decode_hello(message)
        if isinstance(hello, Rejected):
            refusal = Refused("", Code.BAD_MESSAGE, hello.text)
            await self._refuse_stream(context, refusal, agent="", reason=hello.reason)
        assert isinstance(hello, Hello)
        return hello

    async def _welcome(self, stream: _Stream, refused: list[Refused]) -> None:
        hello = stream.speaker.hello
        interval_ms = round(self.policy.interval_s * 1000)
        welcome = pb.Welcome(interval_ms=interval_ms, server_version=__version__, protocol=PROTOCOL)
        await stream.write(pb.ServerMessage(welcome=welcome))
        self._log.info(
            logs.AGENT_CONNECTED,
            agent=hello.agent,
            epoch=hello.epoch,
            instances=[claim.name for claim in hello.claims],
            version=hello.agent_version,
            peer=stream.context.peer(),
        )
        for refusal in refused:
            await self._refuse(stream, refusal)

    def _hello(self, hello: Hello) -> tuple[Speaker | None, list[Refused]]:
        before = self._registry.revision
        speaker, refused = self._registry.hello(hello, self._clock())
        if self._registry.revision != before:
            self._registered()
        return speaker, refused

    async def _take(self, stream: _Stream, body: bytes) -> None:
        message = parse(body)
        if isinstance(message, Rejected):
            refusal = Refused("", Code.BAD_MESSAGE, message.text)
            agent = stream.speaker.hello.agent
            await self._refuse_stream(stream.context, refusal, agent=agent, reason=message.reason)
            return
        if message.HasField("hello"):
            await self._hello_again(stream, message)
            return
        now = self._clock()
        accepted = 0
        try:
            for each in message.samples.samples:
                refused = self._take_sample(stream, each, now)
                if refused is None:
                    accepted += 1
                    continue
                if not refused.instance:
                    agent = stream.speaker.hello.agent
                    await self._refuse_stream(stream.context, refused, agent=agent)
                await self._refuse(stream, refused)
        finally:
            self._tally.add("fleet_samples_total", by=accepted)
        if now >= stream.ack_due and stream.taken:
            stream.ack_due = now + self.policy.interval_s * ACK_INTERVALS
            await self._ack(stream)

    def _take_sample(self, stream: _Stream, message: pb.Sample, now: float) -> Refused | None:
        agent = stream.speaker.hello.agent
        decoded = decode_sample(message, agent=agent, now=now, max_age_s=self.policy.blind_after_s)
        if isinstance(decoded, Rejected):
            self._tally.add("fleet_telemetry_refused_total", decoded.reason)
            # An instance must be named, or this would read as the refusal of the whole stream.
            name = decoded.instance or "(no name)"
            return Refused(name, Code.BAD_MESSAGE, decoded.text)
        sample = decoded.sample
        before = self._registry.revision
        refusal = self._registry.admit(stream.speaker, sample.instance, decoded.sequence, now)
        if self._registry.revision != before:
            self._registered()
        if refusal is not None:
            self._tally.add("fleet_telemetry_refused_total", refusal.code.value)
            return refusal
        stream.sequences[sample.instance] = stream.taken[sample.instance] = decoded.sequence
        if sample.draining and sample.instance in self._drained:
            stream.ack_due = now  # The agent waits for this before it lets the engine end.
        self._offer(sample)
        return None

    async def _hello_again(self, stream: _Stream, message: pb.AgentMessage) -> None:
        """An agent may say hello again on its stream when it owns other instances now."""
        agent = stream.speaker.hello.agent
        hello = decode_hello(message)
        if not isinstance(hello, Rejected) and hello.agent != agent:
            # What it owns under its first name would stay its own after the stream has ended.
            text = f"hello.agent {hello.agent!r} on the stream of agent {agent!r}: expected the same name"
            hello = Rejected("bad_hello", text)
        if isinstance(hello, Rejected):
            refusal = Refused("", Code.BAD_MESSAGE, hello.text)
            await self._refuse_stream(stream.context, refusal, agent=agent, reason=hello.reason)
            return
        speaker, refused = self._hello(hello)
        if speaker is None:
            await self._refuse_stream(stream.context, refused[0], agent=hello.agent)
            return
        stream.speaker = speaker
        for each in refused:
            await self._refuse(stream, each)

    async def _ack(self, stream: _Stream) -> None:
        taken, stream.taken = stream.taken, {}
        ack = pb.Ack(
            taken=[
                pb.Ack.Taken(instance=name, sequence=sequence, drained=name in self._drained)
                for name, sequence in taken.items()
            ]
        )
        try:
            await stream.write(pb.ServerMessage(ack=ack))
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return  # The stream ended meanwhile; its reader says so.

    async def _refuse(self, stream: _Stream, refusal: Refused) -> None:
        key = (refusal.instance, refusal.code)
        if key in stream.told or len(stream.told) >= MAX_TOLD:
            return
        stream.told.add(key)
        agent = stream.speaker.hello.agent
        event = (
            logs.OWNERSHIP_CONFLICT_FOUND
            if refusal.code is Code.OWNED_BY_ANOTHER_AGENT
            else logs.TELEMETRY_REFUSED
        )
        self._log.warning(
            event,
            agent=agent,
            instance=refusal.instance,
            code=refusal.code.value,
            reason=refusal.reason,
        )
        await stream.write(_refusal(refusal))

    async def _refuse_stream(
        self,
        context: grpc.aio.ServicerContext,
        refusal: Refused,
        *,
        agent: str,
        reason: str | None = None,
    ) -> None:
        self._tally.add("fleet_telemetry_refused_total", reason or refusal.code.value)
        self._log.warning(
            logs.TELEMETRY_REFUSED,
            agent=agent,
            peer=context.peer(),
            code=refusal.code.value,
            reason=refusal.reason,
        )
        await context.write(_refusal(refusal).SerializeToString())
        status = _STATUS.get(refusal.code, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(status, refusal.reason)


class _Stream:
    """What is remembered about one open stream."""

    def __init__(self, context: grpc.aio.ServicerContext, speaker: Speaker) -> None:
        self.context = context
        self.speaker = speaker
        self.taken: dict[InstanceId, int] = {}
        """Not yet acknowledged: instance and newest sequence."""
        self.sequences: dict[InstanceId, int] = {}
        self.told: set[tuple[str, Code]] = set()
        """Refusals already sent: each is said and logged once per stream."""
        self.ack_due = 0.0
        self._lock = asyncio.Lock()

    async def write(self, message: pb.ServerMessage) -> None:
        async with self._lock:
            await self.context.write(message.SerializeToString())


def _refusal(refusal: Refused) -> pb.ServerMessage:
    return pb.ServerMessage(
        refusal=pb.Refusal(
            instance=refusal.instance, code=_CODES[refusal.code], reason=refusal.reason
        )
    )
