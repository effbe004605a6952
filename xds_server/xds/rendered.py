"""Answers, found and serialized once for all streams that need the same one.

A push to a thousand proxies is then one diff, one serialization and a thousand references to the same bytes.
The nonce is the version the first time a version goes out, and the version with a suffix after that: when a
change is taken back, or when streams need different parts of one version. Responses are numbered through the
life of the process; a stream takes a shared one when it is newer than everything the stream has seen of the
type, else the same content with a new nonce, so that no stream meets a nonce twice (R5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xds_server.resources.snapshot import Resource, TypeSnapshot
from xds_server.xds.answer import Protocol, Question, answer
from xds_server.xds.proto import encode_delta, encode_sotw, with_nonce
from xds_server.xds.view import EMPTY, UNKNOWN, View

MAX_ENTRIES = 4096
"""Distinct client states remembered per snapshot; beyond them everything is forgotten and found anew."""
MAX_VERSIONS = 16_384
"""Versions remembered as having been a nonce."""


@dataclass(frozen=True, slots=True)
class Response:
    """One serialized response and what follows from its acceptance."""

    type_url: str
    version: str
    nonce: str
    serial: int
    """Number of the nonce in this process: higher is newer."""
    body: bytes
    changed: frozenset[str]
    """Names whose content is new for the client."""
    view: View
    """What the client holds after accepting it."""


class Rendered:
    """Memory of answers, shared by all streams of the event loop."""

    def __init__(self) -> None:
        self._serial = 0
        self._responses: dict[Question, tuple[Response, bytes] | None] = {}
        self._forgotten: dict[tuple[View, frozenset[str]], View] = {}
        self._doubted: dict[tuple[View, frozenset[str]], View] = {}
        self._leaving: dict[tuple[View, str, str], frozenset[str]] = {}
        self._known: dict[frozenset[tuple[str, str]], View] = {}
        self._used: dict[tuple[Protocol, str, str], None] = {}

    def clear(self) -> None:
        """Forget all answers: a new snapshot came."""
        self._responses.clear()
        self._forgotten.clear()
        self._doubted.clear()
        self._leaving.clear()
        self._known.clear()

    def response(self, question: Question, current: TypeSnapshot, *, after: int) -> Response | None:
        """Return what to send, None when nothing, with a nonce newer than `after`."""
        if question in self._responses:
            entry = self._responses[question]
        else:
            entry = self._render(question, current)
            if len(self._responses) >= MAX_ENTRIES:
                self._responses.clear()
            self._responses[question] = entry
        if entry is None:
            return None
        response, bare = entry
        if response.serial > after:
            return response
        return self._number(question.protocol, response, bare)

    def without(self, view: View, names: frozenset[str]) -> View:
        """Return the view without the names, the same object for every stream that asks."""
        if names.isdisjoint(view.held):
            return view
        key = (view, names)
        found = self._forgotten.get(key)
        if found is None:
            if len(self._forgotten) >= MAX_ENTRIES:
                self._forgotten.clear()
            found = self._forgotten[key] = view.without(names)
        return found

    def doubting(self, view: View, names: frozenset[str]) -> View:
        """Return the view with the names in doubt, the same object for every stream that asks."""
        if not names:
            return view
        key = (view, names)
        found = self._doubted.get(key)
        if found is None:
            if len(self._doubted) >= MAX_ENTRIES:
                self._doubted.clear()
            found = self._doubted[key] = view.doubting(names)
        return found

    def leaving(self, view: View, current: TypeSnapshot) -> frozenset[str]:
        """Return the names that are held for certain and left the snapshot."""
        key = (view, current.type_url, current.version)
        found = self._leaving.get(key)
        if found is None:
            if len(self._leaving) >= MAX_ENTRIES:
                self._leaving.clear()
            found = self._leaving[key] = frozenset(
                name
                for name, each in view.held.items()
                if name not in current.resources and each.version != UNKNOWN
            )
        return found

    def known(self, versions: Mapping[str, str]) -> View:
        """Return the view of a client that came back with these versions by name (R36)."""
        if not versions:
            return EMPTY
        key = frozenset(versions.items())
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_ENTRIES:
                self._known.clear()
            held = {name: Resource(name, version, b"") for name, version in versions.items()}
            found = self._known[key] = View(held)
        return found

    def _render(self, question: Question, current: TypeSnapshot) -> tuple[Response, bytes] | None:
        content = answer(question, current)
        if content is None:
            return None
        encode = encode_sotw if question.protocol is Protocol.SOTW else encode_delta
        bare = encode(question.type_url, content)
        blank = Response(
            question.type_url,
            content.version,
            "",
            0,
            b"",
            content.changed,
            content.view,
        )
        return self._number(question.protocol, blank, bare), bare

    def _number(self, protocol: Protocol, response: Response, bare: bytes) -> Response:
        self._serial += 1
        nonce = response.version
        key = (protocol, response.type_url, response.version)
        if key in self._used:
            nonce = f"{nonce}.{self._serial:x}"
        elif len(self._used) >= MAX_VERSIONS:
            del self._used[next(iter(self._used))]
        self._used[key] = None
        return Response(
            type_url=response.type_url,
            version=response.version,
            nonce=nonce,
            serial=self._serial,
            body=with_nonce(bare, nonce),
            changed=response.changed,
            view=response.view,
        )
