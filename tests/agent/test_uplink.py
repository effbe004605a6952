from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from dataclasses import replace
from pathlib import Path

import grpc
import structlog

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from sidecar_agent import encode
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.identity import Identity, Owned
from sidecar_agent.join import Sample
from sidecar_agent.settings import Settings
from sidecar_agent.uplink import Server, Uplink
from tests.fakes.blackhole import Blackhole
from tests.fakes.telemetry_server import TelemetryServer
from tests.fakes.waiting import until

FACTS = EngineFacts(state=EngineState.UP, kv_ratio=0.5, waiting=0.0, running=1.0)


class Eager(random.Random):
    """Waits a fiftieth of the longest back-off, so that tests reconnect soon."""

    def uniform(self, a, b):
        return b / 50


def make(address, *, token="", interval_s=0.2, **server):
    identity = Identity(agent="host", epoch=1, instances=(Owned(name="a"), Owned(name="b")))
    return Uplink(
        Server(address=address, **server),
        token=lambda: token,
        hello=lambda: encode.hello(identity, agent_version="1", config_hash="h"),
        interval_s=interval_s,
        clock=time.monotonic,
        rng=Eager(),
    )


@contextlib.asynccontextmanager
async def running(uplink):
    task = asyncio.create_task(uplink.run())
    try:
        yield uplink
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


_numbers = itertools.count(1)


def sample(instance="a", **facts):
    return Sample(
        instance=instance,
        observed_at=time.monotonic(),
        sequence=next(_numbers),
        engine=replace(FACTS, **facts),
    )


async def test_hello_comes_first_and_samples_follow_with_their_age():
    async with TelemetryServer() as server, running(make(server.address)) as uplink:
        await until(lambda: uplink.status.connected)
        await asyncio.sleep(0.05)
        uplink.offer(sample(waiting=3.0))
        await until(lambda: server.samples)
        (stream,) = server.streams
        assert (stream.hello.agent, [one.name for one in stream.hello.instances]) == (
            "host",
            ["a", "b"],
        )
        assert stream.samples[0].engine.waiting == 3.0
        assert stream.samples[0].sample_age_ms < 20_000


async def test_calm_samples_go_out_once_per_interval():
    async with TelemetryServer(interval_ms=300) as server, running(make(server.address)) as uplink:
        await until(lambda: uplink.status.connected)
        started = time.monotonic()
        while len(server.samples) < 4:
            uplink.offer(sample())
            await asyncio.sleep(0.02)
        assert time.monotonic() - started > 3 * 0.3 - 0.05


async def test_a_move_goes_out_at_once_however_long_the_interval_is():
    async with (
        TelemetryServer(interval_ms=600_000) as server,
        running(make(server.address)) as uplink,
    ):
        await until(lambda: uplink.status.connected)
        uplink.offer(sample())
        await until(lambda: server.samples)
        uplink.offer(sample(waiting=9.0))
        await until(lambda: server.samples[-1].engine.waiting == 9.0)


async def test_the_servers_interval_is_obeyed_and_its_silence_on_it_is_ours():
    async with TelemetryServer(interval_ms=750) as server, running(make(server.address)) as uplink:
        await until(lambda: uplink.status.connected)
        assert uplink.slots.interval_s == 0.75
    async with TelemetryServer(interval_ms=0) as server, running(make(server.address)) as uplink:
        await until(lambda: uplink.status.connected)
        assert uplink.slots.interval_s == 0.2


async def test_instances_that_move_together_share_a_message():
    async with TelemetryServer() as server, running(make(server.address)) as uplink:
        await until(lambda: uplink.status.connected)
        uplink.offer(sample("a"))
        uplink.offer(sample("b"))
        await until(lambda: len(server.samples) == 2)
        assert server.streams[0].messages == 1


async def test_the_stream_is_made_anew_after_a_restart_with_hello_and_without_backlog():
    async with TelemetryServer() as server, running(make(server.address)) as uplink:
        await until(lambda: uplink.status.connected)
        uplink.offer(sample())
        await until(lambda: server.samples)
        await server.stop()
        await until(lambda: not uplink.status.connected, what="loss of the stream")
        for n in range(1, 21):
            uplink.offer(sample(waiting=float(n)))
        await server.start()
        await until(lambda: len(server.streams) == 2 and server.streams[1].samples)
        await asyncio.sleep(0.1)
        second = server.streams[1]
        assert second.hello.epoch == 1
        assert [one.engine.waiting for one in second.samples] == [20.0], "the newest, and only it"
        assert uplink.slots.superseded == 19


async def test_what_became_old_during_an_outage_is_not_sent_at_all():
    async with TelemetryServer() as server:
        uplink = make(server.address, interval_s=0.05)
        server.interval_ms = 50
        uplink.offer(replace(sample(), observed_at=time.monotonic() - 10))
        async with running(uplink):
            await until(lambda: uplink.status.connected and uplink.slots.expired == 1)
            assert not server.samples


