"""The state of one type on one stream."""

from __future__ import annotations

from dataclasses import dataclass

from xds_server.xds.answer import Rejection
from xds_server.xds.rendered import Response
from xds_server.xds.subscription import Subscription
from xds_server.xds.view import EMPTY, View

NONE: frozenset[str] = frozenset()
NO_REJECTIONS: frozenset[Rejection] = frozenset()


@dataclass(slots=True)
class Refusal:
    """The last NACK of a type, until a later response is accepted in full."""

    version: str
    error: str
    names: frozenset[str]
    """Resources held responsible."""
    at: float


@dataclass(slots=True)
class Channel:
    """What was asked, what is held, and the one response that may be under way."""

    type_url: str
    subscription: Subscription
    held: View = EMPTY
    """What the client accepted."""
    pending: Response | None = None
    """Sent, neither ACKed nor NACKed: nothing else of the type is sent until then (R9)."""
    forgotten: frozenset[str] = NONE
    """Names to strike from `held` when the pending response is settled."""
    doubted: frozenset[str] = NONE
    """Names to put in doubt then."""
    asked: frozenset[str] = NONE
    rejected: frozenset[Rejection] = NO_REJECTIONS
    suspects: tuple[frozenset[Rejection], ...] = ()
    """Groups of rejected resources of which perhaps only some are bad: tried again one by one."""
    retry_at: float = 0.0
    """When the next group may be tried."""
    fresh: bool = True
    due: bool = True
    """Whether there may be something to send."""
    seen: str = ""
    """Version of the type in the snapshot that was looked at last; empty = no resources."""
    serial: int = 0
    """Newest nonce of the type on the stream."""
    nonce: str = ""
    warming: frozenset[str] = NONE
    """EDS: clusters changed by the last CDS response, whose CLAs a repeated request wants again (R25)."""
    sent_version: str = ""
    sent_at: float = 0.0
    acked_version: str = ""
    acked_at: float = 0.0
    lag_s: float | None = None
    """From sending to acceptance of the last accepted response."""
    nacks: int = 0
    refusal: Refusal | None = None
