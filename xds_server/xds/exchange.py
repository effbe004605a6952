"""The push side of a stream: what goes out, in which order, and what has to wait (pure).

    request ─┐                    ┌─ CDS ─ EDS ─ LDS ─ RDS …   responses, at most one un-ACKed per type
    snapshot ┼─ Exchange.advance ─┤
    time ────┘                    └─ deadline                  when a wait ends by itself

Make before break (R13, R14), none of which delays endpoints: the CLAs of changed clusters follow their CDS
at once; a route or listener that names a cluster the client has not accepted yet waits for that CDS ACK; a
cluster that a held route still names is not removed before the new route is ACKed.
"""

from __future__ import annotations

from collections.abc import Mapping

from xds_server.resources.snapshot import (
    CLUSTER,
    ENDPOINT,
    LISTENER,
    PUSH_ORDER,
    ROUTE,
    Snapshot,
    TypeSnapshot,
)
from xds_server.xds.answer import Protocol, Question
from xds_server.xds.blame import culprits
from xds_server.xds.channel import NONE, Channel, Refusal
from xds_server.xds.rendered import Rendered, Response
from xds_server.xds.subscription import FULL_STATE

GATE_S = 2.0
"""How long a route waits for the CDS ACK, seconds: Envoy ACKs within 12 ms when its CLAs came along."""

_NAMES_CLUSTERS = (LISTENER, ROUTE)


class Exchange:
    """All types of one stream."""

    __slots__ = ("_protocol", "_rendered", "channels", "deadline", "snapshot")

    def __init__(self, protocol: Protocol, rendered: Rendered) -> None:
        self._protocol = protocol
        self._rendered = rendered
        self.channels: dict[str, Channel] = {}
        self.snapshot: Snapshot | None = None
        self.deadline: float | None = None
        """When `advance` has to be called even if nothing else happens."""

    def ack(self, channel: Channel, now: float) -> None:
        """Take the pending response as accepted."""
        response = channel.pending
        if response is None:
            return
        channel.pending = None
        channel.held = self._rendered.without(response.view, channel.forgotten)
        channel.forgotten = NONE
        channel.acked_version = response.version
        channel.acked_at = now
        if not channel.rejected:
            channel.refusal = None

    def nack(self, channel: Channel, error: str, now: float) -> Refusal | None:
        """Take the pending response as refused: blame resources and never send them again as they are."""
        response = channel.pending
        if response is None:
            return None
        channel.pending = None
        changed = {name: response.view.held[name].version for name in response.changed}
        names = culprits(error, changed)
        channel.rejected = channel.rejected | {(name, changed[name]) for name in names}
        channel.held = self._rendered.without(channel.held, channel.forgotten)
        channel.forgotten = NONE
        channel.settled = None
        channel.refusal = Refusal(response.version, error, names, now)
        return channel.refusal

    def forget(self, channel: Channel, names: frozenset[str]) -> None:
        """Take the names as not held by the client: what is there of them is sent again."""
        channel.held = self._rendered.without(channel.held, names)
        if channel.pending is not None:
            channel.forgotten |= names
        channel.settled = None

    def recall(self, channel: Channel, versions: Mapping[str, str]) -> None:
        """Take the versions by name as held by the client."""
        channel.held = self._rendered.known(versions)

    def publish(self, snapshot: Snapshot) -> None:
        """Make a snapshot the one to bring the client to."""
        self.snapshot = snapshot
        for channel in self.channels.values():
            if channel.rejected:
                resources = snapshot.of_type(channel.type_url).resources
                channel.rejected = frozenset(
                    (name, version)
                    for name, version in channel.rejected
                    if name in resources and resources[name].version == version
                )
                channel.settled = None

    def advance(self, now: float) -> list[Response]:
        """Return all responses that may go out now, in push order."""
        snapshot = self.snapshot
        if snapshot is None:
            return []
        self.deadline = None
        responses: list[Response] = []
        for type_url in PUSH_ORDER:
            channel = self.channels.get(type_url)
            if channel is None or channel.pending is not None:
                continue
            current = snapshot.of_type(type_url)
            if channel.settled == current.version:
                continue
            response = self._next(channel, current, now)
            if response is not None:
                self._sent(channel, response, now)
                responses.append(response)
        return responses

    def _next(self, channel: Channel, current: TypeSnapshot, now: float) -> Response | None:
        type_url = channel.type_url
        blocked = self._blocked(current, channel, now) if type_url in _NAMES_CLUSTERS else NONE
        if blocked and self._protocol is Protocol.SOTW and type_url in FULL_STATE:
            return None  # A listener that is left out would be removed: the whole type waits.
        retained = self._retained(current, channel, now) if type_url == CLUSTER else NONE
        question = Question(
            protocol=self._protocol,
            type_url=type_url,
            version=current.version,
            view=channel.held,
            subscription=channel.subscription,
            asked=channel.asked,
            fresh=channel.fresh,
            rejected=channel.rejected,
            blocked=blocked,
            retained=retained,
        )
        response = self._rendered.response(question, current, after=channel.serial)
        channel.settled = None if blocked or retained else current.version
        if response is None:
            channel.asked = NONE
        return response

    def _sent(self, channel: Channel, response: Response, now: float) -> None:
        channel.pending = response
        channel.serial = response.serial
        channel.nonce = response.nonce
        channel.asked = NONE
        channel.fresh = False
        channel.sent_version = response.version
        channel.sent_at = now
        if channel.type_url == CLUSTER and response.changed:
            endpoints = self.channels.get(ENDPOINT)
            if endpoints is not None:
                self.forget(endpoints, response.changed)
                endpoints.warming = response.changed

    def _blocked(self, current: TypeSnapshot, channel: Channel, now: float) -> frozenset[str]:
        """Return the names that refer to a cluster the client will get but has not accepted."""
        clusters = self.channels.get(CLUSTER)
        if clusters is None or not clusters.subscription.wildcard or self.snapshot is None:
            return NONE
        coming = self.snapshot.of_type(CLUSTER).resources
        accepted = clusters.held.held
        if clusters.pending is not None and now >= clusters.sent_at + GATE_S:
            accepted = clusters.pending.view.held
        names = set()
        for name, each in current.resources.items():
            old = channel.held.held.get(name)
            if old is not None and old.version == each.version:
                continue
            if any(need in coming and need not in accepted for need in each.needs):
                names.add(name)
        if names and clusters.pending is not None:
            self._wake(clusters.sent_at + GATE_S)
        return frozenset(names)

    def _retained(self, current: TypeSnapshot, channel: Channel, now: float) -> frozenset[str]:
        """Return the clusters that left the snapshot but are still named by what the client holds."""
        leaving = channel.held.held.keys() - current.resources.keys()
        if not leaving:
            return NONE
        named: set[str] = set()
        for type_url in _NAMES_CLUSTERS:
            other = self.channels.get(type_url)
            if other is None:
                continue
            if other.pending is None:
                named |= other.held.needs
                continue
            named |= other.pending.view.needs
            if now < other.sent_at + GATE_S:
                named |= other.held.needs
                self._wake(other.sent_at + GATE_S)
        return frozenset(leaving & named)

    def _wake(self, at: float) -> None:
        if self.deadline is None or at < self.deadline:
            self.deadline = at
