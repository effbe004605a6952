"""R14 and the second half of R13: nothing refers to what is not there yet, or no longer."""

from __future__ import annotations

import pytest

from tests.xds.resources import cluster, endpoints, listener, route, snapshot
from tests.xds.transcript import BOTH, Dialog
from xds_server.resources.snapshot import CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET, Resource
from xds_server.xds.answer import Protocol
from xds_server.xds.exchange import GATE_S

both = pytest.mark.parametrize("protocol", BOTH)


def world(clusters: str, routed: str, *, weight: int = 1, listeners: tuple[Resource, ...] = ()):
    return snapshot(
        clusters=[cluster(name) for name in clusters],
        endpoints=[endpoints(name) for name in clusters],
        listeners=listeners,
        routes=[route("r", dict.fromkeys(routed, weight))],
    )


def connected(protocol: Protocol, clusters: str = "a", routed: str = "a") -> Dialog:
    client = Dialog(protocol, world(clusters, routed))
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, *clusters)
    client.subscribe(ENDPOINT, *clusters)
    client.accept(ENDPOINT, *clusters)
    client.subscribe(ROUTE, "r")
    client.accept(ROUTE, "r")
    client.expect_nothing()
    return client


def everything(protocol: Protocol, changed: str, all_of_them: str) -> list[str]:
    return list(changed if protocol is Protocol.DELTA else all_of_them)


@both
def test_r14_a_route_to_a_new_cluster_waits_for_the_cds_ack_and_endpoints_do_not(protocol) -> None:
    client = connected(protocol)
    client.publish(world("ab", "ab"))
    cds = client.expect(CLUSTER, *everything(protocol, "b", "ab"))
    client.expect_nothing()
    client.subscribe(ENDPOINT, "b")
    client.accept(ENDPOINT, "b")
    client.expect_nothing()
    client.ack(cds)
    client.accept(ROUTE, "r")
    client.expect_nothing()


@both
def test_r14_a_proxy_that_never_acks_gets_the_route_after_a_while(protocol: Protocol) -> None:
    client = connected(protocol)
    client.publish(world("ab", "ab"))
    client.expect(CLUSTER, *everything(protocol, "b", "ab"))
    client.wait(GATE_S - 0.1)
    client.expect_nothing()
    client.wait(0.2)
    client.accept(ROUTE, "r")
    client.expect_nothing()


@both
def test_r14_a_route_to_known_clusters_does_not_wait(protocol: Protocol) -> None:
    client = connected(protocol, "ab", "a")
    client.publish(world("ab", "ab"))
    client.accept(ROUTE, "r")


@both
def test_r14_a_route_to_clusters_that_others_provide_does_not_wait(protocol: Protocol) -> None:
    client = connected(protocol)
    client.publish(world("a", "ax"))
    client.accept(ROUTE, "r")


@both
def test_r14_a_client_that_asks_for_clusters_by_name_is_not_made_to_wait(protocol) -> None:
    client = Dialog(protocol, world("a", "a"))
    client.subscribe(ROUTE, "r")
    client.accept(ROUTE, "r")
    client.subscribe(CLUSTER, "a")
    client.accept(CLUSTER, "a")
    client.publish(world("ab", "ab"))
    client.accept(ROUTE, "r")
    client.subscribe(CLUSTER, "b")
    client.expect(CLUSTER, "b", part=True)


@both
def test_r14_a_refused_cluster_is_not_waited_for(protocol: Protocol) -> None:
    client = connected(protocol)
    client.publish(world("ab", "ab"))
    cds = client.expect(CLUSTER, *everything(protocol, "b", "ab"))
    client.expect_nothing()
    client.nack(cds, "b is bad")
    client.accept(ROUTE, "r")
    client.publish(world("ab", "ab", weight=5))
    client.accept(ROUTE, "r")
    client.expect_nothing()


@both
def test_r14_a_listener_to_a_new_cluster_waits_without_being_removed(protocol: Protocol) -> None:
    old = listener("l")
    client = Dialog(protocol, world("a", "a", listeners=(old,)))
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, "a")
    client.subscribe(LISTENER)
    client.accept(LISTENER, "l")
    new = Resource.of("l", listener("l", stat_prefix="y").body, needs=["b"])
    client.publish(world("ab", "a", listeners=(new,)))
    cds = client.expect(CLUSTER, *everything(protocol, "b", "ab"))
    client.expect_nothing()
    client.ack(cds)
    client.accept(LISTENER, "l")
    client.expect_nothing()


@both
def test_r13_a_cluster_is_removed_after_the_route_that_named_it(protocol: Protocol) -> None:
    client = connected(protocol, "ab", "ab")
    client.publish(world("a", "a"))
    rds = client.expect(ROUTE, "r")
    client.expect_nothing()
    client.ack(rds)
    if protocol is Protocol.SOTW:
        client.accept(CLUSTER, "a")
        client.expect_nothing()
        return
    client.accept(CLUSTER, removed=["b"])
    client.accept(ENDPOINT, removed=["b"])
    client.expect_nothing()


