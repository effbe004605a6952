"""Random dialogs against a model of a client: it ends with exactly what the snapshot says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.xds.resources import cluster, endpoints, listener, route, snapshot
from tests.xds.transcript import Reply, read
from xds_server.resources.snapshot import CLUSTER, ENDPOINT, LISTENER, PUSH_ORDER, ROUTE
from xds_server.xds.answer import Protocol
from xds_server.xds.events import Event
from xds_server.xds.rendered import Rendered
from xds_server.xds.requests import DeltaRequest, SotwRequest
from xds_server.xds.session import Session
from xds_server.xds.subscription import FULL_STATE

TYPES = (CLUSTER, ENDPOINT, LISTENER, ROUTE)
NAMES = ("a", "b", "c", "d")
MAKE = {
    CLUSTER: lambda name, x: cluster(name, timeout_s=x + 1),
    ENDPOINT: lambda name, x: endpoints(name, weight=x + 1),
    LISTENER: lambda name, x: listener(name, stat_prefix=str(x)),
    ROUTE: lambda name, x: route(name, {name: x + 1}),
}
BAD = 3
"""Contents of this number are refused by the client."""


class Client(RuleBasedStateMachine):
    """A client that follows the protocol, on one stream, with responses it may leave lying."""

    protocol: Protocol

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.told: list[Event] = []
        self.rendered = Rendered()
        self.session = Session(self.protocol, self.rendered, self.told.append)
        self.content: dict[str, dict[str, int]] = {each: {} for each in TYPES}
        self.names: dict[str, set[str]] = {}
        self.wildcard: dict[str, bool] = {}
        self.held: dict[str, dict[str, bytes]] = {each: {} for each in TYPES}
        self.flight: dict[str, list[Reply]] = {each: [] for each in TYPES}
        self.refused: set[tuple[str, str, bytes]] = set()
        self.nonces: set[tuple[str, str]] = set()
        self.nonce: dict[str, str] = {}
        self.published = False

    # what happens

    @rule(
        type_url=st.sampled_from(TYPES),
        content=st.dictionaries(st.sampled_from(NAMES), st.integers(0, BAD)),
    )
    def publish(self, type_url: str, content: dict[str, int]) -> None:
        old = self.content[type_url]
        self.pardon(type_url, {each for each in NAMES if old.get(each) != content.get(each)})
        self.content[type_url] = content
        self.published = True
        kinds = {
            each: [MAKE[each](name, x) for name, x in self.content[each].items()] for each in TYPES
        }
        self.rendered.clear()
        self.receive(
            self.session.on_snapshot(
                snapshot(
                    clusters=kinds[CLUSTER],
                    endpoints=kinds[ENDPOINT],
                    listeners=kinds[LISTENER],
                    routes=kinds[ROUTE],
                ),
                self.now,
            )
        )

    @rule(type_url=st.sampled_from(TYPES), names=st.sets(st.sampled_from(NAMES)))
    def subscribe(self, type_url: str, names: set[str]) -> None:
        first = type_url not in self.names
        old = self.names.get(type_url, set())
        if first:
            self.wildcard[type_url] = not names and type_url in FULL_STATE
        elif self.protocol is Protocol.SOTW and self.wildcard[type_url] and names:
            self.wildcard[type_url] = False
        self.names[type_url] = set(names)
        self.pardon(type_url, old ^ names)
        if self.protocol is Protocol.DELTA:
            added, gone = names - old, old - names
            if not (first or added or gone):
                return
            self.send(type_url, subscribe=added, unsubscribe=gone)
        else:
            self.send(type_url)
        if not self.wildcard[type_url]:
            for name in set(self.held[type_url]) - names:
                del self.held[type_url][name]

    @precondition(lambda self: any(self.flight.values()))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        ready = [each for each in TYPES if self.flight[each]]
        self.settle_one(data.draw(st.sampled_from(ready)))

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 6.0]))
    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.session.deadline) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.receive(self.session.on_time(self.now))
            after = self.session.deadline
            assert after is None or after > self.now, "a deadline in the past is a busy loop"
        self.now = end

    # the client

    def settle_one(self, type_url: str) -> None:
        reply = self.flight[type_url].pop(0)
        self.nonce[type_url] = reply.nonce
        bad = sorted(name for name, body in reply.bodies.items() if self.is_bad(type_url, body))
        if bad:
            self.refused.add((type_url, bad[0], reply.bodies[bad[0]]))
            self.send(type_url, nonce=reply.nonce, error=f"{bad[0]} is bad")
            return
        wanted = NAMES if self.wildcard[type_url] else self.names[type_url]
        fresh = {name: body for name, body in reply.bodies.items() if name in wanted}
        if self.protocol is Protocol.SOTW and type_url in FULL_STATE:
            self.held[type_url] = fresh
        else:
            self.held[type_url] |= fresh
            for name in reply.removed:
                self.held[type_url].pop(name, None)
        self.send(type_url, nonce=reply.nonce)

    def pardon(self, type_url: str, names: set[str]) -> None:
        self.refused = {
            each for each in self.refused if each[0] != type_url or each[1] not in names
        }

    def is_bad(self, type_url: str, body: bytes) -> bool:
        return any(MAKE[type_url](name, BAD).body == body for name in NAMES)

    def send(
        self,
        type_url: str,
        *,
        subscribe: set[str] = frozenset(),
        unsubscribe: set[str] = frozenset(),
        nonce: str | None = None,
        error: str | None = None,
    ) -> None:
        if self.protocol is Protocol.DELTA:
            request = DeltaRequest(
                type_url=type_url,
                subscribe=frozenset(subscribe),
                unsubscribe=frozenset(unsubscribe),
                nonce=nonce or "",
                error=error,
            )
        else:
            request = SotwRequest(
                type_url=type_url,
                names=frozenset(self.names[type_url]),
                nonce=self.nonce.get(type_url, "") if nonce is None else nonce,
                error=error,
            )
        self.receive(self.session.on_request(request, self.now))

    def receive(self, responses: list) -> None:
        order = [PUSH_ORDER.index(each.type_url) for each in responses]
        assert order == sorted(order)
        for each in responses:
            reply = read(self.protocol, each.body)
            key = (reply.type_url, reply.nonce)
            assert key not in self.nonces, "a nonce came twice"
            self.nonces.add(key)
            assert len(reply.names) == len(set(reply.names)), "a name came twice"
            again = {(reply.type_url, *pair) for pair in reply.bodies.items()} & self.refused
            assert not again, "a refused version came again"
            self.flight[reply.type_url].append(reply)

    @invariant()
    def at_most_one_response_is_under_way(self) -> None:
        assert all(len(replies) <= 1 for replies in self.flight.values())

    def teardown(self) -> None:
        """Let everything come to rest; then the client must hold what it asked for."""
        for _ in range(200):
            for type_url in TYPES:
                if self.flight[type_url]:
                    self.settle_one(type_url)
            if not any(self.flight.values()):
                self.wait(10.0)
                if not any(self.flight.values()) and self.session.deadline is None:
                    break
        else:
            raise AssertionError("never came to rest")
        if self.published:
            for type_url in self.names:
                self.compare(type_url)

    def compare(self, type_url: str) -> None:
        wanted = set(NAMES) if self.wildcard[type_url] else self.names[type_url]
        content = self.content[type_url]
        held = self.held[type_url]
        for name in wanted & set(content):
            body = MAKE[type_url](name, content[name]).body
            if content[name] == BAD:
                assert held.get(name) != body
            else:
                assert held.get(name) == body, f"{type_url} {name}"
        if type_url == LISTENER or (self.protocol is Protocol.DELTA and type_url == ROUTE):
            assert set(held) <= set(content) & wanted


class SotwClient(Client):
    protocol = Protocol.SOTW


class DeltaClient(Client):
    protocol = Protocol.DELTA


@pytest.mark.parametrize("machine", [SotwClient, DeltaClient], ids=["sotw", "delta"])
def test_any_dialog_ends_with_the_client_holding_the_snapshot(machine: type[Client]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
