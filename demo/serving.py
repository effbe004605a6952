"""One life of a simulated engine: its batch behind an OpenAI-style HTTP server.

A life begins when the listener opens and ends when the process would have died: `die` closes the
listener and every connection at once, as the kernel does for a killed process. Counters belong to
the life, so a new one starts from zero.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from demo.batch import Batch, BatchSpec, RequestTooLongError, Sequence
from demo.completions import Answer, CompletionRequest, RequestError, parse_request
from demo.exposition import CONTENT_TYPE, metrics_page

ENGINE_HEADER = "x-engine"
"""Names the instance that answered, so that a client can tell who cut its stream."""

STEP_S = 0.04
"""Time between two batches of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSpec:
    """What one engine serves, and how much it takes."""

    name: str
    """The instance's name, told in every response."""
    models: tuple[str, ...]
    """Names it answers to, like vLLM's --served-model-name; metrics carry the first."""
    batch: BatchSpec
    queue_limit: int | None = None
    """Requests that may wait; more are answered 503, as vLLM's --max-num-queued-reqs does."""
    oom_after_full_s: float | None = None
    """The engine runs out of memory by itself after being too full for this long."""


class Serving:
    """An engine that is up."""

    def __init__(self, spec: ServingSpec) -> None:
        self.spec = spec
        self.batch = Batch(spec.batch)
        self.started_at_unix_s = time.time()
        self.frozen = False
        """The engine behind the HTTP server hangs; the server itself goes on answering."""
        self.speed = 1.0
        """Factor on the generation speed."""
        self.overloaded = asyncio.Event()
        """Set when the engine has run itself out of memory."""
        self.streaming = 0
        """Streams whose headers are out and which have not ended."""
        self._progress: dict[Sequence, asyncio.Queue[tuple[int, bool]]] = {}
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        # Handlers end with their connection: an engine forgets requests whose client is gone.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2
        )
        self._site: web.TCPSite | None = None
        self._stepping: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Open the listener and return its port.

        Raises:
            OSError: the address cannot be had.
        """
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, host, port)
        try:
            await self._site.start()
        except OSError:
            await self._runner.cleanup()
            raise
        self._stepping = asyncio.create_task(self._step_forever(), name="engine-steps")
        bound: int = self._runner.addresses[0][1]
        return bound

    async def die(self) -> None:
        """End as a killed process does: refuse, and drop every connection without a word."""
        if self._stepping is not None:
            self._stepping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._stepping
        if self._site is not None:
            await self._site.stop()
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()

    async def _step_forever(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(STEP_S)
            now = time.monotonic()
            elapsed, last = now - last, now
            if not self.frozen:
                self._step(elapsed * self.speed)

    def _step(self, elapsed: float) -> None:
        step = self.batch.advance(elapsed)
        finished = set(step.finished)
        for sequence, count in step.emitted:
            if (progress := self._progress.get(sequence)) is not None:
                progress.put_nowait((count, sequence in finished))
        limit = self.spec.oom_after_full_s
        if limit is not None and self.batch.overfull_s > limit:
            self.overloaded.set()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            wanted = parse_request(await request.read(), chat=chat)
            sequence = self._admit(wanted)
        except RequestError as error:
            return self._json(error.body(), status=error.status)
        progress: asyncio.Queue[tuple[int, bool]] = asyncio.Queue()
        self._progress[sequence] = progress
        answer = Answer(
            id=f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            created_unix_s=int(time.time()),
            request=wanted,
        )
        try:
            if wanted.stream:
                return await self._stream(request, answer, progress)
            return await self._whole(answer, progress)
        finally:
            del self._progress[sequence]
            self.batch.abort(sequence)

    def _admit(self, wanted: CompletionRequest) -> Sequence:
        if wanted.model not in self.spec.models:
            raise RequestError(
                404, "NotFoundError", f"The model `{wanted.model}` does not exist here."
            )
        limit = self.spec.queue_limit
        if limit is not None and len(self.batch.waiting) >= limit:
            raise RequestError(503, "ServiceUnavailableError", "The queue is full.")
        try:
            return self.batch.submit(
                prompt_tokens=wanted.prompt_tokens, max_tokens=wanted.max_tokens
            )
        except RequestTooLongError as error:
            raise RequestError(400, "BadRequestError", str(error)) from None

    async def _whole(
        self, answer: Answer, progress: asyncio.Queue[tuple[int, bool]]
    ) -> web.StreamResponse:
        generated, is_last = 0, False
        while not is_last:
            count, is_last = await progress.get()
            generated += count
        return self._json(answer.whole(generated))

    async def _stream(
        self, request: web.Request, answer: Answer, progress: asyncio.Queue[tuple[int, bool]]
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "content-type": "text/event-stream; charset=utf-8",
                ENGINE_HEADER: self.spec.name,
            }
        )
        # Like vLLM, headers go out before the first token: also to a request that still waits.
        await response.prepare(request)
        self.streaming += 1
        try:
            generated, is_last = 0, False
            while not is_last:
                count, is_last = await progress.get()
                events = answer.chunk(generated, count, last=is_last)
                if generated == 0:
                    events = answer.opening() + events
                generated += count
                if is_last:
                    events += answer.closing(generated)
                await response.write(events)
            await response.write_eof()
        except ConnectionError:
            pass  # the client is gone; `_answer` frees the sequence
        finally:
            self.streaming -= 1
        return response

    async def _models(self, request: web.Request) -> web.Response:
        del request
        cards = [
            {
                "id": name,
                "object": "model",
                "created": int(self.started_at_unix_s),
                "owned_by": "simulation",
                "max_model_len": self.spec.batch.longest,
            }
            for name in self.spec.models
        ]
        return self._json({"object": "list", "data": cards})

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return web.Response(headers={ENGINE_HEADER: self.spec.name})

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        page = metrics_page(
            self.batch, model=self.spec.models[0], started_at_unix_s=self.started_at_unix_s
        )
        return web.Response(body=page, headers={"content-type": CONTENT_TYPE})

    def _json(self, body: dict[str, Any], *, status: int = 200) -> web.Response:
        return web.json_response(body, status=status, headers={ENGINE_HEADER: self.spec.name})
