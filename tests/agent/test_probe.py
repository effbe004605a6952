from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest

from sidecar_agent.engine import probe
from sidecar_agent.engine.adapters import Options
from sidecar_agent.engine.facts import EngineState
from sidecar_agent.engine.outcome import OutcomeKind
from sidecar_agent.engine.probe import MAX_PAGE_BYTES, Probe, Target
from tests.fakes.engine_pages import PAGES, EnginePages, page

TLS = Path(__file__).parents[1] / "data" / "tls"
VLLM = page("vllm-0.32.0-load_waiting.prom")


@pytest.fixture
async def http():
    async with probe.session() as session:
        yield session


def a_probe(http, url, **more):
    return Probe(Target(url=url, **more), http, clock=time.monotonic)


@contextlib.asynccontextmanager
async def tcp(answer):
    """Serve raw TCP: `answer(reader, writer)` per connection."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def test_a_page_is_read_and_the_connection_is_kept(http):
    async with EnginePages({"/metrics": VLLM}) as engine:
        reader = a_probe(http, engine.url)
        for _ in range(5):
            outcome = await reader.scrape()
            assert outcome.kind is OutcomeKind.PAGE
        assert len(engine.connections) == 1
        assert set(engine.requests) == {"/metrics"}
    assert outcome.engine == "vllm"
    assert outcome.facts is not None
    assert outcome.facts.waiting == 20
    assert outcome.page_bytes == len(VLLM)


async def test_a_nim_is_found_at_its_own_path(http):
    async with EnginePages({"/v1/metrics": page("written-nim.prom")}) as engine:
        reader = a_probe(http, engine.url)
        outcome = await reader.scrape()
        assert (outcome.engine, outcome.facts.running) == ("nim", 11)
        await reader.scrape()
        assert engine.requests == ["/metrics", "/v1/metrics", "/v1/metrics"]


async def test_an_old_nim_is_found_at_the_usual_path(http):
    async with EnginePages({"/metrics": page("written-nim.prom")}) as engine:
        outcome = await a_probe(http, engine.url, engine="nim").scrape()
        assert outcome.facts.running == 11


async def test_a_full_url_is_taken_as_it_is(http):
    async with EnginePages({"/deep/stats": VLLM}) as engine:
        outcome = await a_probe(http, f"{engine.url}/deep/stats?model=x").scrape()
        assert outcome.kind is OutcomeKind.PAGE
        assert engine.requests == ["/deep/stats?model=x"]


async def test_llamacpp_needs_two_pages(http):
    slots = (PAGES / "llamacpp-b11434-slots_load.json").read_text()
    pages = {"/metrics": page("llamacpp-b11434-load_waiting.prom"), "/slots": slots}
    async with EnginePages(pages) as engine:
        outcome = await a_probe(http, engine.url).scrape()
        assert (outcome.engine, outcome.facts.waiting, outcome.facts.slots) == ("llamacpp", 8, 4)
        engine.status["/slots"] = (501, "not supported")
        outcome = await a_probe(http, engine.url).scrape()
        assert (outcome.facts.kv_ratio, outcome.facts.waiting) == (None, 8)


async def test_llamacpp_keeps_no_connection_because_each_costs_it_a_thread(http):
    pages = {"/metrics": page("llamacpp-b11434-load_waiting.prom")}
    async with EnginePages(pages) as engine:
        reader = a_probe(http, engine.url, engine="llamacpp")
        for _ in range(3):
            assert (await reader.scrape()).kind is OutcomeKind.PAGE
        assert len(engine.connections) == 6, "two pages, three times"


async def test_an_engine_replaced_by_another_kind_is_recognized(http):
    async with EnginePages({"/metrics": VLLM}) as engine:
        reader = a_probe(http, engine.url)
        assert (await reader.scrape()).engine == "vllm"
        engine.pages["/metrics"] = page("sglang-0.5.23-load_waiting.prom")
        assert (await reader.scrape()).facts.state is EngineState.UNKNOWN
        outcome = await reader.scrape()
        assert (outcome.engine, outcome.facts.waiting) == ("sglang", 16)


async def test_llamacpp_without_a_metrics_page_still_tells_its_slots(http):
    slots = (PAGES / "llamacpp-b11434-slots_load.json").read_text()
    async with EnginePages({"/slots": slots}) as engine:
        outcome = await a_probe(http, engine.url, engine="llamacpp").scrape()
        assert (outcome.facts.running, outcome.facts.waiting) == (4, None)


async def test_an_unknown_page_is_looked_at_again_until_an_engine_shows(http):
    async with EnginePages({"/metrics": "python_info 1\n"}) as engine:
        reader = a_probe(http, engine.url)
        outcome = await reader.scrape()
        assert (outcome.kind, outcome.facts.state) == (OutcomeKind.PAGE, EngineState.UNKNOWN)
        engine.pages["/metrics"] = VLLM
        assert (await reader.scrape()).engine == "vllm"


async def test_nobody_listening_is_refused(http):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        outcome = await a_probe(http, f"http://127.0.0.1:{port}").scrape()
    assert (outcome.kind, outcome.detail) == (OutcomeKind.REFUSED, "connection refused")


async def test_an_engine_that_says_loading_is_loading(http):
    body = '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
    async with EnginePages() as engine:
        engine.status["/metrics"] = (503, body)
        outcome = await a_probe(http, engine.url).scrape()
    assert outcome.kind is OutcomeKind.LOADING


@pytest.mark.parametrize(
    ("status", "body", "detail"),
    [
        (503, "Service Unavailable", "status 503"),
        (500, "Traceback", "status 500"),
        (401, "", "status 401"),
        (404, "", "no metrics page"),
        (204, "", "status 204"),
    ],
)
async def test_a_page_that_is_none_says_nothing_about_the_engine(http, status, body, detail):
    async with EnginePages() as engine:
        engine.status["/metrics"] = (status, body)
        outcome = await a_probe(http, engine.url, engine="vllm").scrape()
    assert (outcome.kind, outcome.facts) == (OutcomeKind.BAD_PAGE, None)
    assert detail in outcome.detail


async def test_redirects_are_not_followed(http):
    async with EnginePages({"/metrics": VLLM}) as other, EnginePages() as engine:
        engine.status["/metrics"] = (302, "")
        engine.headers["Location"] = f"{other.url}/metrics"
        outcome = await a_probe(http, engine.url).scrape()
        assert outcome.kind is OutcomeKind.BAD_PAGE
        assert "redirects are not followed" in outcome.detail
        assert not other.requests


async def test_silence_ends_at_the_deadline_and_is_no_answer(http):
    async with EnginePages({"/metrics": VLLM}) as engine:
        engine.hold.clear()
        started = time.monotonic()
        outcome = await a_probe(http, engine.url, deadline_s=0.2).scrape()
        assert time.monotonic() - started < 20
        assert (outcome.kind, outcome.detail) == (OutcomeKind.SILENT, "no answer in 0.2 s")
        engine.hold.set()
        assert (await a_probe(http, engine.url).scrape()).kind is OutcomeKind.PAGE


async def test_a_page_that_stalls_halfway_is_no_answer(http):
    async def half(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nvllm:kv")
        await reader.read()
        writer.close()

    async with tcp(half) as url:
        outcome = await a_probe(http, url, deadline_s=0.2).scrape()
    assert outcome.kind is OutcomeKind.SILENT


async def test_a_page_without_end_is_cut_off(http):
    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(2 * MAX_PAGE_BYTES // 65536):
                writer.write(b"x" * 65536)
                await writer.drain()
        writer.close()

    async with tcp(endless) as url:
        outcome = await a_probe(http, url, deadline_s=10).scrape()
    assert outcome.kind is OutcomeKind.BAD_PAGE
    assert "larger than" in outcome.detail


async def test_a_reset_is_the_engines_end(http):
    async def reset(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with tcp(reset) as url:
        outcome = await a_probe(http, url).scrape()
    assert (outcome.kind, outcome.detail) == (OutcomeKind.REFUSED, "connection reset")


async def test_a_kept_connection_that_died_is_tried_anew(http):
    connections = 0

    async def once(reader, writer):
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        body = b"vllm:num_requests_waiting 1\n"
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        writer.write(head + body)
        if connections == 1:
            await reader.read(1)  # the second request on the kept connection gets a close
        writer.close()

    async with tcp(once) as url:
        reader = a_probe(http, url)
        assert [(await reader.scrape()).kind for _ in range(2)] == [OutcomeKind.PAGE] * 2
    assert connections == 2


async def test_something_that_is_not_http_is_no_page(http):
    async def ssh(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await reader.read()
        writer.close()

    async with tcp(ssh) as url:
        outcome = await a_probe(http, url).scrape()
    assert outcome.kind is OutcomeKind.BAD_PAGE
    assert "not HTTP" in outcome.detail


async def test_a_certificate_that_is_not_trusted_says_nothing_about_the_engine(http):
    """The engine listens and serves its clients: only the agent cannot read its page."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")

    async def answer(_, writer):
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        outcome = await a_probe(http, f"https://127.0.0.1:{port}").scrape()
    assert outcome.kind is OutcomeKind.BAD_PAGE
    assert outcome.detail.startswith("TLS failed: ")


