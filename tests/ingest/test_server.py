from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from tests.fakes.telemetry_client import METHOD, ScriptedAgent, connected_agent
from tests.fakes.waiting import PATIENCE_S
from xds_server.core.model import InstanceId, Topology
from xds_server.core.policy import TelemetryPolicy
from xds_server.core.sample import Sample
from xds_server.ingest import server as module
from xds_server.ingest.decode import MAX_MESSAGE_BYTES
from xds_server.ingest.registry import Registry
from xds_server.ingest.server import TelemetryServer
from xds_server.observability.metrics import Tally

TOKEN = "a-token-of-some-length"


class Rig:
    def __init__(self, topology: Topology, token: str | None) -> None:
        self.samples: asyncio.Queue[Sample] = asyncio.Queue()
        self.registrations = 0
        self.tally = Tally()
        self.registry = Registry(topology)
        self.now = 100.0
        self.telemetry = TelemetryServer(
            registry=self.registry,
            offer=self.samples.put_nowait,
            registered=self._registered,
            policy=TelemetryPolicy(),
            clock=lambda: self.now,
            tally=self.tally,
            token=token,
        )
        self.target = ""

    def _registered(self) -> None:
        self.registrations += 1

    async def sample(self) -> Sample:
        return await asyncio.wait_for(self.samples.get(), PATIENCE_S)

    def refused(self, reason: str) -> float:
        return self.tally.count("fleet_telemetry_refused_total", reason)


@asynccontextmanager
async def rig(topology: Topology, token: str | None = None):
    made = Rig(topology, token)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((made.telemetry.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made.target = f"127.0.0.1:{port}"
    try:
        yield made
    finally:
        await server.stop(grace=0.2)


@asynccontextmanager
async def greeted(made: Rig, *instances: str, name: str = "host-1", epoch: int = 1):
    async with connected_agent(made.target, name) as agent:
        await agent.greet(*instances, epoch=epoch)
        yield agent


async def test_an_agent_is_welcomed_with_the_interval_and_its_samples_arrive(topology):
    async with rig(topology("a")) as made, greeted(made, "a") as agent:
        welcome = agent.welcome.result()
        assert (welcome.interval_ms, welcome.protocol) == (1000, 1)
        await agent.report("a", kv_ratio=0.5)
        sample = await made.sample()
        assert (sample.instance, sample.agent, sample.engine.kv_ratio) == ("a", "host-1", 0.5)
        ack = await agent.ack()
        assert [(each.instance, each.sequence, each.drained) for each in ack.taken] == [
            ("a", 1, False)
        ]


async def test_acks_are_coalesced_to_one_in_five_intervals(topology):
    async with rig(topology("a")) as made, greeted(made, "a") as agent:
        for _ in range(20):
            await agent.report("a")
        for _ in range(20):
            await made.sample()
        assert (await agent.ack()).taken[0].sequence == 1
        made.now += 5.0
        await agent.report("a")
        assert (await agent.ack()).taken[0].sequence == 21
        assert agent.acks.empty()


async def test_the_agent_is_told_at_once_when_its_drain_is_in_effect(topology):
    async with rig(topology("a", "b")) as made, greeted(made, "a", "b") as agent:
        await agent.report("a", draining=True)
        assert (await made.sample()).draining
        assert not (await agent.ack()).taken[0].drained
        made.telemetry.drained({InstanceId("a"), InstanceId("zzz")})
        (taken,) = (await agent.ack()).taken
        assert (taken.instance, taken.sequence, taken.drained) == ("a", 1, True)


async def test_a_drain_that_is_in_effect_already_is_told_with_its_first_sample(topology):
    async with rig(topology("a")) as made:
        made.telemetry.drained({InstanceId("a")})
        async with greeted(made, "a") as agent:
            await agent.report("a")
            assert (await agent.ack()).taken[0].drained
            await agent.report("a", draining=True)
            assert (await agent.ack()).taken[0].sequence == 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"\xff\xff", "broken_message", id="broken"),
        pytest.param(bytes(MAX_MESSAGE_BYTES + 1), "oversize", id="oversize"),
        pytest.param(
            pb.AgentMessage(hello=pb.Hello()).SerializeToString(), "bad_hello", id="hello"
        ),
    ],
)
async def test_a_broken_message_ends_its_stream_and_no_other(topology, body, reason):
    async with (
        rig(topology("a", "b")) as made,
        greeted(made, "a", name="good") as good,
        greeted(made, "b", name="bad") as bad,
    ):
        await bad.say(body)
        refusal = await bad.refusal()
        assert (refusal.instance, refusal.code) == ("", pb.Refusal.BAD_MESSAGE)
        assert await bad.ended() is grpc.StatusCode.INVALID_ARGUMENT
        assert made.refused(reason) == 1
        await good.report("a")
        assert (await made.sample()).instance == "a"


