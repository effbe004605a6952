"""What a real Envoy reports, and what the control plane makes of it."""

from __future__ import annotations

import asyncio
import collections
import json
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.fakes.envoy import RealEnvoy, eventually, running_envoy
from tests.fakes.scripted_engine import ScriptedEngine, scripted_engine
from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import XdsProcess, running_server
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.names import CONTROL_PLANE

pytestmark = pytest.mark.envoy


def document(
    big: ScriptedEngine,
    small: ScriptedEngine,
    *,
    templates: list[Any],
    limit: dict[str, Any],
    **policy: Any,
) -> dict[str, Any]:
    def listed(name: str, engine: ScriptedEngine) -> list[dict[str, Any]]:
        return [{"name": name, "address": f"127.0.0.1:{engine.port}", "capacity": 10}]

    return {
        "listener": {"address": "127.0.0.1", "port": 0},
        "models": [
            {
                "name": "chat",
                "tiers": [
                    {
                        "name": "primary",
                        "serves": "big",
                        "instances": listed("a", big),
                        "limit": limit,
                    },
                    {"name": "fallback", "serves": "small", "instances": listed("b", small)},
                    {
                        "name": "static",
                        "answer": {"json": {"busy": True}, "templates": templates},
                    },
                ],
            }
        ],
        "policy": policy,
    }


class Lab:
    """Two engines, a control plane and an Envoy."""

    def __init__(self, big: ScriptedEngine, small: ScriptedEngine) -> None:
        self.big = big
        self.small = small
        self.server: XdsProcess
        self.envoy: RealEnvoy
        self.session: aiohttp.ClientSession
        self.url = ""
        self.config: Path

    async def ask(
        self, *, headers: dict[str, str] | None = None, **body: Any
    ) -> aiohttp.ClientResponse:
        asked = {"model": "chat", "messages": [], **body}
        async with self.session.post(self.url, json=asked, headers=headers) as answer:
            await answer.read()
            return answer


@asynccontextmanager
async def lab(
    tmp_path,
    *,
    bootstrap_as: str = CONTROL_PLANE,
    more: dict[str, Any] | None = None,
    templates: list[Any] | None = None,
    limit: dict[str, Any] | None = None,
    **policy: Any,
):
    """Run everything.

    Args:
        tmp_path: Where files may be.
        bootstrap_as: What the proxy's bootstrap calls the cluster of the control plane.
        more: More of the configuration.
        templates: Of the static answer.
        limit: Of the primary tier.
        policy: Sections of the policy.
    """
    config = tmp_path / "config.yaml"
    async with (
        scripted_engine(ScriptedEngine(model="big")) as big,
        scripted_engine(ScriptedEngine(model="small")) as small,
        aiohttp.ClientSession() as session,
    ):
        made = Lab(big, small)
        made.session = session
        made.config = config
        written = document(big, small, templates=templates or [], limit=limit or {}, **policy)
        written |= more or {}
        config.write_text(yaml.safe_dump(written))
        async with running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server:
            made.server = server
            start = bootstrap(
                node_id="edge-1", cluster="test", xds_host="127.0.0.1", xds_port=server.xds_port
            )
            start = json.loads(json.dumps(start).replace(f'"{CONTROL_PLANE}"', f'"{bootstrap_as}"'))
            async with running_envoy(start, tmp_path / "envoy") as envoy:
                port = await envoy.listener_port("llm")
                made.envoy = envoy
                made.url = f"http://127.0.0.1:{port}/v1/chat/completions"
                yield made


async def test_a_request_that_envoy_logs_is_seen_in_the_metrics(tmp_path):
    async with lab(tmp_path) as made:
        assert (await made.ask()).status == 200

        async def seen() -> bool:
            return await made.server.metric("fleet_requests_total") == 1

        await eventually(seen, what="the request in /metrics")
        _, text = await made.server.get("/metrics")
        assert 'fleet_requests_total{class="",model="chat",outcome="ok",tier="primary"} 1.0' in text
        assert 'fleet_degraded_request_ratio{class="",model="chat"} 0.0' in text
        assert 'fleet_retry_amplification_ratio{class="",model="chat"} 1.0' in text
        assert await made.server.metric("fleet_evidence_refused_total") == 0


