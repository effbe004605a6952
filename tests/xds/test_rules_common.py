"""Rules that hold in both protocols (docs/xds.md R5-R14)."""

from __future__ import annotations

import pytest
from envoy.service.discovery.v3 import discovery_pb2

from tests.xds.resources import cluster, endpoints, listener, route, snapshot
from tests.xds.transcript import BOTH, Dialog
from xds_server.resources.snapshot import CLUSTER, ENDPOINT, LISTENER, ROUTE
from xds_server.xds.answer import Protocol
from xds_server.xds.events import Acked, Ignored, Nacked
from xds_server.xds.rendered import Rendered

AB = snapshot(clusters=[cluster("a"), cluster("b")], endpoints=[endpoints("a"), endpoints("b")])
both = pytest.mark.parametrize("protocol", BOTH)


def clusters(**timeouts: float):
    return snapshot(
        clusters=[cluster(name, timeout_s=each) for name, each in timeouts.items()],
        endpoints=[endpoints(name) for name in timeouts],
    )


@both
def test_r05_every_response_of_a_stream_has_a_new_nonce(protocol: Protocol) -> None:
    client = Dialog(protocol, clusters(a=1))
    client.subscribe(CLUSTER)
    for timeout in (2, 1, 2, 1):  # back to content, and so to versions, that were sent before
        client.accept(CLUSTER, "a")
        client.publish(clusters(a=timeout))
    client.accept(CLUSTER, "a")
    assert len(client.nonces) == 5


@both
def test_r05_the_nonce_is_the_version_when_the_version_is_new(protocol: Protocol) -> None:
    client = Dialog(protocol, AB)
    client.subscribe(CLUSTER)
    reply = client.accept(CLUSTER, "a", "b")
    assert reply.nonce == reply.version


@both
def test_r05_a_nonce_of_an_earlier_stream_is_accepted_in_the_first_request(protocol) -> None:
    client = Dialog(protocol, AB)
    client.say(CLUSTER, nonce="of-another-stream", version="7", first=True)
    client.accept(CLUSTER, "a", "b")
    client.expect_nothing()


@both
def test_r06_the_version_follows_the_content_and_survives_a_restart(protocol: Protocol) -> None:
    versions = []
    for content in (clusters(a=1), clusters(a=2), clusters(a=1)):
        client = Dialog(protocol, content, rendered=Rendered())
        client.subscribe(CLUSTER)
        versions.append(client.accept(CLUSTER, "a").version)
    assert versions[0] == versions[2] != versions[1]


@both
def test_r06_each_type_has_its_own_version(protocol: Protocol) -> None:
    client = Dialog(protocol, AB)
    client.subscribe(CLUSTER)
    first = client.accept(CLUSTER, "a", "b")
    client.publish(snapshot(clusters=[cluster("a"), cluster("b")], endpoints=[endpoints("a")]))
    client.expect_nothing()
    assert client.last[CLUSTER].version == first.version


@both
def test_r07_equal_content_is_not_sent_again(protocol: Protocol) -> None:
    client = Dialog(protocol, clusters(a=1))
    client.subscribe(CLUSTER)
    client.subscribe(ENDPOINT, "a")
    client.accept(CLUSTER, "a")
    client.accept(ENDPOINT, "a")
    client.publish(clusters(a=1))
    client.expect_nothing()


@both
def test_r08_a_name_that_is_also_matched_by_the_wildcard_comes_once(protocol: Protocol) -> None:
    client = Dialog(protocol, AB)
    client.subscribe(CLUSTER, "*", "a")
    client.accept(CLUSTER, "a", "b")
    client.expect_nothing()


@both
@pytest.mark.parametrize("acks", [True, False], ids=["client ACKs", "client never ACKs"])
def test_r09_a_burst_of_updates_ends_in_the_last_with_one_response_under_way(protocol, acks):
    client = Dialog(protocol, clusters(a=1))
    client.subscribe(CLUSTER)
    first = client.expect(CLUSTER, "a")
    for timeout in range(2, 52):
        client.publish(clusters(a=timeout))
    client.expect_nothing()
    if not acks:
        return
    client.ack(first)
    last = client.expect(CLUSTER, "a")
    assert last.bodies["a"] == cluster("a", timeout_s=51).body
    client.ack(last)
    client.expect_nothing()


@both
def test_r10_a_nack_is_told_by_error_detail_and_not_by_the_version(protocol: Protocol) -> None:
    client = Dialog(protocol, AB)
    client.subscribe(CLUSTER)
    reply = client.expect(CLUSTER, "a", "b")
    client.nack(reply, "no", version=reply.version)
    client.expect_nothing()
    assert [type(event) for event in client.events] == [Nacked]


@both
def test_r11_a_refused_response_is_never_sent_again(protocol: Protocol) -> None:
    client = Dialog(protocol, clusters(a=1))
    client.subscribe(CLUSTER)
    reply = client.expect(CLUSTER, "a")
    for _ in range(10):
        client.nack(reply)
        client.expect_nothing()
    client.wait(3600)
    client.expect_nothing()
    assert client.session.channels[CLUSTER].refusal.error == "refused"