async def test_the_token_is_sent_and_a_wrong_one_is_told():
    async with TelemetryServer(token="right") as server:
        async with running(make(server.address, token="right")) as uplink:
            await until(lambda: uplink.status.connected)
        async with running(make(server.address, token="wrong")) as uplink:
            await until(lambda: "UNAUTHENTICATED" in uplink.status.detail)
            assert "bad token" in uplink.status.detail


async def test_a_refused_stream_is_said_once_and_tried_again():
    refusal = pb.Refusal(code=pb.Refusal.STALE_EPOCH, reason="a newer run is known")
    server = TelemetryServer(refuse_stream=refusal)
    with structlog.testing.capture_logs() as logs:
        async with server, running(make(server.address)) as uplink:
            await until(lambda: len(server.streams) >= 3)
            assert uplink.status.refused_stream == encode.Refusal(
                "", "STALE_EPOCH", "a newer run is known"
            )
            server.refuse_stream = None
            await until(lambda: uplink.status.connected)
            assert uplink.status.refused_stream is None
    assert [one["code"] for one in logs if one["event"] == "refused_by_control_plane"] == [
        "STALE_EPOCH"
    ]


async def test_a_refused_instance_is_shown_and_the_others_go_on():
    refusal = pb.Refusal(instance="b", code=pb.Refusal.UNKNOWN_INSTANCE, reason="no such instance")
    async with TelemetryServer(refuse=[refusal]) as server, running(make(server.address)) as uplink:
        await until(lambda: "b" in uplink.status.refusals)
        uplink.offer(sample("a"))
        await until(lambda: "a" in uplink.status.taken)
        assert uplink.status.connected
        assert uplink.status.refusals["b"].reason == "no such instance"


async def test_acks_are_remembered():
    async with TelemetryServer() as server, running(make(server.address)) as uplink:
        await until(lambda: uplink.status.connected)
        one = sample("a")
        uplink.offer(one)
        await until(lambda: "a" in uplink.status.taken)
        assert uplink.status.taken["a"] == encode.Taken(one.sequence, drained=False)
        assert uplink.status.last_ack_at is not None


async def test_a_half_open_connection_is_noticed_and_replaced():
    async with TelemetryServer() as server, Blackhole(server.port) as hole:
        uplink = make(hole.address, keepalive_s=0.5, keepalive_timeout_s=0.5)
        async with running(uplink):
            await until(lambda: uplink.status.connected)
            hole.swallow = True
            swallowed_at = time.monotonic()
            await until(lambda: not uplink.status.connected, what="the keepalive to fail")
            assert time.monotonic() - swallowed_at < 30
            hole.swallow = False
            await until(lambda: uplink.status.connected, what="a new connection")
            assert hole.connections >= 2


async def test_no_control_plane_is_said_once_and_costs_no_memory():
    with structlog.testing.capture_logs() as logs:
        uplink = make("127.0.0.1:1")
        async with running(uplink):
            for n in range(50):
                uplink.offer(sample(waiting=float(n)))
                await asyncio.sleep(0.01)
            await until(lambda: "no connection" in uplink.status.detail)
        assert len(uplink.slots._latest) == 1
    assert len([one for one in logs if one["event"] == "control_plane_lost"]) == 1


async def test_a_server_that_never_welcomes_is_left(monkeypatch):
    monkeypatch.setattr("sidecar_agent.uplink.WELCOME_S", 0.2)
    async with TelemetryServer() as server:
        server.silent = True
        async with running(make(server.address)) as uplink:
            await until(lambda: "no welcome" in uplink.status.detail)
            server.silent = False
            await until(lambda: uplink.status.connected)