@both
def test_r13_one_cluster_replaced_by_another_is_never_a_hole(protocol: Protocol) -> None:
    client = connected(protocol, "a", "a")
    client.publish(world("b", "b"))
    cds = client.expect(CLUSTER, *everything(protocol, "b", "ab"))
    client.subscribe(ENDPOINT, "b")
    client.accept(ENDPOINT, "b")
    client.ack(cds)
    client.accept(ROUTE, "r")
    if protocol is Protocol.SOTW:
        client.accept(CLUSTER, "b")
    else:
        client.accept(CLUSTER, removed=["a"])


@both
def test_r13_a_refused_route_keeps_the_clusters_it_still_needs(protocol: Protocol) -> None:
    client = connected(protocol, "ab", "ab")
    client.publish(world("a", "a"))
    client.nack(client.expect(ROUTE, "r"), "r is bad")
    client.wait(3600)
    client.expect_nothing()


@both
def test_r13_a_proxy_that_never_acks_its_route_loses_the_cluster_after_a_while(protocol) -> None:
    client = connected(protocol, "ab", "ab")
    client.publish(world("a", "a"))
    client.expect(ROUTE, "r")
    client.expect_nothing()
    client.wait(GATE_S + 0.1)
    if protocol is Protocol.SOTW:
        client.accept(CLUSTER, "a")
    else:
        client.accept(CLUSTER, removed=["b"])


def test_r13_removal_in_delta_takes_endpoints_at_once_where_no_clusters_are_asked_for() -> None:
    client = Dialog(Protocol.DELTA, world("ab", "ab"))
    client.subscribe(ENDPOINT, "a", "b")
    client.accept(ENDPOINT, "a", "b")
    client.publish(world("a", "a"))
    client.accept(ENDPOINT, removed=["b"])


@both
def test_r13_the_wait_for_a_silent_proxy_survives_other_requests(protocol: Protocol) -> None:
    client = connected(protocol, "ab", "ab")
    client.publish(world("a", "a"))
    client.expect(ROUTE, "r")
    client.wait(GATE_S / 2)
    client.subscribe(SECRET, "unheard-of")
    if protocol is Protocol.DELTA:
        client.accept(SECRET, removed=["unheard-of"])
    client.expect_nothing()
    client.wait(GATE_S)
    client.expect(CLUSTER, part=True)


@both
def test_r13_a_cluster_stays_for_a_route_that_is_under_way(protocol: Protocol) -> None:
    client = connected(protocol)
    client.publish(world("ab", "ab"))
    client.accept(CLUSTER, *everything(protocol, "b", "ab"))
    rds = client.expect(ROUTE, "r")
    client.publish(world("a", "a"))
    client.expect_nothing()
    client.wait(GATE_S + 0.1)
    client.expect_nothing()
    client.ack(rds)
    client.accept(ROUTE, "r")
    client.expect(CLUSTER, part=True)


@both
def test_r13_a_route_that_was_given_up_keeps_no_cluster(protocol: Protocol) -> None:
    client = connected(protocol, "ab", "ab")
    client.unsubscribe(ROUTE, "r")
    client.publish(world("a", "a"))
    if protocol is Protocol.SOTW:
        client.accept(CLUSTER, "a")
    else:
        client.accept(CLUSTER, removed=["b"])


@both
def test_r14_clusters_by_name_that_are_under_way_hold_up_no_route(protocol: Protocol) -> None:
    client = Dialog(protocol, world("a", "a"))
    client.subscribe(ROUTE, "r")
    client.accept(ROUTE, "r")
    client.subscribe(CLUSTER, "a")
    client.expect(CLUSTER, "a")
    client.publish(world("ab", "ab"))
    client.accept(ROUTE, "r")


@both
def test_r14_a_reconnecting_proxy_is_never_told_that_its_waiting_listener_is_gone(protocol) -> None:
    needy = Resource.of("l", listener("l").body, needs=["a"])
    client = Dialog(protocol, world("a", "a", listeners=(needy,)))
    client.reconnect(CLUSTER)
    cds = client.expect(CLUSTER, "a")
    client.reconnect(LISTENER)
    while client.inbox:  # delta greets a wildcard at once, and removes nothing by that
        assert protocol is Protocol.DELTA
        client.accept(LISTENER)
    client.ack(cds)
    client.accept(LISTENER, "l")


@both
def test_r14_a_silent_proxy_whose_cluster_cannot_be_sent_is_no_busy_loop(
    protocol: Protocol,
) -> None:
    client = Dialog(protocol, world("a", "a"))
    client.subscribe(ROUTE, "r")
    client.accept(ROUTE, "r")
    client.subscribe(CLUSTER)
    cds = client.expect(CLUSTER, "a")
    client.publish(world("ab", "ab"))  # b cannot be sent before a is ACKed
    client.wait(3600)
    client.expect_nothing()
    assert client.session.deadline is None
    client.ack(cds)
    client.accept(CLUSTER, *everything(protocol, "b", "ab"))
    client.accept(ROUTE, "r")
