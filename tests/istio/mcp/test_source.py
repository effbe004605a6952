"""The config source and an emulated istiod: what it is told, when, and what it makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time

import grpc
import pytest
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest
from structlog.testing import capture_logs

from tests.fakes.adsc import METHOD, Config, started_istiod
from tests.fakes.ports import free_port
from tests.fakes.waiting import until
from tests.fakes.xds_process import ROOT
from tests.istio.mcp.objects import virtual_service
from tests.istio.mcp.rig import FALLBACK, HOST, OURS, PRIMARY, config_of, running_rig
from xds_server.istio.mcp import source as module
from xds_server.istio.mcp.catalog import Draft
from xds_server.istio.mcp.judge import Refusal
from xds_server.istio.mcp.server import McpServer
from xds_server.listening import StartError

SE, DR, VS = "ServiceEntry", "DestinationRule", "VirtualService"


@pytest.mark.parametrize("version", ["v1alpha3", "v1"])
async def test_every_istiod_gets_ready_whatever_version_it_asks_for(version):
    async with running_rig() as rig, started_istiod(rig.target, version=version) as istiod:
        assert set(istiod.answered) == set(istiod.types)
        assert istiod.weights(HOST) == {PRIMARY: 100}
        assert (istiod.kinds(SE), istiod.kinds(DR)) == ({}, {})


async def test_nobody_is_answered_before_the_plan_is_authoritative():
    async with (
        running_rig(warm=False) as rig,
        started_istiod(rig.target, waits=False) as istiod,
    ):
        await until(lambda: rig.source.server.streams, "the stream")
        rig.loop.force()
        await until(lambda: rig.loop.fleet.plan is not None, "a plan")
        await asyncio.sleep(0.2)
        assert istiod.responses == [], "an empty answer would take all routes from it"
        rig.loop.warm_up()
        await until(lambda: istiod.is_ready, "istiod to be ready")
        assert istiod.weights(HOST) == {PRIMARY: 100}


async def test_weights_arrive_and_always_add_up():
    async with running_rig() as rig, started_istiod(rig.target) as istiod:
        for tier, host in (
            ("fallback", FALLBACK),
            ("primary", PRIMARY),
            ("static", "busy.ai.svc.cluster.local"),
        ):
            rig.force(tier)
            await until(lambda host=host: istiod.weights(HOST) == {host: 100}, tier)
        assert [each.what for each in istiod.changes].count("refused") == 0
        assert rig.told[-1].routes[0].weights[-1][1] == 100
        assert "VirtualService ai/gpu-xds-chat: primary=100% fallback=0% static=0%." in rig.named(
            "mesh_object_published"
        )


async def test_where_static_has_no_host_istiod_gets_the_answer_once_nothing_is_left():
    config = config_of()
    del config.istio.models[0].tiers["static"]
    async with running_rig(config) as rig, started_istiod(rig.target) as istiod:
        rig.force("static")
        await until(lambda: istiod.routes(HOST).http[0].HasField("direct_response"), "the answer")
        assert istiod.routes(HOST).http[0].direct_response.status == 200


async def test_what_did_not_change_is_not_sent_again():
    async with running_rig() as rig, started_istiod(rig.target) as istiod:
        count = len(istiod.responses)
        for _ in range(3):
            rig.loop.force()
            await asyncio.sleep(0.3)
        assert len(istiod.responses) == count
        rig.force("fallback")
        await until(lambda: istiod.weights(HOST) == {FALLBACK: 100}, "the change")
        assert [each.type_url for _, each in istiod.responses[count:]] == [
            f"networking.istio.io/v1/{VS}"
        ]


async def test_a_hundred_changes_are_four_a_second_and_the_last_one_is_there_in_time():
    async with running_rig() as rig, started_istiod(rig.target) as istiod:
        for tier in itertools.islice(itertools.cycle(("fallback", "primary")), 101):
            rig.force(tier)
            await asyncio.sleep(0.03)
        await until(lambda: istiod.weights(HOST) == {FALLBACK: 100}, "the last one")
        gaps = [after - before for before, after in itertools.pairwise(rig.published_at)]
        assert min(gaps) > 0.24, "istiod needs 0.1 s of quiet"
        assert len(gaps) > 5, "they are put together, not put off until the last"


async def test_an_isolated_change_leaves_at_once():
    gap_s = 3.0
    config = config_of(source={"changes_per_second": 1 / gap_s})
    async with running_rig(config) as rig, started_istiod(rig.target) as istiod:
        await until(
            lambda: time.monotonic() > rig.published_at[0] + gap_s, "a while without changes"
        )
        started = time.monotonic()
        rig.force("fallback")
        await until(lambda: istiod.weights(HOST) == {FALLBACK: 100}, "the change")
        assert rig.published_at[1] - started < gap_s


@pytest.mark.parametrize("age", [0.0, 4_000_000_000.0], ids=["older", "made-in-2096"])
async def test_an_object_of_the_admins_for_the_same_host_always_wins(age):
    async with running_rig() as rig, started_istiod(rig.target) as istiod:
        theirs = virtual_service(host=HOST).message
        istiod.admins.append(Config(VS, "ai/theirs", "1", age, theirs))
        assert istiod.routes(HOST) is theirs


async def test_a_drained_endpoint_is_left_out_and_comes_back():
    config = config_of(tiers={"primary": OURS})
    async with running_rig(config) as rig, started_istiod(rig.target) as istiod:
        name = f"ai/gpu-xds-{PRIMARY}"

        def addresses():
            return [each.address for each in istiod.kinds(SE)[name].endpoints]

        assert addresses() == ["10.0.0.1", "10.0.0.2"]
        assert istiod.kinds(DR)[name].traffic_policy.outlier_detection.max_ejection_percent == 100
        sent = len(istiod.responses)
        rig.drain("a100-0")
        await until(lambda: addresses() == ["10.0.0.2"], "the drain")
        assert {each.type_url.rpartition("/")[2] for _, each in istiod.responses[sent:]} <= {SE, VS}
        rig.drain("a100-0", draining=False)
        await until(lambda: addresses() == ["10.0.0.1", "10.0.0.2"], "the end of it")


async def test_new_hosts_come_a_while_before_their_routes_and_old_ones_leave_after():
    other = {"host": "new.ai.svc.cluster.local", "port": 8000, "endpoints": "instances"}
    before, after = config_of(tiers={"primary": OURS}), config_of(tiers={"primary": other})
    async with running_rig(before) as rig, started_istiod(rig.target) as istiod:
        start = len(istiod.changes)
        await rig.reload(after)
        old, new = f"ai/gpu-xds-{PRIMARY}", f"ai/gpu-xds-{other['host']}"
        await until(
            lambda: old not in istiod.kinds(SE) and old not in istiod.kinds(DR),
            "the old host to go",
        )
        at = {(each.kind, each.name, each.what): each.at for each in istiod.changes[start:]}
        route = at[VS, "ai/gpu-xds-chat", "updated"]
        assert max(at[SE, new, "added"], at[DR, new, "added"]) < route
        assert route < min(at[SE, old, "deleted"], at[DR, old, "deleted"])
        first, second, third = rig.published_at[-3:]
        assert min(second - first, third - second) > 0.24, "each step settles before the next"


async def test_another_file_without_other_objects_tells_istiod_nothing():
    async with running_rig() as rig, started_istiod(rig.target) as istiod:
        count = len(istiod.responses)
        await rig.reload(config_of())
        rig.loop.force()
        await asyncio.sleep(0.4)
        assert len(istiod.responses) == count


async def test_an_object_that_istiod_would_refuse_stays_as_it_was_and_is_named(monkeypatch):
    async with running_rig() as rig, started_istiod(rig.target) as istiod:
        key = next(iter(rig.source.server.catalog.objects))
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(module, "judge", lambda *_: [Refusal(key, "weights add up to 0")])
            rig.force("fallback")
            await until(lambda: rig.named("mesh_object_refused"), "the refusal")
            assert istiod.weights(HOST) == {PRIMARY: 100}
            assert rig.named("mesh_object_refused") == [
                "VirtualService ai/gpu-xds-chat: weights add up to 0. The last good one is kept."
            ]
            assert {name: value for name, _, value in rig.source.readings()}[
                "fleet_istio_objects_held_back"
            ] == 1
        assert [each["object"] for each in lines if each["event"] == "mesh_object_refused"] == [
            "VirtualService ai/gpu-xds-chat"
        ]
        rig.force("primary")
        await until(lambda: rig.named("mesh_object_mended"), "a good one")
        assert rig.named("mesh_object_mended") == ["VirtualService ai/gpu-xds-chat is good again."]


async def test_no_route_goes_to_a_host_that_is_held_back_and_was_never_there(monkeypatch):
    original = module.judge

    def judge(made, good):
        bad = [each.key for each in made if each.key[0] == SE]
        return [*original(made, good), *[Refusal(key, "no IP address") for key in bad]]

    config = config_of(tiers={"primary": OURS})
    with monkeypatch.context() as patch, capture_logs():
        patch.setattr(module, "judge", judge)
        async with running_rig(config) as rig, started_istiod(rig.target) as istiod:
            assert istiod.kinds(VS) == {}, "all of its requests would be 503"
            entry = f"ServiceEntry ai/gpu-xds-{PRIMARY}"
            first, second = rig.named("mesh_object_refused")
            assert first == f"{entry}: no IP address. It is not published."
            assert second == (
                f"VirtualService ai/gpu-xds-chat: it sends requests to {PRIMARY}, and {entry} is held back: mend "
                "that. It is not published."
            )
            rig.force("fallback")
            await until(lambda: istiod.weights(HOST) == {FALLBACK: 100}, "routes elsewhere")
            rig.force("primary")
            await until(lambda: len(rig.named("mesh_object_refused")) == 3, "the route again")
            assert istiod.weights(HOST) == {FALLBACK: 100}
            patch.undo()
            rig.loop.force()
            rig.drain("a100-0")
            await until(lambda: istiod.weights(HOST) == {PRIMARY: 100}, "a good entry")


async def test_nothing_is_dropped_when_the_objects_cannot_be_made_for_once(monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.1)
    async with running_rig() as rig, started_istiod(rig.target) as istiod:
        original, calls = module.drafts, []

        def failing(**given) -> list[Draft]:
            calls.append(1)
            if len(calls) < 3:
                raise ZeroDivisionError
            return original(**given)

        monkeypatch.setattr(module, "drafts", failing)
        with capture_logs():
            rig.force("fallback")
            await until(lambda: istiod.weights(HOST) == {FALLBACK: 100}, "the third try")
        assert [each.what for each in istiod.changes] == ["added", "updated"]
        assert istiod.connections == 1
        assert rig.tally.count("fleet_control_loop_errors_total", "config-source") == 2


async def test_a_model_that_is_no_longer_the_meshs_is_taken_back():
    before = config_of()
    after = config_of()
    object.__setattr__(after.istio, "models", [])
    async with running_rig(before) as rig, started_istiod(rig.target) as istiod:
        await rig.reload(after)
        await until(lambda: not istiod.kinds(VS), "the route to go")
        await until(
            lambda: (
                "VirtualService ai/gpu-xds-chat: is no longer published."
                in rig.named("mesh_object_published")
            )
        )


async def test_objects_of_a_revision_are_for_its_istiods_only():
    config = config_of(source={"revision": "canary"})
    async with (
        running_rig(config) as rig,
        started_istiod(rig.target, revision="canary") as one,
        started_istiod(rig.target) as other,
    ):
        assert list(one.kinds(VS)) == ["ai/gpu-xds-chat"]
        assert other.kinds(VS) == {}


async def test_pings_are_no_reason_to_cut_a_stream():
    async with running_rig() as rig, started_istiod(rig.target, ping_ms=1000) as istiod:
        # A server as gRPC makes it cuts the stream after the third one.
        await asyncio.sleep(6.0)
        rig.force("fallback")
        await until(lambda: istiod.weights(HOST) == {FALLBACK: 100}, "the change")
        assert (istiod.connections, istiod.errors) == (1, [])


async def test_what_nobody_knows_is_answered_with_nothing_and_named():
    kind = "networking.istio.io/v9/QuantumRoute"
    async with running_rig() as rig:
        with capture_logs() as lines:
            async with started_istiod(rig.target, more_types=(kind,)) as istiod:
                assert istiod.answered[kind] == 1
        (line,) = [each for each in lines if each["event"] == "istiod_asks_unknown"]
        assert line["type"] == kind
        assert rig.tally.count("fleet_istio_unknown_types_total") == 1


async def test_istiods_are_served_alike_and_one_that_leaves_is_no_others_trouble():
    async with running_rig() as rig, started_istiod(rig.target) as one:
        async with started_istiod(rig.target):
            assert len(rig.source.server.streams) == 2
        await until(lambda: len(rig.source.server.streams) == 1, "it to leave")
        rig.force("fallback")
        await until(lambda: one.weights(HOST) == {FALLBACK: 100}, "the change")
        await until(lambda: len(rig.named("istiod_disconnected")) == 1, "the row")


async def test_a_refusal_is_counted_and_named():
    async with running_rig() as rig, channel(rig.target) as call:
        url = f"networking.istio.io/v1/{VS}"
        await call.write(DiscoveryRequest(type_url=url, response_nonce="x").SerializeToString())
        await call.read()
        (stream,) = rig.source.server.streams
        nonce = stream.session.types[url].nonces[-1]
        request = DiscoveryRequest(type_url=url, response_nonce=nonce)
        request.error_detail.message = "no such gateway"
        with capture_logs() as lines:
            await call.write(request.SerializeToString())
            await until(lambda: rig.tally.count("fleet_istio_refusals_total", VS) == 1, "it")
        assert [each["reason"] for each in lines if each["event"] == "istiod_refuses"] == [
            "no such gateway"
        ]


class channel:  # noqa: N801 - reads as a function
    def __init__(self, target: str, method: str = METHOD) -> None:
        self._channel = grpc.aio.insecure_channel(target)
        self._method = method

    async def __aenter__(self):
        return self._channel.stream_stream(self._method)()

    async def __aexit__(self, *_):
        await self._channel.close()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            DiscoveryRequest(
                type_url="type.googleapis.com/envoy.config.cluster.v3.Cluster"
            ).SerializeToString(),
            "proxies use the xDS port",
        ),
        (DiscoveryRequest(type_url="x").SerializeToString(), "expected group/version/Kind"),
        (b"\xff\xff", "not a DiscoveryRequest"),
    ],
    ids=["envoy", "nonsense", "garbage"],
)
async def test_who_is_no_istiod_is_told_so(raw, said):
    async with running_rig() as rig, channel(rig.target) as call:
        with capture_logs() as lines:
            await call.write(raw)
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert said in await call.details()
        assert lines[-1]["event"] == "istiod_refused"
        assert rig.tally.count("fleet_istio_streams_refused_total") == 1


async def test_deltas_are_refused_in_words():
    method = METHOD.replace("Stream", "Delta")
    async with running_rig() as rig, channel(rig.target, method) as call:
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "state of the world only" in await call.details()


TLS = {"certificate_file": "tests/data/tls/cert.pem", "key_file": "tests/data/tls/key.pem"}


async def test_an_istiod_with_simple_tls_is_served():
    paths = {name: str(ROOT / path) for name, path in TLS.items()}
    roots = (ROOT / TLS["certificate_file"]).read_bytes()
    credentials = grpc.ssl_channel_credentials(roots)
    async with (
        running_rig(config_of(source=paths)) as rig,
        started_istiod(rig.target, credentials=credentials) as istiod,
    ):
        assert istiod.weights(HOST) == {PRIMARY: 100}


async def test_a_port_that_is_taken_and_a_certificate_that_is_not_there_are_told(
    tmp_path, tally_and_history
):
    async with running_rig() as rig:
        port = rig.source.server.port
        server = McpServer(**tally_and_history, clock=time.monotonic)
        with pytest.raises(StartError, match=r"choose another with istio.config_source.listen"):
            server.listen("127.0.0.1", port)
    missing = {name: str(tmp_path / name) for name in TLS}
    with pytest.raises(StartError, match=r"istio\.config_source\.certificate_file"):
        async with running_rig(config_of(source=missing)):
            pass


@pytest.fixture
def tally_and_history():
    from xds_server.observability.history import History
    from xds_server.observability.metrics import Tally

    return {"tally": Tally(), "history": History(lambda _: None, topology=lambda: None)}


async def _kept(run):
    """As the process runs its parts: again after whatever goes wrong."""
    while True:
        with contextlib.suppress(StartError):
            await run()
        await asyncio.sleep(0.05)


async def test_the_source_takes_its_port_again_after_a_failure():
    config = config_of(source={"listen": f"127.0.0.1:{free_port()}"})
    async with running_rig(config) as rig:
        await until(lambda: rig.source.server.catalog, "it to serve")
        port = rig.source.server.port
        await rig.source.server.stop(0)
        again = asyncio.create_task(_kept(rig.source.run))
        try:
            await until(lambda: rig.source.server.port == port, "the port")
            async with started_istiod(rig.target) as istiod:
                assert istiod.weights(HOST) == {PRIMARY: 100}
        finally:
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)
