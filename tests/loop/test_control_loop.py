from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from tests.fakes.waiting import PATIENCE_S
from xds_server.clock import ManualClock
from xds_server.core.inputs import Drain
from xds_server.core.model import InstanceId
from xds_server.core.policy import Policy
from xds_server.core.sample import EngineFacts, EngineState, Sample
from xds_server.fleet import Fleet
from xds_server.loop.control_loop import RETRY_S, ControlLoop
from xds_server.observability.metrics import Tally
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import ENDPOINT, Resource, Snapshot, TypeSnapshot

COMPOSITE = Capability.COMPOSITE


class FakeBuilder:
    """Writes the weights of a plan as the only resource; fails when told to."""

    def __init__(self, topology, policy, capability):
        self.topology = topology
        self.fails = False

    def build(self, plan):
        if self.fails:
            raise RuntimeError("no resources today")
        names = [i.id for m in plan.models for t in m.tiers for i in t.instances]
        assert names == [each.id for _, _, each in self.topology.instances()]
        body = repr(
            [
                (t.weight, [(i.id, i.weight, i.health) for i in t.instances])
                for m in plan.models
                for t in m.tiers
            ]
        ).encode()
        return Snapshot({ENDPOINT: TypeSnapshot(ENDPOINT, {"a": Resource.of("a", body)})})


class Rig:
    def __init__(self, topology, gap_s=0.05):
        self.clock = ManualClock()
        self.tally = Tally()
        self.published: list[tuple[float, Capability, Snapshot]] = []
        self.builders: list[FakeBuilder] = []
        self.loop = ControlLoop(
            fleet=Fleet(topology, Policy(), self.clock()),
            make_builder=self._builder,
            publish=lambda which, what: self.published.append((self.clock(), which, what)),
            clock=self.clock,
            tally=self.tally,
            push_gap_s=gap_s,
            capabilities=(COMPOSITE,),
            cpu_clock=self.clock,
        )

    def _builder(self, *what):
        self.builders.append(FakeBuilder(*what))
        return self.builders[-1]

    async def warm(self):
        await self.loop.prepare()
        self.loop.warm_up()
        self.turn()
        # After a start, corrections ease in: a minute of quiet telemetry, and numbers are what they are.
        for _ in range(120):
            for _, _, each in self.loop.fleet.topology.instances():
                self.say(each.id)
            self.turn()
            self.clock.advance(1)
        self.published.clear()
        return self

    def turn(self) -> bool:
        """Do what `run` would do now: a step if one is due."""
        if self.loop.due() > self.clock():
            return False
        self.loop.step()
        return True

    def say(self, name="a", state=EngineState.UP, kv=0.2, waiting=0.0, **more):
        facts = EngineFacts(state=state, kv_ratio=kv, waiting=waiting, running=1.0)
        self.loop.offer(
            Sample(instance=InstanceId(name), observed_at=self.clock(), engine=facts, **more)
        )

    def errors(self, stage):
        return self.tally.count("fleet_control_loop_errors_total", stage)


async def test_nothing_is_published_before_the_state_is_warm(topology):
    rig = Rig(topology("a", "b"))
    await rig.loop.prepare()
    rig.say()
    assert rig.turn()
    assert rig.published == []
    rig.loop.warm_up()
    assert rig.turn()
    assert len(rig.published) == 1


async def test_an_isolated_change_is_evaluated_and_pushed_at_once(topology):
    rig = await Rig(topology("a", "b")).warm()
    rig.say("a")
    rig.say("b", kv=0.9, waiting=20)
    assert rig.turn()
    assert [at for at, *_ in rig.published] == [rig.clock()]


async def test_under_a_storm_there_is_one_push_per_gap(topology):
    rig = await Rig(topology("a", "b"), gap_s=0.05).warm()
    for tick in range(1000):
        rig.say("a", kv=(tick * 7 % 100) / 100)
        rig.say("b", kv=(tick * 13 % 100) / 100)
        rig.turn()
        rig.clock.advance(0.001)
    times = [at for at, *_ in rig.published]
    assert len(times) >= 2
    assert all(after - before >= 0.0499 for before, after in itertools.pairwise(times))


async def test_what_was_decided_within_the_gap_is_pushed_when_it_is_over(topology):
    rig = await Rig(topology("a", "b"), gap_s=0.05).warm()
    rig.say("a")
    rig.say("b", kv=0.9, waiting=20)
    rig.turn()
    assert len(rig.published) == 1
    rig.clock.advance(0.01)
    rig.say("b", kv=0.1, waiting=0)
    rig.turn()
    assert len(rig.published) == 1
    assert rig.loop.due() == pytest.approx(rig.published[0][0] + 0.05)
    rig.clock.advance(0.04)
    assert rig.turn()
    assert len(rig.published) == 2


async def test_a_fault_does_not_wait_for_the_gap(topology):
    rig = await Rig(topology("a", "b"), gap_s=10).warm()
    rig.say("a")
    rig.say("b", kv=0.9, waiting=20)
    rig.turn()
    assert len(rig.published) == 1
    rig.clock.advance(0.001)
    rig.say("b", kv=0.1)
    rig.turn()
    assert len(rig.published) == 1, "decided, but its push waits"
    rig.say("a", state=EngineState.DOWN)
    assert rig.turn()
    assert len(rig.published) == 2
    assert b"unhealthy" in rig.published[-1][2].of_type(ENDPOINT).resources["a"].body