async def test_metrics_agree_with_what_the_clients_counted(tmp_path):
    """A mix of everything, compared with the clients' and the engines' own counts."""
    async with lab(tmp_path) as made:
        counted: collections.Counter[str] = collections.Counter()

        async def ask(number: int) -> None:
            answer = await made.ask(stream=bool(number % 2))
            counted[answer.headers.get("x-served-model", "none")] += 1

        async def phase(requests: int, big: str, small: str) -> None:
            made.big.mode, made.small.mode = big, small
            for start in range(0, requests, 10):
                await asyncio.gather(*(ask(start + number) for number in range(10)))

        await phase(300, "ok", "ok")
        await phase(200, "429", "ok")  # back-pressure: nobody is ejected
        await phase(100, "429", "429")
        await phase(100, "ok", "ok")
        await phase(100, "500", "ok")
        await phase(100, "500", "500")
        total = counted.total()
        assert total == 900
        attempts = made.big.requests + made.small.requests

        async def all_seen() -> bool:
            return await made.server.metric("fleet_requests_total") == total

        await eventually(all_seen, what="every request in /metrics")
        _, text = await made.server.get("/metrics")
        degraded = value_of(text, 'fleet_degraded_request_ratio{class="",model="chat"}')
        assert degraded == pytest.approx((total - counted["big"]) / total, rel=0.01)
        static = sum(values_of(text, "fleet_static_answer_ratio"))
        assert static == pytest.approx(counted["static"] / total, rel=0.01)
        assert counted["static"] > 50
        amplification = value_of(text, 'fleet_retry_amplification_ratio{class="",model="chat"}')
        assert amplification == pytest.approx(attempts / total, rel=0.01)
        assert sum(values_of(text, "fleet_attempts_total")) == pytest.approx(attempts, rel=0.01)
        for tier, served in (("primary", "big"), ("fallback", "small"), ("static", "static")):
            line = f'fleet_requests_total{{class="",model="chat",outcome="ok",tier="{tier}"}}'
            assert value_of(text, line) == pytest.approx(counted[served], rel=0.01)
        assert sum(values_of(text, "fleet_evidence_refused_total")) == 0

        async def load_agrees() -> bool:
            name = "fleet_load_reported_attempts_total"
            _, now = await made.server.get("/metrics")
            issued = sum(
                float(line.rpartition(" ")[2])
                for line in now.splitlines()
                if line.startswith(name) and 'kind="issued"' in line
            )
            return issued == pytest.approx(attempts, rel=0.01)

        await eventually(load_agrees, what="the load reports agree")


def values_of(text: str, name: str) -> list[float]:
    return [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith((name + "{", name + " "))
    ]


def value_of(text: str, line: str) -> float:
    (found,) = [
        float(each.rpartition(" ")[2]) for each in text.splitlines() if each.startswith(line)
    ]
    return found


async def test_failures_that_only_proxies_see_take_an_instance_out_and_it_returns_by_stages(
    tmp_path,
):
    async with (
        lab(tmp_path, recovery={"hold_s": 0.5}) as made,
        connected_agent(made.server.target) as agent,
    ):
        await agent.hello(1, ["a", "b"])
        await asyncio.wait_for(agent.welcome, PATIENCE_S)
        await agent.send(agent.sample("a"), agent.sample("b"))
        made.big.mode = "500"
        for _ in range(3):
            assert (await made.ask()).headers["x-served-model"] == "small"
        down = await made.server.event("instance_down", instance="a")
        assert down["rule"] == "proxies_failures_in_row"
        assert down["reason"] == (
            "It gets nothing: proxies saw its requests fail (3 in a row: 3 error; its agent says it is up)."
        )
        assert await made.server.metric("fleet_evidence_verdicts_total") == 1
        made.big.mode = "ok"

        async def recovered() -> bool:
            await agent.send(agent.sample("a"), agent.sample("b"))
            return bool(made.server.named("instance_healthy", instance="a"))

        await eventually(recovered, what="a is healthy again")
        before = [each["before"] for each in made.server.named("instance_stage_advanced")]
        assert before == ["recovering/0", "recovering/1"]


