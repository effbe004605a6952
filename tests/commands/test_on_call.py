"""status, proxies, drain, force: as an operator types them, against a real server process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from typer.testing import CliRunner, Result

from tests.fakes.telemetry_client import connected_agent
from tests.fakes.waiting import PATIENCE_S, until
from tests.fakes.xds_process import ROOT, running_server
from xds_server.cli import app
from xds_server.resources.snapshot import CLUSTER

DESIGN = (ROOT / "tests/config/design.yaml").read_text()
INSTANCES = ("a100-0", "a100-1", "l4-0")
ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(DESIGN)
    return path


class Operator:
    """Someone who types commands at one server."""

    def __init__(self, server) -> None:
        self.server = server

    async def types(self, *arguments: str) -> Result:
        given = [*arguments, "--admin", self.server.admin_url]
        return await asyncio.to_thread(CliRunner().invoke, app, given)

    async def gets(self, *arguments: str):
        done = await self.types(*arguments, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    async def weights(self) -> dict[str, int]:
        found = await self.gets("status")
        return {each["tier"]: each["weight"] for each in found["models"][0]["tiers"]}


@asynccontextmanager
async def on_call(config, tmp_path, *names: str):
    """Yield an operator of a server that has heard of these instances."""
    async with (
        running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server,
        connected_agent(server.target) as agent,
    ):
        await agent.greet(*INSTANCES)
        for name in names:
            await agent.report(name)
        await server.event("server_warm")
        yield Operator(server)


async def test_status_shows_models_tiers_and_instances_and_no_number_without_an_age(
    config, tmp_path
):
    async with on_call(config, tmp_path, "a100-0") as operator:

        async def heard():
            found = await operator.gets("status")
            [model] = found["models"]
            a, b = model["tiers"][0]["instances"]
            return (found, model, a, b) if a["age_s"] is not None else None

        found, model, a, b = await until(heard)
        assert found["warm"] is True
        assert [each["tier"] for each in model["tiers"]] == ["primary", "fallback", "static"]
        assert model["tiers"][0]["weight"] == model["tiers"][0]["of"] == 1000
        assert a["state"] == "healthy"
        assert a["rule"]
        assert (b["age_s"], b["pressure"]) == (None, None)
        done = await operator.types("status", "chat")
        assert done.exit_code == 0
        for text in ("chat", "primary", "a100-1", "healthy", "100.0%", "fits"):
            assert text in done.stdout
        done = await operator.types("status", "nobody")
        assert done.exit_code == 1
        assert done.stderr == "xds-server: there is no model 'nobody'; there is chat\n"


async def test_watched_status_is_printed_again_and_ends_with_ctrl_c(config, tmp_path):
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "xds_server", "status", "--watch", "--every", "0.1"),
            *("--json", "--admin", operator.server.admin_url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        assert watching.stdout is not None
        lines = [await asyncio.wait_for(watching.stdout.readline(), PATIENCE_S) for _ in range(3)]
        assert all(json.loads(line)["models"][0]["model"] == "chat" for line in lines)
        watching.send_signal(signal.SIGINT)
        _, said = await asyncio.wait_for(watching.communicate(), PATIENCE_S)
        assert (watching.returncode, said) == (0, b"")


async def test_status_watched_on_a_terminal_says_that_the_server_is_away_and_keeps_the_last_look(
    config, tmp_path
):
    master, terminal = os.openpty()
    seen = b""

    async def shows(text: bytes) -> None:
        nonlocal seen
        async with asyncio.timeout(PATIENCE_S):
            while text not in seen:
                seen += await asyncio.to_thread(os.read, master, 65536)

    async with on_call(config, tmp_path, *INSTANCES) as operator:
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "xds_server", "status", "chat", "--watch", "--every", "0.1"),
            *("--admin", operator.server.admin_url),
            stdout=terminal,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "40"},
        )
        await shows(b"a100-1")
        await operator.server.stop()
        await shows(b"is it running?")
        seen = b""
        await shows(b"a100-1")
        watching.send_signal(signal.SIGINT)
        _, said = await asyncio.wait_for(watching.communicate(), PATIENCE_S)
        assert (watching.returncode, said) == (0, b"")
    os.close(terminal)
    os.close(master)


async def test_proxies_shows_what_was_sent_acked_refused_and_what_one_lacks(config, tmp_path):
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        done = await operator.types("proxies")
        assert (done.exit_code, done.stdout) == (0, "")
        assert done.stderr == "xds-server: no proxy is connected\n"
        async with grpc.aio.insecure_channel(operator.server.target) as channel:
            call = channel.stream_stream(ADS)()
            request = DiscoveryRequest(type_url=CLUSTER)
            request.node.id = "edge-1"
            request.node.user_agent_name = "envoy"
            request.node.user_agent_build_version.version.major_number = 1
            request.node.user_agent_build_version.version.minor_number = 34
            await call.write(request.SerializeToString())
            answer = DiscoveryResponse.FromString(await call.read())
            request.response_nonce = answer.nonce
            request.error_detail.message = "no such cluster type\x1b[2J"
            await call.write(request.SerializeToString())

            async def refused():
                [found] = await operator.gets("proxies")
                [kind] = found["types"]
                return kind["state"] == "error" and found

            found = await until(refused)
            assert found["proxy"]["lacks"]
            done = await operator.types("proxies", "edge-1", "--behind")
            assert done.exit_code == 0
            for text in ("edge-1", "Cluster", "nacked", "no such cluster type?[2J", "lacks"):
                assert text in done.stdout
            assert "\x1b" not in done.stdout
            done = await operator.types("proxies", "edge-2")
            assert done.exit_code == 1
            assert done.stderr == (
                "xds-server: no proxy 'edge-2' is connected; did you mean edge-1?\n"
            )
            call.cancel()


async def test_a_drained_instance_takes_nothing_until_it_is_undrained(config, tmp_path):
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        done = await operator.types("drain", "a100-1", "--why", "new driver", "--who", "ann")
        assert done.exit_code == 0
        assert "a100-1 is being drained" in done.stdout

        async def state():
            found = await operator.gets("status")
            return found["models"][0]["tiers"][0]["instances"][1]

        async def drained():
            found = await state()
            return found["state"] == "draining" and found

        found = await until(drained)
        assert (found["weight"], found["rule"]) == (0, "operator_drain")
        assert "ann: new driver" in found["sentence"]
        again = await operator.types("drain", "a100-1", "--why", "me too", "--who", "bob")
        assert again.stderr == "xds-server: It was drained already: ann: new driver.\n"
        assert (await operator.gets("undrain", "a100-1")) == {
            "instance": "a100-1",
            "draining": False,
            "note": "",
        }

        async def back():
            return (await state())["state"] == "recovering"

        await until(back)


async def test_the_last_of_a_tier_is_drained_with_a_word_about_where_its_requests_go(
    config, tmp_path
):
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        done = await operator.types("drain", "l4-0", "--why", "test")
        assert (done.exit_code, done.stderr) == (
            0,
            "xds-server: It is the last of chat/fallback that takes requests: they go to static.\n",
        )
        done = await operator.types("drain", "a100-0", "--why", "test")
        assert (done.exit_code, done.stderr) == (0, "")


async def test_taking_back_a_drain_that_nobody_ordered_does_not_say_that_something_was_done(
    config, tmp_path
):
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        done = await operator.types("undrain", "a100-0")
        assert (done.exit_code, done.stdout) == (
            0,
            "a100-0: No operator drained it: nothing changes.\n",
        )


async def test_who_forces_after_somebody_else_is_told_whose_order_is_gone(config, tmp_path):
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        first = ("force", "fallback", "--for", "5m", "--why", "rehearsal", "--who", "ann")
        assert (await operator.types(*first)).stderr == ""

        async def forced():
            return (await operator.weights())["fallback"] == 1000

        await until(forced)
        done = await operator.types("force", "static", "--for", "1m", "--why", "x", "--who", "bob")
        assert "It takes the place of the order of ann: fallback until 20" in done.stderr


async def test_a_forced_tier_gets_everything_is_explained_and_ends_by_itself(config, tmp_path):
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        order = ("force", "fallback", "--for", "2s", "--why", "rehearsal", "--who", "ann")
        done = await operator.types(*order)
        assert done.exit_code == 0, done.stderr
        assert "chat/fallback gets all requests until 20" in done.stdout

        async def forced():
            return (await operator.weights())["fallback"] == 1000

        await until(forced)
        explained = await operator.types("explain", "chat/primary")
        assert "ann gives all requests to fallback until" in explained.stdout
        assert "rehearsal" in explained.stdout
        snapshot = await operator.server.get_json("/debug/snapshot?capability=composite")
        assert '"forced"' in json.dumps(snapshot), "the reason is in the header of the answers"

        async def ended():
            return await operator.weights() == {"primary": 1000, "fallback": 0, "static": 0}

        await until(ended)
        events = (await operator.server.get_json("/api/events?limit=50"))["events"]
        named = {each["name"]: each for each in events}
        assert (named["force_requested"]["who"], named["force_requested"]["why"]) == (
            "ann",
            "rehearsal",
        )
        assert named["tier_forced"]["after"] == "fallback"
        assert named["force_ended"]["rule"] == "force_over"


async def test_a_forced_tier_stays_so_through_a_restart_and_can_be_taken_back(config, tmp_path):
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        order = ("force", "chat/static", "--for", "10m", "--why", "maintenance")
        assert (await operator.gets(*order))["tier"] == "static"

        async def forced():
            return (await operator.weights())["static"] == 1000

        await until(forced)
        assert await operator.server.stop() == 0
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        assert (await operator.weights())["static"] == 1000
        done = await operator.types("unforce", "--why", "it is over", "--who", "bob")
        assert (done.exit_code, done.stdout) == (
            0,
            "chat/static is no longer forced: telemetry decides again\n",
        )

        async def ended():
            return (await operator.weights())["static"] == 0

        await until(ended)


TWO_MODELS = """
classes:
  - {name: core, match: {header: x-class, value: core}}
  - {name: rest, when_critical: reject}
