from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import sys
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from demo.batch import BatchSpec
from demo.engine import Engine, EngineSpec, main, parse_arguments
from demo.load import LoadGenerator, LoadSpec, ask, send
from demo.outcome import Death, Kind, Verdict
from demo.serving import ENGINE_HEADER, ServingSpec
from sidecar_agent.engine.adapters import detect, vllm
from sidecar_agent.engine.adapters.adapter import Options, Texts
from sidecar_agent.engine.facts import EngineState
from tests.fakes.envoy import eventually
from tests.fakes.waiting import PATIENCE_S

MODEL = "llama-3-70b"


@contextlib.asynccontextmanager
async def running(
    *, reload_s: float = 0.2, batch: BatchSpec | None = None, **serving
) -> AsyncIterator[tuple[Engine, aiohttp.ClientSession]]:
    spec = EngineSpec(
        serving=ServingSpec(
            name="a100-0",
            models=(MODEL, "chat"),
            batch=batch or BatchSpec(tokens_per_s=400.0),
            **serving,
        ),
        reload_s=reload_s,
    )
    engine = Engine(spec)
    await engine.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield engine, session
    finally:
        await engine.stop()


def url(engine: Engine, path: str) -> str:
    return f"http://127.0.0.1:{engine.port}{path}"


def control(engine: Engine, path: str) -> str:
    return f"http://127.0.0.1:{engine.control_port}{path}"


async def complete(engine: Engine, session: aiohttp.ClientSession, **body) -> tuple[int, dict]:
    full = {"model": MODEL, "messages": [{"content": "hello there"}], "max_tokens": 5} | body
    async with session.post(url(engine, "/v1/chat/completions"), json=full) as response:
        return response.status, await response.json()


async def page_facts(engine: Engine, session: aiohttp.ClientSession):
    async with session.get(url(engine, "/metrics")) as response:
        assert response.headers["content-type"].startswith("text/plain")
        page = await response.text()
    assert detect(page) is vllm.ADAPTER
    return vllm.ADAPTER.read(Texts(metrics=page), Options())


async def test_a_plain_answer_has_its_tokens_and_names_the_instance():
    async with running() as (engine, session):
        body = {"model": MODEL, "prompt": "hello there", "max_tokens": 5}
        async with session.post(url(engine, "/v1/completions"), json=body) as response:
            answer = await response.json()

    assert response.headers[ENGINE_HEADER] == "a100-0"
    assert answer["usage"]["completion_tokens"] == 5
    assert len(answer["choices"][0]["text"].split()) == 5


async def test_stream_headers_come_before_the_first_token_also_while_waiting():
    batch = BatchSpec(slots=1, tokens_per_s=10.0)
    async with running(batch=batch) as (engine, session):
        body = {"model": MODEL, "prompt": "x", "max_tokens": 100, "stream": True}
        async with (
            session.post(url(engine, "/v1/completions"), json=body),
            session.post(url(engine, "/v1/completions"), json=body) as second,
        ):
            assert second.status == 200
            assert second.headers["content-type"].startswith("text/event-stream")
            facts = await page_facts(engine, session)

    assert (facts.running or 0) + (facts.waiting or 0) == 2


async def test_the_page_is_read_by_the_agents_vllm_adapter():
    batch = BatchSpec(slots=1, kv_tokens=1600, tokens_per_s=400.0)
    async with running(batch=batch) as (engine, session):
        await complete(engine, session, max_tokens=7)
        body = {"model": MODEL, "prompt": "x" * 400, "max_tokens": 900, "stream": True}
        async with (
            session.post(url(engine, "/v1/completions"), json=body) as first,
            session.post(url(engine, "/v1/completions"), json=body),
        ):
            await first.content.readline()
            facts = await page_facts(engine, session)

    assert facts.state is EngineState.UP
    assert (facts.running, facts.waiting) == (1, 1)
    assert facts.kv_ratio is not None
    assert 0.06 <= facts.kv_ratio < 0.9
    assert facts.finished_total == 1
    assert facts.generation_tokens_total is not None
    assert facts.generation_tokens_total > 7
    assert facts.preemptions_total == 0
    assert facts.kv_capacity_tokens == 1600
    assert facts.reserved_ratio == pytest.approx(0.92)
    assert facts.started_at_unix_s == pytest.approx(time.time(), abs=60)
    assert facts.rejected == 0
    assert facts.warnings == ()


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        pytest.param({"model": "other"}, 404, "`other` does not exist", id="unknown model"),
        pytest.param({"max_tokens": 0}, 400, "max_tokens is 0", id="no tokens"),
        pytest.param(
            {"messages": [{"content": "x" * 20_000}]}, 400, "5000 tokens", id="prompt too long"
        ),
    ],
)
async def test_bad_requests_are_answered_as_vllm_does(body, status, text):
    async with running() as (engine, session):
        answered, error = await complete(engine, session, **body)

    assert answered == status
    assert text in error["error"]["message"]


