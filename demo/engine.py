"""A simulated inference engine: `python -m demo.engine --port 8001 --name a100-0`.

It serves the OpenAI API and vLLM's metrics on one port and takes orders on a second one, which
stays open while the engine is dead:

    POST /sim/oom                       run out of memory: die now, reload, serve again
    POST /sim/slow    {"factor": 0.5}   generate at half the speed
    POST /sim/freeze  {"frozen": true}  the GPU hangs, the HTTP server does not notice
    GET  /sim/state                     what it is doing

Times in its answers are seconds of the system's monotonic clock, the same for every process on the
machine. When both ports are open it prints one JSON line with their numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from demo.batch import BatchSpec
from demo.gpu_memory import GpuMemory
from demo.serving import Serving, ServingSpec

DEFAULT_MODEL = "llama-3-70b"
PORT_RETRY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine process."""

    serving: ServingSpec
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free one, and keeps it over reloads."""
    control_host: str = "127.0.0.1"
    control_port: int = 0
    reload_s: float = 8.0
    """From death to serving again."""
    gpu_state: Path | None = None
    """State file of the NVML stub in which this engine occupies GPU 0."""


class Engine:
    """Lives, dies and reloads."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.port = spec.port
        self.control_port = spec.control_port
        self.serving: Serving | None = None
        self.deaths: list[dict[str, Any]] = []
        self._dying = asyncio.Event()
        self._memory = GpuMemory(spec.gpu_state) if spec.gpu_state is not None else None
        app = web.Application()
        app.router.add_post("/sim/oom", self._order_oom)
        app.router.add_post("/sim/slow", self._order_slow)
        app.router.add_post("/sim/freeze", self._order_freeze)
        app.router.add_get("/sim/state", self._tell_state)
        self._control = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        self._lives: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open both ports and serve.

        Raises:
            OSError: a port cannot be had.
        """
        await self._begin_life()
        await self._control.setup()
        await web.TCPSite(self._control, self.spec.control_host, self.control_port).start()
        self.control_port = self._control.addresses[0][1]
        self._lives = asyncio.create_task(self._live_forever(), name="engine-lives")

    async def stop(self) -> None:
        """Close everything; requests that are running are dropped."""
        if self._lives is not None:
            self._lives.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._lives
        await self._end_life()
        await self._control.cleanup()

    async def _begin_life(self) -> None:
        serving = Serving(self.spec.serving)
        self.port = await serving.start(self.spec.host, self.port)
        self.serving = serving
        if self._memory is not None:
            self._memory.loaded()

    async def _end_life(self) -> None:
        serving, self.serving = self.serving, None
        if serving is None:
            return
        await serving.die()
        if self._memory is not None:
            self._memory.empty()

    async def _live_forever(self) -> None:
        while True:
            serving = self.serving
            assert serving is not None
            await _first_of(self._dying, serving.overloaded)
            self._dying.clear()
            death = {"engine": self.spec.serving.name, "at_s": time.monotonic()}
            self.deaths.append(death)
            await self._end_life()
            await asyncio.sleep(self.spec.reload_s)
            await self._return()
            death["back_at_s"] = time.monotonic()

    async def _return(self) -> None:
        """Begin a new life; the port was free meanwhile, and any outgoing connection may be given it."""
        is_told = False
        while True:
            try:
                await self._begin_life()
            except OSError as error:
                if not is_told:
                    print(f"engine {self.spec.serving.name}: {error}; waiting", file=sys.stderr)
                is_told = True
                await asyncio.sleep(PORT_RETRY_S)
            else:
                return

    async def _order_oom(self, request: web.Request) -> web.Response:
        del request
        if self.serving is None:
            return web.json_response({"error": "the engine is already dead"}, status=409)
        before = len(self.deaths)
        self._dying.set()
        while len(self.deaths) == before:
            await asyncio.sleep(0)
        return web.json_response(self.deaths[-1])

    async def _order_slow(self, request: web.Request) -> web.Response:
        factor = (await _body(request)).get("factor")
        if not isinstance(factor, int | float) or not factor > 0:
            return _refuse(f"factor is {factor!r}; expected a number above 0")
        return self._change(lambda serving: setattr(serving, "speed", float(factor)))

    async def _order_freeze(self, request: web.Request) -> web.Response:
        frozen = (await _body(request)).get("frozen", True)
        if not isinstance(frozen, bool):
            return _refuse(f"frozen is {frozen!r}; expected true or false")
        return self._change(lambda serving: setattr(serving, "frozen", frozen))

    def _change(self, change: Any) -> web.Response:
        if self.serving is None:
            return web.json_response({"error": "the engine is dead"}, status=409)
        change(self.serving)
        return web.json_response(self.state())

    async def _tell_state(self, request: web.Request) -> web.Response:
        del request
        return web.json_response(self.state())

    def state(self) -> dict[str, Any]:
        """Return what the engine is doing, for scenarios and people."""
        told: dict[str, Any] = {
            "engine": self.spec.serving.name,
            "models": self.spec.serving.models,
            "port": self.port,
            "control_port": self.control_port,
            "state": "serving" if self.serving is not None else "dead",
            "deaths": self.deaths,
        }
        if self.serving is not None:
            batch = self.serving.batch
            told |= {
                "running": len(batch.running),
                "waiting": len(batch.waiting),
                "kv_ratio": batch.kv_ratio,
                "preemptions": batch.counters.preemptions,
                "finished": batch.counters.finished,
                "streaming": self.serving.streaming,
                "speed": self.serving.speed,
                "frozen": self.serving.frozen,
            }
        return told


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _refuse(message: str) -> web.Response:
    return web.json_response({"error": message}, status=400)


async def serve(spec: EngineSpec) -> None:
    """Run an engine until SIGTERM or SIGINT."""
    engine = Engine(spec)
    await engine.start()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    print(json.dumps(engine.state()), flush=True)
    await ended.wait()
    await engine.stop()


def parse_arguments(arguments: Sequence[str] | None = None) -> EngineSpec:
    """Read the command line; it ends the process with a usage line when it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m demo.engine", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    batch = BatchSpec()
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on")
    parser.add_argument("--port", type=int, default=0, help="port to serve on; 0 takes a free one")
    parser.add_argument("--control-host", default="127.0.0.1", help="address to take orders on")
    parser.add_argument("--control-port", type=int, default=0, help="port for orders")
    parser.add_argument("--name", default="engine", help="the instance's name")
    parser.add_argument(
        "--model", action="append", help="a model name that it answers to; repeatable"
    )
    parser.add_argument("--slots", type=int, default=batch.slots, help="requests computed at once")
    parser.add_argument(
        "--kv-tokens", type=int, default=batch.kv_tokens, help="size of the KV cache"
    )
    parser.add_argument(
        "--tokens-per-s", type=float, default=batch.tokens_per_s, help="per running request"
    )
    parser.add_argument("--reload-s", type=float, default=8.0, help="from death to serving again")
    parser.add_argument("--queue-limit", type=int, help="answer 503 when so many requests wait")
    parser.add_argument(
        "--oom-after-full-s", type=float, help="die after the KV cache was too full for so long"
    )
    parser.add_argument("--gpu-state", type=Path, help="state file of the NVML stub")
    given = parser.parse_args(arguments)
    try:
        batch = BatchSpec(
            slots=given.slots, kv_tokens=given.kv_tokens, tokens_per_s=given.tokens_per_s
        )
    except ValueError as error:
        parser.error(str(error))
    return EngineSpec(
        serving=ServingSpec(
            name=given.name,
            models=tuple(given.model or [DEFAULT_MODEL]),
            batch=batch,
            queue_limit=given.queue_limit,
            oom_after_full_s=given.oom_after_full_s,
        ),
        host=given.host,
        port=given.port,
        control_host=given.control_host,
        control_port=given.control_port,
        reload_s=given.reload_s,
        gpu_state=given.gpu_state,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one engine; 1 and one sentence when its ports cannot be had."""
    spec = parse_arguments(arguments)
    try:
        asyncio.run(serve(spec))
    except OSError as error:
        print(f"engine {spec.serving.name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
