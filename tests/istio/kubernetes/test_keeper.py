"""One object is kept as it shall be, over a real connection: what is written when, and what never."""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from tests.fakes.kube_api import EVERYTHING, Rule
from tests.fakes.waiting import until
from xds_server.core.model import ModelName, TierName
from xds_server.istio.kubernetes import keeper as keepers
from xds_server.istio.kubernetes import pace
from xds_server.istio.kubernetes.auth import SignIn
from xds_server.istio.kubernetes.client import KubernetesClient
from xds_server.istio.kubernetes.errors import Cause
from xds_server.istio.kubernetes.keeper import Keeper
from xds_server.istio.kubernetes.objects import Owned, ref_of
from xds_server.istio.kubernetes.route_patch import Patched
from xds_server.istio.mesh import MeshModel, MeshTier
from xds_server.istio.weights import Action, ModelWeights, RouteWeights

REF = ref_of("virtualservices", "ai", "llm", version="v1")
RULE = ref_of("destinationrules", "ai", "llm", version="v1")
GAP_S = 1.0


@dataclass
class Leading:
    """Leadership as the test says."""

    is_leader: bool = True
    remaining_s: float = 10.0


@dataclass
class Notes:
    """What was reported."""

    writes: list = field(default_factory=list)
    refusals: list = field(default_factory=list)
    errors: list = field(default_factory=list)
    reverts: list = field(default_factory=list)
    settlements: int = 0

    def written(self, wanted, change, *, took_s):
        self.writes.append((time.monotonic(), change.verb, took_s))

    def settled(self, title):
        self.settlements += 1

    def refused(self, title, refusal):
        self.refusals.append(refusal)

    def failed(self, error, title):
        self.errors.append(error)

    def taken_back(self, wanted, by, *, gap_s, is_fight):
        self.reverts.append((by, gap_s, is_fight))


def wish(weight=100, host="a", ref=REF) -> Owned:
    spec = {
        "http": [{"name": "chat", "route": [{"destination": {"host": host}, "weight": weight}]}]
    }
    if ref is RULE:
        spec = {"host": "a.ai.svc.cluster.local"}
    return Owned(ref=ref, model=ModelName("chat"), spec=spec, owner="gpu-xds.x", summary="s")


class Stage:
    def __init__(self, api, client):
        self.api, self.client = api, client
        self.leading, self.notes = Leading(), Notes()
        self.tasks: list[asyncio.Task] = []

    def keeper(self, ref=REF, *, gap_s=GAP_S) -> Keeper:
        made = Keeper(
            ref=ref,
            client=self.client,
            leadership=self.leading,
            report=self.notes,
            clock=time.monotonic,
            pace=pace.Pace(gap_s),
        )
        self.tasks.append(asyncio.create_task(made.run()))
        return made

    @property
    def weight(self):
        found = self.api.store.objects.get(("networking.istio.io", "virtualservices", "ai", "llm"))
        return found and found["spec"]["http"][0]["route"][0]["weight"]

    async def weighs(self, weight):
        await until(lambda: self.weight == weight, f"weight {weight}", 20)

    async def edit(self, weight, manager="argocd-controller"):
        found = copy.deepcopy(self.api.object("virtualservices", "ai", "llm"))
        found["spec"]["http"][0]["route"][0]["weight"] = weight
        await self.api.put(found, manager=manager)


@asynccontextmanager
async def on_stage(api, client):
    stage = Stage(api, client)
    try:
        yield stage
    finally:
        for task in stage.tasks:
            task.cancel()
        results = await asyncio.gather(*stage.tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in results), results


@pytest.fixture
async def stage(api, client, monkeypatch):
    monkeypatch.setattr(keepers, "WATCH_RETRY_S", 0.05)
    monkeypatch.setattr(pace, "FIRST_RETRY_S", 0.1)
    async with on_stage(api, client) as made:
        yield made