async def test_a_full_queue_is_answered_503_while_health_stays_good():
    batch = BatchSpec(slots=1, tokens_per_s=10.0)
    async with running(batch=batch, queue_limit=1) as (engine, session):
        body = {"model": MODEL, "prompt": "x", "max_tokens": 100, "stream": True}
        async with session.post(url(engine, "/v1/completions"), json=body):
            await eventually(lambda: state_is(engine, running=1))
            async with session.post(url(engine, "/v1/completions"), json=body):
                status, _ = await complete(engine, session)
                async with session.get(url(engine, "/health")) as health:
                    assert health.status == 200

    assert status == 503


async def state_is(engine: Engine, **wanted) -> bool:
    state = engine.state()
    return all(state.get(name) == value for name, value in wanted.items())


async def test_a_client_that_goes_away_frees_its_slot_and_memory():
    batch = BatchSpec(slots=1, tokens_per_s=10.0)
    async with running(batch=batch) as (engine, session):
        body = {"model": MODEL, "prompt": "x", "max_tokens": 100, "stream": True}
        async with session.post(url(engine, "/v1/completions"), json=body) as response:
            await response.content.readline()
        await eventually(lambda: state_is(engine, running=0, kv_ratio=0.0, streaming=0))


async def test_running_out_of_memory_is_a_real_death():
    batch = BatchSpec(slots=2, tokens_per_s=20.0)
    async with running(batch=batch, reload_s=0.3) as (engine, session):
        await complete(engine, session)
        before = await page_facts(engine, session)
        body = {"model": MODEL, "prompt": "x", "max_tokens": 200}
        stream = await session.post(url(engine, "/v1/completions"), json=body | {"stream": True})
        await stream.content.readline()
        plain = asyncio.create_task(complete(engine, session, max_tokens=200))
        await eventually(lambda: state_is(engine, running=2))

        async with session.post(control(engine, "/sim/oom")) as response:
            death = await response.json()

        with pytest.raises(aiohttp.ClientError):
            await stream.read()
        with pytest.raises(aiohttp.ClientError):
            await plain
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(url(engine, "/metrics"))
        async with session.post(control(engine, "/sim/oom")) as response:
            assert response.status == 409

        await eventually(lambda: state_is(engine, state="serving"))
        facts = await page_facts(engine, session)
        status, _ = await complete(engine, session)

    assert death["engine"] == "a100-0"
    assert death["at_s"] == pytest.approx(time.monotonic(), abs=20)
    assert engine.deaths[0]["back_at_s"] - death["at_s"] >= 0.3
    assert facts.generation_tokens_total == 0
    assert facts.started_at_unix_s > before.started_at_unix_s
    assert status == 200


async def test_an_engine_whose_port_is_taken_while_it_reloads_comes_back_once_it_is_free(capsys):
    async def is_told() -> bool:
        return "in use" in capsys.readouterr().err

    async with running(reload_s=2.0) as (engine, session):
        async with session.post(control(engine, "/sim/oom")) as response:
            assert response.status == 200
        with socket.socket() as other:
            await eventually(lambda: can_bind(other, engine.port))
            other.listen()
            await eventually(is_told)
            assert engine.state()["state"] == "dead"
        await eventually(lambda: state_is(engine, state="serving"))
        status, _ = await complete(engine, session)
    assert status == 200


async def can_bind(taker: socket.socket, port: int) -> bool:
    with contextlib.suppress(OSError):
        taker.bind(("127.0.0.1", port))
        return True
    return False