async def test_a_bad_sample_is_refused_once_counted_always_and_the_rest_goes_on(topology):
    async with rig(topology("a", "b")) as made, greeted(made, "a", "b") as agent:
        for _ in range(3):
            await agent.send(agent.sample("a", kv_ratio=17.0), agent.sample("b"))
            assert (await made.sample()).instance == "b"
        refusal = await agent.refusal()
        assert (refusal.instance, refusal.code) == ("a", pb.Refusal.BAD_MESSAGE)
        assert refusal.reason == "kv_ratio 17 is not within 0-1"
        assert agent.refusals.empty()
        assert made.refused("out_of_range") == 3
        await agent.send(pb.Sample())
        assert (await agent.refusal()).instance == "(no name)"


async def test_whoever_invents_names_is_told_and_logged_only_so_often(topology, monkeypatch):
    monkeypatch.setattr(module, "MAX_TOLD", 3)
    async with rig(topology("a")) as made, greeted(made, "a") as agent:
        for number in range(50):
            await agent.report(f"x{number}")
        await agent.report("a")
        assert (await made.sample()).instance == "a"
        assert made.refused("unknown_instance") == 50
        await agent.ack()
        assert agent.refusals.qsize() == 3


async def test_the_first_message_must_be_a_hello(topology):
    async with rig(topology("a")) as made, connected_agent(made.target) as agent:
        await agent.report("a")
        assert "hello" in (await agent.refusal()).reason
        assert await agent.ended() is grpc.StatusCode.INVALID_ARGUMENT
        assert made.refused("no_hello") == 1


async def test_a_stream_that_says_nothing_is_ended(topology, monkeypatch):
    monkeypatch.setattr(module, "HELLO_TIMEOUT_S", 0.05)
    async with rig(topology("a")) as made, connected_agent(made.target) as agent:
        assert "no hello within" in (await agent.refusal()).reason
        assert await agent.ended() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("given", [None, "wrong", "a-token-of-some-lengt"])
async def test_without_the_token_an_agent_is_not_listened_to(topology, given):
    async with (
        rig(topology("a"), TOKEN) as made,
        connected_agent(made.target, token=given) as agent,
    ):
        assert (await agent.refusal()).code == pb.Refusal.UNAUTHENTICATED
        assert await agent.ended() is grpc.StatusCode.UNAUTHENTICATED
        assert made.refused("unauthenticated") == 1


async def test_with_the_token_an_agent_registers_its_instance(topology):
    base = topology("a")
    model = base.models[0]
    tier = replace(model.tiers[0], instances=(), discovers=True)
    open_topology = replace(base, models=(replace(model, tiers=(tier, *model.tiers[1:])),))
    owned = pb.OwnedInstance(
        name="n", address="10.0.0.9:80", model="chat", tier="primary", capacity=8
    )
    async with (
        rig(open_topology, TOKEN) as made,
        connected_agent(made.target, token=TOKEN) as agent,
    ):
        await agent.greet(owned)
        await agent.report("n")
        assert (await made.sample()).instance == "n"
        assert made.registrations == 1
        await agent.hello(1, [owned, pb.OwnedInstance(name="x")])
        assert (await agent.refusal()).instance == "x"
        await agent.hello(1, [])
        await agent.report("n")
        assert (await agent.refusal()).code == pb.Refusal.UNKNOWN_INSTANCE
        assert made.registrations == 2


