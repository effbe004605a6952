"""Asking a running server: its admin HTTP, from the command line."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xds_server import __version__

FAILED = 1
"""Exit code: could not run."""
BAD_USAGE = 2
"""Exit code: the arguments or a file cannot be used."""
TIMEOUT_S = 15.0
_PLACES = {"id": "ID", "tier": "TIER", "subject": "SUBJECT"}
"""Parameters that are no options."""


class AskError(Exception):
    """There is no usable answer; the text is one sentence for the operator."""

    def __init__(self, text: str, code: int = FAILED, *, is_gone: bool = False) -> None:
        super().__init__(text)
        self.code = code
        """The exit code of a command that ends because of it."""
        self.is_gone = is_gone
        """Nobody answered: it may be back in a moment."""


@dataclass(frozen=True, slots=True)
class Server:
    """Whom to ask, and as whom."""

    address: str
    """Of the admin HTTP, with or without `http://`."""
    token: str | None = None
    """What permits it; None = nothing is shown."""


def read_token(path: Path | None) -> str | None:
    """Return the token that a file holds; None where there is no file.

    Raises:
        AskError: It cannot be read, or holds none.
    """
    if path is None:
        return None
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not ASCII"
        text = f"--token-file: {path}: {why}: expected a readable file with one token"
        raise AskError(text, BAD_USAGE) from error
    if not token or not all("!" <= each <= "~" for each in token):
        text = f"--token-file: {path}: expected one token and nothing else"
        raise AskError(text, BAD_USAGE)
    return token


def get(server: Server, path: str, given: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON of a page; parameters that are None are left out.

    Args:
        server: Whom to ask.
        path: Of the page, from `/`.
        given: Parameters.

    Raises:
        AskError: There is no such answer.
    """
    with _answer(server, path, given) as response:
        return json.load(response)


def post(
    server: Server, path: str, given: Mapping[str, Any] | None = None, *, body: bytes | None = None
) -> Any:
    """Order something and return the JSON of the answer; parameters that are None are left out.

    Raises:
        AskError: It was refused, or there is no answer.
    """
    with _answer(server, path, given, method="POST", body=body) as response:
        return json.load(response)


def lines(server: Server, path: str, given: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Yield the lines of a page as they come, each with its end.

    Raises:
        AskError: There is no answer, or it breaks off.
    """
    with _answer(server, path, given) as response:
        yield from response


@contextlib.contextmanager
def _answer(
    server: Server,
    path: str,
    given: Mapping[str, Any] | None,
    *,
    method: str = "GET",
    body: bytes | None = None,
) -> Iterator[Any]:
    admin = server.address
    base = (admin if "://" in admin else f"http://{admin}").rstrip("/")
    if not base.startswith(("http://", "https://")):
        text = f"--admin: {admin}: expected an http address, like http://127.0.0.1:18001"
        raise AskError(text, BAD_USAGE)
    query = urllib.parse.urlencode({k: v for k, v in (given or {}).items() if v is not None})
    url = f"{base}{path}?{query}" if query else base + path
    try:
        request = urllib.request.Request(url, method=method, data=body)  # noqa: S310 - scheme checked
        if server.token is not None:
            # Not where a redirect leads.
            request.add_unredirected_header("Authorization", f"Bearer {server.token}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            yield response
    except urllib.error.HTTPError as error:
        with error:
            said = _error_text(error.read())
        code = BAD_USAGE if error.code == http.HTTPStatus.BAD_REQUEST else FAILED
        raise AskError(_as_typed(said, given or {}) or f"{url}: {error}", code) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise AskError(strange(admin, "it is not JSON")) from error
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        # A port that speaks something else, such as gRPC, is not an HTTP answer.
        reason = getattr(error, "reason", None) or error
        text = f"no answer from {base}: {reason} (is it running?)"
        raise AskError(text, is_gone=True) from error


def strange(admin: str, what: str) -> str:
    """Say that an answer is not of an xds-server, or of one of another version."""
    expected = f"the admin address of an xds-server of this version ({__version__})"
    return f"--admin: the answer of {admin} cannot be used ({what}): expected {expected}"


def _as_typed(said: str, given: Mapping[str, Any]) -> str:
    """Name a parameter as it is typed here: `--for: 'soon'`, not `for: 'soon'`."""
    key, colon, rest = said.partition(":")
    if not colon or key not in given:
        return said
    return f"{_PLACES.get(key, f'--{key}')}:{rest}"


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