async def test_back_pressure_and_clients_that_leave_take_nobody_out(tmp_path):
    async with lab(tmp_path) as made:
        for mode in ("429", "503"):
            made.big.mode = mode
            for _ in range(5):
                await made.ask()
        made.big.mode, made.big.pause_s = "ok", 0.2
        for _ in range(5):
            # Envoy ejects for the 503s, which evidence does not count; whoever answers, the client leaves.
            async with made.session.post(made.url, json={"stream": True}) as answer:
                await answer.content.readany()
                answer.close()

        async def seen() -> bool:
            return await made.server.metric("fleet_requests_total") == 15

        await eventually(seen, what="every request in /metrics")
        _, text = await made.server.get("/metrics")
        outcomes = {
            line.partition('outcome="')[2].partition('"')[0]
            for line in text.splitlines()
            if line.startswith("fleet_attempts_total{")
        }
        assert "rejected" in outcomes
        assert outcomes <= {"rejected", "ok", "aborted"}
        assert await made.server.metric("fleet_evidence_verdicts_total") == 0
        assert not made.server.named("instance_down")


async def test_streams_that_break_after_a_200_count_though_envoy_itself_counts_none(tmp_path):
    async with lab(tmp_path) as made:
        made.big.cut_after = 1
        for _ in range(3):
            with pytest.raises(aiohttp.ClientPayloadError):
                await made.ask(stream=True)
        down = await made.server.event("instance_down", instance="a")
        assert down["reason"].startswith(
            "It gets nothing: proxies saw its requests fail (3 in a row: 3 broken"
        )
        assert await made.envoy.stat("cluster.chat/primary.outlier_detection.ejections_total") == 0


async def test_streams_that_end_in_an_error_event_count_where_proxies_look_into_streams(tmp_path):
    async with lab(tmp_path, evidence={"stream_errors": True}) as made:
        answer = await made.ask(stream=True)
        assert answer.headers["x-served-model"] == "big"
        made.big.error_event = True
        for _ in range(3):
            answer = await made.ask(stream=True)
            assert (answer.status, answer.headers["x-served-model"]) == (200, "big")
            assert "EngineDeadError" in await answer.text()
        down = await made.server.event("instance_down", instance="a")
        assert "3 in a row: 3 broken" in down["reason"]
        assert await made.envoy.rejected() == {}


async def test_a_proxy_that_calls_the_control_plane_otherwise_serves_and_logs_nothing(tmp_path):
    async with lab(tmp_path, bootstrap_as="their-own-name") as made:
        for _ in range(5):
            assert (await made.ask()).headers["x-served-model"] == "big"
        assert await made.envoy.rejected() == {}
        assert await made.server.metric("fleet_evidence_entries_total") == 0


async def test_requests_go_on_while_nobody_takes_the_logs_and_logs_go_on_with_the_next_server(
    tmp_path,
):
    async with lab(tmp_path) as made:
        assert (await made.ask()).status == 200
        port = made.server.xds_port
        await made.server.stop(signal.SIGKILL)
        for _ in range(100):
            assert (await made.ask()).headers["x-served-model"] == "big"
        flags = ["--grace-s", "0", "--xds-listen", f"127.0.0.1:{port}"]
        async with running_server(made.config, tmp_path / "state", flags) as server:

            async def logged() -> bool:
                await made.ask()
                return await server.metric("fleet_requests_total") > 0

            await eventually(logged, what="logs at the next server")
            assert await server.metric("fleet_evidence_refused_total") == 0


CLASSES = {
    "classes": [
        {"name": "core", "match": {"header": "x-slo", "value": "core"}},
        {"name": "rest"},
    ]
}
TEMPLATES = [{"name": "sorry", "when": {"keywords": ["weather"]}, "json": {"sorry": True}}]


