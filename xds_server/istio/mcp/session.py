"""One stream of an istiod: requests in, what to send out. Pure.

How istiod's client talks (research run against 1.14.5, read in 1.32): it asks for every type once, with a
timestamp where the nonce belongs, and acknowledges every response. It never refuses one and never asks
for names. Hence: a type that was not asked for on this stream is a subscription, whatever nonce comes
with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from xds_server.istio.mcp.catalog import Catalog
from xds_server.istio.mcp.kinds import MESH_CONFIG, Asked, Kind, parse_type
from xds_server.istio.mcp.proto import McpRequest

REMEMBERED_NONCES = 64
"""Of a type: an ACK of an older response is late, and no reason to send anything."""
MOST_TYPES = 100
"""A stream that asks for more is no istiod's."""


class Said(StrEnum):
    """What a request was."""

    ASKED = "asked"
    """A subscription, which is answered as soon as there is something to say."""
    ACKED = "acked"
    REFUSED = "refused"
    """istiods never do; other clients of the protocol may."""
    LATE = "late"
    """About a response that is not the newest one."""
    NOTHING = "nothing"
    """Nothing to answer: the mesh's own configuration, or a nonce that nobody gave."""


class TooManyTypesError(ValueError):
    """A client asks for more types than there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One response."""

    type_url: str
    """As it was asked for."""
    kind: Kind | None
    version: str
    nonce: str
    catalog: Catalog = field(repr=False)
    """Where its resources are."""


@dataclass(slots=True)
class Subscription:
    """One type of a stream."""

    asked: Asked
    sent: str | None = None
    """Version sent last."""
    acked: str | None = None
    refused: str | None = None
    """What the client said when it refused the version sent last."""
    nonces: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED_NONCES))
    sent_at: float = 0.0


class McpSession:
    """What one stream asked for and was told."""

    def __init__(self) -> None:
        self.types: dict[str, Subscription] = {}
        """By the type as it was asked for."""
        self._count = 0

    def heard(self, request: McpRequest) -> Said:
        """Take a request in.

        Raises:
            NotIstioError: A type that no istiod asks for.
            TooManyTypesError: More types than there are.
        """
        asked = parse_type(request.type_url)
        if asked.name == MESH_CONFIG:
            return Said.NOTHING
        known = self.types.get(request.type_url)
        if known is None:
            if len(self.types) >= MOST_TYPES:
                raise TooManyTypesError(f"more than {MOST_TYPES} types on one stream")
            self.types[request.type_url] = Subscription(asked)
            return Said.ASKED
        if not request.nonce:
            known.sent = None
            return Said.ASKED
        if request.nonce not in known.nonces:
            return Said.NOTHING
        if request.nonce != known.nonces[-1]:
            return Said.LATE
        if request.error is not None:
            known.refused = request.error
            return Said.REFUSED
        known.acked, known.refused = known.sent, None
        return Said.ACKED

    def due(self, catalog: Catalog | None, now: float) -> list[Answer]:
        """Return the responses that bring the stream up to date; they count as sent.

        Hosts come before the routes that name them.

        Args:
            catalog: What there is; None = nobody knows yet, and then nobody is answered.
            now: Monotonic seconds.
        """
        if catalog is None:
            return []
        answers = []
        for type_url, each in sorted(self.types.items(), key=_order):
            kind = each.asked.kind
            version = catalog.version(kind)
            if version == each.sent:
                continue
            self._count += 1
            nonce = f"{self._count}-{version}"
            each.sent, each.sent_at = version, now
            each.nonces.append(nonce)
            answers.append(
                Answer(type_url=type_url, kind=kind, version=version, nonce=nonce, catalog=catalog)
            )
        return answers


_ORDER = {Kind.SERVICE_ENTRY: 0, Kind.DESTINATION_RULE: 1, None: 2, Kind.VIRTUAL_SERVICE: 3}


def _order(item: tuple[str, Subscription]) -> int:
    return _ORDER[item[1].asked.kind]