async def test_an_object_is_made_and_then_left_in_peace(stage):
    keeper = stage.keeper()
    keeper.want(wish(70))
    await stage.weighs(70)
    keeper.want(wish(70))
    keeper.led(leads=True)
    await until(lambda: stage.notes.settlements >= 2)
    assert len(stage.api.writes()) == 1
    assert [each[1] for each in stage.notes.writes] == ["create"]


async def test_under_a_storm_of_wishes_one_write_a_second_goes_out_and_the_last_wish_wins(stage):
    keeper = stage.keeper()
    began = time.monotonic()
    for weight in range(50):
        keeper.want(wish(weight))
        await asyncio.sleep(0.05)
    await stage.weighs(49)
    times = [each.at for each in stage.api.writes()]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert min(gaps) >= GAP_S - 0.05
    assert len(times) <= 2 + (time.monotonic() - began) / GAP_S
    assert stage.notes.writes[-1][2] < GAP_S + 4


async def test_what_somebody_else_edits_is_written_again_within_a_cycle_and_told(stage):
    keeper = stage.keeper()
    keeper.want(wish(70))
    await stage.weighs(70)
    await asyncio.sleep(GAP_S)
    edited = time.monotonic()
    await stage.edit(5)
    await stage.weighs(70)
    assert time.monotonic() - edited < GAP_S + 4
    assert stage.notes.reverts == [("argocd-controller", GAP_S, False)]


async def test_who_takes_every_write_back_is_met_more_and_more_slowly(stage):
    keeper = stage.keeper(gap_s=0.2)
    keeper.want(wish(70))
    for _ in range(3):
        await stage.weighs(70)
        await stage.edit(5)
    await stage.weighs(70)
    assert [each[1:] for each in stage.notes.reverts] == [(0.2, False), (0.4, True), (0.8, True)]
    times = [each.at for each in stage.api.writes()]
    assert times[-1] - times[-2] >= 0.8


async def test_a_write_that_meets_another_is_made_again_on_what_is_there_now(stage):
    keeper = stage.keeper(gap_s=0.2)
    keeper.want(wish(70))
    await stage.weighs(70)

    async def meanwhile(_):
        found = copy.deepcopy(stage.api.object("virtualservices", "ai", "llm"))
        found["metadata"]["labels"]["team"] = "ml"
        await stage.api.put(found)

    stage.api.before_write = meanwhile
    keeper.want(wish(30))
    await stage.weighs(30)
    assert [each.cause for each in stage.notes.errors] == [Cause.CONFLICT]
    assert stage.api.object("virtualservices", "ai", "llm")["metadata"]["labels"]["team"] == "ml"


async def test_who_does_not_lead_writes_nothing_and_begins_with_the_newest_wish(stage):
    stage.leading.is_leader = False
    keeper = stage.keeper()
    for weight in (10, 20, 30):
        keeper.want(wish(weight))
        await asyncio.sleep(0.05)
    assert not stage.api.writes()
    stage.leading.is_leader = True
    keeper.led(leads=True)
    await stage.weighs(30)
    assert len(stage.api.writes()) == 1


async def test_a_lease_that_ends_between_look_and_write_stops_the_write(stage):
    stage.leading.remaining_s = 0.0
    stage.keeper().want(wish(10))
    await until(lambda: len(stage.api.asked("get", "virtualservices")) >= 1)
    await asyncio.sleep(0.1)
    assert not stage.api.writes()


async def test_a_write_is_given_no_more_time_than_the_lease_has_left(stage):
    stage.leading.remaining_s = 0.3
    stage.api.fail("create", "virtualservices", 0)
    began = time.monotonic()
    stage.keeper().want(wish(10))
    await until(lambda: stage.notes.errors)
    assert stage.notes.errors[0].cause is Cause.UNREACHABLE
    assert time.monotonic() - began < 6
    await stage.weighs(10)


