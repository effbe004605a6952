"""Classes of requests in the fleet's plan, across evaluations, changes and restarts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.fakes.brain import sample, small_fleet
from tests.fakes.plans import a_model, a_topology
from xds_server.admin.status import gauges_of_fleet
from xds_server.core.model import ClassName, ModelName, RequestClass, WhenCritical
from xds_server.core.policy import Policy
from xds_server.fleet import Fleet
from xds_server.observability.metrics import METRICS

CHAT = ModelName("chat")
CLASSES = (
    RequestClass(name=ClassName("core"), header="x-class", value="core"),
    RequestClass(name=ClassName("rest")),
)
TOPOLOGY = replace(a_topology(a_model()), classes=CLASSES)


def class_ratios(plan):
    return [each.demand_ratio for each in plan.models[0].classes]


def as_json(document):
    """Write and read a dump, as the state file does."""
    models = {name: make() for name, make in document["models"].items()}
    return json.loads(json.dumps(document | {"models": models}))


def test_a_fleet_without_classes_plans_none():
    fleet = Fleet(a_topology(), Policy(), 0.0)
    plan = fleet.evaluate([], 0.0)
    fleet.saw_requests(CHAT, {ClassName("core"): 5}, 0.0)
    assert plan.models[0].classes == ()
    assert fleet.evaluate([], 1.0).models is plan.models
    document = fleet.dump(1.0)
    assert document is not None
    assert "classes" not in document


def test_an_evaluation_that_moves_nothing_keeps_the_plan_of_the_classes():
    fleet = Fleet(TOPOLOGY, Policy(), 0.0)
    first = fleet.evaluate([], 0.0)
    assert [each.name for each in first.models[0].classes] == ["core", "rest"]
    assert fleet.evaluate([], 0.5).models is first.models


def test_what_proxies_saw_moves_the_shares_with_the_next_evaluation():
    fleet = Fleet(TOPOLOGY, Policy(), 0.0)
    assert class_ratios(fleet.evaluate([], 0.0)) == [0.5, 0.5]
    fleet.saw_requests(CHAT, {ClassName("core"): 980, ClassName("rest"): 20}, 1.0)
    assert class_ratios(fleet.evaluate([], 1.0)) == pytest.approx([0.97, 0.03], abs=0.01)


def test_a_successor_goes_on_with_what_was_seen():
    fleet = Fleet(TOPOLOGY, Policy(), 0.0)
    fleet.saw_requests(CHAT, {ClassName("core"): 980, ClassName("rest"): 20}, 0.0)
    before = fleet.evaluate([], 0.0)
    document = fleet.dump(0.0)
    assert document is not None
    successor = Fleet(TOPOLOGY, Policy(), 100.0)
    successor.restore(as_json(document), 100.0)
    assert class_ratios(successor.evaluate([], 100.0)) == class_ratios(before)


def test_a_kept_state_of_before_there_were_classes_is_good():
    document = Fleet(a_topology(), Policy(), 0.0)
    document.evaluate([], 0.0)
    kept = document.dump(0.0)
    assert kept is not None
    successor = Fleet(TOPOLOGY, Policy(), 100.0)
    successor.restore(as_json(kept), 100.0)
    assert class_ratios(successor.evaluate([], 100.0)) == [0.5, 0.5]


def test_a_broken_part_about_classes_is_refused_with_its_path():
    fleet = Fleet(TOPOLOGY, Policy(), 0.0)
    fleet.evaluate([], 0.0)
    document = fleet.dump(0.0)
    assert document is not None
    broken = as_json(document) | {"classes": 7}
    with pytest.raises(ValueError, match=r"state\.classes: 7; expected names and models"):
        Fleet(TOPOLOGY, Policy(), 0.0).restore(broken, 0.0)


def test_other_classes_take_over_at_a_change_of_the_configuration():
    fleet = Fleet(TOPOLOGY, Policy(), 0.0)
    fleet.saw_requests(CHAT, {ClassName("core"): 900, ClassName("rest"): 100}, 0.0)
    fleet.evaluate([], 0.0)
    added = RequestClass(name=ClassName("batch"), prefix="/v1/batch/")
    fleet.reconfigure(replace(TOPOLOGY, classes=(*CLASSES, added)), Policy(), 1.0)
    names = [each.name for each in fleet.evaluate([], 1.0).models[0].classes]
    assert names == ["core", "rest", "batch"]
    fleet.reconfigure(a_topology(), Policy(), 2.0)
    assert fleet.evaluate([], 2.0).models[0].classes == ()


def test_the_shares_of_classes_are_measured():
    shed = RequestClass(name=ClassName("batch"), prefix="/b", when_critical=WhenCritical.STATIC)
    fleet = Fleet(replace(TOPOLOGY, classes=(*CLASSES, shed)), Policy(), 0.0)
    readings = gauges_of_fleet(fleet.evaluate([], 0.0), {}, fleet.vram_tripped, 0.0)
    found = {(name, labels): value for name, labels, value in readings}
    assert found["fleet_class_demand_ratio", ("chat", "core")] == pytest.approx(1 / 3)
    assert found["fleet_class_share_ratio", ("chat", "core", "primary")] == 1.0
    assert found["fleet_class_share_ratio", ("chat", "batch", "static")] == 0.0
    assert found["fleet_class_shed", ("chat", "batch")] == 0.0
    assert all(name in METRICS for name, _ in found)


class Pressed:
    """A fleet of three engines in the first tier, and samples that tell how they are."""

    def __init__(self, *request_classes):
        self.fleet = Fleet(replace(small_fleet(), classes=request_classes), Policy(), 0.0)
        self.now = 0.0
        self.served = 0.0
        self.events = []

    def run(self, seconds, *, per_engine_s, **engine):
        """Let time pass while every engine completes so many requests/s."""
        for _ in range(seconds):
            self.now += 1.0
            self.served += per_engine_s
            facts = {"running": 40.0, "finished_total": self.served} | engine
            samples = [sample(name, self.now, **facts) for name in ("a", "b", "c", "f")]
            plan = self.fleet.evaluate(samples, self.now)
            self.events += [(each.name, each.after) for each in plan.events if not each.instance]
        return {each.name: each for each in plan.models[0].classes}


def test_an_overload_is_taken_from_the_last_class():
    core, rest = (
        replace(each, demand_ratio=ratio) for each, ratio in zip(CLASSES, (0.2, 0.8), strict=True)
    )
    pressed = Pressed(core, rest)
    plans = pressed.run(10, per_engine_s=5.0, running=10.0)
    assert plans["rest"].weights == (1000, 0, 0)
    while (first := pressed.fleet.plan.models[0].tiers[0]).share > 0.9:
        plans = pressed.run(1, per_engine_s=5.0, kv_ratio=0.97, waiting=30.0)
        assert pressed.now < 60.0
    assert first.share > 0.2
    assert plans["core"].weights == (1000, 0, 0)
    spilled = 1.0 - plans["rest"].weights[0] / 1000
    assert spilled == pytest.approx((1.0 - first.share) / 0.8, abs=0.002)


def test_the_last_class_is_shed_while_critical_and_served_again_after():
    core, rest = CLASSES
    pressed = Pressed(core, replace(rest, when_critical=WhenCritical.REJECT))
    pressed.run(10, per_engine_s=5.0, running=10.0)
    plans = pressed.run(10, per_engine_s=5.0, kv_ratio=0.97, waiting=30.0)
    assert plans["rest"].is_rejected
    assert not plans["core"].is_rejected
    plans = pressed.run(30, per_engine_s=5.0, kv_ratio=0.3, waiting=0.0, running=10.0)
    assert not plans["rest"].is_rejected
    shed = [each for each in pressed.events if each[0].startswith("class_")]
    assert shed == [("class_shed", "rest"), ("class_served", "rest")]
