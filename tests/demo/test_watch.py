from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from rich.console import Console

from demo.outcome import Kind, Outcome
from demo.play import ACTS, PARTS, PRIMARY, configuration, paced
from demo.scene import Scene
from demo.view import flush, picture, plain_line
from demo.watch import SampleView, Traces, Watch, parse_fleet, parse_plan, traces_of
from xds_server.config.load import load_text

REASON = {"rule": "demand", "text": "demand exceeds [capacity]", "inputs": {}}
PLAN = {
    "models": [
        {
            "name": "chat",
            "tiers": [
                {
                    "name": PRIMARY,
                    "level": "critical",
                    "share": 0.6,
                    "pressure": 1.2,
                    "spill": 0.4,
                    "reason": REASON,
                    "instances": [
                        {
                            "id": part.name,
                            "state": "healthy",
                            "health": "healthy",
                            "ceiling": 1.0,
                            "weight": 1000,
                            "pressure": None,
                            "reason": REASON,
                        }
                        for part in PARTS[:2]
                    ],
                },
                {"name": "static", "level": "healthy", "share": 0.4, "instances": []},
            ],
        }
    ]
}
STATE = {"state": "serving", "deaths": []}
FLEET = {
    "instances": [
        {
            "instance": "a100-0",
            "sample_age_s": 0.2,
            "sample": {
                "engine": {"state": "up", "kv_ratio": 0.97, "running": 3.0, "waiting": 9.0},
                "gpu": {"vram_ratio": 0.92},
            },
        },
        {
            "instance": "a100-1",
            "sample_age_s": 0.1,
            "sample": {"engine": {"state": "down", "kv_ratio": None}, "gpu": None},
        },
        {"instance": "l4-0", "sample_age_s": None, "sample": None},
    ]
}


def host(port: int, health: str = "HEALTHY", **stats: int) -> dict:
    return {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "health_status": {"eds_health_status": health},
        "stats": [{"name": name, "value": str(value)} for name, value in stats.items()],
    }


def clusters(*hosts: dict) -> dict:
    return {"cluster_statuses": [{"name": "chat/primary", "host_statuses": list(hosts)}, {}]}


@contextlib.asynccontextmanager
async def pages(**bodies) -> AsyncIterator[str]:
    async def page(request: web.Request) -> web.Response:
        body = bodies[request.path.strip("/").replace("/", "_")]
        return web.Response(text=json.dumps(body() if callable(body) else body))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_a_plan_becomes_tiers_and_instances():
    primary, static = parse_plan(PLAN)

    assert (primary.level, primary.share, primary.spill) == ("critical", 0.6, 0.4)
    assert primary.reason == "demand exceeds [capacity]"
    assert [each.name for each in primary.instances] == ["a100-0", "a100-1"]
    assert primary.instances[0].pressure is None
    assert (static.instances, static.pressure) == ((), None)


def test_what_was_heard_of_an_instance_is_shown_and_what_was_not_is_missing():
    samples = parse_fleet(FLEET)

    assert samples["a100-0"] == SampleView(
        state="up", kv_ratio=0.97, running=3.0, waiting=9.0, vram_ratio=0.92, age_s=0.2
    )
    assert samples["a100-1"].kv_ratio is None
    assert samples["a100-1"].vram_ratio is None
    assert "l4-0" not in samples


def test_no_model_is_an_empty_plan():
    assert parse_plan({"models": []}) == ()


def test_attempts_are_requests_and_failed_connections_of_that_endpoint_only():
    page = clusters(host(8001, rq_total=5, cx_connect_fail=2, rq_error=9), host(8002, rq_total=70))

    assert traces_of(page, "127.0.0.1:8001") == Traces(attempts=7, is_offered=True)
    assert traces_of(page, "127.0.0.1:8009") == Traces(attempts=0, is_offered=False)


async def test_the_watch_follows_plan_and_engines():
    async with (
        pages(debug_plan=PLAN, debug_fleet=FLEET, sim_state=STATE) as url,
        aiohttp.ClientSession() as session,
    ):
        watch = Watch(session, server=url, engines={"a100-0": url}, proxies={})
        await watch.look()

    assert watch.engines == {"a100-0": STATE}
    assert watch.tiers == parse_plan(PLAN)
    assert watch.samples == parse_fleet(FLEET)


