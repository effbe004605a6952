"""A session and its client as a dialog, without gRPC, asyncio or a clock.

    client = Dialog(Protocol.SOTW, snapshot(clusters=[cluster("a")]))
    client.subscribe(CLUSTER)
    client.ack(client.expect(CLUSTER, "a"))
    client.expect_nothing()

The same calls speak either protocol: `subscribe` repeats all names in SotW and adds to them in delta.
Names are compared as lists, so a resource that comes twice fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.service.discovery.v3 import discovery_pb2

from xds_server.resources.snapshot import CLUSTER, ENDPOINT, LISTENER, ROUTE, Snapshot
from xds_server.xds.answer import Protocol
from xds_server.xds.events import Event
from xds_server.xds.rendered import Rendered, Response
from xds_server.xds.requests import DeltaRequest, SotwRequest
from xds_server.xds.session import Session

BOTH = [Protocol.SOTW, Protocol.DELTA]
KINDS = {
    CLUSTER: (cluster_pb2.Cluster, "name"),
    ENDPOINT: (endpoint_pb2.ClusterLoadAssignment, "cluster_name"),
    LISTENER: (listener_pb2.Listener, "name"),
    ROUTE: (route_pb2.RouteConfiguration, "name"),
}


@dataclass(frozen=True)
class Reply:
    """A response as the client reads it."""

    type_url: str
    version: str
    nonce: str
    names: list[str]
    bodies: dict[str, bytes]
    versions: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)


def read(protocol: Protocol, raw: bytes) -> Reply:
    if protocol is Protocol.SOTW:
        message = discovery_pb2.DiscoveryResponse.FromString(raw)
        kind, key = KINDS[message.type_url]
        pairs = [
            (getattr(kind.FromString(each.value), key), each.value) for each in message.resources
        ]
        assert all(each.type_url == message.type_url for each in message.resources)
        return Reply(
            message.type_url,
            message.version_info,
            message.nonce,
            [name for name, _ in pairs],
            dict(pairs),
        )
    delta = discovery_pb2.DeltaDiscoveryResponse.FromString(raw)
    return Reply(
        delta.type_url,
        delta.system_version_info,
        delta.nonce,
        [each.name for each in delta.resources],
        {each.name: each.resource.value for each in delta.resources},
        {each.name: each.version for each in delta.resources},
        list(delta.removed_resources),
    )


class Dialog:
    """One stream: what the client says, and what it must hear."""

    def __init__(
        self,
        protocol: Protocol,
        snapshot: Snapshot | None = None,
        *,
        rendered: Rendered | None = None,
    ) -> None:
        self.protocol = protocol
        self.rendered = rendered or Rendered()
        self.events: list[Event] = []
        self.session = Session(protocol, self.rendered, self.events.append)
        self.now = 1000.0
        self.inbox: list[Response] = []
        self.nonces: set[tuple[str, str]] = set()
        self.names: dict[str, list[str]] = {}
        self.last: dict[str, Reply] = {}
        if snapshot is not None:
            self.publish(snapshot)

    # the world

    def publish(self, snapshot: Snapshot) -> None:
        self.rendered.clear()
        self.inbox += self.session.on_snapshot(snapshot, self.now)

    def wait(self, seconds: float) -> None:
        """Let time pass; the session is called when it asked for it."""
        end = self.now + seconds
        while (deadline := self.session.deadline) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.inbox += self.session.on_time(self.now)
            after = self.session.deadline
            assert after is None or after > self.now, "a deadline in the past is a busy loop"
        self.now = end

    # what the client says

    def subscribe(self, type_url: str, *names: str) -> None:
        known = self.names.setdefault(type_url, [])
        known += [name for name in names if name not in known]
        self.say(type_url, subscribe=names)

    def unsubscribe(self, type_url: str, *names: str) -> None:
        self.names[type_url] = [each for each in self.names.get(type_url, []) if each not in names]
        self.say(type_url, unsubscribe=names)

    def repeat(self, type_url: str) -> None:
        """Send a request that equals the last ACK."""
        self.say(type_url, nonce=self.last[type_url].nonce)

    def reconnect(self, type_url: str, *names: str, known: Mapping[str, str] | None = None) -> None:
        """Send the first request of a stream whose client remembers an earlier one."""
        self.names[type_url] = list(names)
        self.say(type_url, subscribe=names, known=known or {}, version="from-before", first=True)

    def ack(self, reply: Reply) -> None:
        self.say(reply.type_url, nonce=reply.nonce, version=reply.version)

    def nack(self, reply: Reply, error: str = "refused", *, version: str = "") -> None:
        self.say(reply.type_url, nonce=reply.nonce, version=version, error=error)

    def say(
        self,
        type_url: str,
        *,
        subscribe: Iterable[str] = (),
        unsubscribe: Iterable[str] = (),
        known: Mapping[str, str] | None = None,
        nonce: str | None = None,
        version: str = "",
        error: str | None = None,
        first: bool = False,
    ) -> None:
        """Send any request; SotW names are those of the subscription, whatever the arguments."""
        if self.protocol is Protocol.DELTA:
            request: DeltaRequest | SotwRequest = DeltaRequest(
                type_url=type_url,
                subscribe=frozenset(subscribe),
                unsubscribe=frozenset(unsubscribe),
                known=known or {},
                nonce=nonce or "",
                error=error,
            )
        else:
            last = self.last.get(type_url)
            if nonce is None:
                nonce = last.nonce if last and not first else ""
            request = SotwRequest(
                type_url=type_url,
                names=frozenset(self.names.get(type_url, [])),
                version=version,
                nonce=nonce,
                error=error,
            )
        self.inbox += self.session.on_request(request, self.now)

    # what the client hears

    def expect(
        self, type_url: str, *names: str, removed: Iterable[str] = (), part: bool = False
    ) -> Reply:
        """Take the next response and compare it; `part` allows more names, and any removals."""
        assert self.inbox, f"expected {type_url} with {names}, got nothing"
        reply = read(self.protocol, self.inbox.pop(0).body)
        assert reply.type_url == type_url, f"expected {type_url}, got {reply}"
        if part:
            assert set(names) <= set(reply.names)
        else:
            assert sorted(reply.names) == sorted(names)
            assert reply.removed == sorted(removed)
        assert len(reply.names) == len(set(reply.names)), f"duplicate names: {reply.names}"
        assert (type_url, reply.nonce) not in self.nonces, f"nonce used twice: {reply.nonce}"
        assert reply.nonce
        self.nonces.add((type_url, reply.nonce))
        self.last[type_url] = reply
        return reply

    def accept(self, type_url: str, *names: str, removed: Iterable[str] = ()) -> Reply:
        """Expect a response and ACK it."""
        reply = self.expect(type_url, *names, removed=removed)
        self.ack(reply)
        return reply

    def expect_nothing(self) -> None:
        assert not self.inbox, [read(self.protocol, each.body) for each in self.inbox]
