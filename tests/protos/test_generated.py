from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from fleet_protos.telemetry.v1 import telemetry_pb2 as pb
from sidecar_agent import encode
from sidecar_agent.engine.facts import EngineFacts
from sidecar_agent.join import Sample

ROOT = Path(__file__).resolve().parents[2]
GENERATE = ROOT / "protos" / "generate.py"


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate_protos", GENERATE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_regenerating_changes_nothing(generate, tmp_path):
    written = generate.generate(tmp_path)
    assert {path.as_posix().removesuffix("i") for path in written} == {
        "istio/mcp/v1alpha1/resource_pb2.py",
        "istio/networking/v1alpha3/destination_rule_pb2.py",
        "istio/networking/v1alpha3/service_entry_pb2.py",
        "istio/networking/v1alpha3/virtual_service_pb2.py",
        "telemetry/v1/telemetry_pb2.py",
    }
    for path in written:
        assert (tmp_path / path).read_bytes() == (generate.TARGET / path).read_bytes(), path
    assert generate.stale() == []


def test_stale_code_is_named(generate, monkeypatch, tmp_path):
    monkeypatch.setattr(generate, "TARGET", tmp_path)
    assert len(generate.stale()) == 10


def test_the_check_is_a_command():
    done = subprocess.run([sys.executable, GENERATE, "--check"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def newer(name: str):
    """Return a message class of the next revision: every message has one more field."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    file.name = "newer.proto"

    def extend(messages):
        for message in messages:
            message.field.add(name="from_the_future", number=1000, type=9, label=1)
            extend(message.nested_type)

    extend(file.message_type)
    for enum in file.enum_type:
        enum.value.add(name=f"{enum.name}_FROM_THE_FUTURE", number=1000)
    del file.service[:]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"fleet.telemetry.v1.{name}"))


def test_a_newer_agents_message_is_understood_and_survives():
    message = newer("AgentMessage")()
    sample = message.samples.samples.add(instance="a", sequence=3, from_the_future="x")
    sample.engine.kv_ratio = 0.5
    sample.engine.from_the_future = "y"
    sample.engine.state = 1000
    raw = message.SerializeToString()
    ours = pb.AgentMessage.FromString(raw)
    (one,) = ours.samples.samples
    assert (one.instance, one.sequence, one.engine.kv_ratio) == ("a", 3, 0.5)
    assert one.engine.state == 1000
    assert type(message).FromString(ours.SerializeToString()) == message, "nothing is lost"


def test_a_newer_servers_message_is_understood():
    message = newer("ServerMessage")()
    message.welcome.interval_ms = 500
    message.welcome.from_the_future = "x"
    assert encode.decode(message.SerializeToString()) == encode.Welcome(0.5)
    future = newer("ServerMessage")()
    future.from_the_future = "only this"
    assert encode.decode(future.SerializeToString()) is None


def test_a_newer_server_reads_what_this_agent_sends():
    facts = EngineFacts(kv_ratio=0.25)
    raw = encode.samples([Sample(instance="a", observed_at=0, sequence=1, engine=facts)], now=0.5)
    (one,) = newer("AgentMessage").FromString(raw).samples.samples
    assert (one.engine.kv_ratio, one.sample_age_ms) == (0.25, 500)
    assert not one.from_the_future


NUMBERS = {
    "AgentMessage": "hello=1 samples=2",
    "Hello": "agent=1 epoch=2 instances=3 agent_version=4 protocol=5 config_hash=6",
    "OwnedInstance": "name=1 address=2 model=3 tier=4 capacity=5 engine=6 gpu_uuids=7",
    "Samples": "samples=1",
    "Sample": "instance=1 sample_age_ms=2 sequence=3 engine=4 gpu=5 devices=6 draining=7",
    "EngineFacts": (
        "state=1 detail=2 kv_ratio=3 kv_ratio_mean=4 waiting=5 running=6 preemptions_total=7 "
        "prompt_tokens_total=8 generation_tokens_total=9 finished_total=10 slots=11 "
        "kv_capacity_tokens=12 reserved_ratio=13 restarts=14 out_of_memory=15 "
        "token_probe=16"
    ),
    "TokenProbe": "result=1 row=2 took_ms=3",
    "GpuFacts": "health=1 detail=2 memory_kind=3 vram_ratio=4 vram_free_bytes=5 shared=6",
    "Fact": "status=1 value=2 error=3",
    "GpuDevice": (
        "uuid=1 index=2 name=3 memory_total_bytes=4 memory_used_bytes=5 memory_reserved_bytes=6 "
        "memory_free_bytes=7 utilization_ratio=8 temperature_celsius=9 power_watts=10 "
        "clocks_event_reasons=11 recovery_action=12 recent_xids=13 parent_uuid=14 health=15"
    ),
    "ServerMessage": "welcome=1 refusal=2 ack=3",
    "Welcome": "interval_ms=1 server_version=2 protocol=3",
    "Refusal": "instance=1 code=2 reason=3",
    "Ack": "taken=1",
}


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_published_field_numbers_never_change(name):
    fields = pb.DESCRIPTOR.message_types_by_name[name].fields_by_name
    published = dict(pair.split("=") for pair in NUMBERS[name].split())
    assert {field: str(fields[field].number) for field in published} == published


def test_every_message_is_under_that_watch():
    assert set(NUMBERS) == set(pb.DESCRIPTOR.message_types_by_name)
