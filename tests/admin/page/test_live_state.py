"""What is sent of a state: all of it once, then the items that differ."""

from __future__ import annotations

import json

import pytest

from tests.fakes.live_stage import a_model, a_proxy
from xds_server.admin.live_state import InstanceTexts, LiveState, proxy_texts, written
from xds_server.core.model import InstanceId
from xds_server.core.plan import ClassPlan, EndpointHealth, Plan
from xds_server.core.sample import EngineFacts, GpuFacts, Sample
from xds_server.xds.syncz import SyncState


def a_sample(name: str, at: float) -> Sample:
    engine = EngineFacts(kv_ratio=0.5)
    return Sample(
        instance=InstanceId(name), observed_at=at, engine=engine, gpu=GpuFacts(vram_ratio=0.9)
    )


def plan(*models) -> Plan:
    return Plan(models=models, next_deadline=None)


def test_only_items_that_differ_are_sent_and_those_that_are_gone_as_null():
    before = LiveState(models={"a": "1", "b": "2"}, proxies={"p": "3"})
    after = LiveState(models={"a": "1", "c": "4"}, proxies={"p": "3"})
    changes = after.changes_since(before)
    assert changes == {"models": {"c": "4", "b": None}}
    assert json.loads("{" + ",".join(written(changes)) + "}") == {"models": {"c": 4, "b": None}}
    assert after.changes_since(after) == {}


def test_names_with_quotes_stay_json():
    text = "{" + ",".join(written({"proxies": {'a"b\n': "{}"}})) + "}"
    assert json.loads(text) == {"proxies": {'a"b\n': {}}}


def test_texts_of_what_stayed_the_same_are_the_same_objects():
    texts, model = InstanceTexts(), a_model(1000)
    latest = {InstanceId("chat-0"): a_sample("chat-0", 5.04)}
    models, instances = texts.of(plan(model), latest)
    again = texts.of(plan(model), latest)
    assert models["chat"] is again[0]["chat"]
    assert instances["chat-0"] is again[1]["chat-0"]
    latest = {InstanceId("chat-0"): a_sample("chat-0", 6.04)}
    _, moved = texts.of(plan(model), latest)
    assert json.loads(moved["chat-0"])["at_s"] == 6.0
    assert moved["chat-1"] is instances["chat-1"]
    assert texts.of(None, {}) == ({}, {})


def test_a_weight_is_told_as_its_part_of_the_model_and_none_where_no_request_goes():
    down = a_model(800, health=EndpointHealth.UNHEALTHY, ceiling=0.0)
    _, instances = InstanceTexts().of(plan(down), {})
    found = {name: json.loads(text) for name, text in instances.items()}
    assert (found["chat-0"]["weight"], found["chat-0"]["share"]) == (0, 0.0)
    assert found["chat-1"]["share"] == 0.8
    assert found["chat-small"]["share"] == 0.2
    assert found["chat-0"]["at_s"] is None, "never heard is no age"
    assert "kv" not in found["chat-0"]


def test_classes_are_told_with_their_weights():
    model = a_model()
    model.classes = (ClassPlan("core", 0.25, (900, 100, 0), False, False, model.tiers[0].reason),)
    models, _ = InstanceTexts().of(plan(model), {})
    (found,) = json.loads(models["chat"])["classes"]
    assert (found["name"], found["demand_ratio"], found["weights"]) == ("core", 0.25, [900, 100, 0])


@pytest.mark.parametrize("state", list(SyncState))
def test_a_proxy_stands_as_its_worst_type(state):
    (text,) = proxy_texts([a_proxy("edge", state)], 100.0).values()
    found = json.loads(text)
    assert found["state"] == state.value
    assert {each["sent_at_s"] for each in found["types"]} == {
        97.0 if state is SyncState.STALE else None
    }


def test_two_streams_of_one_proxy_are_two_rows():
    assert list(proxy_texts([a_proxy("edge"), a_proxy("edge")], 1.0)) == ["edge", "edge (2)"]
