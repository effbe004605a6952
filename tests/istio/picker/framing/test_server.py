"""The server against gRPC's own client: what the library takes for granted must be so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import grpc
import pytest

from tests.fakes.envoy import eventually
from tests.fakes.http2_client import Http2Client
from xds_server.istio.picker.framing import frames
from xds_server.istio.picker.framing.calls import Call, CallError, Send
from xds_server.istio.picker.framing.frames import PREFACE, Kind, Status
from xds_server.istio.picker.framing.server import FramedServer
from xds_server.listening import bound

MAX_MESSAGE = 8 * 2**20


class Echo:
    ends_with_client = True

    def __init__(self, open_calls: set[Echo]) -> None:
        self._open = open_calls
        self._open.add(self)

    def take(self, raw: bytes) -> Iterable[bytes]:
        if raw == b"refuse":
            raise CallError(Status.UNAVAILABLE, "no, ünd 100 %")
        return [raw]

    def close(self) -> None:
        self._open.remove(self)


class Patient(Echo):
    ends_with_client = False


class Lab:
    def __init__(self) -> None:
        self.calls: set[Echo] = set()
        self.refusals: list[str] = []
        self.failures: list[BaseException] = []
        self.server = FramedServer(
            self._serve,
            max_message_bytes=MAX_MESSAGE,
            refused=lambda peer, reason: self.refusals.append(reason),
            failed=self.failures.append,
        )
        self.port = 0

    def _serve(self, path: str, send: Send) -> Call | None:
        make = {"/lab/Echo": Echo, "/lab/Patient": Patient}.get(path)
        return None if make is None else make(self.calls)


@asynccontextmanager
async def lab() -> AsyncIterator[tuple[Lab, grpc.aio.Channel]]:
    here = Lab()
    taken = bound("127.0.0.1", 0, purpose="tests", flag="")
    taken.setblocking(False)
    here.port = taken.getsockname()[1]
    await here.server.start(taken)
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{here.port}", options=limits) as channel:
        try:
            yield here, channel
        finally:
            await here.server.stop(0)
            taken.close()
    assert not here.calls
    assert not here.failures


async def test_large_and_small_messages_come_back_in_order():
    async with lab() as (_, channel):
        call = channel.stream_stream("/lab/Echo")()
        for size in (0, 1, 16_384, 65_535, 3_000_000, 5):
            sent = os.urandom(size)
            await call.write(sent)
            assert await call.read() == sent
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_many_calls_at_once_share_the_connection():
    async with lab() as (here, channel):

        async def talk(number: int) -> None:
            call = channel.stream_stream("/lab/Echo")()
            for turn in range(10):
                sent = b"%d/%d " % (number, turn) * (number + 1)
                await call.write(sent)
                assert await call.read() == sent
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

        await asyncio.gather(*(talk(number) for number in range(200)))
        assert len(here.server.clients) == 1


async def test_a_client_that_cancels_leaves_nothing_behind():
    async with lab() as (here, channel):
        call = channel.stream_stream("/lab/Echo")()
        await call.write(b"a")
        await call.read()
        assert len(here.calls) == 1
        call.cancel()

        async def gone() -> bool:
            return not here.calls

        await eventually(gone, what="the call ends")


async def test_a_client_that_vanishes_leaves_nothing_behind():
    async with lab() as (here, _):
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{here.port}")
        call = channel.stream_stream("/lab/Echo")()
        await call.write(b"a")
        await call.read()
        for client in list(here.server.clients):
            client._transport.abort()

        async def gone() -> bool:
            return not here.calls

        await eventually(gone, what="the call ends")
        await channel.close()


@pytest.mark.parametrize(
    ("path", "sent", "code", "text"),
    [
        ("/lab/Echo", b"refuse", grpc.StatusCode.UNAVAILABLE, "no, ünd 100 %"),
        ("/lab/Other", b"a", grpc.StatusCode.UNIMPLEMENTED, "no such method: /lab/Other"),
        ("/lab/Echo", bytes(MAX_MESSAGE + 1), grpc.StatusCode.RESOURCE_EXHAUSTED, "at most"),
    ],
    ids=["refused", "unknown", "too large"],
)
async def test_a_status_and_its_text_arrive(path, sent, code, text):
    async with lab() as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(path)(sent)
        assert caught.value.code() is code
        assert text in caught.value.details()


async def test_a_client_that_does_not_read_holds_up_nobody_and_costs_little():
    async with lab() as (here, channel):
        slow = grpc.aio.insecure_channel(f"127.0.0.1:{here.port}")
        call = slow.stream_stream("/lab/Echo")()
        writing = asyncio.create_task(_write_on(call))
        for _ in range(20):
            assert await channel.unary_unary("/lab/Echo")(b"a") == b"a"
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        call.cancel()
        await slow.close()


async def _write_on(call: grpc.aio.StreamStreamCall) -> None:
    while True:
        await call.write(bytes(100_000))


async def test_stopping_lets_calls_end_within_the_grace_and_refuses_new_ones():
    async with lab() as (here, channel):
        call = channel.stream_stream("/lab/Echo")()
        await call.write(b"a")
        await call.read()
        stopping = asyncio.create_task(here.server.stop(10))
        await asyncio.sleep(0)
        await call.write(b"b")
        assert await call.read() == b"b"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/lab/Echo")(b"a")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await asyncio.wait_for(stopping, 30)


async def test_who_speaks_something_else_is_told_and_cut_off():
    async with lab() as (here, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"HTTP/2" in await asyncio.wait_for(reader.read(), 30)
        writer.close()
        await writer.wait_closed()
        assert here.refusals == ["expected HTTP/2 without TLS"]


async def test_stopping_does_not_wait_for_calls_that_never_end():
    async with lab() as (here, channel):
        watching = channel.stream_stream("/lab/Patient")()
        await watching.write(b"a")
        assert await watching.read() == b"a"
        await asyncio.wait_for(here.server.stop(600), 30)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await watching.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_a_client_sent_before_it_knew_of_the_stop_is_answered():
    async with lab() as (here, _):
        client = Http2Client()
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(client.greeting + client.head(1, path="/lab/Echo"))

        async def asked() -> bool:
            return len(here.calls) == 1

        await eventually(asked, what="the call is there")
        stopping = asyncio.create_task(here.server.stop(600))
        await asyncio.sleep(0)
        # On its way while we say that we leave; the client has not even read it.
        writer.write(client.ask(3, b"a", path="/lab/Echo"))
        writer.write(client.data(1, frames.message(b"b"), ends=True))
        raw = b""
        while (
            not client.pings or len([each for each in client.answers.values() if each.is_over]) < 2
        ):
            raw += await asyncio.wait_for(reader.read(65_536), 30)
            client, told = Http2Client(), whole_frames(raw)
            client.read(told)
        assert client.status(1) == client.status(3) == Status.OK
        assert not stopping.done()
        writer.write(frames.frame(Kind.PING, frames.ACK, 0, client.pings[0]))
        await asyncio.wait_for(stopping, 30)
        rest = await asyncio.wait_for(reader.read(), 30)
        client.read(whole_frames(raw + rest)[len(whole_frames(raw)) :])
        assert [each[0] for each in client.goaways] == [2**31 - 1, 3]
        writer.close()
        await writer.wait_closed()


def whole_frames(raw: bytes) -> bytes:
    at = 0
    while len(raw) - at >= 9 and len(raw) - at >= (
        size := 9 + int.from_bytes(raw[at : at + 3], "big")
    ):
        at += size
    return raw[:at]


async def test_who_does_not_read_is_not_read_from_until_it_does():
    async with lab() as (here, channel):
        client = Http2Client(initial_window_size=2**31 - 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port, limit=1024)
        writer.write(client.greeting + frames.window_update(0, 2**30))
        writer.write(client.head(1, path="/lab/Echo"))
        sent = frames.message(bytes(1_000_000))
        count = 0

        async def is_full() -> bool:
            nonlocal count
            if writer.transport.get_write_buffer_size() == 0:
                writer.write(client.data(1, sent))
                count += 1
            asked = [each for each in here.server.clients if each.connection.streams]
            return any(not each._transport.is_reading() for each in asked)

        await eventually(is_full, what="it is not read from")
        assert await channel.unary_unary("/lab/Echo")(b"a") == b"a"
        writer.write(client.data(1, b"", ends=True))
        raw = bytearray()
        while not raw.endswith(frames.TRAILERS_OK):
            raw += await asyncio.wait_for(reader.read(2**20), 30)
        client.read(bytes(raw))
        assert client.answers[1].messages == [bytes(1_000_000)] * count
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "said", [b"", PREFACE[:10], PREFACE], ids=["nothing", "half", "no settings"]
)
async def test_who_does_not_say_what_it_speaks_is_cut_off(monkeypatch, said):
    monkeypatch.setattr("xds_server.istio.picker.framing.server.GREETING_S", 0.2)
    async with lab() as (here, channel):
        assert await channel.unary_unary("/lab/Echo")(b"a") == b"a"
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(said)
        await asyncio.wait_for(reader.read(), 30)
        assert here.refusals == ["said nothing of HTTP/2 for 0.2 s"]
        assert await channel.unary_unary("/lab/Echo")(b"a") == b"a"  # who said it stays
        writer.close()
        await writer.wait_closed()