@both
def test_r11_a_later_update_that_is_refused_is_not_sent_again(protocol: Protocol) -> None:
    client = Dialog(protocol, clusters(a=1))
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, "a")
    client.publish(clusters(a=2))
    client.nack(client.expect(CLUSTER, "a"))
    client.publish(clusters(a=2))
    client.wait(3600)
    client.expect_nothing()


@both
def test_r11_after_a_nack_the_next_version_goes_out_at_once(protocol: Protocol) -> None:
    client = Dialog(protocol, clusters(a=1))
    client.subscribe(CLUSTER)
    client.nack(client.expect(CLUSTER, "a"))
    client.publish(clusters(a=2))
    client.accept(CLUSTER, "a")
    assert client.session.channels[CLUSTER].refusal is None


@both
def test_r11_a_nack_that_names_a_response_of_before_is_ignored(protocol: Protocol) -> None:
    client = Dialog(protocol, clusters(a=1))
    client.subscribe(CLUSTER)
    old = client.accept(CLUSTER, "a")
    client.publish(clusters(a=2))
    new = client.expect(CLUSTER, "a")
    client.nack(old)
    client.expect_nothing()
    assert Ignored(CLUSTER, "stale_nonce") in client.events
    client.ack(new)
    assert client.session.channels[CLUSTER].refusal is None


@both
def test_r12_a_nack_that_changes_the_names_is_honored(protocol: Protocol) -> None:
    client = Dialog(protocol, AB)
    client.subscribe(ENDPOINT, "a")
    reply = client.expect(ENDPOINT, "a")
    client.names[ENDPOINT] = ["a", "b"]
    client.say(ENDPOINT, subscribe=["b"], nonce=reply.nonce, error="a is bad")
    client.accept(ENDPOINT, "b")
    client.expect_nothing()


@both
def test_r13_types_go_out_in_push_order_whatever_the_order_of_the_requests(protocol) -> None:
    everything = snapshot(
        clusters=[cluster("a")],
        endpoints=[endpoints("a")],
        listeners=[listener("l")],
        routes=[route("r", {"a": 1}, needs=())],
    )
    client = Dialog(protocol)
    for type_url, names in ((ROUTE, ["r"]), (LISTENER, []), (ENDPOINT, ["a"]), (CLUSTER, [])):
        client.subscribe(type_url, *names)
    for content in (
        everything,
        snapshot(
            clusters=[cluster("a", timeout_s=2)],
            endpoints=[endpoints("a", weight=2)],
            listeners=[listener("l", stat_prefix="y")],
            routes=[route("r", {"a": 2}, needs=())],
        ),
    ):
        client.publish(content)
        client.accept(CLUSTER, "a")
        client.accept(ENDPOINT, "a")
        client.accept(LISTENER, "l")
        client.accept(ROUTE, "r")
        client.expect_nothing()


@both
def test_an_ack_is_reported_with_its_lag(protocol: Protocol) -> None:
    client = Dialog(protocol, AB)
    client.subscribe(CLUSTER)
    reply = client.expect(CLUSTER, "a", "b")
    client.wait(0.25)
    client.ack(reply)
    assert client.events == [Acked(CLUSTER, reply.version, 0.25)]


@both
def test_without_a_snapshot_nothing_is_answered_and_then_everything(protocol: Protocol) -> None:
    client = Dialog(protocol)
    client.subscribe(CLUSTER)
    client.subscribe(ENDPOINT, "a")
    client.wait(3600)
    client.expect_nothing()
    client.publish(AB)
    client.accept(CLUSTER, "a", "b")
    client.accept(ENDPOINT, "a")
    client.expect_nothing()


@both
def test_every_change_reaches_a_client_through_churn(protocol: Protocol) -> None:
    client = Dialog(protocol)
    client.subscribe(ENDPOINT, "a", "b")
    steps = [{"a": 1}, {"a": 1, "b": 1}, {"b": 2}, {"a": 3, "b": 2}, {"a": 3, "b": 3}]
    held: dict[str, bytes] = {}
    for step in steps:
        content = [endpoints(name, weight=weight) for name, weight in step.items()]
        client.publish(snapshot(endpoints=content))
        while client.inbox:
            reply = client.expect(ENDPOINT, part=True)
            held = {k: v for k, v in held.items() if k not in reply.removed} | reply.bodies
            client.ack(reply)
        assert {name: held[name] for name in step} == {each.name: each.body for each in content}


def test_a_push_to_many_streams_is_answered_and_serialized_once() -> None:
    rendered = Rendered()
    clients = [Dialog(Protocol.SOTW, clusters(a=1), rendered=rendered) for _ in range(3)]
    for client in clients:
        client.subscribe(ENDPOINT, "a")
    bodies = {id(client.inbox[0].body) for client in clients}
    assert len(bodies) == 1


@both
def test_r41_no_resource_has_a_ttl_and_an_idle_stream_is_silent(protocol: Protocol) -> None:
    client = Dialog(protocol, AB)
    client.subscribe(CLUSTER)
    raw = client.inbox[0].body
    client.accept(CLUSTER, "a", "b")
    if protocol is Protocol.DELTA:
        message = discovery_pb2.DeltaDiscoveryResponse.FromString(raw)
        assert not any(each.HasField("ttl") for each in message.resources)
    client.wait(24 * 3600)
    client.expect_nothing()
    assert client.session.deadline is None
