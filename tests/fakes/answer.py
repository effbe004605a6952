"""What a client got from a proxy, and a client that opens as many connections as it is asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.fakes.waiting import PATIENCE_S

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass(frozen=True)
class Answer:
    """One answer, read to its end; header names in lower case."""

    status: int
    text: str
    headers: dict[str, str]

    @classmethod
    async def of(cls, response: aiohttp.ClientResponse) -> Answer:
        """Read a response to its end."""
        text = (await response.read()).decode(errors="replace")
        return cls(response.status, text, {k.lower(): v for k, v in response.headers.items()})

    @property
    def served(self) -> str | None:
        return self.headers.get("x-served-model")

    @property
    def downgraded(self) -> str | None:
        return self.headers.get("x-model-downgraded")

    @property
    def reason(self) -> str | None:
        return self.headers.get("x-degrade-reason")

    @property
    def attempts(self) -> int:
        return int(self.headers["x-attempt-count"])

    @property
    def story(self) -> tuple[int, str | None, str | None, str | None]:
        """The status and the three headers."""
        return self.status, self.served, self.downgraded, self.reason

    @property
    def document(self) -> Any:
        """The JSON document; the content type must say that it is one."""
        assert self.headers["content-type"] == "application/json", self
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        """The error, in OpenAI's shape."""
        found: dict[str, Any] = json.loads(self.text)["error"]
        return found

    @property
    def events(self) -> list[str]:
        """The payloads of an event stream; the whole text must be events."""
        assert self.headers["content-type"] == "text/event-stream", self
        assert self.text.endswith("\n\n"), self
        blocks = self.text.removesuffix("\n\n").split("\n\n")
        assert all(block.startswith("data: ") for block in blocks), self
        return [block.removeprefix("data: ") for block in blocks]


def client() -> aiohttp.ClientSession:
    """Return a client that opens as many connections as it is asked for."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=PATIENCE_S)
    )
