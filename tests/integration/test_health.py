"""Active health checks on a real Envoy: what they add, and what they may not overrule."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.fakes.chain import chain_lab
from tests.fakes.plans import a_plan
from tests.fakes.scripted_engine import ScriptedEngine
from xds_server.core.plan import EndpointHealth
from xds_server.core.policy import FailurePolicy, HealthPolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability

pytestmark = pytest.mark.envoy

QUICK = HealthPolicy(
    active=True, interval_s=0.2, timeout_s=2.0, unhealthy=2, healthy=2, return_s=0.0
)
FAILURES = FailurePolicy(header_timeout_s=0.5, answer_timeout_s=None)
A, B = "primary-0", "primary-1"


def two() -> list[list[ScriptedEngine]]:
    return [
        [ScriptedEngine("llama-3-70b", headers={"x-engine": name}) for name in (A, B)],
        [ScriptedEngine("llama-3-8b", headers={"x-engine": "fallback"})],
    ]


class Checked:
    def __init__(self, lab):
        self.lab = lab

    async def spread(self, count=60):
        return Counter([(await self.lab.ask()).headers.get("x-engine") for _ in range(count)])

    async def status(self):
        return (await self.lab.envoy.clusters())["chat/primary"][0]["health_status"]

    async def is_out(self, *, out=True):
        async def probe():
            return bool((await self.status()).get("failed_active_health_check")) is out

        await self.lab.envoy.until(probe, what=f"the check to say out={out}")

    async def shows(self, expected, *, among=60):
        async def probe():
            return await self.spread(among) == expected

        await self.lab.envoy.until(probe, what=f"{expected}")


@asynccontextmanager
async def checked(tmp_path, health=QUICK, **lab):
    async with chain_lab(tmp_path, tiers=two(), health=health, failures=FAILURES, **lab) as running:
        yield Checked(running)
        await running.assert_all_accepted()


@pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])
async def test_an_endpoint_whose_check_fails_gets_nothing_until_it_passes_again(
    tmp_path, capability
):
    async with checked(tmp_path, capability=capability) as one:
        await one.shows({A: 30, B: 30})
        one.lab.big.health_mode = "503"
        await one.is_out()
        assert await one.spread() == {B: 60}, "the tier that is half well passes nothing on"
        one.lab.plan(weights={A: 900})
        await asyncio.sleep(0.3)
        assert await one.spread() == {B: 60}, "a new weight does not bring it back"
        one.lab.big.health_mode = "ok"
        await one.is_out(out=False)
        await one.shows({A: 90, B: 100}, among=190)


async def test_one_hiccup_of_a_check_takes_nothing_out(tmp_path):
    async with checked(tmp_path, replace(QUICK, unhealthy=3)) as one:
        seen = one.lab.big.health_checks
        one.lab.big.health_mode = "503"

        async def failed_once():
            return one.lab.big.health_checks > seen

        await one.lab.envoy.until(failed_once)
        one.lab.big.health_mode = "ok"
        await asyncio.sleep(0.6)
        assert await one.lab.envoy.stat("cluster.chat/primary.health_check.failure") >= 1
        assert "failed_active_health_check" not in await one.status()


async def test_when_the_check_brings_an_endpoint_back_the_weight_of_its_ramp_holds(tmp_path):
    async with checked(tmp_path) as one:
        one.lab.big.health_mode = "503"
        await one.is_out()
        one.lab.plan(weights={A: 100})  # the first stage, decided while the check failed
        one.lab.big.health_mode = "ok"
        await one.is_out(out=False)
        await one.shows({A: 10, B: 100}, among=110)


@pytest.mark.parametrize("health", [EndpointHealth.UNHEALTHY, EndpointHealth.DRAINING])
async def test_a_check_that_passes_overrules_neither_a_fault_nor_a_drain(tmp_path, health):
    async with checked(tmp_path) as one:
        one.lab.plan(health={A: health})
        await one.shows({B: 60})
        before = one.lab.big.health_checks

        async def checked_on():
            return one.lab.big.health_checks >= before + 4

        await one.lab.envoy.until(checked_on)
        assert await one.spread() == {B: 60}


async def test_a_check_that_passes_does_not_end_an_ejection(tmp_path):
    """vLLM's /health stays 200 while every request fails."""
    async with checked(tmp_path) as one:
        one.lab.big.mode = "500"

        async def ejected():
            await one.lab.ask()
            return (await one.lab.ejected("primary"))[0]

        await one.lab.envoy.until(ejected)
        before = one.lab.big.health_checks

        async def checked_on():
            return one.lab.big.health_checks >= before + 5

        await one.lab.envoy.until(checked_on)
        assert (await one.lab.ejected("primary"))[0]