async def test_who_does_not_answer_keeps_the_last_picture():
    async with aiohttp.ClientSession() as session:
        watch = Watch(
            session,
            server="http://127.0.0.1:9",
            engines={"a100-0": "http://127.0.0.1:9"},
            proxies={},
        )
        watch.tiers = parse_plan(PLAN)
        await watch.look()

    assert watch.tiers == parse_plan(PLAN)


async def test_a_farewell_is_when_the_counters_stopped_and_when_the_endpoint_was_taken_away():
    answers = iter([(3, "HEALTHY"), (3, "HEALTHY"), (4, "HEALTHY"), (6, "UNHEALTHY")])

    def page() -> dict:
        count, health = next(answers, (6, "UNHEALTHY"))
        return clusters(host(8001, health, rq_total=count))

    async with pages(clusters=page) as url, aiohttp.ClientSession() as session:
        watch = Watch(session, server=url, engines={}, proxies={"sotw": url})
        found = await watch.farewell("127.0.0.1:8001", since_s=time.monotonic(), seconds=3.0)

    assert found.attempts == 3
    assert 0.05 < found.last_attempt_after_s < 3.0
    assert found.told_after_s is not None
    assert 0.05 < found.told_after_s < 3.0


async def test_an_endpoint_that_nobody_takes_away_was_never_told():
    async with (
        pages(clusters=clusters(host(8001, rq_total=5))) as url,
        aiohttp.ClientSession() as session,
    ):
        watch = Watch(session, server=url, engines={}, proxies={"sotw": url})
        found = await watch.farewell("127.0.0.1:8001", since_s=time.monotonic(), seconds=0.1)

    assert (found.attempts, found.last_attempt_after_s, found.told_after_s) == (0, 0.0, None)


def scene() -> Scene:
    watch = Watch(None, server="", engines={}, proxies={})  # type: ignore[arg-type]
    made = Scene(watch=watch, tiers={"llama-3-70b": PRIMARY})
    watch.tiers = parse_plan(PLAN)
    watch.samples = parse_fleet(FLEET)
    made.act = ACTS[1]
    made.record(
        Outcome(
            kind=Kind.PLAIN,
            proxy="sotw",
            started_s=made.started_s,
            first_byte_s=made.started_s + 0.02,
            ended_s=made.started_s + 0.05,
            status=200,
            model="llama-3-70b",
            is_complete=True,
        )
    )
    made.say("a100-1 ran out of memory [for real]")
    return made


def test_the_picture_shows_tiers_instances_clients_and_the_timeline():
    console = Console(file=io.StringIO(), width=160)
    console.print(picture(scene()))
    text = console.file.getvalue()

    for word in ("OVERLOAD", "critical", "60%", "97%", "92%", "down", "failed 0", "[for real]"):
        assert word in text
    assert "first byte p50 20 ms" in text
    assert "exceeds [capacity]" in text
    assert text.count("\n") <= 24


def test_the_picture_can_be_drawn_before_anything_is_known():
    empty = Scene(watch=Watch(None, server="", engines={}, proxies={}), tiers={})
    console = Console(file=io.StringIO(), width=120)
    console.print(picture(empty))

    assert "l4-0" in console.file.getvalue()
    assert "no plan yet" in plain_line(empty)


def test_plain_lines_are_one_line_each_and_said_once():
    made, console = scene(), Console(file=io.StringIO(), width=80)
    flush(made, console)
    flush(made, console)

    assert console.file.getvalue().count("\n") == 1
    assert "(a100-0 healthy kv 97% queue 9 a100-1 healthy kv - queue -)" in plain_line(made)


def test_the_acts_can_be_paced_without_changing_their_loads():
    acts = paced(ACTS, 36.0)

    assert sum(act.seconds for act in acts) == 36.0
    assert [act.rate for act in acts] == [act.rate for act in ACTS]
    assert sum(act.seconds for act in ACTS) <= 78


def test_the_configuration_is_one_that_the_control_plane_takes():
    addresses = {part.name: f"127.0.0.1:{8001 + index}" for index, part in enumerate(PARTS)}
    config = load_text(json.dumps(configuration(addresses)))

    assert [tier.name for tier in config.topology.models[0].tiers] == [
        "primary",
        "fallback",
        "static",
    ]
    assert config.topology.listener_port == 0