async def test_an_operators_drain_does_not_wait_and_is_told_when_published(topology):
    rig = await Rig(topology("a", "b"), gap_s=10).warm()
    drained = []
    rig.loop.on_published = drained.append
    for name in "ab":
        rig.say(name)
    rig.turn()
    rig.loop.drain(Drain(instance=InstanceId("a"), draining=True, who="me"))
    assert rig.turn()
    assert drained == [frozenset({"a"})]
    rig.loop.drain(Drain(instance=InstanceId("a"), draining=False, who="me"))
    assert rig.turn()
    assert drained[-1] == frozenset()


async def test_the_loop_thinks_again_at_the_plans_own_deadline(topology):
    rig = await Rig(topology("a")).warm()
    rig.say("a")
    rig.turn()
    deadline = rig.loop.due()
    assert rig.clock() < deadline < float("inf")
    rig.clock.now = deadline
    assert rig.turn()


async def test_equal_content_is_not_pushed(topology):
    rig = await Rig(topology("a", "b")).warm()
    for _ in range(20):
        rig.say("a")
        rig.say("b")
        rig.turn()
        rig.clock.advance(1)
    assert len(rig.published) <= 1


async def test_one_poisoned_sample_costs_nobody_else_their_evaluation(topology, monkeypatch):
    rig = await Rig(topology("a", "b")).warm()
    evaluate = rig.loop.fleet.evaluate

    def picky(inputs, now):
        if any(isinstance(each, Sample) and each.instance == "a" for each in inputs):
            raise ZeroDivisionError
        return evaluate(inputs, now)

    monkeypatch.setattr(rig.loop.fleet, "evaluate", picky)
    rig.say("a")
    rig.say("b", state=EngineState.DOWN)
    assert rig.turn()
    assert rig.errors("evaluate") == 2
    assert len(rig.published) == 1


async def test_a_brain_that_raises_keeps_the_last_plan_and_is_asked_again_later(
    topology, monkeypatch
):
    rig = await Rig(topology("a")).warm()
    last = rig.loop.fleet.plan

    def broken(inputs, now):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(rig.loop.fleet, "evaluate", broken)
        rig.say("a")
        assert rig.turn()
        assert rig.loop.fleet.plan is last
        assert rig.loop.due() == rig.clock() + RETRY_S
        assert not rig.turn()
    rig.clock.advance(RETRY_S)
    assert rig.turn()
    assert rig.loop.fleet.plan is not last


async def test_resources_that_cannot_be_built_keep_the_last_ones_and_are_tried_again(topology):
    rig = await Rig(topology("a", "b")).warm()
    last = rig.loop.snapshots[COMPOSITE]
    rig.builders[-1].fails = True
    rig.say("a", state=EngineState.DOWN)
    rig.turn()
    assert rig.errors("publish") == 1
    assert rig.loop.snapshots[COMPOSITE] is last
    rig.builders[-1].fails = False
    rig.clock.advance(RETRY_S)
    assert rig.turn()
    assert rig.loop.snapshots[COMPOSITE] is not last


async def test_another_topology_is_taken_over_between_two_evaluations(topology):
    rig = await Rig(topology("a", "b")).warm()
    rig.say("a")
    rig.turn()
    await rig.loop.reconfigure(topology("b", "c"), replace(Policy()))
    assert rig.loop.due() < rig.clock()
    rig.turn()
    assert b"'c'" in rig.published[-1][2].of_type(ENDPOINT).resources["a"].body
    assert set(rig.loop.latest) == {"b"}
    assert rig.loop.silent == {"c"}


async def test_a_topology_without_resources_leaves_everything_as_it_was(topology, monkeypatch):
    rig = await Rig(topology("a", "b")).warm()

    def refuse(*_):
        raise ValueError("not with me")

    monkeypatch.setattr(rig.loop, "_make_builder", refuse)
    with pytest.raises(ValueError, match="not with me"):
        await rig.loop.reconfigure(topology("c"), Policy())
    rig.say("a", state=EngineState.DOWN)
    assert rig.turn()
    assert len(rig.published) == 1


async def test_a_new_kind_of_proxy_gets_its_own_resources(topology):
    rig = await Rig(topology("a")).warm()
    await rig.loop.add_capability(Capability.AGGREGATE)
    await rig.loop.add_capability(Capability.AGGREGATE)
    rig.turn()
    assert [which for _, which, _ in rig.published] == [Capability.AGGREGATE]
    assert len(rig.builders) == 2, "what others are served is not made anew"


async def test_a_kind_of_proxy_whose_resources_cannot_be_made_is_tried_again(topology, monkeypatch):
    rig = await Rig(topology("a")).warm()
    make = rig.loop._make_builder

    def refuse(*_):
        raise MemoryError("not now")

    monkeypatch.setattr(rig.loop, "_make_builder", refuse)
    with pytest.raises(MemoryError):
        await rig.loop.add_capability(Capability.AGGREGATE)
    monkeypatch.setattr(rig.loop, "_make_builder", make)
    await rig.loop.add_capability(Capability.AGGREGATE)
    rig.turn()
    assert [which for _, which, _ in rig.published] == [Capability.AGGREGATE]


async def test_the_running_loop_sleeps_and_wakes_by_itself(topology):
    rig = Rig(topology("a", "b"))
    rig.loop._clock = asyncio.get_running_loop().time
    await rig.loop.prepare()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(rig.loop.run(), name="loop")
        rig.loop.warm_up()
        async with asyncio.timeout(PATIENCE_S):
            while not rig.published:
                await asyncio.sleep(0.001)
        evaluations = rig.tally.count("fleet_evaluations_total")
        await asyncio.sleep(0.1)
        assert rig.tally.count("fleet_evaluations_total") - evaluations <= 2
        rig.clock.now = asyncio.get_running_loop().time()
        rig.say("a", state=EngineState.DOWN)
        async with asyncio.timeout(PATIENCE_S):
            while len(rig.published) < 2:
                await asyncio.sleep(0.001)
        task.cancel()
