"""Who writes: one of several control planes, and nobody once its lease is over."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.fakes.kube_api import Rule
from tests.fakes.waiting import PATIENCE_S
from xds_server.istio.kubernetes import lease
from xds_server.istio.kubernetes.auth import SignIn
from xds_server.istio.kubernetes.client import KubernetesClient
from xds_server.istio.kubernetes.errors import Cause
from xds_server.istio.kubernetes.leadership import Leadership
from xds_server.istio.kubernetes.lease import LeaseRules, Seen

TARGET = lease.ref("gpu-xds", "gpu-xds-istio")
RULES = LeaseRules(duration_s=1.5, deadline_s=1.0, retry_s=0.2)
LONG = LeaseRules(duration_s=8.0, deadline_s=2.0, retry_s=0.2)
"""The same with room for a busy machine between what is proven and what would be wrong."""


def seen(holder="a", *, at=100.0, duration_s=15.0) -> Seen:
    return Seen(holder=holder, renewed="t", duration_s=duration_s, transitions=0, at=at)


@pytest.mark.parametrize(
    ("state", "me", "now", "may"),
    [
        (seen(""), "b", 100.0, True),
        (seen("a"), "a", 100.0, True),
        (seen("a"), "b", 114.9, False),
        (seen("a"), "b", 115.0, True),
        (seen("a", duration_s=0), "b", 100.0, True),
    ],
    ids=["free", "mine", "held", "over", "without-duration"],
)
def test_a_lease_may_be_taken_when_nobody_holds_it_any_more(state, me, now, may):
    assert lease.may_take(state, me, now) is may


def test_the_time_counts_from_the_first_look_at_a_renewal_by_the_own_clock():
    document = lease.taken(None, target=TARGET, me="a", rules=RULES, wall=1e9)
    first = lease.see(document, None, 50.0)
    assert lease.see(document, first, 60.0).at == 50.0
    renewed = lease.taken(document, target=TARGET, me="a", rules=RULES, wall=1e9 + 1)
    assert lease.see(renewed, first, 61.0).at == 61.0


def test_a_takeover_is_counted_and_a_renewal_keeps_its_beginning():
    first = lease.taken(None, target=TARGET, me="a", rules=RULES, wall=1e9)
    again = lease.taken(first, target=TARGET, me="a", rules=RULES, wall=1e9 + 1)
    other = lease.taken(again, target=TARGET, me="b", rules=RULES, wall=1e9 + 2)
    specs = [each["spec"] for each in (first, again, other)]
    assert [each["leaseTransitions"] for each in specs] == [0, 0, 1]
    assert specs[0]["acquireTime"] == specs[1]["acquireTime"] != specs[2]["acquireTime"]
    assert specs[2]["renewTime"] == "2001-09-09T01:46:42.000000Z"
    freed = lease.released(other, target=TARGET, wall=1e9 + 3)
    assert lease.see(freed, None, 0.0).is_free
    assert freed["spec"]["leaseDurationSeconds"] == 1, "the server takes no zero"


def test_the_deadline_of_a_holder_is_before_the_end_that_others_wait_for():
    rules = LeaseRules.of(15)
    assert (rules.duration_s, rules.deadline_s, rules.retry_s) == (15, 10, 2)


class Candidate:
    """A leadership that notes when it led."""

    def __init__(self, client, me, rules=RULES):
        self.leadership = Leadership(
            client=client, target=TARGET, me=me, rules=rules, clock=time.monotonic
        )
        self.told: list[tuple[float, bool, str]] = []
        self.troubles: list[object] = []
        self.leadership.on_change = lambda leads, why: self.told.append(
            (time.monotonic(), leads, why)
        )
        self.leadership.on_trouble = self.troubles.append
        self.task: asyncio.Task | None = None

    def start(self):
        self.task = asyncio.create_task(self.leadership.run())
        return self

    async def leads(self, *, wanted=True, timeout_s=PATIENCE_S):
        async with asyncio.timeout(timeout_s):
            while not self.told or self.told[-1][1] is not wanted:
                await asyncio.sleep(0.005)
        return self.told[-1][0]

    async def stop(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def candidates(api, tmp_path):
    made, clients = [], []

    async def make(me, token="admin-token", rules=RULES):
        path = api.kubeconfig(tmp_path / f"kubeconfig-{me}", token)
        client = KubernetesClient(SignIn(kubeconfig=str(path)))
        clients.append(client)
        made.append(Candidate(client, me, rules))
        return made[-1]

    yield make
    for each in made:
        if each.task is not None:
            await each.stop()
    for each in clients:
        await each.close()


def holder(api):
    return api.object("leases", "gpu-xds", "gpu-xds-istio", "coordination.k8s.io")["spec"]


async def test_one_of_two_leads_and_the_other_follows_an_orderly_end_at_once(api, candidates):
    first = (await candidates("a", rules=LONG)).start()
    await first.leads()
    second = (await candidates("b", rules=LONG)).start()
    async with asyncio.timeout(30):
        while second.leadership.holder != "a":
            await asyncio.sleep(0.01)
    assert not second.leadership.is_leader
    ended = time.monotonic()
    await first.stop()
    assert not first.leadership.is_leader
    assert (await second.leads()) - ended < LONG.duration_s, "it needs not wait for the end"
    assert holder(api)["leaseTransitions"] == 1


@pytest.mark.parametrize(("writer", "left"), [("a", ""), ("thief", "thief")])
async def test_a_renewal_that_the_end_cut_off_does_not_keep_the_lease(
    api, candidates, writer, left
):
    first = (await candidates("a", rules=LONG)).start()
    await first.leads()
    # Accepted by the server, and nobody is there any more to hear of it.
    renewed = lease.taken(None, target=TARGET, me=writer, rules=LONG, wall=time.time())
    await api.put(renewed)
    await first.stop()
    assert holder(api)["holderIdentity"] == left


async def test_a_killed_leader_is_followed_after_the_duration_and_never_led_beside_it(
    api, candidates
):
    first = (await candidates("a")).start()
    await first.leads()
    second = (await candidates("b")).start()
    async with asyncio.timeout(30):
        while second.leadership.holder != "a":
            await asyncio.sleep(0.01)
    # Killed: it neither renews nor gives the lease back.
    first.leadership._document = None
    died = time.monotonic()
    await first.stop()
    took = (await second.leads()) - died
    assert (
        RULES.duration_s - RULES.retry_s * 1.2 <= took <= RULES.duration_s + 2 * RULES.retry_s + 3
    )


async def test_without_an_answer_a_leader_stops_by_itself_before_another_may_begin(api, candidates):
    first = (await candidates("a", rules=LONG)).start()
    began = await first.leads()
    api.fail("get", "leases", 0, times=1e9)
    api.fail("update", "leases", 0, times=1e9)
    over = await first.leads(wanted=False)
    assert not first.leadership.is_leader
    assert first.leadership.remaining_s == 0
    assert over - began < LONG.duration_s
    assert "could not be renewed" in first.told[-1][2]
    api.faults.clear()
    await first.leads()
    assert first.troubles[-1] is None


async def test_a_lease_that_somebody_took_stops_the_leader_at_its_next_look(api, candidates):
    first = (await candidates("a")).start()
    await first.leads()
    stolen = lease.taken(None, target=TARGET, me="thief", rules=RULES, wall=time.time())
    await api.put(stolen)
    taken = time.monotonic()
    assert (await first.leads(wanted=False)) - taken < 2 * RULES.retry_s + 0.5
    assert "thief" in first.told[-1][2]


async def test_of_two_that_write_at_the_same_time_one_wins(api, candidates):
    pair = [await candidates(name) for name in "ab"]
    for each in pair:
        await asyncio.gather(each.leadership.attempt(), return_exceptions=True)
    await asyncio.gather(*(each.leadership.attempt() for each in pair))
    assert sum(each.leadership.is_leader for each in pair) == 1


@pytest.mark.parametrize("verb", ["get", "create", "update"])
async def test_a_missing_verb_on_leases_is_told_with_its_rule(api, candidates, verb):
    verbs = tuple({"get", "create", "update"} - {verb})
    token = api.add_user("weak", Rule(verbs, plural="leases"))
    if verb == "update":
        await api.put(
            lease.released(
                lease.taken(None, target=TARGET, me="x", rules=RULES, wall=1.0),
                target=TARGET,
                wall=1.0,
            )
        )
    weak = (await candidates("weak", token)).start()
    async with asyncio.timeout(30):
        while not weak.troubles or weak.troubles[-1] is None:
            await asyncio.sleep(0.01)
    error = weak.troubles[-1]
    assert error.cause is Cause.FORBIDDEN
    assert f"'{verb}' on leases.coordination.k8s.io in namespace gpu-xds" in str(error)
    assert not weak.leadership.is_leader
