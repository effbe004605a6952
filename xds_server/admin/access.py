"""Who may look at the admin pages, and who may order.

Without a file of tokens: on loopback everybody may do everything, elsewhere everybody may look and nobody may
order. With one: only who brings a token may, as its role says. `server.admin_anonymous` says otherwise.
What looks after the process (health, metrics) is open, and so are the files of the live page, which show nothing.

There is no cookie: a browser sends a token only when the page itself puts it there, so that pages of other sites
cannot make use of it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xds_server import logs
from xds_server.config.admin_tokens import Role, Token, TokenFile, find
from xds_server.config.settings import Settings, is_loopback
from xds_server.observability.metrics import Reading
from xds_server.store.moments import show_moment

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/metrics", "/api/access"})
OPEN_PREFIX = "/page/"
LOOKING_POSTS = frozenset({"/api/diff"})
"""What is posted and changes nothing; every other POST is an order."""
WHO = "gpu_xds.who"
"""Key of the scope: whose token it is."""
ASKS = "give one with --token-file or XDS_SERVER_TOKEN_FILE, or log in on the page"
LOG_GAP_S = 1.0
MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what is permitted to them."""

    role: Role | None
    """None = not even to look."""
    name: str = ""
    """Of the token; empty = nobody knows."""
    trouble: str = ""
    """Why nothing is permitted."""


