"""Send requests and record what clients see: `python -m demo.load --target http://127.0.0.1:10000`.

Open loop: arrivals are Poisson and do not wait for answers, as the clients of a busy service do not.
Streams and plain requests are mixed; both go through every target in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from demo.completions import CHARS_PER_TOKEN
from demo.outcome import Kind, Outcome, Verdict
from demo.report import summary_lines
from demo.serving import ENGINE_HEADER

Record = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """What clients ask for."""

    model: str = "chat"
    stream_share: float = 0.6
    chat_share: float = 0.8
    """The rest uses /v1/completions."""
    prompt_tokens: tuple[int, int] = (32, 160)
    stream_tokens: tuple[int, int] = (16, 64)
    """Least and most `max_tokens` of a stream."""
    plain_tokens: tuple[int, int] = (8, 24)
    """Plain answers are short: their headers come only with the last token."""
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request before it is sent."""

    path: str
    body: bytes
    kind: Kind


def ask(spec: LoadSpec, rng: random.Random) -> Asked:
    """Draw the next request."""
    kind = Kind.STREAM if rng.random() < spec.stream_share else Kind.PLAIN
    is_chat = rng.random() < spec.chat_share
    prompt = "word " * (rng.randint(*spec.prompt_tokens) * CHARS_PER_TOKEN // 5)
    bounds = spec.stream_tokens if kind is Kind.STREAM else spec.plain_tokens
    body: dict[str, object] = {"model": spec.model, "max_tokens": between(bounds, rng)}
    if is_chat:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if kind is Kind.STREAM:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    return Asked(path=path, body=json.dumps(body).encode(), kind=kind)


def between(bounds: tuple[int, int], rng: random.Random) -> int:
    """Draw a length: lognormal around the bounds' geometric mean, cut at the bounds."""
    least, most = bounds
    drawn = rng.lognormvariate(math.log(math.sqrt(least * most)), 0.5)
    return min(most, max(least, round(drawn)))


class LoadGenerator:
    """Sends requests at a rate that may be changed at any time."""

    def __init__(
        self,
        targets: Mapping[str, str],
        record: Record,
        *,
        spec: LoadSpec | None = None,
        seed: int = 0,
    ) -> None:
        """`targets` maps a proxy's name to its base URL."""
        self.rate = 0.0
        """Requests/s over all targets."""
        self.in_flight = 0
        self._targets = list(targets.items())
        self._record = record
        self._spec = spec if spec is not None else LoadSpec()
        self._rng = random.Random(seed)
        self._requests: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[LoadGenerator]:
        """Send for as long as the context is open; leaving waits for the answers."""
        timeout = aiohttp.ClientTimeout(total=self._spec.timeout_s)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            arrivals = asyncio.create_task(self._arrive(session), name="load-arrivals")
            try:
                yield self
                arrivals.cancel()
                if self._requests:
                    await asyncio.wait(self._requests)
            finally:
                arrivals.cancel()
                for request in self._requests:
                    request.cancel()
                await asyncio.gather(arrivals, *self._requests, return_exceptions=True)

    async def _arrive(self, session: aiohttp.ClientSession) -> None:
        turn = 0
        due = time.monotonic()
        while True:
            if self.rate <= 0:
                await asyncio.sleep(0.02)
                due = time.monotonic()
                continue
            due += self._rng.expovariate(self.rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            proxy, url = self._targets[turn % len(self._targets)]
            turn += 1
            asked = ask(self._spec, self._rng)
            request = asyncio.create_task(self._send(session, proxy, url, asked))
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)

    async def _send(
        self, session: aiohttp.ClientSession, proxy: str, url: str, asked: Asked
    ) -> None:
        self.in_flight += 1
        try:
            self._record(await send(session, proxy=proxy, url=url, asked=asked))
        finally:
            self.in_flight -= 1


async def send(session: aiohttp.ClientSession, *, proxy: str, url: str, asked: Asked) -> Outcome:
    """Send one request and read its answer to the end; whatever happens is an outcome."""
    reading = _Reading(asked.kind, proxy)
    headers = {"content-type": "application/json"}
    if asked.kind is Kind.STREAM:
        headers["accept"] = "text/event-stream"
    try:
        async with session.post(url + asked.path, data=asked.body, headers=headers) as response:
            reading.on_headers(response.status, response.headers)
            async for chunk in response.content.iter_any():
                reading.on_bytes(chunk)
    except TimeoutError:
        return reading.ended("no end within the time-out")
    except aiohttp.ClientError as error:
        return reading.ended(f"{type(error).__name__}: {error}")
    return reading.ended()


class _Reading:
    """An answer that is coming in."""

    def __init__(self, kind: Kind, proxy: str) -> None:
        self._kind = kind
        self._proxy = proxy
        self._started_s = time.monotonic()
        self._headers_s: float | None = None
        self._first_byte_s: float | None = None
        self._status: int | None = None
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()

    def on_headers(self, status: int, headers: Mapping[str, str]) -> None:
        self._headers_s = time.monotonic()
        self._status, self._headers = status, headers

    def on_bytes(self, chunk: bytes) -> None:
        if self._first_byte_s is None:
            self._first_byte_s = time.monotonic()
        self._body += chunk

    def ended(self, error: str = "") -> Outcome:
        """Judge the body and sum up."""
        if not error:
            wrong = stream_fault if self._kind is Kind.STREAM else plain_fault
            error = wrong(bytes(self._body))
        if self._status not in {None, 200}:
            error = f"status {self._status}: {bytes(self._body[:200])!r}"
        return Outcome(
            kind=self._kind,
            proxy=self._proxy,
            started_s=self._started_s,
            ended_s=time.monotonic(),
            headers_s=self._headers_s,
            first_byte_s=self._first_byte_s,
            status=self._status,
            model=self._headers.get("x-served-model", ""),
            is_downgraded=self._headers.get("x-model-downgraded") == "true",
            reason=self._headers.get("x-degrade-reason", ""),
            engine=self._headers.get(ENGINE_HEADER, ""),
            is_complete=not error,
            error=error,
        )


def stream_fault(body: bytes) -> str:
    """Say what is wrong with a whole event stream; empty when nothing is."""
    *events, rest = body.replace(b"\r\n", b"\n").split(b"\n\n")
    if rest.strip() or not events or events[-1] != b"data: [DONE]":
        return "the stream ended without [DONE]"
    choices = 0
    for event in events[:-1]:
        try:
            data = json.loads(event.removeprefix(b"data: "))
        except ValueError:
            return f"an event is not JSON: {event[:100]!r}"
        # An engine whose worker died still says 200 and then this.
        if "error" in data:
            return f"an error inside the stream: {event[:200]!r}"
        choices += len(data.get("choices", ()))
    return "" if choices else "the stream has no choices"


def plain_fault(body: bytes) -> str:
    """Say what is wrong with a whole JSON answer; empty when nothing is."""
    try:
        data = json.loads(body)
    except ValueError:
        return f"the body is not JSON: {body[:100]!r}"
    if not isinstance(data, dict) or not data.get("choices"):
        return f"the body has no choices: {body[:100]!r}"
    return ""


async def _measure(
    targets: Mapping[str, str], *, spec: LoadSpec, rate: float, seconds: float, seed: int
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    generator = LoadGenerator(targets, outcomes.append, spec=spec, seed=seed)
    async with generator.running():
        generator.rate = rate
        await asyncio.sleep(seconds)
        generator.rate = 0.0
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Send for a while and print the figures; 1 when a request failed."""
    parser = argparse.ArgumentParser(prog="python -m demo.load", description=__doc__)
    parser.add_argument("--target", action="append", required=True, help="base URL; repeatable")
    parser.add_argument("--model", default="chat", help="the model name that clients use")
    parser.add_argument("--rate", type=float, default=10.0, help="requests/s over all targets")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    targets = {url: url.rstrip("/") for url in given.target}
    outcomes = asyncio.run(
        _measure(
            targets,
            spec=LoadSpec(model=given.model),
            rate=given.rate,
            seconds=given.seconds,
            seed=given.seed,
        )
    )
    print("\n".join(summary_lines(outcomes)))
    return int(any(each.verdict(()) is Verdict.FAILED for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
