from __future__ import annotations

import pytest

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from sidecar_agent import encode
from sidecar_agent.encode import Ack, Refusal, Taken, Welcome
from sidecar_agent.engine.facts import EngineFacts, EngineState, TokenProbe, TokenResult
from sidecar_agent.gpu.facts import Fact, FactStatus, GpuHealth, GpuReading, MemoryKind
from sidecar_agent.gpu.reduce import GpuGroup
from sidecar_agent.identity import Identity, Owned, agent_name, config_hash
from sidecar_agent.join import Sample


def sent(sample, now=10.0):
    message = pb.AgentMessage.FromString(encode.samples([sample], now=now))
    (one,) = message.samples.samples
    return one


def test_hello_names_the_agent_its_run_and_what_it_owns():
    owned = Owned(
        name="a100-0",
        address="10.0.0.1:8000",
        model="llama",
        tier="primary",
        capacity=40.0,
        engine="vllm",
        gpus=("GPU-1", "GPU-2"),
    )
    identity = Identity(agent="host", epoch=17, instances=(owned, Owned(name="b")))
    hello = pb.AgentMessage.FromString(
        encode.hello(identity, agent_version="1.2", config_hash="abc")
    ).hello
    assert (hello.agent, hello.epoch, hello.protocol, hello.agent_version) == ("host", 17, 1, "1.2")
    first, second = hello.instances
    assert (first.name, first.address, first.capacity) == ("a100-0", "10.0.0.1:8000", 40.0)
    assert list(first.gpu_uuids) == ["GPU-1", "GPU-2"]
    assert not second.HasField("capacity")


def test_missing_numbers_are_absent_and_zero_is_there():
    facts = EngineFacts(state=EngineState.UP, waiting=0.0)
    one = sent(Sample(instance="a", observed_at=9.75, sequence=3, engine=facts))
    assert one.engine.HasField("waiting")
    assert one.engine.waiting == 0.0
    for name in ("kv_ratio", "running", "preemptions_total", "slots", "reserved_ratio"):
        assert not one.engine.HasField(name), name
    assert not one.HasField("gpu")
    assert (one.sample_age_ms, one.sequence) == (250, 3)


@pytest.mark.parametrize("result", list(TokenResult))
def test_what_came_of_asking_for_a_token_is_sent(result):
    facts = EngineFacts(token_probe=TokenProbe(result, 2, 0.8125))
    probe = sent(Sample(instance="a", observed_at=9.0, sequence=1, engine=facts)).engine.token_probe
    name = pb.TokenResult.DESCRIPTOR.values_by_number[probe.result].name
    assert (name, probe.row, probe.took_ms) == (f"TOKEN_RESULT_{result.upper()}", 2, 812)
    silent = sent(Sample(instance="a", observed_at=9.0, sequence=1, engine=EngineFacts()))
    assert not silent.engine.HasField("token_probe")


def test_age_is_never_negative_and_fits():
    facts = EngineFacts()
    assert sent(Sample(instance="a", observed_at=11.0, sequence=1, engine=facts)).sample_age_ms == 0
    old = sent(Sample(instance="a", observed_at=-1e9, sequence=1, engine=facts))
    assert old.sample_age_ms == 2**32 - 1


@pytest.mark.parametrize("state", list(EngineState))
def test_every_engine_state_has_its_wire_value(state):
    one = sent(Sample(instance="a", observed_at=0.0, sequence=1, engine=EngineFacts(state=state)))
    name = pb.EngineState.Name(one.engine.state).removeprefix("ENGINE_STATE_").lower()
    assert name == ("unspecified" if state is EngineState.UNKNOWN else state.value)


@pytest.mark.parametrize("health", list(GpuHealth))
@pytest.mark.parametrize("kind", list(MemoryKind))
def test_gpu_facts_travel_with_their_reasons_for_being_absent(health, kind):
    device = GpuReading(
        uuid="GPU-1",
        index=0,
        name="H100",
        health=health,
        memory_total_bytes=Fact(FactStatus.OK, 8e10),
        utilization_ratio=Fact(FactStatus.UNSUPPORTED),
        temperature_celsius=Fact(FactStatus.ERROR, 0.0, "Unknown Error"),
        recent_xids=(79,),
    )
    group = GpuGroup(
        health=health,
        memory_kind=kind,
        vram_ratio=0.5,
        vram_free_bytes=2**33,
        shared=True,
        devices=(device,),
    )
    one = sent(Sample(instance="a", observed_at=0.0, sequence=1, engine=EngineFacts(), gpu=group))
    assert (one.gpu.vram_ratio, one.gpu.vram_free_bytes, one.gpu.shared) == (0.5, 2**33, True)
    (wire,) = one.devices
    assert wire.memory_total_bytes.status == pb.FACT_STATUS_OK
    assert wire.utilization_ratio.status == pb.FACT_STATUS_UNSUPPORTED
    assert wire.temperature_celsius.error == "Unknown Error"
    assert not wire.HasField("power_watts")
    assert list(wire.recent_xids) == [79]
    assert pb.GpuHealth.Name(wire.health).removeprefix("GPU_HEALTH_").lower() in {
        health.value,
        "unspecified",
    }


def test_a_group_without_numbers_sends_none():
    one = sent(
        Sample(instance="a", observed_at=0.0, sequence=1, engine=EngineFacts(), gpu=GpuGroup())
    )
    assert not one.gpu.HasField("vram_ratio")
    assert not one.gpu.HasField("vram_free_bytes")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            pb.ServerMessage(welcome=pb.Welcome(interval_ms=250, server_version="9", protocol=1)),
            Welcome(0.25, "9", 1),
        ),
        (pb.ServerMessage(welcome=pb.Welcome()), Welcome(None)),
        (
            pb.ServerMessage(
                refusal=pb.Refusal(instance="a", code="UNKNOWN_INSTANCE", reason="who?")
            ),
            Refusal("a", "UNKNOWN_INSTANCE", "who?"),
        ),
        (pb.ServerMessage(refusal=pb.Refusal(code=99)), Refusal("", "99", "")),
        (
            pb.ServerMessage(
                ack=pb.Ack(taken=[pb.Ack.Taken(instance="a", sequence=4, drained=True)])
            ),
            Ack({"a": Taken(4, drained=True)}),
        ),
        (pb.ServerMessage(), None),
    ],
    ids=["welcome", "no wish", "refusal", "a code of a newer server", "ack", "a newer message"],
)
def test_the_servers_messages_are_understood(message, expected):
    assert encode.decode(message.SerializeToString()) == expected


def test_bytes_that_are_no_message_are_told_apart():
    with pytest.raises(encode.UnreadableMessageError):
        encode.decode(b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("configured", "environment", "name"),
    [
        ("mine", {"NODE_NAME": "node"}, "mine"),
        ("", {"NODE_NAME": "node"}, "node"),
        ("", {"NODE_NAME": " "}, "pod-7f"),
        ("", {}, "pod-7f"),
    ],
)
def test_the_agents_name_is_configured_then_the_nodes_then_the_hosts(configured, environment, name):
    assert agent_name(configured, environment, "pod-7f") == name


def test_the_configuration_hash_tells_configurations_apart():
    assert config_hash("a") == config_hash("a") != config_hash("b")
    assert len(config_hash("a")) == 12
