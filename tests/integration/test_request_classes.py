"""Classes of requests on a real Envoy: weights, times, attempts and what critical does, each of its own."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from tests.fakes.answer import CHAT
from tests.fakes.plans import a_model, a_static_tier, a_topology
from tests.fakes.routing_lab import routing_lab, running_tiers
from tests.fakes.scripted_engine import ScriptedEngine
from xds_server.core.model import ClassName, RequestClass, WhenCritical
from xds_server.core.plan import Level
from xds_server.core.policy import FailurePolicy
from xds_server.resources.capability import Capability

pytestmark = pytest.mark.envoy

BIG, SMALL = "llama-3-70b", "llama-3-8b"
CORE = RequestClass(
    name=ClassName("core"),
    header="x-class",
    value="core",
    header_timeout_s=0.3,
    retries=0,
    demand_ratio=0.5,
)
ELASTIC = RequestClass(name=ClassName("elastic"), header_timeout_s=0.6, retries=1, demand_ratio=0.3)
BATCH = RequestClass(
    name=ClassName("best_effort"),
    prefix="/v1/batch/",
    header_timeout_s=1.2,
    retries=3,
    demand_ratio=0.2,
)
BATCHED = "/v1/batch/chat/completions"
PLAIN = FailurePolicy(consecutive=1000, answer_timeout_s=None)
"""Nothing is ejected, every request streams."""


class Fleet:
    """Engines, and the lab that routes to them."""

    def __init__(self, big, small, lab):
        self.big = big
        self.small = small
        self.lab = lab


@asynccontextmanager
async def fleet_of(tmp_path, *, classes=(CORE, ELASTIC, BATCH), bigs=1, smalls=1, **settings):
    big = [ScriptedEngine(BIG) for _ in range(bigs)]
    small = [ScriptedEngine(SMALL) for _ in range(smalls)]
    async with AsyncExitStack() as stack:
        engines = [big, small] if small else [big]
        tiers = await stack.enter_async_context(running_tiers(*engines))
        topology = replace(a_topology(a_model(tiers=[*tiers, a_static_tier()])), classes=classes)
        settings = {"failures": PLAIN} | settings
        lab = await stack.enter_async_context(routing_lab(tmp_path, topology, **settings))
        yield Fleet(big, small, lab)
        await lab.assert_all_accepted()


async def test_each_class_has_its_own_weights(tmp_path):
    async with fleet_of(tmp_path, split=[650, 200, 150]) as fleet:
        core = await fleet.lab.count(60, x_class="core")
        elastic = await fleet.lab.count(200)
        batch = await fleet.lab.count(200, path=BATCHED)
        assert core == {BIG: 60}
        assert set(elastic) == {BIG, SMALL}
        assert 60 < elastic[BIG] < 140, "half and half"
        assert set(batch) == {SMALL, "static"}
        assert 20 < batch[SMALL] < 90, "a quarter"


async def test_weights_of_classes_move_with_a_push_of_routes_alone(tmp_path):
    async with fleet_of(tmp_path) as fleet:
        before = dict(fleet.lab.ads.snapshot.types)
        assert await fleet.lab.count(20, path=BATCHED) == {BIG: 20}
        fleet.lab.plan([800, 200, 0])

        async def moved():
            return (await fleet.lab.ask({}, path=BATCHED)).served == SMALL

        await fleet.lab.envoy.until(moved)
        assert await fleet.lab.count(20) == {BIG: 20}
        after = fleet.lab.ads.snapshot.types
        changed = [url for url in after if after[url] is not before[url]]
        assert {url.rpartition(".")[2] for url in changed} <= {
            "RouteConfiguration",
            "ClusterLoadAssignment",
        }
        versions = {url: each.version for url, each in before.items()}
        moved_types = [url for url in after if after[url].version != versions[url]]
        assert [url.rpartition(".")[2] for url in moved_types] == ["RouteConfiguration"]


async def test_the_first_class_that_fits_is_a_requests(tmp_path):
    async with fleet_of(tmp_path, split=[500, 500, 0]) as fleet:
        assert (await fleet.lab.ask({}, path=BATCHED, x_class="core")).served == BIG
        assert (await fleet.lab.ask({}, x_class="other")).served == SMALL
        headers = fleet.small[0].last_headers
        assert headers["x-request-class"] == "elastic"
        await fleet.lab.ask({}, x_class="core", x_request_class="best_effort")
        assert fleet.big[0].last_headers["x-request-class"] == "core", "clients have no say"


async def test_a_class_by_the_presence_of_a_header(tmp_path):
    classes = (replace(CORE, value=None), replace(ELASTIC, demand_ratio=0.5))
    async with fleet_of(tmp_path, classes=classes, split=[500, 500, 0]) as fleet:
        assert (await fleet.lab.ask({}, x_class="")).served == BIG
        assert (await fleet.lab.ask({})).served == SMALL


CLASSES = {"core": (CORE, CHAT), "elastic": (ELASTIC, CHAT), "best_effort": (BATCH, BATCHED)}


def question(name):
    return {"path": CLASSES[name][1]} | ({"x_class": "core"} if name == "core" else {})


ATTEMPTS = {
    # Engines of the first and second tier that are asked, with everything failing.
    "core": (1, 1),
    "elastic": (2, 1),
    "best_effort": (2, 1),
}


@pytest.mark.parametrize(("name", "attempts"), ATTEMPTS.items(), ids=ATTEMPTS.keys())
async def test_retries_come_on_top_of_the_way_down(tmp_path, name, attempts):
    async with fleet_of(tmp_path) as fleet:
        (big,), (small,) = fleet.big, fleet.small
        big.mode = "500"
        answer = await fleet.lab.ask({}, **question(name))
        assert (answer.status, answer.served, answer.reason) == (200, SMALL, "failover")
        assert big.requests == attempts[0]
        small.mode = "500"
        big.requests = small.requests = 0
        answer = await fleet.lab.ask({}, **question(name))
        assert (answer.status, answer.served) == (200, "static"), "never given up"
        assert (big.requests, small.requests) == attempts


async def test_with_two_tiers_there_is_room_for_more_attempts(tmp_path):
    async with fleet_of(tmp_path, smalls=0) as fleet:
        (big,) = fleet.big
        big.mode = "503"
        for name, expected in {"core": 1, "elastic": 2, "best_effort": 3}.items():
            big.requests = 0
            answer = await fleet.lab.ask({}, **question(name))
            assert (answer.status, answer.served) == (200, "static")
            assert big.requests == expected, name


async def test_more_attempts_go_to_other_endpoints_of_the_tier(tmp_path):
    async with fleet_of(tmp_path, bigs=3) as fleet:
        fleet.big[0].mode = "429"  # back-pressure: ejected by nobody
        served = await fleet.lab.count(60)
        assert served == {BIG: 60}
        core = await fleet.lab.count(60, x_class="core")
        assert core[SMALL] > 0, "the first class walks down at once"


async def test_an_ejected_tier_is_passed_over_however_often_a_chain_names_it(tmp_path):
    failures = replace(PLAIN, consecutive=1)
    async with fleet_of(tmp_path, failures=failures) as fleet:
        (big,), (small,) = fleet.big, fleet.small
        big.mode = "500"
        for name in CLASSES:
            assert (await fleet.lab.ask({}, **question(name))).served == SMALL
        asked = big.requests
        for name in CLASSES:
            served = await fleet.lab.count(20, **question(name))
            assert served == {SMALL: 20}, name
        assert big.requests - asked <= 4, "an ejection may end meanwhile"
        small.mode = "500"
        for name in CLASSES:
            assert (await fleet.lab.ask({}, **question(name))).served == "static", name
        asked = small.requests
        for name in CLASSES:
            served = await fleet.lab.count(20, **question(name))
            assert served == {"static": 20}, name
        assert small.requests - asked <= 4


async def test_older_proxies_give_no_class_more_attempts(tmp_path):
    async with fleet_of(tmp_path, capability=Capability.AGGREGATE) as fleet:
        fleet.big[0].mode = "500"
        answer = await fleet.lab.ask({}, **question("best_effort"))
        assert (answer.status, answer.served) == (200, SMALL)
        assert fleet.big[0].requests == 1


@pytest.mark.parametrize("name", CLASSES)
async def test_each_class_waits_as_long_as_it_may(tmp_path, name):
    async with fleet_of(tmp_path) as fleet:
        fleet.big[0].mode = "hang"
        request_class = CLASSES[name][0]
        started = time.monotonic()
        answer = await fleet.lab.ask({"stream": True}, **question(name))
        took_s = time.monotonic() - started
        assert answer.served == SMALL
        least = request_class.header_timeout_s * ATTEMPTS[name][0]
        assert least - 0.05 < took_s < least + 1.0


async def test_only_streams_follow_the_header_timeout_where_plain_answers_have_a_time(tmp_path):
    failures = replace(PLAIN, answer_timeout_s=20.0)
    async with fleet_of(tmp_path, failures=failures) as fleet:
        fleet.big[0].plain_s = 0.8
        answer = await fleet.lab.ask({"stream": False}, x_class="core")
        assert answer.served == BIG
        fleet.big[0].mode = "hang"
        answer = await fleet.lab.ask({"stream": True}, x_class="core")
        assert answer.served == SMALL


def critical(lab, split=(1000, 0, 0), *, level=Level.CRITICAL):
    plan = lab.plan(split)
    (model,) = plan.models
    first = replace(model.tiers[0], level=level)
    lab.push(replace(plan, models=(replace(model, tiers=(first, *model.tiers[1:])),)))


async def test_while_critical_the_last_class_is_rejected_and_comes_back(tmp_path):
    classes = (CORE, ELASTIC, replace(BATCH, when_critical=WhenCritical.REJECT))
    async with fleet_of(tmp_path, classes=classes) as fleet:
        lab = fleet.lab
        assert (await lab.ask({}, path=BATCHED)).served == BIG
        critical(lab)

        async def rejected():
            return (await lab.ask({}, path=BATCHED)).status == 429

        await lab.envoy.until(rejected)
        answer = await lab.ask({}, path=BATCHED)
        assert answer.document["error"]["code"] == "class_shed"
        assert answer.headers["retry-after"] == "5"
        assert answer.reason == "class_shed"
        assert "connection" not in answer.headers
        assert (await lab.ask({}, path=BATCHED, x_no_fallback="true")).status == 429
        assert await lab.count(20) == {BIG: 20}
        assert await lab.count(20, x_class="core") == {BIG: 20}
        critical(lab, [800, 200, 0], level=Level.DEGRADED)

        async def is_back():
            return (await lab.ask({}, path=BATCHED)).served == SMALL

        await lab.envoy.until(is_back)


async def test_while_critical_the_last_class_may_get_the_static_answer(tmp_path):
    classes = (CORE, ELASTIC, replace(BATCH, when_critical=WhenCritical.STATIC))
    async with fleet_of(tmp_path, classes=classes) as fleet:
        critical(fleet.lab)

        async def is_static():
            return (await fleet.lab.ask({}, path=BATCHED)).served == "static"

        await fleet.lab.envoy.until(is_static)
        answer = await fleet.lab.ask({}, path=BATCHED)
        assert (answer.status, answer.reason) == (200, "class_shed")
        strict = await fleet.lab.ask({}, path=BATCHED, x_no_fallback="true")
        assert (strict.status, strict.reason) == (429, "class_shed")
        assert (await fleet.lab.ask({}, x_no_fallback="true")).served == BIG
        assert await fleet.lab.count(20) == {BIG: 20}


async def test_classes_and_models_that_share_a_prefix_go_together(tmp_path):
    async with AsyncExitStack() as stack:
        models = []
        for name in ("one", "two"):
            tiers = await stack.enter_async_context(
                running_tiers(
                    [ScriptedEngine(f"big-{name}")], [ScriptedEngine(f"small-{name}")], prefix=name
                )
            )
            models.append(replace(a_model(name, tiers=[*tiers, a_static_tier()]), names=(name,)))
        topology = replace(a_topology(*models), classes=(CORE, ELASTIC, BATCH))
        lab = await stack.enter_async_context(
            routing_lab(tmp_path, topology, split=[500, 500, 0], failures=FailurePolicy())
        )
        for name in ("one", "two"):
            for stream in (True, False):
                body = {"model": name, "stream": stream}
                assert (await lab.ask(body, x_class="core")).served == f"big-{name}"
                assert (await lab.ask(body)).served == f"small-{name}"
        assert (await lab.ask({"model": "three"}, x_class="core")).status == 404
        await lab.assert_all_accepted()