async def test_an_object_that_is_not_ours_is_never_written(stage):
    await stage.api.put(
        {
            "apiVersion": "networking.istio.io/v1",
            "kind": "VirtualService",
            "metadata": {"name": "llm", "namespace": "ai"},
            "spec": wish(1).spec,
        }
    )
    keeper = stage.keeper(gap_s=0.1)
    keeper.want(wish(70))
    await until(lambda: stage.notes.refusals)
    keeper.want(wish(80))
    await until(lambda: len(stage.notes.refusals) >= 2)
    assert {each.reason for each in stage.notes.refusals} == {"not_ours"}
    assert not stage.api.writes()
    found = copy.deepcopy(stage.api.object("virtualservices", "ai", "llm"))
    found["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "gpu-xds"}
    await stage.api.put(found)
    await stage.weighs(80)


async def test_a_missing_verb_is_told_and_the_write_comes_when_the_role_is_mended(
    stage, monkeypatch, tmp_path
):
    monkeypatch.setattr(pace, "PERSON_RETRY_S", 0.2)
    token = stage.api.add_user("weak", Rule(("get", "watch")))
    sign_in = SignIn(kubeconfig=str(stage.api.kubeconfig(tmp_path / "weak", token)))
    async with KubernetesClient(sign_in) as weak, on_stage(stage.api, weak) as other:
        other.keeper().want(wish(70))
        await until(lambda: other.notes.errors)
        assert other.notes.errors[0].cause is Cause.FORBIDDEN
        assert "the verb 'create' on virtualservices" in str(other.notes.errors[0])
        stage.api.roles["weak"] = EVERYTHING
        await other.weighs(70)


async def test_without_the_right_to_watch_it_is_looked_at_now_and_then(
    stage, monkeypatch, tmp_path
):
    monkeypatch.setattr(keepers, "LOOK_S", 0.2)
    token = stage.api.add_user("blind", Rule(("get", "create", "update")))
    sign_in = SignIn(kubeconfig=str(stage.api.kubeconfig(tmp_path / "blind", token)))
    async with KubernetesClient(sign_in) as blind, on_stage(stage.api, blind) as other:
        other.keeper(gap_s=0.1).want(wish(70))
        await other.weighs(70)
        await other.edit(1)
        await other.weighs(70)
        assert {each.verb for each in other.notes.errors} == {"watch"}
        assert len(stage.api.asked("watch", "virtualservices")) == 1


async def test_an_outage_is_survived_and_ends_with_the_newest_wish(stage):
    keeper = stage.keeper(gap_s=0.1)
    keeper.want(wish(70))
    await stage.weighs(70)
    await stage.api.stop()
    keeper.want(wish(60))
    await until(lambda: stage.notes.errors)
    keeper.want(wish(50))
    await stage.api.start()
    await stage.weighs(50)
    assert 60 not in [
        each.body["spec"]["http"][0]["route"][0]["weight"] for each in stage.api.writes()
    ]


async def test_what_a_webhook_adds_is_not_fought(stage):
    stage.api.webhook = lambda body: body["spec"].update(exportTo=["."])
    keeper = stage.keeper(gap_s=0.1)
    keeper.want(wish(70))
    await stage.weighs(70)
    for _ in range(3):
        before = stage.notes.settlements
        keeper._dirty.set()
        await until(lambda before=before: stage.notes.settlements > before)
    assert len(stage.api.writes()) == 1
    keeper.want(wish(60))
    await stage.weighs(60)


def patch_wish(a, b) -> Patched:
    tiers = [
        MeshTier(name=TierName(each), host=f"{each}.ai.svc.cluster.local") for each in ("a", "b")
    ]
    pairs = tuple(zip(tiers, (a, b), strict=True))
    route = RouteWeights(of=None, action=Action.FORWARD, weights=pairs)
    model = MeshModel(model=ModelName("chat"), host="llm.ai", namespace="ai", name="x")
    weights = ModelWeights(model=model, routes=(route,))
    return Patched(ref=REF, model=ModelName("chat"), route="chat", weights=weights)


THEIRS = {
    "apiVersion": "networking.istio.io/v1",
    "kind": "VirtualService",
    "metadata": {"name": "llm", "namespace": "ai"},
    "spec": {
        "http": [
            {
                "name": "chat",
                "route": [
                    {"destination": {"host": "a"}, "weight": 100},
                    {"destination": {"host": "b"}},
                ],
            }
        ]
    },
}


async def test_a_patch_that_meets_an_edit_is_made_again_at_once_on_what_is_there_now(stage):
    await stage.api.put(THEIRS)

    async def meanwhile(_):
        first = {"name": "new", "route": [{"destination": {"host": "x"}}]}
        await stage.api.put({**THEIRS, "spec": {"http": [first, *THEIRS["spec"]["http"]]}})

    stage.api.before_write = meanwhile
    began = time.monotonic()
    stage.keeper().want(patch_wish(60, 40))
    await until(lambda: stage.notes.writes)
    assert time.monotonic() - began < 6
    assert [each.cause for each in stage.notes.errors] == [Cause.CONFLICT]
    new, chat = stage.api.object("virtualservices", "ai", "llm")["spec"]["http"]
    assert new["route"] == [{"destination": {"host": "x"}}]
    assert [each["weight"] for each in chat["route"]] == [60, 40]


async def test_a_patch_that_the_server_never_takes_is_left_for_a_while(stage):
    await stage.api.put(THEIRS)
    stage.api.fail("patch", "virtualservices", 422, times=1e9)
    stage.keeper(gap_s=0.1).want(patch_wish(60, 40))
    await until(lambda: Cause.INVALID in [each.cause for each in stage.notes.errors])
    asked = len(stage.api.asked("patch", "virtualservices"))
    await asyncio.sleep(0.5)
    assert len(stage.api.asked("patch", "virtualservices")) == asked == 4


async def test_an_object_that_was_deleted_is_made_again(stage):
    keeper = stage.keeper(gap_s=0.1)
    keeper.want(wish(70))
    await stage.weighs(70)
    await stage.client.get(REF)
    store = stage.api.store
    from tests.fakes.kube_store import Target

    await store.delete(Target(REF.group, "v1", "virtualservices", "ai", "llm"))
    await stage.weighs(70)
    assert [each[1] for each in stage.notes.writes] == ["create", "create"]


async def test_a_patch_does_not_hit_a_route_that_got_a_destination_more_since_it_was_read(stage):
    await stage.api.put(THEIRS)

    async def meanwhile(_):
        (chat,) = THEIRS["spec"]["http"]
        more = {**chat, "route": [*chat["route"], {"destination": {"host": "c"}, "weight": 5}]}
        await stage.api.put({**THEIRS, "spec": {"http": [more]}})

    stage.api.before_write = meanwhile
    stage.keeper().want(patch_wish(60, 40))
    await until(lambda: stage.notes.refusals)
    assert [each.cause for each in stage.notes.errors] == [Cause.CONFLICT]
    assert "goes to c, which is no tier of chat" in stage.notes.refusals[0].text
    (chat,) = stage.api.object("virtualservices", "ai", "llm")["spec"]["http"]
    assert [each.get("weight") for each in chat["route"]] == [100, None, 5], "as it was"


async def test_a_route_that_waits_asks_nothing_and_says_what_it_waits_for(stage, monkeypatch):
    monkeypatch.setattr(keepers, "NEEDS_LOOK_S", 1.0)
    theirs = {"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule"}
    spec = {"host": "a.ai.svc.cluster.local"}
    metadata = {"name": "llm", "namespace": "ai"}
    await stage.api.put({**theirs, "metadata": metadata, "spec": spec})
    rule, service = stage.keeper(RULE), stage.keeper(gap_s=0.1)
    service.needs = (rule,)
    rule.want(wish(ref=RULE))
    service.want(wish(70))
    await until(lambda: "needs" in {each.reason for each in stage.notes.refusals})
    assert {each.reason for each in stage.notes.refusals} == {"not_ours", "needs"}
    assert stage.notes.refusals[-1].text.startswith(
        "VirtualService ai/llm is not written: it would send requests where DestinationRule ai/llm has to be first"
    )
    # A look when it was wanted, one when its watch began, one after a second.
    assert len(stage.api.asked("get", "virtualservices")) <= 3
    labels = {"app.kubernetes.io/managed-by": "gpu-xds"}
    await stage.api.put({**theirs, "metadata": {**metadata, "labels": labels}, "spec": spec})
    mended = time.monotonic()
    await stage.weighs(70)
    assert time.monotonic() - mended < 5


async def test_a_route_that_waits_goes_out_at_once_when_it_needs_nothing_any_more(stage):
    rule, service = stage.keeper(RULE), stage.keeper(gap_s=0.1)
    service.want(wish(70, host="old"))
    await stage.weighs(70)
    service.needs = (rule,)
    service.want(wish(60, host="new"))
    await asyncio.sleep(0.5)
    assert stage.weight == 70
    service.want(wish(50, host="old"))
    await stage.weighs(50)


async def test_a_wish_that_is_over_before_its_host_has_settled_is_never_written(stage, monkeypatch):
    monkeypatch.setattr(keepers, "SETTLE_S", 1.0)
    rule, service = stage.keeper(RULE), stage.keeper(gap_s=0.1)
    service.needs = (rule,)
    rule.want(wish(ref=RULE))
    await until(lambda: rule.settled_at)
    service.want(wish(70))
    await until(lambda: stage.api.asked("get", "virtualservices"))
    await asyncio.sleep(0.1)
    service.want(wish(50))
    await stage.weighs(50)
    assert len(stage.api.writes("virtualservices")) == 1


async def test_a_server_that_refuses_watches_is_asked_more_and_more_slowly(stage, monkeypatch):
    monkeypatch.setattr(keepers, "LOOK_S", 1.0)
    stage.api.fail("watch", "virtualservices", 503, times=1e9)
    stage.keeper().want(wish(70))
    await stage.weighs(70)
    await until(lambda: len(stage.api.asked("watch", "virtualservices")) >= 7)
    times = [each.at for each in stage.api.asked("watch", "virtualservices")]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps[0] < 0.5 <= gaps[-1], "0.05 s at first, a second at last, less half of it by chance"


async def test_a_server_that_is_busy_says_when_it_is_watched_again(stage):
    stage.api.fail("watch", "virtualservices", 429, headers={"Retry-After": "2"})
    stage.keeper()
    await until(lambda: len(stage.api.asked("watch", "virtualservices")) >= 2)
    first, second = (each.at for each in stage.api.asked("watch", "virtualservices"))
    assert second - first >= 1.0, "2 s, less half of it by chance"


async def test_a_route_waits_for_what_it_newly_goes_to(stage):
    rule, service = stage.keeper(RULE), stage.keeper(gap_s=0.1)
    service.needs = (rule,)
    service.want(wish(70))
    await asyncio.sleep(0.5)
    assert not stage.api.writes("virtualservices")
    rule.want(wish(ref=RULE))
    await stage.weighs(70)
    (first,), (second,) = stage.api.writes("destinationrules"), stage.api.writes("virtualservices")
    assert second.at - first.at >= keepers.SETTLE_S - 0.05
    # Weights alone wait for nothing, whatever becomes of the rule.
    stage.api.fail("update", "destinationrules", 500, times=1e9)
    rule.want(replace(wish(ref=RULE), spec={"host": "b.ai.svc.cluster.local"}))
    await until(lambda: stage.notes.errors)
    service.want(wish(10))
    await stage.weighs(10)