async def test_classes_and_templates_are_labels(tmp_path):
    async with lab(tmp_path, more=CLASSES, templates=TEMPLATES) as made:
        await made.ask(headers={"x-slo": "core"})
        made.big.mode = made.small.mode = "500"
        await made.ask(messages=[{"role": "user", "content": "the weather?"}])
        await made.ask(messages=[{"role": "user", "content": "hello"}])

        async def seen() -> bool:
            return await made.server.metric("fleet_requests_total") == 3

        await eventually(seen, what="three requests")
        _, text = await made.server.get("/metrics")
        for line in (
            'fleet_requests_total{class="core",model="chat",outcome="ok",tier="primary"} 1.0',
            'fleet_requests_total{class="rest",model="chat",outcome="ok",tier="static"} 2.0',
            'fleet_static_answers_total{class="rest",model="chat",template="sorry"} 1.0',
            'fleet_static_answers_total{class="rest",model="chat",template="default"} 1.0',
            'fleet_degraded_request_ratio{class="core",model="chat"} 0.0',
            'fleet_degraded_request_ratio{class="rest",model="chat"} 1.0',
        ):
            assert line in text


async def test_a_tier_that_is_entered_through_a_gate_is_seen_like_any_other(tmp_path):
    async with lab(tmp_path, limit={"requests_per_second": 1000}) as made:
        for _ in range(4):
            assert (await made.ask()).headers["x-served-model"] == "big"
        made.big.mode = "500"
        for _ in range(3):
            assert (await made.ask()).headers["x-served-model"] == "small"
        down = await made.server.event("instance_down", instance="a")
        assert "3 in a row: 3 error" in down["reason"]

        async def seen() -> bool:
            return await made.server.metric("fleet_requests_total") == 7

        await eventually(seen, what="every request")
        _, text = await made.server.get("/metrics")
        for line in (
            'fleet_requests_total{class="",model="chat",outcome="ok",tier="primary"} 4.0',
            'fleet_requests_total{class="",model="chat",outcome="ok",tier="fallback"} 3.0',
            'instance="a",model="chat",outcome="ok",tier="primary"} 4.0',
            'instance="a",model="chat",outcome="error",tier="primary"} 3.0',
            'fleet_retry_amplification_ratio{class="",model="chat"} 1.4285714285714286',
        ):
            assert line in text


@pytest.mark.parametrize(
    "limit", [{"requests_per_second": 0.01}, {"concurrency": 1}], ids=["over its rate", "full"]
)
async def test_attempts_that_a_tiers_limit_turns_away_reach_no_engine_and_count_for_none(
    tmp_path, limit
):
    admission = {"burst_s": 0.01, "largest_request_tokens": 512}
    async with lab(tmp_path, more=CLASSES, limit=limit, admission=admission) as made:
        made.big.plain_s = 0.2
        for _ in range(4):
            answers = await asyncio.gather(
                *(
                    made.ask(headers={"x-slo": "core"} if number % 2 else None)
                    for number in range(6)
                )
            )
            assert {answer.status for answer in answers} == {200}
        attempts = made.big.requests + made.small.requests
        assert made.big.requests < 12

        async def seen() -> bool:
            return await made.server.metric("fleet_requests_total") == 24

        await eventually(seen, what="every request")
        _, text = await made.server.get("/metrics")
        assert sum(values_of(text, "fleet_attempts_total")) == attempts
        ratios = values_of(text, "fleet_retry_amplification_ratio")
        assert sum(ratios) * 12 == pytest.approx(attempts)


async def test_what_proxies_answer_alone_is_counted_too(tmp_path):
    async with lab(tmp_path) as made:
        written = yaml.safe_load(made.config.read_text())
        written["models"][0]["match"] = {"models": ["chat"]}
        written["models"][0]["limit"] = {"tokens_per_second": 1_000_000}
        made.config.write_text(yaml.safe_dump(written))
        await made.server.event("config_reloaded")

        async def unknown() -> bool:
            return (await made.ask(model="nobody")).status == 404

        await eventually(unknown, what="the new file")
        before = await made.server.metric("fleet_requests_total")
        statuses = [
            (await made.ask()).status,
            (await made.ask(model="nobody")).status,
            (await made.ask(model=None)).status,
            (await made.ask(max_tokens=-1)).status,
        ]
        base = made.url.removesuffix("/chat/completions")
        for path in ("/models", "/../nothing"):
            async with made.session.get(base + path) as answer:
                statuses.append(answer.status)
        assert statuses == [200, 404, 400, 400, 200, 404]

        async def seen() -> bool:
            return await made.server.metric("fleet_requests_total") >= before + 6

        await eventually(seen, what="every request")
        assert await made.server.metric("fleet_evidence_refused_total") == 0
