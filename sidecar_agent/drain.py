"""`sidecar-agent drain INSTANCE`: take an instance out and wait until nothing runs on it.

For preStop hooks: vLLM and llama.cpp hang or break the requests they are running when they get
SIGTERM, so the engine may be stopped only after its last request. The command asks the running agent,
waits for the control plane to confirm that no new requests are sent, then for the engine to say on
pages read after that, for one second, that nothing runs and nothing waits. An agent that is away for a
moment is told again when it is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import aiohttp

EXIT_DRAINED: Final = 0
EXIT_NO_AGENT: Final = 3
EXIT_UNKNOWN_INSTANCE: Final = 4
EXIT_UNCONFIRMED: Final = 5
"""Time is up and the control plane has not confirmed; new requests may still arrive."""
EXIT_BUSY: Final = 6
"""Time is up and requests still run, or the engine does not say how many."""

POLL_S: Final = 0.2
IDLE_S: Final = 1.0
"""The engine has to be idle this long: a request may be on its way when the confirmation comes."""


async def drain(*, admin: str, instance: str, timeout_s: float, say: Callable[[str], None]) -> int:
    """Drain an instance through the agent at `admin`; return the exit code."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
        waiter = _Waiter(say)
        deadline = time.monotonic() + timeout_s
        was_told = told = False
        while True:
            path = f"instances/{instance}" if told else f"drain/{instance}"
            try:
                async with http.request(
                    "GET" if told else "POST", f"http://{admin}/{path}"
                ) as response:
                    body: dict[str, Any] = await response.json()
                    if response.status == 404:
                        say(str(body.get("error", "unknown instance")))
                        return EXIT_UNKNOWN_INSTANCE
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                waiter.lost(f"no agent answers at {admin}: {error}")
                if not was_told or time.monotonic() >= deadline:
                    return EXIT_NO_AGENT
                # One that is started anew knows of no drain.
                told = False
            else:
                was_told = told = True
                if waiter.done(body, time.monotonic()):
                    return EXIT_DRAINED
                if time.monotonic() >= deadline:
                    return waiter.late(body, timeout_s)
            await asyncio.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))


async def undrain(*, admin: str, instance: str, say: Callable[[str], None]) -> int:
    """Take a drain back through the agent at `admin`; return the exit code."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http,
            http.post(f"http://{admin}/undrain/{instance}") as response,
        ):
            if response.status == 404:
                say(str((await response.json()).get("error", "unknown instance")))
                return EXIT_UNKNOWN_INSTANCE
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        say(f"no agent answers at {admin}: {error}")
        return EXIT_NO_AGENT
    say(f"{instance}: takes requests again")
    return EXIT_DRAINED


class _Waiter:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._confirmed_at: float | None = None
        self._idle_since: float | None = None
        self._last = ""

    def done(self, body: dict[str, Any], now: float) -> bool:
        name = body["instance"]
        if body["state"] == "down":
            self._tell(f"{name}: the engine is down, nothing runs on it")
            return True
        if not body["drained"]:
            self._confirmed_at = None
            why = f" (it refuses the instance: {body['refusal']})" if body["refusal"] else ""
            self._tell(f"{name}: waiting for the control plane to confirm{why}")
            return False
        if self._confirmed_at is None:
            self._confirmed_at = now
        age, running, waiting = body["age_s"], body["running"], body["waiting"]
        if age is None or running is None or now - age < self._confirmed_at:
            self._tell(f"{name}: confirmed; waiting for fresh facts from the engine")
            self._idle_since = None
            return False
        if running + (waiting or 0.0) > 0:
            self._tell(f"{name}: {running:g} running, {waiting or 0:g} waiting")
            self._idle_since = None
            return False
        seen_at = now - age
        self._idle_since = seen_at if self._idle_since is None else self._idle_since
        if seen_at - self._idle_since < IDLE_S:
            return False
        self._tell(f"{name}: drained")
        return True

    def lost(self, why: str) -> None:
        """Begin anew: nothing that was heard before counts for the agent that answers next."""
        self._confirmed_at = self._idle_since = None
        self._tell(why)

    def late(self, body: dict[str, Any], timeout_s: float) -> int:
        name = body["instance"]
        if not body["drained"]:
            self._say(f"{name}: not confirmed by the control plane after {timeout_s:g} s")
            return EXIT_UNCONFIRMED
        self._say(
            f"{name}: still busy after {timeout_s:g} s (running {_or_unknown(body['running'])}, "
            f"waiting {_or_unknown(body['waiting'])})"
        )
        return EXIT_BUSY

    def _tell(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self._say(text)


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