class Access:
    """Decides; see the module."""

    def __init__(
        self,
        *,
        tokens: TokenFile | None = None,
        anonymous: Role | None = Role.OPERATOR,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Prepare.

        Args:
            tokens: The file; None = tokens are not looked at.
            anonymous: What is permitted without a token; None = nothing.
            wall: Unix seconds.
        """
        self._tokens = tokens
        self._anonymous = anonymous
        self._wall = wall
        self._log = logs.get("admin")
        self._logged_at = float("-inf")
        if tokens is not None:
            tokens.on_change = self._reread

    @classmethod
    def of(cls, settings: Settings) -> Access:
        """Make what the settings ask for, and say so where it may surprise.

        Raises:
            ConfigError: The file of tokens cannot be used.
        """
        path = settings.admin_tokens_file
        tokens = None if path is None else TokenFile(path)
        is_local = is_loopback(settings.admin_host)
        if settings.admin_anonymous is not None:
            anonymous = (
                None if settings.admin_anonymous == "none" else Role(settings.admin_anonymous)
            )
        elif tokens is not None:
            anonymous = None
        else:
            anonymous = Role.OPERATOR if is_local else Role.VIEWER
        made = cls(tokens=tokens, anonymous=anonymous)
        if anonymous is Role.OPERATOR and not is_local:
            made._log.warning(logs.ADMIN_UNGUARDED, admin=settings.admin_host)
        elif tokens is None and anonymous is not Role.OPERATOR:
            made._log.warning(logs.ADMIN_ORDERS_OFF, why=_NO_TOKENS)
        return made

    def caller(self, headers: dict[str, str]) -> Caller:
        """Return who asks, by the headers of the request."""
        given = headers.get("authorization", "")
        if self._tokens is None or not given:
            if self._anonymous is not None:
                return Caller(self._anonymous)
            said = _NO_TOKENS if self._tokens is None else f"a token is missing: {ASKS}"
            return Caller(None, trouble=said)
        scheme, _, secret = given.partition(" ")
        if scheme.lower() != "bearer":
            return Caller(None, trouble=f"the authorization is no bearer token: {ASKS}")
        token = find(self._tokens.tokens(), secret.strip())
        if token is None:
            return Caller(None, trouble="nobody has this token here; it may have been withdrawn")
        if token.has_expired(self._wall()):
            return Caller(None, trouble=_expired(token))
        return Caller(token.role, token.name)

    def against(
        self, caller: Caller, headers: dict[str, str], *, is_order: bool
    ) -> tuple[int, str]:
        """Return what is against it: an HTTP status and a sentence; 200 = nothing."""
        if caller.role is None:
            return 401 if self._tokens is not None else 403, caller.trouble
        if not is_order:
            return 200, ""
        if caller.role is not Role.OPERATOR:
            return 403, self._no_orders(caller)
        if not caller.name and not _is_plain(headers.get("host", "")):
            return 403, _NAMED
        return 200, ""

    def _no_orders(self, caller: Caller) -> str:
        if caller.name:
            return f"{caller.name} may look, not order: the token's role is {caller.role}"
        if self._tokens is None:
            return _NO_TOKENS
        return f"without a token you may look, not order: {ASKS}"

    def describe(self, headers: dict[str, str]) -> dict[str, object]:
        """Return what the page asks first: who one is here, and what one may."""
        caller = self.caller(headers)
        may_look, _ = self.against(caller, headers, is_order=False)
        may_order, why = self.against(caller, headers, is_order=True)
        return {
            "who": caller.name,
            "role": caller.role,
            "may_look": may_look == 200,
            "may_order": may_order == 200,
            "why": why,
            "has_tokens": self._tokens is not None,
        }

    def routes(self) -> list[BaseRoute]:
        """Return the page that tells."""
        return [Route("/api/access", self._page)]

    async def _page(self, request: Request) -> Response:
        headers = {"cache-control": "no-store"}
        return JSONResponse(self.describe(dict(request.headers)), headers=headers)

    def readings(self) -> Iterator[Reading]:
        """Yield the metrics."""
        trouble = "" if self._tokens is None else self._tokens.trouble
        yield "fleet_admin_tokens_valid", (), float(not trouble)

    def refused(self, path: str, caller: Caller, text: str) -> None:
        """Say in the log that somebody was refused; not for each of many."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_GAP_S:
            self._logged_at = now
            shown = path[:MOST_SHOWN]
            self._log.warning(logs.ADMIN_REFUSED, path=shown, who=caller.name, why=text)

    def _reread(self, trouble: str) -> None:
        if trouble:
            self._log.error(logs.ADMIN_TOKENS_REFUSED, problems=trouble)
        else:
            self._log.info(logs.ADMIN_TOKENS_RELOADED)


class Guarded:
    """The ASGI application behind the door."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through, or refuse."""
        path = scope["path"] if scope["type"] == "http" else ""
        if scope["type"] != "http" or _is_open(scope["method"], path):
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        is_order = scope["method"] not in {"GET", "HEAD", "OPTIONS"} and path not in LOOKING_POSTS
        caller = self._access.caller(headers)
        status, text = self._access.against(caller, headers, is_order=is_order)
        if status != 200:
            self._access.refused(path, caller, text)
            said = {"www-authenticate": "Bearer"} if status == 401 else {}
            answer = JSONResponse({"error": text}, status_code=status, headers=said)
            await answer(scope, receive, send)
            return
        scope[WHO] = caller.name

        async def checked(message: Message) -> None:
            # A page may be looked at for days: a token that is withdrawn or over ends that too.
            if message["type"] == "http.response.body" and message.get("more_body"):
                status, _ = self._access.against(
                    self._access.caller(headers), headers, is_order=is_order
                )
                if status != 200:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    raise _WithdrawnError
            await send(message)

        with contextlib.suppress(_WithdrawnError):
            await self._app(scope, receive, checked)


class _WithdrawnError(Exception):
    """What permitted a long answer is no longer there."""


_NO_TOKENS = (
    "orders are off: the admin address is not loopback, and server.admin_tokens_file is not set"
)
_NAMED = (
    "without a token, orders are taken at an IP address, localhost or a name without dots: "
    "a page of another site could have a name of its own lead here"
)


def who_orders(request: Request, given: str) -> str:
    """Return whom the history shall name: whose token it is, else who one says to be."""
    return str(request.scope.get(WHO, "")) or given


def _is_open(method: str, path: str) -> bool:
    is_page = path in OPEN_PATHS or path.startswith(OPEN_PREFIX)
    return is_page and method in {"GET", "HEAD", "OPTIONS"}


def _is_plain(host: str) -> bool:
    """Whether nobody else can have the name that was asked for lead here."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").rstrip(".")
    if name.endswith(".localhost") or (name and "." not in name and ":" not in name):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _expired(token: Token) -> str:
    moment = show_moment(token.expires_unix_s or 0.0)
    return f"the token of {token.name} expired at {moment}"
