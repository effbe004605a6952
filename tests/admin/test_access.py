"""Who may look and who may order, over real HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from tests.fakes.live_stage import LiveStage
from tests.fakes.waiting import PATIENCE_S
from xds_server.admin.access import Access
from xds_server.config.admin_tokens import TokenFile, digest
from xds_server.config.settings import resolve

ADA, BOB, EVE = "ada's token", "bob's token", "eve's token"
READS = ("/debug/plan", "/debug/explain?subject=chat-0", "/api/state", "/debug/syncz")
OPEN = ("/", "/healthz", "/readyz", "/metrics", "/page/app.js", "/api/access")
ORDER = "/drain/chat-0?who=mallory&why=test"


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(
        f"ada operator {digest(ADA).hex()}\n"
        f"bob viewer {digest(BOB).hex()}\n"
        f"eve operator {digest(EVE).hex()} 2020-01-01T00:00:00Z\n"
    )
    return path


def accesses(file: Path, **settings) -> Access:
    made = resolve(flags=settings, environ={}, file={})
    return Access.of(dataclasses.replace(made, admin_tokens_file=file))


class Caller:
    """Someone with or without a token."""

    def __init__(self, stage: LiveStage, session: aiohttp.ClientSession, token: str | None) -> None:
        self.stage = stage
        self.session = session
        self.headers = {} if token is None else {"authorization": f"Bearer {token}"}

    async def asks(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        url = self.stage.url.rstrip("/") + path
        async with self.session.request(method, url, headers=self.headers | headers) as answer:
            return answer.status, await answer.text()


async def tried(access: Access, token: str | None, path: str, method: str = "GET", **headers: str):
    stage = LiveStage()
    stage.access = access
    async with stage.serving(), aiohttp.ClientSession() as session:
        status, text = await Caller(stage, session, token).asks(path, method, **headers)
        return status, text, stage.drained


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize("token", [None, "nobody's"])
async def test_what_looks_after_the_process_and_the_files_of_the_page_are_open(file, path, token):
    status, _, _ = await tried(accesses(file), token, path)
    assert status == 200


@pytest.mark.parametrize("path", READS)
async def test_with_a_file_nobody_looks_without_a_token(file, path):
    access = accesses(file)
    assert (await tried(access, None, path))[0] == 401
    for token in (ADA, BOB):
        assert (await tried(access, token, path))[0] == 200


@pytest.mark.parametrize(
    ("token", "status", "said"),
    [
        pytest.param(None, 401, "a token is missing: give one with --token-file", id="none"),
        pytest.param("x", 401, "nobody has this token here; it may have been", id="unknown"),
        pytest.param(
            EVE, 401, "the token of eve expired at 2020-01-01T00:00:00.000Z", id="expired"
        ),
        pytest.param(BOB, 403, "bob may look, not order: the token's role is viewer", id="viewer"),
    ],
)
async def test_who_may_not_order_is_told_why_in_a_sentence(file, token, status, said):
    with capture_logs() as lines:
        found, text, drained = await tried(accesses(file), token, ORDER, "POST")
    assert (found, drained) == (status, [])
    assert said in text
    (line,) = [each for each in lines if each["event"] == "admin_refused"]
    assert line["path"] == "/drain/chat-0"
    assert all(secret not in str(line) for secret in (ADA, BOB, EVE))


async def test_the_history_names_whose_token_it_is_whatever_one_says_to_be(file):
    status, _, drained = await tried(accesses(file), ADA, ORDER, "POST")
    assert status == 202
    assert drained == [("chat-0", True, "ada", "test")]


@pytest.mark.parametrize("path", ["/force?tier=x", "/unforce", "/undrain/chat-0", "/not/yet/there"])
async def test_whatever_is_posted_is_an_order_if_nobody_says_otherwise(file, path):
    assert (await tried(accesses(file), BOB, path, "POST"))[0] == 403
    assert (await tried(accesses(file), BOB, "/api/diff", "POST"))[0] == 404, "that one only looks"


@pytest.mark.parametrize(
    "path",
    [
        "/page/../debug/plan",
        "/page/%2e%2e/debug/plan",
        "/page/..%2fdebug%2fplan",
        "//debug/plan",
        "/debug//plan",
        "/debug/plan/",
        "/DEBUG/plan",
        "/metrics/../debug/plan",
        "/healthz/x",
        "/page",
    ],
)
async def test_no_way_of_writing_a_path_leads_around_the_door(file, path):
    stage = LiveStage()
    stage.access = accesses(file)
    async with stage.serving():
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = (await asyncio.wait_for(reader.read(), PATIENCE_S)).decode()
        writer.close()
        await writer.wait_closed()
    assert answer.split(" ")[1] in {"401", "404"}
    assert '"models"' not in answer


@pytest.mark.parametrize("given", ["Basic YTpi", "Bearer", "x"])
async def test_what_is_no_bearer_token_is_refused(file, given):
    status, text, _ = await tried(accesses(file), None, "/debug/plan", authorization=given)
    assert status == 401
    assert "token" in text


@pytest.mark.parametrize(
    ("given", "found", "said"),
    [
        pytest.param(("127.0.0.1:0", None, False), (200, 202), None, id="loopback"),
        pytest.param(("[::1]:0", None, False), (200, 202), None, id="loopback-6"),
        pytest.param(("0.0.0.0:0", None, False), (200, 403), "admin_orders_off", id="everywhere"),
        pytest.param(("127.0.0.1:0", None, True), (401, 401), None, id="loopback-and-file"),
        pytest.param(("0.0.0.0:0", None, True), (401, 401), None, id="everywhere-and-file"),
        pytest.param(("0.0.0.0:0", "viewer", True), (200, 403), None, id="looking-is-free"),
        pytest.param(
            ("0.0.0.0:0", "operator", False), (200, 202), "admin_unguarded", id="all-is-free"
        ),
        pytest.param(
            ("127.0.0.1:0", "viewer", False), (200, 403), "admin_orders_off", id="read-only"
        ),
        pytest.param(("127.0.0.1:0", "none", False), (403, 403), "admin_orders_off", id="closed"),
    ],
)
async def test_what_is_permitted_without_a_token(file, given, found, said):
    listen, anonymous, has_file = given
    with capture_logs() as lines:
        settings = {"admin_listen": listen, "admin_anonymous": anonymous}
        access = accesses(file if has_file else None, **settings)
    warned = [each["event"] for each in lines if each["log_level"] == "warning"]
    assert warned == ([said] if said else [])
    looks = (await tried(access, None, "/debug/plan"))[0]
    orders = (await tried(access, None, ORDER, "POST"))[0]
    assert (looks, orders) == found


async def test_without_a_file_a_token_that_is_brought_along_does_no_harm():
    status, _, drained = await tried(Access(), ADA, ORDER, "POST")
    assert (status, drained) == (202, [("chat-0", True, "mallory", "test")])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:18001", 202),
        ("localhost:18001", 202),
        ("a.localhost", 202),
        ("[::1]:18001", 202),
        ("[::1]", 202),
        ("xds-server:18001", 202),
        ("evil.example:18001", 403),
        ("evil.example.", 403),
        ("", 403),
    ],
)
async def test_a_name_that_anybody_can_have_lead_here_takes_no_orders_without_a_token(
    file, host, status
):
    headers = {"host": host, "origin": f"http://{host}"}
    assert (await tried(Access(), None, ORDER, "POST", **headers))[0] == status
    assert (await tried(accesses(file), ADA, ORDER, "POST", **headers))[0] == 202


async def test_a_page_of_another_site_orders_nothing_even_with_a_token(file):
    headers = {"origin": "http://evil.example"}
    status, _, drained = await tried(accesses(file), ADA, ORDER, "POST", **headers)
    assert (status, drained) == (403, [])


@pytest.mark.parametrize(
    ("token", "is_", "why"),
    [
        (None, ("", None, False, False), "a token is missing"),
        (ADA, ("ada", "operator", True, True), ""),
        (BOB, ("bob", "viewer", True, False), "bob may look"),
        (EVE, ("", None, False, False), "the token of eve expired"),
    ],
)
async def test_the_page_is_told_who_one_is_and_what_one_may(file, token, is_, why):
    headers = {} if token is None else {"authorization": f"bearer {token}"}
    found = accesses(file).describe(headers)
    assert tuple(found[key] for key in ("who", "role", "may_look", "may_order")) == is_
    assert str(found["why"]).startswith(why)
    assert found["has_tokens"] is True


async def test_a_stream_ends_when_its_token_is_withdrawn(file):
    tokens = TokenFile(file, gap_s=0.0)
    access = Access(tokens=tokens, anonymous=None)
    stage = LiveStage()
    stage.access = access
    with capture_logs() as lines:
        async with stage.serving(), aiohttp.ClientSession() as session:
            headers = {"authorization": f"Bearer {BOB}"}
            async with session.get(stage.url + "api/stream", headers=headers) as stream:
                assert stream.status == 200
                assert (await stream.content.readline()).startswith(b"event: state")
                file.write_text(f"ada operator {digest(ADA).hex()}\n")
                async with asyncio.timeout(PATIENCE_S):
                    rest = await stream.content.read()
            assert rest.endswith(b"\n\n"), "whole messages only"
            status, text = await Caller(stage, session, BOB).asks("/api/stream")
            assert (status, "withdrawn" in text) == (401, True)
    assert [each for each in lines if each["event"] == "admin_tokens_reloaded"]


async def test_a_broken_file_is_told_and_what_was_permitted_still_is(file):
    access = Access(tokens=TokenFile(file, gap_s=0.0), anonymous=None)
    assert list(access.readings()) == [("fleet_admin_tokens_valid", (), 1.0)]
    file.write_text("half a li")
    with capture_logs() as lines:
        assert (await tried(access, ADA, ORDER, "POST"))[0] == 202
    (line,) = [each for each in lines if each["event"] == "admin_tokens_refused"]
    assert "line 1" in line["problems"]
    assert [value for _, _, value in access.readings()] == [0.0]
