"""The divider between the proxies that are there, the cache that serves them, and the file that outlives it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.fakes.waiting import PATIENCE_S
from xds_server.core.model import Topology
from xds_server.core.policy import AdmissionPolicy
from xds_server.ingest.registry import Registry
from xds_server.loop.limit_divider import LimitDivider
from xds_server.loop.state_file import StateFile
from xds_server.loop.state_keeper import StateKeeper
from xds_server.observability.metrics import Tally
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import Resource, Snapshot, TypeSnapshot
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.node import Proxy

POLICY = AdmissionPolicy(settle_s=0.01, absent_s=0.01)


class Bench:
    def __init__(self, **more):
        self.now = 0.0
        self.there = set()
        self.asked = {}
        self.saved = 0
        self.cache = SnapshotCache()
        self.cache.publish(Capability.COMPOSITE, Snapshot({}, lambda _: TypeSnapshot("t", {})))
        self.divider = LimitDivider(
            cache=self.cache,
            proxies=lambda: self.there,
            policy=lambda: POLICY,
            clock=lambda: self.now,
            demand=lambda: self.asked,
            divided=self.save,
            **more,
        )

    def save(self):
        self.saved += 1

    def is_served(self, name):
        return self.cache.served(Proxy(name, "", "envoy", "", Capability.COMPOSITE)) is not None

    def part(self, name):
        return self.cache.part(Proxy(name, "", "envoy", "", Capability.COMPOSITE))

    def step(self, after_s):
        self.now += after_s
        self.divider.step()


def test_proxies_are_served_once_they_have_a_part():
    bench = Bench()
    bench.there = {"a", "b"}
    bench.step(0.0)
    assert not bench.is_served("a")
    bench.step(0.02)
    assert bench.is_served("a")
    assert bench.divider.parts == {"a": 0.5, "b": 0.5}
    assert bench.saved == 1
    bench.step(1.0)
    assert bench.saved == 1


def test_more_is_served_once_less_was_accepted():
    accepted: set[str] = set()
    bench = Bench(accepted=lambda: accepted, adopted={"a": 1.0})
    bench.there = {"a"}
    bench.step(0.0)
    bench.there = {"a", "b"}
    bench.step(40.0)
    bench.step(1.0)
    assert bench.divider.parts == {"a": 0.5, "b": 0.5}
    assert bench.part("a") == 0.5
    assert bench.part("b") < 0.01
    saved = bench.saved
    bench.step(POLICY.absent_s / 2)
    assert bench.part("b") < 0.01
    accepted.add("a")
    bench.step(0.0)
    assert bench.part("b") == 0.5
    assert bench.saved == saved, "what it shall have was known before"


def test_without_limits_nothing_is_divided_and_everybody_is_served():
    bench = Bench()
    bench.cache.publish(
        Capability.COMPOSITE, Snapshot({"t": TypeSnapshot("t", {"r": Resource.of("r", b"")})})
    )
    bench.there = {"a"}
    bench.step(0.0)
    bench.step(1.0)
    assert bench.divider.parts == {}
    assert bench.is_served("a")


def test_limits_that_come_later_wake_the_divider():
    bench = Bench()
    bench.divider.changed.clear()
    world = Snapshot(
        {"t": TypeSnapshot("t", {"r": Resource.of("r", b"")})}, lambda _: TypeSnapshot("t", {})
    )
    bench.cache.publish(Capability.COMPOSITE, world)
    assert bench.divider.changed.is_set()


def test_parts_of_an_earlier_run_are_served_at_once():
    bench = Bench(adopted={"a": 0.75, "b": 0.25})
    assert bench.is_served("a")
    assert not bench.is_served("c")


async def test_it_runs_when_somebody_comes_and_when_it_is_time():
    bench = Bench()
    loop = asyncio.get_running_loop()
    started = loop.time()
    divider = LimitDivider(
        cache=bench.cache,
        proxies=lambda: bench.there,
        policy=lambda: POLICY,
        clock=loop.time,
    )
    running = asyncio.create_task(divider.run())
    await asyncio.sleep(0)
    bench.there = {"a"}
    divider.changed.set()
    async with asyncio.timeout(PATIENCE_S):
        while not divider.parts:
            await asyncio.sleep(0.005)
    assert loop.time() - started < 4.0
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param({"parts": {"a": 0.5, "b": 1}}, {"a": 0.5, "b": 1.0}, id="parts"),
        pytest.param({}, {}, id="a file of an older version"),
        pytest.param({"parts": [0.5]}, {}, id="something else"),
        pytest.param({"parts": {"a": "0.5", "b": True, "c": None}}, {}, id="no numbers"),
    ],
)
def test_parts_survive_in_the_state_file(tmp_path: Path, written, read):
    file = StateFile(tmp_path)
    file.write({"brain": {}, **written})
    keeper = StateKeeper(file, Registry(Topology(models=())), Tally(), lambda: 0.0)
    keeper.read()
    assert keeper.read_parts() == read


def test_without_a_state_file_there_are_no_parts(tmp_path: Path):
    keeper = StateKeeper(StateFile(tmp_path), Registry(Topology(models=())), Tally(), lambda: 0.0)
    keeper.read()
    assert keeper.read_parts() == {}


def test_an_id_that_several_proxies_share_for_long_is_told_once():
    shared = {}
    bench = Bench(shared=lambda: shared)
    bench.there = {"a", "b"}

    def told(after_s):
        with capture_logs() as logged:
            bench.step(after_s)
        warned = [each for each in logged if each["event"] == "proxy_id_shared"]
        return [(each["proxy"], each["proxies"]) for each in warned]

    assert told(0.0) == []
    shared["a"] = 2
    assert told(5.0) == told(50.0) == [], "the stream before it may be half-open still"
    assert told(15.0) == [("a", 2)]
    shared["a"] = 3
    assert told(5.0) == []
    shared.clear()
    assert told(5.0) == []
    shared["a"] = 2
    assert told(5.0) == []
    assert told(60.0) == [("a", 2)]
