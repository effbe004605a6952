"""Asks an engine for one token, as a client would, within a deadline of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from yarl import URL

from sidecar_agent.engine.body import whole
from sidecar_agent.engine.token_watch import Answer, Reply

_MAX_BYTES: Final = 256 * 1024
_PROMPT: Final = "1"
_TEXT: Final = "/v1/completions"
_CHAT: Final = "/v1/chat/completions"
_ABSENT: Final = frozenset({404, 405, 501})
_BACK_PRESSURE: Final = frozenset({429, 503})


def token_session() -> aiohttp.ClientSession:
    """Return the session for these requests; the caller closes it.

    Each has a connection of its own: one that the engine is just closing would look like a cut answer.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        headers={"Accept-Encoding": "identity"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `ask` has the deadline
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTarget:
    """Where and how one engine is asked."""

    url: str
    """Base URL; a metrics page's path is dropped."""
    deadline_s: float
    model: str = ""
    """The engine's own name of its model; empty = the first that /v1/models lists."""
    key_file: Path | None = None
    """Holds the API key; read anew each time."""


class _BadKeyError(Exception):
    """The file of the API key cannot be used; the text says why."""


class TokenRequest:
    """Asks one engine, one request at a time; never raises for what the engine does."""

    def __init__(
        self, target: TokenTarget, http: aiohttp.ClientSession, *, clock: Callable[[], float]
    ) -> None:
        self._target = target
        self._http = http
        self._clock = clock
        self._base = URL(target.url).with_path("").with_query(None)
        self._model = target.model
        self._path = _TEXT

    async def ask(self) -> Answer:
        """Ask for one token, and say how that ended."""
        started = self._clock()
        try:
            async with asyncio.timeout(self._target.deadline_s):
                reply, detail = await self._ask()
        except TimeoutError:
            reply, detail = Reply.LATE, f"none within {self._target.deadline_s:g} s"
        except aiohttp.ClientConnectorError as error:
            reply, detail = Reply.UNREACHED, f"no connection: {error}"[:200]
        except aiohttp.ClientError as error:
            reply, detail = Reply.BROKEN, f"the answer was cut ({type(error).__name__})"
        except _BadKeyError as error:
            reply, detail = Reply.UNUSABLE, f"api_key_file: {error}"
        return Answer(reply=reply, took_s=self._clock() - started, detail=detail)

    async def _ask(self) -> tuple[Reply, str]:
        if not self._model:
            status, listed = await self._send("GET", "/v1/models")
            self._model = _first_model(listed) if status == 200 else ""
            if not self._model:
                return _by_status(status, "/v1/models lists no model; set probe_model")
        status, body = await self._send("POST", self._path)
        if status in _ABSENT:
            # No such page, or no such model: then it has another name by now.
            self._path = _CHAT if self._path == _TEXT else _TEXT
            status, body = await self._send("POST", self._path)
            if status in _ABSENT:
                self._model = self._target.model
        if status != 200:
            return _by_status(status, f"status {status}")
        return _read(body)

    async def _send(self, method: str, path: str) -> tuple[int, bytes]:
        headers = {"Accept": "application/json"}
        if self._target.key_file is not None:
            headers["Authorization"] = f"Bearer {_key(self._target.key_file)}"
        body: dict[str, Any] = {"model": self._model, "max_tokens": 1, "temperature": 0}
        if path == _CHAT:
            body["messages"] = [{"role": "user", "content": _PROMPT}]
        else:
            body["prompt"] = _PROMPT
        async with self._http.request(
            method,
            self._base.with_path(path),
            json=body if method == "POST" else None,
            headers=headers,
            allow_redirects=False,
        ) as response:
            return response.status, await whole(response, limit=_MAX_BYTES) or b""


def _key(path: Path) -> str:
    try:
        key = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise _BadKeyError(error.strerror or str(error)) from error
    except UnicodeError:
        raise _BadKeyError("not UTF-8 text") from None
    if not key.isprintable():
        raise _BadKeyError("expected one line")
    return key


def _first_model(body: bytes) -> str:
    try:
        name = json.loads(body)["data"][0]["id"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return ""
    return name if isinstance(name, str) else ""


def _by_status(status: int, detail: str) -> tuple[Reply, str]:
    if status in _BACK_PRESSURE:
        return Reply.REJECTED, f"status {status}"
    if status >= 500 and status not in _ABSENT:
        return Reply.BROKEN, f"status {status}"
    return Reply.UNUSABLE, detail


def _read(body: bytes) -> tuple[Reply, str]:
    """Read a 200: an engine that shuts down or has lost its worker sends one without a token."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return Reply.BROKEN, "an answer that is not JSON"
    if not isinstance(document, dict) or document.get("error"):
        return Reply.BROKEN, "an error inside a 200"
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return Reply.BROKEN, "a 200 without a choice"
    if choices[0].get("finish_reason") in ("abort", "error"):
        return Reply.BROKEN, f"finish_reason {choices[0]['finish_reason']}"
    return Reply.GIVEN, ""
