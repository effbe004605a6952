from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from xds_server.core.sample import (
    EngineFacts,
    EngineState,
    GpuHealth,
    MemoryKind,
    TokenProbe,
    TokenResult,
)
from xds_server.ingest.decode import (
    MAX_MESSAGE_BYTES,
    MAX_TEXT,
    Decoded,
    Hello,
    Rejected,
    decode_hello,
    decode_sample,
    parse,
)

NOW = 5000.0


def decode(message: pb.Sample) -> Decoded | Rejected:
    return decode_sample(message, agent="host-1", now=NOW, max_age_s=30.0)


def test_every_fact_of_a_sample_arrives_under_its_name():
    message = pb.Sample(
        instance="a",
        sample_age_ms=250,
        sequence=7,
        draining=True,
        engine=pb.EngineFacts(
            state=pb.ENGINE_STATE_UP,
            detail="fine",
            kv_ratio=0.5,
            waiting=3,
            running=4,
            preemptions_total=1,
            prompt_tokens_total=10,
            generation_tokens_total=20,
            finished_total=5,
            slots=40,
            kv_capacity_tokens=1000,
            reserved_ratio=0.9,
            restarts=2,
            out_of_memory=True,
        ),
        gpu=pb.GpuFacts(
            health=pb.GPU_HEALTH_LOST,
            detail="gone",
            memory_kind=pb.MEMORY_KIND_DEDICATED,
            vram_ratio=0.93,
            vram_free_bytes=0,
            shared=True,
        ),
    )
    decoded = decode(message)
    assert isinstance(decoded, Decoded)
    assert decoded.sequence == 7
    sample = decoded.sample
    assert (sample.instance, sample.agent, sample.draining) == ("a", "host-1", True)
    assert sample.observed_at == NOW - 0.25
    engine = sample.engine
    assert engine.state is EngineState.UP
    assert (engine.kv_ratio, engine.waiting, engine.running) == (0.5, 3, 4)
    assert (engine.preemptions_total, engine.finished_total, engine.restarts) == (1, 5, 2)
    assert (engine.prompt_tokens_total, engine.generation_tokens_total) == (10, 20)
    assert (engine.slots, engine.kv_capacity_tokens, engine.reserved_ratio) == (40, 1000, 0.9)
    assert engine.out_of_memory
    gpu = sample.gpu
    assert gpu is not None
    assert (gpu.health, gpu.memory_kind) == (GpuHealth.LOST, MemoryKind.DEDICATED)
    assert (gpu.vram_ratio, gpu.vram_free_bytes, gpu.shared) == (0.93, 0, True)


def test_what_is_absent_stays_missing_and_is_not_zero():
    decoded = decode(pb.Sample(instance="a", engine=pb.EngineFacts(waiting=0)))
    assert isinstance(decoded, Decoded)
    engine = decoded.sample.engine
    assert engine.waiting == 0
    assert engine.kv_ratio is None
    assert engine.running is None
    assert engine.state is EngineState.UNKNOWN
    assert decoded.sample.gpu is None


@pytest.mark.parametrize(
    ("number", "result"),
    [
        (pb.TOKEN_RESULT_UNSPECIFIED, TokenResult.UNKNOWN),
        (pb.TOKEN_RESULT_OK, TokenResult.OK),
        (pb.TOKEN_RESULT_BUSY, TokenResult.BUSY),
        (pb.TOKEN_RESULT_SILENT, TokenResult.SILENT),
        (pb.TOKEN_RESULT_FAILED, TokenResult.FAILED),
        (77, TokenResult.UNKNOWN),
    ],
)
def test_what_came_of_asking_for_a_token_is_read(number, result):
    probe = pb.TokenProbe(result=number, row=3, took_ms=800)
    decoded = decode(pb.Sample(instance="a", engine=pb.EngineFacts(token_probe=probe)))
    assert isinstance(decoded, Decoded)
    assert decoded.sample.engine == EngineFacts(token_probe=TokenProbe(result, 3, 0.8))


def test_states_of_a_newer_agent_are_unknown_and_not_an_error():
    message = pb.Sample(instance="a", engine=pb.EngineFacts(), gpu=pb.GpuFacts())
    message.engine.state = 99
    message.gpu.health = 99
    decoded = decode(pb.Sample.FromString(message.SerializeToString()))
    assert isinstance(decoded, Decoded)
    assert decoded.sample.engine.state is EngineState.UNKNOWN
    assert decoded.sample.gpu is not None
    assert decoded.sample.gpu.health is GpuHealth.UNKNOWN


