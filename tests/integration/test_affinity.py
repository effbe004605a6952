"""Sessions on a real Envoy: they stay where their prefix is cached, and weights, faults and tiers still rule."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.fakes.chain import chain_lab
from tests.fakes.plans import a_plan
from tests.fakes.scripted_engine import ScriptedEngine
from xds_server.core.model import Affinity, AffinityPolicy
from xds_server.core.plan import EndpointHealth
from xds_server.core.policy import FailurePolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability

pytestmark = pytest.mark.envoy

SESSIONS = [f"session-{number}" for number in range(60)]
ENGINES = ("primary-0", "primary-1", "primary-2", "primary-3")

with_policies = pytest.mark.parametrize("policy", list(AffinityPolicy))
with_chains = pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])


class Sessions:
    def __init__(self, lab):
        self.lab = lab

    async def where(self, session, *, header="x-session-id"):
        answer = await self.lab.ask(headers={header: session})
        assert answer.status == 200
        return answer.headers["x-engine"]

    async def all(self):
        return {session: await self.where(session) for session in SESSIONS}

    async def settled(self, condition):
        """Ask all sessions until what is seen is as it should be; return where they are then."""

        async def probe():
            seen = await self.all()
            return seen if condition(seen) else None

        return await self.lab.envoy.until(probe, what="sessions to settle")


@asynccontextmanager
async def sessions(tmp_path, policy=AffinityPolicy.MAGLEV, affinity=None, **lab):
    tiers = [
        [ScriptedEngine("llama-3-70b", headers={"x-engine": name}) for name in ENGINES],
        [ScriptedEngine("llama-3-8b", headers={"x-engine": f"fallback-{n}"}) for n in range(2)],
    ]
    affinity = affinity or Affinity(policy=policy, header="x-session-id")
    async with chain_lab(tmp_path, tiers=tiers, affinity=affinity, **lab) as running:
        yield Sessions(running)
        await running.assert_all_accepted()


@with_chains
@with_policies
async def test_a_session_stays_on_its_endpoint_through_a_chain_and_sessions_spread(
    tmp_path, policy, capability
):
    async with sessions(tmp_path, policy, capability=capability) as one:
        first = await one.all()
        assert await one.all() == first
        share = Counter(first.values())
        assert set(share) == set(ENGINES)
        assert min(share.values()) >= 3, share
        nameless = Counter([(await one.lab.ask()).headers["x-engine"] for _ in range(80)])
        assert set(nameless) == set(ENGINES), "requests without a session go by weight"


@with_policies
async def test_while_tier_weights_move_a_session_keeps_an_endpoint_in_every_tier(tmp_path, policy):
    async with sessions(tmp_path, policy) as one:
        first = await one.all()
        small = {}
        for split in ([500, 500, 0], [200, 800, 0], [700, 300, 0]):
            clusters = one.lab.ads.snapshot.of_type(served.CLUSTER).version
            one.lab.plan(split)
            assert one.lab.ads.snapshot.of_type(served.CLUSTER).version == clusters
            await one.lab.envoy.until(one.lab.ads.is_settled, what="the weights to be taken")
            seen = await one.all()
            below = {session for session, where in seen.items() if where.startswith("fallback")}
            assert below
            assert below != set(SESSIONS)
            for session, where in seen.items():
                kept = small.setdefault(session, where) if session in below else first[session]
                assert where == kept, session


async def test_a_changed_weight_is_obeyed_and_moves_only_the_sessions_it_has_to(tmp_path):
    async with sessions(tmp_path) as one:
        first = await one.all()
        one.lab.plan(weights={ENGINES[0]: 10})
        seen = await one.settled(lambda now: Counter(now.values())[ENGINES[0]] <= 3)
        moved = [session for session in SESSIONS if seen[session] != first[session]]
        assert all(first[session] == ENGINES[0] for session in moved)
        one.lab.plan()
        assert await one.settled(lambda now: now == first) == first, "and all of them return"


@with_policies
async def test_a_failing_endpoint_loses_its_sessions_and_gets_them_back(tmp_path, policy):
    async with sessions(tmp_path, policy) as one:
        first = await one.all()
        one.lab.big.mode = "500"
        seen = await one.settled(lambda now: set(now.values()) == set(ENGINES[1:]))
        assert (await one.lab.ejected("primary"))[0]
        if policy is AffinityPolicy.MAGLEV:
            kept = [session for session in SESSIONS if first[session] != ENGINES[0]]
            moved = [session for session in kept if seen[session] != first[session]]
            # Maglev's table is disturbed a little wherever an entry goes; sessions may not be dealt anew.
            assert len(moved) <= len(kept) // 10, moved
        one.lab.big.mode = "ok"
        await one.settled(lambda now: now == first)


@with_policies
async def test_the_sessions_of_an_instance_follow_it_to_another_address(tmp_path, policy):
    async with sessions(tmp_path, policy) as one:
        first = await one.all()
        model = one.lab.topology.models[0]
        a, b, *others = model.tiers[0].instances
        swapped = (replace(a, port=b.port), replace(b, port=a.port), *others)
        tiers = (replace(model.tiers[0], instances=swapped), *model.tiers[1:])
        topology = replace(one.lab.topology, models=(replace(model, tiers=tiers),))
        builder = SnapshotBuilder(topology, Policy(), Capability.COMPOSITE)
        one.lab.ads.set(builder.build(a_plan(topology)))
        there = {ENGINES[0]: ENGINES[1], ENGINES[1]: ENGINES[0]}
        wanted = {session: there.get(where, where) for session, where in first.items()}
        await one.settled(lambda now: now == wanted)


@with_chains
async def test_a_drained_endpoint_and_a_dead_tier_leave_no_session_behind(tmp_path, capability):
    async with sessions(tmp_path, capability=capability) as one:
        one.lab.plan(health={ENGINES[1]: EndpointHealth.DRAINING})
        await one.settled(lambda now: ENGINES[1] not in now.values())
        for engine in one.lab.tiers[0]:
            engine.mode = "500"
        below = await one.settled(lambda now: all(w.startswith("fallback") for w in now.values()))
        assert set(below.values()) == {"fallback-0", "fallback-1"}
        assert await one.all() == below, (
            "no panic: all of the tier is ejected, and sessions hold below"
        )


async def test_a_cookie_names_a_session_and_proxies_give_one_where_they_are_told_to(tmp_path):
    affinity = Affinity(cookie="session", cookie_ttl_s=0.0)
    async with sessions(tmp_path, affinity=affinity) as one:
        answer = await one.lab.ask()
        given = answer.headers["set-cookie"].partition(";")[0]
        assert given.startswith("session=")
        for _ in range(5):
            again = await one.lab.ask(headers={"cookie": given})
            assert again.headers["x-engine"] == answer.headers["x-engine"]
            assert "set-cookie" not in again.headers


async def test_without_a_time_to_live_proxies_never_set_a_cookie(tmp_path):
    async with sessions(tmp_path, affinity=Affinity(cookie="session")) as one:
        assert "set-cookie" not in (await one.lab.ask()).headers
        seen = {
            (await one.lab.ask(headers={"cookie": "session=x"})).headers["x-engine"]
            for _ in range(9)
        }
        assert len(seen) == 1


async def test_a_request_that_forbids_a_fallback_leaves_the_endpoint_of_its_session_when_that_fails(
    tmp_path,
):
    async with sessions(tmp_path) as one:
        first = await one.all()
        mine = next(session for session in SESSIONS if first[session] == ENGINES[0])
        strict = {"x-session-id": mine, "x-no-fallback": "true"}
        assert (await one.lab.ask(headers=strict)).headers["x-engine"] == ENGINES[0]
        one.lab.big.mode = "500"
        answer = await one.lab.ask(headers=strict)
        assert answer.status == 200
        assert answer.headers["x-engine"] in ENGINES[1:]


@with_policies
@pytest.mark.parametrize("overflow", [None, 1.5])
async def test_a_session_that_asks_too_much_at_once_overflows_only_where_that_is_wanted(
    tmp_path, policy, overflow
):
    affinity = Affinity(policy=policy, header="x-session-id", overflow_ratio=overflow)
    patient = FailurePolicy(header_timeout_s=5.0, answer_timeout_s=None)
    async with sessions(tmp_path, affinity=affinity, failures=patient) as one:
        for engine in one.lab.tiers[0]:
            engine.plain_s = 0.4
        running = []
        for _ in range(40):  # one after the other: what still connects is not counted as running
            running.append(asyncio.create_task(one.where("hot")))
            await asyncio.sleep(0.005)
        seen = Counter(await asyncio.gather(*running))
        if overflow is None:
            assert len(seen) == 1
        else:
            assert len(seen) >= 3, "one and a half times a quarter each"
            assert max(seen.values()) <= 20, seen