async def test_where_the_control_plane_saw_nothing_an_endpoint_returns_at_a_tenth_and_grows(
    tmp_path,
):
    async with checked(tmp_path, replace(QUICK, return_s=8.0)) as one:
        await one.shows({A: 30, B: 30})
        await asyncio.sleep(8.1)  # to Envoy every endpoint is new when it starts
        one.lab.big.health_mode = "503"
        await one.is_out()
        one.lab.big.health_mode = "ok"
        await one.is_out(out=False)
        assert (await one.spread(20))[A] < 7
        await one.shows({A: 30, B: 30})
        one.lab.plan(health={A: EndpointHealth.UNHEALTHY})
        await one.shows({B: 60})
        one.lab.plan()
        await one.shows({A: 30, B: 30})


async def test_a_tier_without_requests_is_checked_as_often(tmp_path):
    async with checked(tmp_path) as one:
        idle = one.lab.small
        before = idle.health_checks

        async def checked_on():
            return idle.health_checks >= before + 5

        # Envoy's own default for such a tier is one check a minute.
        await one.lab.envoy.until(checked_on)


async def test_a_check_as_slow_as_sglangs_passes_with_the_default_time_out(tmp_path):
    async with checked(tmp_path, replace(QUICK, timeout_s=HealthPolicy().timeout_s)) as one:
        one.lab.big.health_s = 1.05
        before = one.lab.big.health_checks

        async def twice():
            return one.lab.big.health_checks >= before + 2

        await one.lab.envoy.until(twice)
        assert "failed_active_health_check" not in await one.status()


async def test_a_check_that_hangs_does_not_keep_a_proxy_from_starting(tmp_path):
    tiers = two()
    tiers[0][0].health_mode = "hang"
    health = HealthPolicy(active=True, interval_s=1.0, timeout_s=10.0)
    async with chain_lab(tmp_path, tiers=tiers, health=health, failures=FAILURES) as lab:
        assert (await Checked(lab).spread(10)) == {B: 10}


async def test_an_instance_that_left_the_fleet_gets_nothing_though_its_check_passes(tmp_path):
    async with checked(tmp_path) as one:
        lab = one.lab
        model = lab.topology.models[0]
        first = replace(model.tiers[0], instances=model.tiers[0].instances[1:])
        smaller = replace(lab.topology, models=(replace(model, tiers=(first, *model.tiers[1:])),))
        builder = SnapshotBuilder(
            smaller, Policy(failures=FAILURES, health=QUICK), Capability.COMPOSITE
        )
        snapshot = builder.build(a_plan(smaller))
        for kind in (served.CLUSTER, served.LISTENER, served.ROUTE):
            assert snapshot.of_type(kind).version == lab.ads.snapshot.of_type(kind).version
        lab.ads.set(snapshot)
        await one.shows({B: 60})


async def test_a_stream_outlives_the_check_that_takes_its_endpoint_out_and_brings_it_back(tmp_path):
    async with checked(tmp_path) as one:
        for engine in one.lab.tiers[0]:
            engine.chunks, engine.pause_s = 30, 0.1
        running = [asyncio.create_task(one.lab.ask(stream=True)) for _ in range(4)]

        async def both_stream():
            return all(engine.requests for engine in one.lab.tiers[0])

        await one.lab.envoy.until(both_stream)
        one.lab.big.health_mode = "503"
        await one.is_out()
        one.lab.plan(weights={A: 100})
        one.lab.big.health_mode = "ok"
        await one.is_out(out=False)
        assert not all(task.done() for task in running)
        for answer in await asyncio.gather(*running):
            assert len(answer.events) == 31
            assert answer.events[-1] == "[DONE]"
