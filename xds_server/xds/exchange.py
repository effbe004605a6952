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
from xds_server.xds.answer import Protocol, Question, Rejection
from xds_server.xds.blame import culprits
from xds_server.xds.channel import NONE, Channel, Refusal
from xds_server.xds.rendered import Rendered, Response
from xds_server.xds.subscription import FULL_STATE, Subscription
from xds_server.xds.view import View

GATE_S = 2.0
"""How long a route waits for the CDS ACK, seconds: Envoy ACKs within 12 ms when its CLAs came along."""

RETRY_S = 5.0
"""Pause after a NACK before suspects are tried again, seconds: a client that refuses everything is asked
at a pace that costs nothing."""

MAX_ERROR_CHARS = 4096
"""What is kept of an error: Envoy adds the refused resource as text."""

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

    def open(self, type_url: str, subscription: Subscription) -> Channel:
        """Begin with a type; `channels` stay in push order."""
        channel = self.channels[type_url] = Channel(type_url, subscription)
        if self.snapshot is not None:
            channel.seen = self.snapshot.versions.get(type_url, "")
        if len(self.channels) > 1:
            ordered = sorted(self.channels.items(), key=_place)
            self.channels.clear()
            self.channels.update(ordered)
        return channel

    def ack(self, channel: Channel, now: float) -> None:
        """Take the pending response as accepted; there must be one."""
        response = channel.pending
        assert response is not None
        channel.acked_version = response.version
        channel.acked_at = now
        channel.lag_s = now - channel.sent_at
        if not channel.rejected:
            channel.refusal = None
        self._settle(channel, response.view)

    def nack(self, channel: Channel, error: str, now: float) -> Refusal:
        """Take the pending response as refused; there must be one.

        What is to blame is never sent again as it is; the client keeps what it had of it, everything else
        goes out (R11, and the resource that is bad does not stop the others). A text that names nothing
        puts all changes under suspicion: they are tried again in halves, each half after a pause.
        """
        response = channel.pending
        assert response is not None
        changed = {name: response.view.held[name].version for name in response.changed}
        names = culprits(error, changed)
        suspicious = not names and len(changed) > 1
        names = names or frozenset(changed)
        rejections = frozenset((name, changed[name]) for name in names)
        channel.rejected |= rejections
        channel.retry_at = now + RETRY_S
        if suspicious:
            channel.suspects = (*_halves(rejections), *channel.suspects)
        channel.nacks += 1
        refusal = channel.refusal = Refusal(response.version, error[:MAX_ERROR_CHARS], names, now)
        # A refused response of removals only is taken as accepted: asking again would change nothing.
        self._settle(channel, channel.held if changed else response.view)
        channel.due = True
        return refusal

    def _settle(self, channel: Channel, held: View) -> None:
        channel.pending = None
        channel.held = held
        if channel.forgotten or channel.doubted:
            held = self._rendered.without(held, channel.forgotten)
            channel.held = self._rendered.doubting(held, channel.doubted)
            channel.forgotten = channel.doubted = NONE

    def forget(self, channel: Channel, names: frozenset[str]) -> None:
        """Take the names as not held by the client: it dropped them itself."""
        channel.held = self._rendered.without(channel.held, names)
        if channel.pending is not None:
            channel.forgotten |= names
            channel.doubted -= names
        channel.due = True

    def doubt(self, channel: Channel, names: frozenset[str]) -> None:
        """Take the names as held in an unknown state: what there is of them is sent again."""
        channel.held = self._rendered.doubting(channel.held, names)
        if channel.pending is not None:
            channel.doubted |= names
        channel.due = True

    def recall(self, channel: Channel, versions: Mapping[str, str]) -> None:
        """Take the versions by name as held by the client."""
        channel.held = self._rendered.known(versions)

    def publish(self, snapshot: Snapshot) -> None:
        """Make a snapshot the one to bring the client to."""
        self.snapshot = snapshot
        versions = snapshot.versions
        for channel in self.channels.values():
            version = versions.get(channel.type_url, "")
            if channel.seen != version:
                channel.seen = version
                channel.due = True
            if channel.rejected:
                current = snapshot.of_type(channel.type_url).resources
                self._pardon(
                    channel,
                    frozenset(
                        (name, version)
                        for name, version in channel.rejected
                        if name not in current or current[name].version != version
                    ),
                )

    def pardon(self, channel: Channel, names: frozenset[str]) -> None:
        """Forget that resources of these names were refused."""
        if channel.rejected:
            self._pardon(channel, frozenset(each for each in channel.rejected if each[0] in names))

    def _pardon(self, channel: Channel, rejections: frozenset[Rejection]) -> None:
        channel.rejected -= rejections
        left = (group - rejections for group in channel.suspects)
        channel.suspects = tuple(group for group in left if group)
        channel.due = True

    def advance(self, now: float) -> list[Response]:
        """Return all responses that may go out now, in push order."""
        snapshot = self.snapshot
        if snapshot is None:
            return []
        self.deadline = None
        responses: list[Response] = []
        for channel in self.channels.values():
            if not channel.due or channel.pending is not None:
                continue
            current = snapshot.of_type(channel.type_url)
            response = self._next(channel, current, now)
            while response is None and self._try_suspects(channel, now):
                response = self._next(channel, current, now)
            if response is not None:
                self._sent(channel, response, now)
                responses.append(response)
        return responses

    def _try_suspects(self, channel: Channel, now: float) -> bool:
        """Take the next group of suspects as innocent, when its time has come; the client will tell."""
        if not channel.suspects:
            return False
        if now < channel.retry_at:
            self._wake(channel.retry_at)
            return False
        group, *rest = channel.suspects
        channel.suspects = tuple(rest)
        channel.rejected -= group
        return True

    def _next(self, channel: Channel, current: TypeSnapshot, now: float) -> Response | None:
        type_url = channel.type_url
        blocked = self._blocked(current, channel, now) if type_url in _NAMES_CLUSTERS else NONE
        if blocked and self._protocol is Protocol.SOTW and type_url in FULL_STATE:
            return None  # A listener that is left out would be removed: the whole type waits.
        retained = self._retained(current, channel, now)
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
        channel.due = bool(blocked or retained or channel.suspects)
        if response is None:
            channel.asked = NONE
            if not channel.rejected:
                channel.refusal = None
        return response

    def _sent(self, channel: Channel, response: Response, now: float) -> None:
        channel.pending = response
        channel.serial = response.serial
        channel.nonce = response.nonce
        channel.asked = NONE
        channel.fresh = False
        channel.sent_version = response.version
        channel.sent_at = now
        clusters = self.channels.get(CLUSTER)
        if channel.type_url in _NAMES_CLUSTERS and clusters and clusters.due:
            self._wake(now + GATE_S)  # Clusters may be waiting for this response to be ACKed.
        if channel is clusters and response.changed:
            endpoints = self.channels.get(ENDPOINT)
            if endpoints is not None:
                wanted = endpoints.subscription
                again = response.changed if wanted.wildcard else response.changed & wanted.names
                self.doubt(endpoints, again)
                endpoints.warming = again

    def _blocked(self, current: TypeSnapshot, channel: Channel, now: float) -> frozenset[str]:
        """Return the names that refer to a cluster the client will get but has not accepted.

        A refused cluster is not waited for: it does not come, and the route may serve other models.
        """
        clusters = self.channels.get(CLUSTER)
        if clusters is None or not clusters.subscription.wildcard or self.snapshot is None:
            return NONE
        if not (clusters.due or clusters.pending or clusters.rejected):
            return NONE
        coming = self.snapshot.of_type(CLUSTER).resources
        accepted = clusters.held.held
        if clusters.pending is not None and now >= clusters.sent_at + GATE_S:
            accepted = clusters.pending.view.held
        missing = coming.keys() - accepted.keys() - {name for name, _ in clusters.rejected}
        if not missing:
            return NONE
        held = channel.held.held
        names = {
            name
            for name, each in current.resources.items()
            if not missing.isdisjoint(each.needs)
            and ((old := held.get(name)) is None or old.version != each.version)
        }
        if names and clusters.pending is not None and now < clusters.sent_at + GATE_S:
            self._wake(clusters.sent_at + GATE_S)
        return frozenset(names)

    def _retained(self, current: TypeSnapshot, channel: Channel, now: float) -> frozenset[str]:
        """Return the names that left the snapshot but are still in use by the client."""
        delta = self._protocol is Protocol.DELTA
        if channel.type_url != CLUSTER and not (delta and channel.type_url == ENDPOINT):
            return NONE
        leaving = self._rendered.leaving(channel.held, current)
        if not leaving:
            return NONE
        if channel.type_url == CLUSTER:
            return leaving & self._referred(now)
        return leaving & self._leaving_clusters()

    def _referred(self, now: float) -> set[str]:
        """Return the clusters named by routes and listeners that the client has or may have."""
        names: set[str] = set()
        for type_url in _NAMES_CLUSTERS:
            channel = self.channels.get(type_url)
            if channel is None:
                continue
            if channel.pending is None:
                names |= channel.held.needs
                continue
            names |= channel.pending.view.needs
            if now < channel.sent_at + GATE_S:
                names |= channel.held.needs
                self._wake(channel.sent_at + GATE_S)
        return names

    def _leaving_clusters(self) -> frozenset[str]:
        """Return the clusters that leave the snapshot and are still there at the client."""
        clusters = self.channels.get(CLUSTER)
        if clusters is None or self.snapshot is None:
            return NONE
        return frozenset(
            clusters.held.held.keys() - self.snapshot.of_type(CLUSTER).resources.keys()
        )

    def _wake(self, at: float) -> None:
        if self.deadline is None or at < self.deadline:
            self.deadline = at


def _place(item: tuple[str, Channel]) -> int:
    return PUSH_ORDER.index(item[0])


def _halves(group: frozenset[Rejection]) -> tuple[frozenset[Rejection], frozenset[Rejection]]:
    ordered = sorted(group)
    middle = len(ordered) // 2
    return frozenset(ordered[:middle]), frozenset(ordered[middle:])