models:
  - name: chat
    match: {domains: [chat.test]}
    tiers:
      - {name: primary, instances: [{name: a, address: "127.0.0.1:1"}]}
      - {name: static, answer: {json: {choices: []}}}
  - name: code
    match: {domains: [code.test]}
    tiers:
      - {name: primary, instances: [{name: b, address: "127.0.0.1:2"}]}
      - {name: static, answer: {json: {choices: []}}}
"""


async def test_with_several_models_an_order_says_which_and_classes_follow_it(config, tmp_path):
    config.write_text(TWO_MODELS)
    async with running_server(config, tmp_path / "state", ["--grace-s", "0"]) as server:
        await server.event("server_warm")
        operator = Operator(server)
        given = ("--for", "5m", "--why", "test", "--who", "ann")
        done = await operator.types("force", "static", *given)
        assert (done.exit_code, done.stderr) == (
            2,
            "xds-server: TIER: 'static': several models have it: chat/static, code/static\n",
        )
        for model in ("chat", "code"):
            await operator.gets("force", f"{model}/static", *given)

        async def forced():
            found = await operator.gets("status")
            return all(each["tiers"][1]["weight"] == 1000 for each in found["models"]) and found

        found = await until(forced)
        for model in found["models"]:
            assert [each["weights"]["static"] for each in model["classes"]] == [1000, 1000]
        done = await operator.types("status", "code")
        assert "class core" in done.stdout
        assert "static 100.0%" in done.stdout
        done = await operator.types("unforce")
        assert done.exit_code == 1
        assert "forced is chat (to static), code (to static): say which model" in done.stderr
        assert (await operator.gets("unforce", "code/static"))["model"] == "code"


async def test_a_tier_that_can_take_nothing_is_not_forced(config, tmp_path):
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        await operator.types("drain", "l4-0", "--why", "test")

        async def refused():
            order = ("force", "fallback", "--for", "1m", "--why", "test")
            done = await operator.types(*order)
            return done if done.exit_code else None

        done = await until(refused)
        assert done.exit_code == 1
        assert done.stderr == "xds-server: chat/fallback can take no request now\n"


REFUSED = {
    "unknown instance": (["drain", "nobody", "--why", "x"], 1, "no instance 'nobody'"),
    "blank reason": (["drain", "a100-0", "--why", " "], 2, "--why: "),
    "blank name": (["drain", "", "--why", "x"], 2, 'INSTANCE: ""'),
    "slash in a name": (["drain", "a/b c", "--why", "x"], 1, "there is no instance 'a/b c'"),
    "slip in a name": (["drain", "a10-0", "--why", "x"], 1, "did you mean a100-0"),
    "slip in a tier": (
        ["force", "falback", "--for", "1m", "--why", "x"],
        1,
        "there is no tier 'falback'; did you mean fallback?",
    ),
    "slip in a model": (["status", "chta"], 1, "there is no model 'chta'; did you mean chat?"),
    "slip in a subject": (["explain", "chat/primry"], 1, "did you mean chat/primary?"),
    "unknown tier": (
        ["force", "nothing", "--for", "1m", "--why", "x"],
        1,
        "there is no tier 'nothing'; there is chat/primary, chat/fallback, chat/static",
    ),
    "no span": (["force", "fallback", "--for", "soon", "--why", "x"], 2, "r: --for: 'soon'"),
    "no subject": (["explain", " "], 2, 'SUBJECT: ""'),
    "no such time": (["events", "--since", "tomorrow"], 2, "r: --since: 'tomorrow'"),
    "times the wrong way round": (
        ["events", "--since", "10m", "--until", "20m"],
        2,
        "--until: '20m': expected a time that is not before since",
    ),
    "no such event": (["incident", "99999999999999999999"], 2, "ID: '99999999999999999999'"),
    "too long": (["force", "fallback", "--for", "2d", "--why", "x"], 2, "from 1s to 24h"),
    "blank reason to force": (["force", "fallback", "--for", "2m", "--why", ""], 2, "--why: "),
    "nothing forced": (["unforce"], 1, "no tier is forced: there is nothing to end"),
    "not forced": (["unforce", "chat"], 1, "no tier of 'chat' is forced"),
    "unknown model": (["unforce", "x"], 1, "there is no model 'x'"),
    "too often": (["status", "--every", "0"], 2, "--every: 0"),
}


async def test_orders_that_cannot_be_followed_end_with_one_sentence_and_change_nothing(
    config, tmp_path
):
    async with on_call(config, tmp_path, *INSTANCES) as operator:
        for title, (arguments, code, text) in REFUSED.items():
            done = await operator.types(*arguments)
            assert (done.exit_code, done.stderr.count("\n")) == (code, 1), title
            assert text in done.stderr, title
        assert (await operator.weights())["primary"] == 1000
        events = (await operator.server.get_json("/api/events?kind=operator"))["events"]
        assert events == []


async def test_a_page_of_another_site_may_not_force(config, tmp_path):
    async with on_call(config, tmp_path) as operator:
        url = f"{operator.server.admin_url}/force?tier=fallback&for=1m&why=x"
        async with operator.server.session.post(url, headers={"Origin": "http://x.test"}) as answer:
            assert answer.status == 403
        status, text = await operator.server.post("/force?tier=fallback&for=1m")
        assert status == 400
        assert "why is missing" in text
        status, text = await operator.server.post("/force?for=1m&why=x")
        assert status == 400
        assert "tier is missing" in text