async def test_an_overfull_engine_runs_out_of_memory_by_itself():
    batch = BatchSpec(slots=4, kv_tokens=64, tokens_per_s=10.0)
    async with running(batch=batch, oom_after_full_s=0.1, reload_s=60) as (engine, session):
        body = {"model": MODEL, "prompt": "x" * 160, "max_tokens": 20}
        sent = [
            asyncio.create_task(session.post(url(engine, "/v1/completions"), json=body))
            for _ in range(3)
        ]
        await eventually(lambda: state_is(engine, state="dead"))
        results = await asyncio.gather(*sent, return_exceptions=True)

    assert len(engine.deaths) == 1
    assert all(isinstance(result, aiohttp.ClientError) for result in results)


async def test_a_frozen_engine_answers_health_and_makes_no_progress():
    async with running() as (engine, session):
        async with session.post(control(engine, "/sim/freeze"), json={"frozen": True}):
            pass
        hanging = asyncio.create_task(complete(engine, session))
        await asyncio.sleep(0.15)
        async with session.get(url(engine, "/health")) as health:
            assert health.status == 200
        assert not hanging.done()
        async with session.post(control(engine, "/sim/freeze"), json={"frozen": False}):
            pass

        assert (await hanging)[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        pytest.param("/sim/slow", {"factor": 0}, "factor is 0", id="no speed"),
        pytest.param("/sim/slow", {}, "factor is None", id="no factor"),
        pytest.param("/sim/freeze", {"frozen": 3}, "frozen is 3", id="not a boolean"),
    ],
)
async def test_orders_that_make_no_sense_are_refused(path, body, text):
    async with (
        running() as (engine, session),
        session.post(control(engine, path), json=body) as response,
    ):
        assert response.status == 400
        assert text in (await response.json())["error"]


async def test_a_slow_engine_takes_longer():
    async with running(batch=BatchSpec(tokens_per_s=100.0)) as (engine, session):
        async with session.post(control(engine, "/sim/slow"), json={"factor": 0.2}) as response:
            assert (await response.json())["speed"] == 0.2
        before = time.monotonic()
        await complete(engine, session, max_tokens=10)

    assert time.monotonic() - before > 0.45


async def test_an_engine_answers_to_all_its_names_and_lists_them():
    async with (
        running() as (engine, session),
        session.get(url(engine, "/v1/models")) as response,
    ):
        body = await response.json()
        status, answer = await complete(engine, session, model="chat")

    assert [card["id"] for card in body["data"]] == [MODEL, "chat"]
    assert (status, answer["model"]) == (200, "chat")


async def test_the_load_generator_mixes_kinds_and_judges_them_ok():
    outcomes = []
    async with running(batch=BatchSpec(slots=64, tokens_per_s=1000.0)) as (engine, _):
        targets = {"one": url(engine, ""), "two": url(engine, "")}
        spec = LoadSpec(model=MODEL)
        async with LoadGenerator(targets, outcomes.append, spec=spec).running() as load:
            load.rate = 150
            await eventually(lambda: has(outcomes, 60))
            load.rate = 0

    assert {each.kind for each in outcomes} == {Kind.PLAIN, Kind.STREAM}
    assert {each.proxy for each in outcomes} == {"one", "two"}
    assert {each.verdict(()) for each in outcomes} == {Verdict.OK}
    assert {each.engine for each in outcomes} == {"a100-0"}
    assert all(each.wait_s is not None and each.wait_s <= each.latency_s for each in outcomes)


async def has(outcomes, count: int) -> bool:
    return len(outcomes) >= count


async def test_the_load_generator_tells_a_cut_stream_from_a_failure():
    outcomes = []
    async with running(batch=BatchSpec(tokens_per_s=20.0), reload_s=60) as (engine, session):
        spec = LoadSpec(model=MODEL, stream_tokens=(100, 200), plain_tokens=(100, 200))
        async with LoadGenerator(
            {"p": url(engine, "")}, outcomes.append, spec=spec
        ).running() as it:
            it.rate = 60
            await eventually(lambda: state_is(engine, running=16))
            async with session.post(control(engine, "/sim/oom")) as response:
                died = await response.json()
            await asyncio.sleep(0.2)
            it.rate = 0
    deaths = [Death(engine=died["engine"], at_s=died["at_s"])]

    running_streams = [each for each in outcomes if each.headers_s is not None]
    others = [each for each in outcomes if each.headers_s is None]
    assert {each.kind for each in running_streams} == {Kind.STREAM}
    assert {each.verdict(deaths) for each in running_streams} == {Verdict.CUT}
    assert {each.verdict(deaths) for each in others} == {Verdict.FAILED}
    assert Kind.PLAIN in {each.kind for each in others}