@pytest.mark.parametrize(
    ("engine", "gpu", "text"),
    [
        pytest.param({"kv_ratio": 17.0}, {}, "kv_ratio 17 is not within 0-1", id="kv-percent"),
        pytest.param({"kv_ratio": -0.1}, {}, "kv_ratio -0.1 is not within 0-1", id="kv-negative"),
        pytest.param({"kv_ratio": math.nan}, {}, "kv_ratio nan is not within 0-1", id="kv-nan"),
        pytest.param({"waiting": -1.0}, {}, "waiting -1 is not a count", id="negative-queue"),
        pytest.param({"running": math.inf}, {}, "running inf is not a count", id="infinite"),
        pytest.param(
            {"finished_total": 1e300}, {}, "finished_total 1e+300 is not a count", id="big"
        ),
        pytest.param({}, {"vram_ratio": 1.5}, "vram_ratio 1.5 is not within 0-1", id="vram"),
    ],
)
def test_a_number_that_cannot_be_true_condemns_its_sample(engine, gpu, text):
    message = pb.Sample(
        instance="a", engine=pb.EngineFacts(**engine), gpu=pb.GpuFacts(**gpu) if gpu else None
    )
    assert decode(message) == Rejected("out_of_range", text, "a")


def test_rounding_just_above_one_is_one():
    decoded = decode(pb.Sample(instance="a", engine=pb.EngineFacts(kv_ratio=1.0004)))
    assert isinstance(decoded, Decoded)
    assert decoded.sample.engine.kv_ratio == 1.0


def test_a_sample_without_instance_or_too_old_is_rejected():
    nameless = decode(pb.Sample())
    assert isinstance(nameless, Rejected)
    assert nameless.reason == "no_instance"
    old = decode(pb.Sample(instance="a", sample_age_ms=30_001))
    assert old == Rejected("too_old", "30.0 s old; at most 30 s are used", "a")


def test_long_texts_are_cut():
    decoded = decode(pb.Sample(instance="a", engine=pb.EngineFacts(detail="x" * 5000)))
    assert isinstance(decoded, Decoded)
    assert len(decoded.sample.engine.detail) == MAX_TEXT


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"\xff\xff\xff", "broken_message", id="broken"),
        pytest.param(b"\x0a\x05ab", "broken_message", id="truncated"),
        pytest.param(bytes(MAX_MESSAGE_BYTES + 1), "oversize", id="oversize"),
    ],
)
def test_bytes_that_are_no_message_are_rejected(body, reason):
    rejected = parse(body)
    assert isinstance(rejected, Rejected)
    assert rejected.reason == reason


def hello(**fields) -> Hello | Rejected:
    values = {"agent": "host-1", "epoch": 1, "instances": [pb.OwnedInstance(name="a")]}
    return decode_hello(pb.AgentMessage(hello=pb.Hello(**(values | fields))))


def test_a_hello_names_the_agent_its_run_and_what_it_owns():
    owned = pb.OwnedInstance(
        name="a", address="10.0.0.1:80", model="chat", tier="primary", capacity=8
    )
    found = hello(instances=[owned], agent_version="1.2", config_hash="abc", protocol=1)
    assert isinstance(found, Hello)
    assert (found.agent, found.epoch, found.agent_version) == ("host-1", 1, "1.2")
    (claim,) = found.claims
    assert (claim.name, claim.address, claim.capacity) == ("a", "10.0.0.1:80", 8)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param({"agent": ""}, "hello.agent is no name", id="no-name"),
        pytest.param({"agent": "x" * 500}, "hello.agent is no name", id="long-name"),
        pytest.param({"agent": "a\nb"}, "hello.agent is no name", id="line-break"),
        pytest.param({"agent": "a\x1b[2J"}, "hello.agent is no name", id="control-character"),
        pytest.param({"epoch": 0}, "hello.epoch is missing", id="no-epoch"),
        pytest.param({"instances": [pb.OwnedInstance()]}, "empty or twice", id="nameless"),
        pytest.param(
            {"instances": [pb.OwnedInstance(name="a"), pb.OwnedInstance(name="a")]},
            "empty or twice",
            id="twice",
        ),
        pytest.param(
            {"instances": [pb.OwnedInstance(name="a", capacity=0)]}, "capacity 0", id="capacity-0"
        ),
        pytest.param(
            {"instances": [pb.OwnedInstance(name="a", capacity=math.nan)]}, "capacity", id="nan"
        ),
    ],
)
def test_a_hello_that_says_too_little_is_rejected(fields, text):
    rejected = hello(**fields)
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "bad_hello"
    assert text in rejected.text


def test_samples_before_the_hello_are_rejected():
    rejected = decode_hello(pb.AgentMessage(samples=pb.Samples()))
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "no_hello"


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_rejected_and_never_raise(body):
    message = parse(body)
    if isinstance(message, Rejected):
        return
    decode_hello(message)
    for sample in message.samples.samples:
        decode(sample)


@given(
    st.builds(
        pb.EngineFacts,
        kv_ratio=st.floats(),
        waiting=st.floats(),
        running=st.floats(),
        reserved_ratio=st.floats(),
    )
)
def test_what_is_accepted_is_always_in_range(facts):
    decoded = decode(pb.Sample(instance="a", engine=facts))
    if isinstance(decoded, Decoded):
        engine = decoded.sample.engine
        assert engine.kv_ratio is not None
        assert 0 <= engine.kv_ratio <= 1
        assert engine.waiting is not None
        assert 0 <= engine.waiting < 1e15
