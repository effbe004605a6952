"""Never two writers, whatever is late or lost: elections in made-up time."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.istio.kubernetes import lease
from xds_server.istio.kubernetes.errors import Cause, KubernetesError
from xds_server.istio.kubernetes.leadership import Leadership
from xds_server.istio.kubernetes.lease import LeaseRules

TARGET = lease.ref("gpu-xds", "gpu-xds-istio")
RULES = LeaseRules.of(15)
NAMES = ("a", "b", "c")


@dataclass
class World:
    """One lease, one true time, and candidates that move only when they are told to."""

    now: float = 0.0
    document: dict | None = None
    version: int = 0
    gates: dict = field(default_factory=dict)

    async def turn(self, name: str) -> str:
        """Wait until this candidate's message moves on; return what becomes of it."""
        gate = asyncio.get_running_loop().create_future()
        self.gates[name] = gate
        return await gate

    def store(self, body: dict) -> dict:
        self.version += 1
        self.document = copy.deepcopy(body)
        self.document["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.document)


@dataclass
class Link:
    """A candidate's way to the server: a request arrives, and later its answer does, or one of them is lost."""

    world: World
    name: str

    async def _passed(self) -> None:
        if await self.world.turn(self.name) == "lost":
            raise KubernetesError(Cause.UNREACHABLE, verb="x", ref=TARGET, said="lost")

    async def get(self, ref):
        await self._passed()
        found = copy.deepcopy(self.world.document)
        await self._passed()
        if found is None:
            raise KubernetesError(Cause.NOT_FOUND, verb="get", ref=ref, said="404")
        return found

    async def create(self, ref, body):
        await self._passed()
        taken = self.world.document is not None
        stored = None if taken else self.world.store(body)
        await self._passed()
        if stored is None:
            raise KubernetesError(Cause.CONFLICT, verb="create", ref=ref, said="409")
        return stored

    async def replace(self, ref, body, *, timeout_s):
        await self._passed()
        given_ = body["metadata"].get("resourceVersion")
        stored = self.world.store(body) if given_ == str(self.world.version) else None
        await self._passed()
        if stored is None:
            raise KubernetesError(Cause.CONFLICT, verb="update", ref=ref, said="409")
        return stored


async def candidate(leadership: Leadership) -> None:
    while True:
        try:
            await leadership.attempt()
        except KubernetesError:
            await asyncio.sleep(0)


MOVES = st.one_of(
    # So many messages of a candidate move on, and perhaps one more is lost.
    st.tuples(st.sampled_from(NAMES), st.integers(1, 6), st.booleans()),
    st.tuples(st.just("wait"), st.floats(0.1, 12.0), st.just(False)),
)


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@settings(max_examples=150, deadline=None)
@given(
    moves=st.lists(MOVES, min_size=8, max_size=40),
    offsets=st.tuples(*[st.floats(0, 1e6)] * len(NAMES)),
)
def test_at_no_moment_two_may_write(moves, offsets):
    async def play() -> None:
        world = World()
        leaderships = {
            name: Leadership(
                client=Link(world, name),
                target=TARGET,
                me=name,
                rules=RULES,
                # Clocks of machines have nothing in common but their speed.
                clock=lambda offset=offset: world.now + offset,
                wall=lambda: 1e9 + world.now,
            )
            for name, offset in zip(NAMES, offsets, strict=True)
        }
        tasks = [asyncio.create_task(candidate(each)) for each in leaderships.values()]
        for who, amount, loses in moves:
            if who == "wait":
                world.now += amount
            else:
                for what in [*["moves"] * int(amount), *["lost"] * loses]:
                    await settle()
                    if (gate := world.gates.pop(who, None)) is not None:
                        gate.set_result(what)
            await settle()
            leads = [name for name, each in leaderships.items() if each.is_leader]
            assert len(leads) <= 1, leads
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(play())


@pytest.mark.parametrize("lost_for_s", [0.0, 9.0])
def test_with_a_network_that_works_somebody_leads_soon(lost_for_s):
    async def play() -> float:
        world = World()
        leadership = Leadership(
            client=Link(world, "a"),
            target=TARGET,
            me="a",
            rules=RULES,
            clock=lambda: world.now,
            wall=lambda: world.now,
        )
        other = lease.taken(None, target=TARGET, me="gone", rules=RULES, wall=0.0)
        world.store(other)
        task = asyncio.create_task(candidate(leadership))
        while not leadership.is_leader and world.now < 60:
            await settle()
            gate = world.gates.pop("a", None)
            if gate is not None:
                gate.set_result("lost" if world.now < lost_for_s else "moves")
            world.now += 0.05
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return world.now

    # The time counts from the first look: clocks are not compared.
    assert 15.0 <= asyncio.run(play()) - lost_for_s <= 16.0