async def test_a_refused_connection_is_a_failed_outcome():
    asked = ask(LoadSpec(), random.Random(1))
    async with aiohttp.ClientSession() as session:
        outcome = await send(session, proxy="p", url="http://127.0.0.1:9", asked=asked)

    assert outcome.verdict(()) is Verdict.FAILED
    assert "Connect" in outcome.error


def test_the_command_line_sets_the_sizes():
    sizes = ["--slots", "3", "--kv-tokens", "500", "--tokens-per-s", "9", "--reload-s", "2"]
    spec = parse_arguments(["--port", "8001", "--name", "a", *sizes])

    assert (spec.port, spec.serving.name, spec.reload_s) == (8001, "a", 2.0)
    assert spec.serving.batch == BatchSpec(slots=3, kv_tokens=500, tokens_per_s=9.0)


def test_impossible_sizes_end_the_command_with_a_sentence(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--slots", "0"])

    assert caught.value.code == 2
    assert "slots is 0" in capsys.readouterr().err


def test_a_port_in_use_is_one_sentence(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code = main(["--port", str(taken.getsockname()[1]), "--name", "a100-0"])

    assert code == 1
    error = capsys.readouterr().err
    assert "a100-0" in error
    assert "address already in use" in error


async def test_the_process_tells_its_ports_and_ends_on_sigterm():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "demo.engine", "--name", "a"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    told = json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE_S))
    health_url = f"http://127.0.0.1:{told['port']}/health"
    async with aiohttp.ClientSession() as session, session.get(health_url) as health:
        assert health.status == 200
    process.terminate()

    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


async def test_the_load_generator_runs_from_the_command_line_and_tells_failures():
    async with running(batch=BatchSpec(slots=64, tokens_per_s=1000.0)) as (engine, _):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "demo.load", "--target", url(engine, ""), "--target"),
            *("http://127.0.0.1:9", "--model", MODEL, "--rate", "40", "--seconds", "1"),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 30)
    text = out.decode()

    assert process.returncode == 1
    assert "x ClientConnectorError" in text
    assert "first byte ms p50 / p99" in text


async def test_a_dead_engine_leaves_its_gpu_empty(tmp_path):
    state = tmp_path / "a.gpu"
    spec = EngineSpec(
        serving=ServingSpec(name="a", models=(MODEL,), batch=BatchSpec()),
        reload_s=60,
        gpu_state=state,
    )

    def used_bytes() -> int:
        values = dict(line.split(" ", 1) for line in state.read_text().splitlines())
        return int(values["gpu0.used"])

    engine = Engine(spec)
    await engine.start()
    try:
        assert used_bytes() > 70 * 1024**3
        async with (
            aiohttp.ClientSession() as session,
            session.post(control(engine, "/sim/oom")),
        ):
            await eventually(lambda: is_empty(used_bytes))
    finally:
        await engine.stop()


async def is_empty(used_bytes) -> bool:
    return used_bytes() == 0


async def test_arrivals_keep_their_rate_and_do_not_wait_for_answers():
    outcomes = []
    async with running(batch=BatchSpec(slots=1, tokens_per_s=1.0), reload_s=60) as (
        engine,
        session,
    ):
        spec = LoadSpec(model=MODEL)
        async with LoadGenerator(
            {"p": url(engine, "")}, outcomes.append, spec=spec
        ).running() as it:
            began = time.monotonic()
            it.rate = 100
            await eventually(lambda: are_under_way(it, 100))
            seconds = time.monotonic() - began
            it.rate = 0
            async with session.post(control(engine, "/sim/oom")):
                pass

    # 100 Poisson arrivals at 100/s: shorter than half a second is out by five deviations.
    assert seconds > 0.5
    assert len(outcomes) >= 100


async def are_under_way(load: LoadGenerator, count: int) -> bool:
    return load.in_flight >= count