@contextlib.asynccontextmanager
async def a_server_that_says(*messages, options=()):
    """Serve raw bytes per stream, then keep it open until the client goes."""

    async def report(requests, context):
        async for _ in requests:
            for message in messages:
                yield message
            break
        await asyncio.sleep(30)

    server = grpc.aio.server(options=list(options))
    handlers = {"Report": grpc.stream_stream_rpc_method_handler(report)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("fleet.telemetry.v1.Telemetry", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


WELCOME = pb.ServerMessage(welcome=pb.Welcome(interval_ms=100)).SerializeToString()
FROM_THE_FUTURE = b"\xfa\x3f\x03abc"  # field 1023 of a newer protocol


async def test_messages_of_a_newer_server_are_passed_over():
    async with (
        a_server_that_says(FROM_THE_FUTURE, WELCOME + FROM_THE_FUTURE, FROM_THE_FUTURE) as address,
        running(make(address)) as uplink,
    ):
        await until(lambda: uplink.status.connected)
        await asyncio.sleep(0.1)
        assert uplink.status.connected
        assert uplink.status.streams == 1


async def test_while_the_server_does_not_read_newer_samples_replace_older_ones():
    async with a_server_that_says(WELCOME) as address, running(make(address)) as uplink:
        await until(lambda: uplink.status.connected)
        sent = -1
        for n in itertools.count():
            uplink.offer(sample(waiting=float(n), detail="x" * 30_000))
            await asyncio.sleep(0)
            if n % 100 == 0:
                if uplink.status.samples == sent:
                    break
                sent = uplink.status.samples
                await asyncio.sleep(0.05)
        before = uplink.slots.superseded
        for n in range(10):
            uplink.offer(sample(waiting=float(n)))
        assert uplink.slots.superseded == before + 10
        assert len(uplink.slots._latest) == 1


async def test_a_server_without_the_service_is_told_and_tried_again():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with running(make(f"127.0.0.1:{port}")) as uplink:
            await until(lambda: "UNIMPLEMENTED" in uplink.status.detail)
            await asyncio.sleep(1.0)  # many attempts: a write may meet the end of the call or not
            assert "UNIMPLEMENTED" in uplink.status.detail
            assert uplink.status.streams == 0
    finally:
        await server.stop(None)


async def test_something_that_is_no_grpc_server_is_told():
    async def http1(reader, writer):
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(http1, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with running(make(address)) as uplink:
            await until(lambda: "no connection" in uplink.status.detail)


async def test_a_stop_closes_the_stream_even_if_the_server_does_not_answer():
    async with a_server_that_says(WELCOME) as address:
        async with running(make(address)) as uplink:
            await until(lambda: uplink.status.connected)
            stopped_at = time.monotonic()
        assert time.monotonic() - stopped_at < 20


async def test_a_later_welcome_changes_the_interval():
    later = pb.ServerMessage(welcome=pb.Welcome(interval_ms=400)).SerializeToString()
    async with a_server_that_says(WELCOME, later) as address, running(make(address)) as uplink:
        await until(lambda: uplink.slots.interval_s == 0.4)


async def test_garbage_from_the_server_ends_the_stream_with_a_clear_word():
    async with (
        a_server_that_says(WELCOME, b"\xff\xff\xff") as address,
        running(make(address)) as uplink,
    ):
        await until(lambda: "unreadable message" in uplink.status.detail)


async def test_tls_files_that_are_missing_are_told(tmp_path):
    async with running(make("127.0.0.1:1", ca=tmp_path / "ca.pem")) as uplink:
        await until(lambda: "cannot open the channel" in uplink.status.detail)


async def test_a_token_file_that_is_missing_is_told(tmp_path):
    async with TelemetryServer() as server:
        uplink = make(server.address)
        file = tmp_path / "token"
        uplink._token = Settings.model_validate({"control_plane": {"token_file": str(file)}}).token
        async with running(uplink):
            await until(lambda: str(file) in uplink.status.detail)
            file.write_bytes(b"\xff")
            await until(lambda: "visible ASCII" in uplink.status.detail)
            file.write_text("right")
            await until(lambda: uplink.status.connected)


def test_channel_options_notice_a_dead_peer_in_time():
    options = dict(Server(address="x:1", server_name="plane").options())
    noticed_ms = options["grpc.keepalive_time_ms"] + options["grpc.keepalive_timeout_ms"]
    assert noticed_ms < 45_000
    assert options["grpc.http2.ping_timeout_ms"] <= options["grpc.keepalive_timeout_ms"]
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.ssl_target_name_override"] == "plane"


TLS = Path(__file__).parent.parent / "data" / "tls"
CERT, KEY = TLS / "cert.pem", TLS / "key.pem"


def mutual_tls():
    pair = (KEY.read_bytes(), CERT.read_bytes())
    return grpc.ssl_server_credentials([pair], CERT.read_bytes(), require_client_auth=True)


async def test_mutual_tls_lets_in_who_has_a_certificate():
    async with TelemetryServer(credentials=mutual_tls()) as server:
        with_certificate = make(server.address, ca=CERT, cert=CERT, key=KEY)
        async with running(with_certificate) as uplink:
            await until(lambda: uplink.status.connected)
        async with running(make(server.address, ca=CERT)) as uplink:
            await until(lambda: uplink.status.detail != "not connected yet")
            assert not uplink.status.connected
        assert len(server.streams) == 1


async def test_why_there_is_no_connection_is_told_and_logged_once():
    async with TelemetryServer() as plain, TelemetryServer(credentials=mutual_tls()) as guarded:
        for address, more, said in (
            ("127.0.0.1:1", {}, "refused"),
            (plain.address, {"ca": CERT}, "handshake"),
            (guarded.address, {"ca": CERT, "server_name": "other.test"}, "verification"),
            ("no-such-host.invalid:1", {}, "no-such-host.invalid"),
        ):
            with structlog.testing.capture_logs() as logs:
                async with running(make(address, **more)) as uplink:
                    await until(lambda: uplink._backoff.attempt >= 2)
                    detail = uplink.status.detail
            assert detail.startswith(f"no connection to {address}: ")
            assert said in detail.lower()
            assert [each["event"] for each in logs] == ["control_plane_lost"]


async def test_a_server_of_another_name_is_not_believed():
    async with TelemetryServer(credentials=mutual_tls()) as server:
        stranger = make(server.address, ca=CERT, cert=CERT, key=KEY, server_name="other.test")
        async with running(stranger) as uplink:
            await until(lambda: "no connection" in uplink.status.detail)
        known = make(server.address, ca=CERT, cert=CERT, key=KEY, server_name="localhost")
        async with running(known) as uplink:
            await until(lambda: uplink.status.connected)
