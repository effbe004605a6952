"""What the proxies' messages say, as values without Envoy's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Address = tuple[str, int]
NO_FLAGS: frozenset[str] = frozenset()


class Entry(NamedTuple):
    """One log entry: a finished request, or one of its attempts that failed."""

    is_request: bool
    route: str
    """Name of the route; empty when none matched."""
    cluster: str
    """Where the last attempt went; empty when nowhere."""
    address: Address | None
    """Of the endpoint; None when there was none or it is inside the proxy."""
    status: int
    flags: frozenset[str]
    via_upstream: bool
    """Whether the answer is the endpoint's own; otherwise a filter or the proxy answered."""
    attempts: int
    first_byte_s: float | None
    """From the start of the last attempt to its first byte."""
    latency_s: float | None
    """From the start of the last attempt to its last byte."""
    duration_s: float
    """Of the whole request."""
    served: str
    downgraded: bool
    reason: str
    template: str
    """Which static answer it was, if it was one."""
    tokens: float = 0.0
    """What the request might cost; 0 where that is not counted."""
    request_class: str = ""
    """Said of attempts behind a gate, whose route does not tell it; a client may have invented it."""
    errored: bool = False
    """Whether an event of its stream was an error; only where proxies look into streams."""


class LogMessage(NamedTuple):
    """One message of an access log stream."""

    node_id: str | None
    """Said in the first message only."""
    log_name: str | None
    entries: Sequence[Entry]
    skipped: int
    """Entries that are not about HTTP requests that ended."""
    ended_unix_s: float | None
    """When the last of them ended, by the proxy's clock."""


class EndpointLoad(NamedTuple):
    """What one proxy did with one endpoint since its last report."""

    cluster: str
    address: Address
    issued: int
    succeeded: int
    failed: int
    in_progress: int
    metrics: dict[str, tuple[float, int]]
    """Sum and number of what responses reported (ORCA), by name."""


class LoadReport(NamedTuple):
    """One message of a load report stream."""

    node_id: str | None
    endpoints: Sequence[EndpointLoad]
    clusters: Sequence[str]