async def test_tls_toward_an_engine_without_it_says_nothing_about_the_engine(http):
    async with EnginePages({"/metrics": VLLM}) as engine:
        outcome = await a_probe(http, engine.url.replace("http://", "https://")).scrape()
    assert outcome.kind is OutcomeKind.BAD_PAGE


async def test_a_name_that_does_not_resolve_is_unreachable(http):
    outcome = await a_probe(http, "http://no-such-host.invalid:1", deadline_s=5).scrape()
    assert outcome.kind is OutcomeKind.UNREACHABLE
    assert outcome.facts is None


async def test_an_engine_to_which_no_connection_comes_about_is_unreachable_not_silent(http):
    with socket.socket() as full, contextlib.ExitStack() as kept:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(
            4
        ):  # Who comes after the queue is full hears nothing, as from a host that is off.
            waiting = kept.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        outcome = await a_probe(http, url, deadline_s=0.3).scrape()
    assert (outcome.kind, outcome.detail) == (OutcomeKind.UNREACHABLE, "no connection in 0.3 s")


async def test_an_engine_that_stops_answering_on_a_kept_connection_is_silent(http):
    async def once(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = VLLM.encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await reader.read()
        writer.close()

    async with tcp(once) as url:
        reader = a_probe(http, url, deadline_s=0.5)
        assert (await reader.scrape()).kind is OutcomeKind.PAGE
        assert (await reader.scrape()).kind is OutcomeKind.SILENT


async def test_counts_that_add_up_to_more_than_can_be_are_missing(http):
    text = "".join(f'vllm:num_requests_running{{engine="{n}"}} 9e14\n' for n in range(2))
    async with EnginePages({"/metrics": text + "vllm:num_requests_waiting 3\n"}) as engine:
        outcome = await a_probe(http, engine.url).scrape()
    assert (outcome.facts.running, outcome.facts.waiting, outcome.facts.rejected) == (None, 3, 1)
    assert outcome.facts.warnings[-1] == "out of range: running"


async def test_options_reach_the_adapter(http):
    async with EnginePages({"/metrics": page("written-tgi.prom")}) as engine:
        options = Options(kv_capacity_tokens=40_000)
        outcome = await a_probe(http, engine.url, options=options).scrape()
    assert outcome.facts.kv_ratio == 30721 / 40_000