async def test_two_owners_of_an_instance_are_refused_and_the_first_is_heard(topology):
    async with (
        rig(topology("a")) as made,
        greeted(made, "a", name="one") as one,
        greeted(made, "a", name="two") as two,
    ):
        refusal = await two.refusal()
        assert (refusal.instance, refusal.code) == ("a", pb.Refusal.OWNED_BY_ANOTHER_AGENT)
        await two.report("a", kv_ratio=0.9)
        await one.report("a", kv_ratio=0.1)
        assert (await made.sample()).engine.kv_ratio == 0.1
        assert made.samples.empty()


async def test_a_newer_run_of_the_agent_silences_the_older_stream(topology):
    async with (
        rig(topology("a")) as made,
        greeted(made, "a", epoch=1) as old,
        greeted(made, "a", epoch=2) as new,
    ):
        await new.report("a", kv_ratio=0.2)
        assert (await made.sample()).engine.kv_ratio == 0.2
        await old.report("a", kv_ratio=0.9)
        assert (await old.refusal()).code == pb.Refusal.STALE_EPOCH
        assert await old.ended() is grpc.StatusCode.FAILED_PRECONDITION
        async with connected_agent(made.target) as late:
            await late.hello(1, ["a"])
            assert (await late.refusal()).code == pb.Refusal.STALE_EPOCH
        assert made.samples.empty()
        await new.hello(1, ["a"])
        assert (await new.refusal()).code == pb.Refusal.STALE_EPOCH


async def test_ownership_passes_at_once_when_an_agent_ends_its_stream(topology):
    async with rig(topology("a")) as made, greeted(made, "a", name="one") as one:
        await one.done()
        assert await one.ended() is grpc.StatusCode.OK
        async with greeted(made, "a", name="two") as two:
            await two.report("a")
            assert (await made.sample()).agent == "two"


async def test_a_cancelled_stream_is_a_broken_end_and_its_owner_may_come_back(topology):
    async with rig(topology("a")) as made:
        async with greeted(made, "a", name="one"):
            pass
        async with asyncio.timeout(PATIENCE_S):
            while made.telemetry.streams:
                await asyncio.sleep(0.01)
        async with greeted(made, "a", name="two") as two:
            assert (await two.refusal()).code == pb.Refusal.OWNED_BY_ANOTHER_AGENT
        async with greeted(made, "a", name="one", epoch=1) as one:
            await one.report("a")
            assert (await made.sample()).agent == "one"


async def test_a_stream_that_breaks_while_it_is_welcomed_owns_nothing_for_ever(
    topology, monkeypatch
):
    async def stuck(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(module._Stream, "write", stuck)
    async with rig(topology("a")) as made:
        async with connected_agent(made.target, "one") as one:
            await one.hello(1, ["a"])
            async with asyncio.timeout(PATIENCE_S):
                while made.registry.owner(InstanceId("a")) != "one":
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(PATIENCE_S):
            while any(each.connected for each in made.registry.speakers()):
                await asyncio.sleep(0.01)


async def test_a_stream_cannot_go_on_under_another_name(topology):
    async with rig(topology("a")) as made, greeted(made, "a", name="one") as agent:
        agent.name = "two"
        await agent.hello(1, ["a"])
        refusal = await agent.refusal()
        assert refusal.code == pb.Refusal.BAD_MESSAGE
        assert "expected the same name" in refusal.reason
        assert await agent.ended() is grpc.StatusCode.INVALID_ARGUMENT
        async with asyncio.timeout(PATIENCE_S):
            while any(each.connected for each in made.registry.speakers()):
                await asyncio.sleep(0.01)


async def test_an_agent_that_reads_nothing_disturbs_nobody(topology):
    async with rig(topology("a", "b")) as made, grpc.aio.insecure_channel(made.target) as channel:
        call = channel.stream_stream(METHOD)()
        mute = ScriptedAgent(call, "mute")
        await mute.hello(1, ["a"])
        for _ in range(50):
            made.now += 1
            await mute.report("a")
        async with greeted(made, "b", name="good") as good:
            await good.report("b")
            async with asyncio.timeout(PATIENCE_S):
                while (await made.sample()).instance != "b":
                    pass
        call.cancel()
