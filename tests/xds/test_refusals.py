"""A refused resource stops nobody else's: what is to blame is kept as it was, the rest goes out."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xds.resources import cluster, endpoints, snapshot
from tests.xds.transcript import BOTH, Dialog
from xds_server.resources.snapshot import CLUSTER, ENDPOINT
from xds_server.xds.answer import Protocol
from xds_server.xds.blame import culprits
from xds_server.xds.exchange import RETRY_S

both = pytest.mark.parametrize("protocol", BOTH)


def weights(**weights: int):
    return snapshot(endpoints=[endpoints(name, weight=each) for name, each in weights.items()])


def timeouts(**timeouts: float):
    return snapshot(clusters=[cluster(name, timeout_s=each) for name, each in timeouts.items()])


def holding(protocol: Protocol, **start: int) -> Dialog:
    client = Dialog(protocol, weights(**start))
    client.subscribe(ENDPOINT, *start)
    client.accept(ENDPOINT, *start)
    return client


@both
def test_the_named_resource_is_held_back_and_the_others_go_out_at_once(protocol) -> None:
    client = holding(protocol, a=1, b=1, c=1)
    client.publish(weights(a=2, b=2, c=1))
    client.nack(client.expect(ENDPOINT, "a", "b"), "cluster a: weight must be at least 1")
    client.accept(ENDPOINT, "b")
    client.expect_nothing()
    client.publish(weights(a=2, b=3, c=1))
    client.accept(ENDPOINT, "b")
    client.publish(weights(a=4, b=3, c=1))
    client.accept(ENDPOINT, "a")


@both
def test_a_bad_cluster_keeps_its_last_good_content_beside_the_good_ones(protocol) -> None:
    client = Dialog(protocol, timeouts(a=1, b=1))
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, "a", "b")
    client.publish(timeouts(a=2, b=2, c=1))
    refused = client.expect(CLUSTER, "a", "b", "c")
    client.nack(refused, "Error adding/updating cluster(s) a: no")
    names = ["b", "c"] if protocol is Protocol.DELTA else ["a", "b", "c"]
    reply = client.accept(CLUSTER, *names)
    assert reply.version != refused.version
    if protocol is Protocol.SOTW:
        assert reply.bodies["a"] == cluster("a", timeout_s=1).body
    client.expect_nothing()


@both
def test_a_bad_new_cluster_is_left_out(protocol: Protocol) -> None:
    client = Dialog(protocol, timeouts(a=1, bad=1))
    client.subscribe(CLUSTER)
    client.nack(client.expect(CLUSTER, "a", "bad"), "bad: no")
    client.accept(CLUSTER, "a")
    client.expect_nothing()


@both
def test_a_bad_cluster_does_not_stop_the_endpoints_of_another(protocol: Protocol) -> None:
    def world(timeout: float, weight: int):
        return snapshot(
            clusters=[cluster("a", timeout_s=timeout), cluster("b")],
            endpoints=[endpoints("a"), endpoints("b", weight=weight)],
        )

    client = Dialog(protocol, world(1, 1))
    client.subscribe(CLUSTER)
    client.subscribe(ENDPOINT, "a", "b")
    client.accept(CLUSTER, "a", "b")
    client.accept(ENDPOINT, "a", "b")
    client.publish(world(-1, 1))
    client.nack(client.expect(CLUSTER, "a", part=True), "Invalid duration")
    client.accept(ENDPOINT, "a")
    client.publish(world(-1, 2))
    client.accept(ENDPOINT, "b")
    client.expect_nothing()


@both
def test_a_text_that_names_nothing_is_searched_for_the_bad_one_in_halves(protocol) -> None:
    client = holding(protocol, a=1, b=1, c=1, d=1)
    client.publish(weights(a=2, b=2, c=2, d=2))
    client.nack(client.expect(ENDPOINT, "a", "b", "c", "d"), "Invalid value")
    client.wait(RETRY_S - 0.1)
    client.expect_nothing()
    client.wait(0.2)
    client.nack(client.expect(ENDPOINT, "a", "b"), "Invalid value")
    client.wait(RETRY_S + 0.1)
    client.accept(ENDPOINT, "a")
    client.nack(client.expect(ENDPOINT, "b"), "Invalid value")
    client.wait(RETRY_S + 0.1)
    client.accept(ENDPOINT, "c", "d")
    client.wait(3600)
    client.expect_nothing()
    assert {name for name, _ in client.session.channels[ENDPOINT].rejected} == {"b"}


@both
def test_a_client_that_refuses_everything_is_asked_a_bounded_number_of_times(protocol) -> None:
    names = [f"c{each}" for each in range(16)]
    client = Dialog(protocol, weights(**dict.fromkeys(names, 1)))
    client.subscribe(ENDPOINT, *names)
    asked = 0
    for _ in range(1000):
        while client.inbox:
            client.nack(client.expect(ENDPOINT, part=True), "no")
            asked += 1
        client.wait(RETRY_S)
    assert asked == 2 * len(names) - 1


@both
def test_a_new_snapshot_is_not_held_up_by_the_search(protocol: Protocol) -> None:
    client = holding(protocol, a=1, b=1)
    client.publish(weights(a=2, b=2))
    client.nack(client.expect(ENDPOINT, "a", "b"), "Invalid value")
    client.publish(weights(a=2, b=3))
    client.accept(ENDPOINT, "b")
    client.wait(RETRY_S + 0.1)
    client.accept(ENDPOINT, "a")
    assert not client.session.channels[ENDPOINT].rejected


@both
def test_a_change_taken_back_after_a_nack_clears_the_error(protocol: Protocol) -> None:
    client = holding(protocol, a=1)
    client.publish(weights(a=2))
    client.nack(client.expect(ENDPOINT, "a"))
    assert client.session.channels[ENDPOINT].refusal is not None
    client.publish(weights(a=1))
    client.expect_nothing()
    assert client.session.channels[ENDPOINT].refusal is None


@both
def test_a_name_subscribed_anew_gets_the_refused_version_again(protocol: Protocol) -> None:
    client = holding(protocol, a=1)
    client.publish(weights(a=2))
    client.nack(client.expect(ENDPOINT, "a"))
    client.unsubscribe(ENDPOINT, "a")
    client.subscribe(ENDPOINT, "a")
    client.accept(ENDPOINT, "a")


@both
def test_a_refused_removal_is_not_repeated(protocol: Protocol) -> None:
    client = Dialog(protocol, timeouts(a=1, b=1))
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, "a", "b")
    client.publish(timeouts(a=1))
    sotw = protocol is Protocol.SOTW
    removal = client.expect(CLUSTER, "a") if sotw else client.expect(CLUSTER, removed=["b"])
    client.nack(removal, "no")
    client.wait(3600)
    client.expect_nothing()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("Error adding/updating cluster(s) chat: bad, other-one: worse", {"chat", "other-one"}),
        ('goo.gle/debugproto \ncluster_name: "chat"\nx {\n  name: "mail"\n}\n: Proto', {"chat"}),
        ("xDS response validation errors: [resource index 0: chat: INVALID: mail]", {"chat"}),
        ("Invalid duration: Expected positive duration", set()),
        ("chat-2 and chat.example are no names of ours", set()),
        ("chat.", {"chat"}),
    ],
)
def test_blame_is_found_in_the_texts_of_real_clients(error: str, expected: set[str]) -> None:
    assert culprits(error, ["chat", "mail", "other-one"]) == expected


PARTS = (
    "chat",
    "mail",
    "a",
    "b-c",
    "a.b",
    "x/y",
    "outbound|80|v1|h.ns.svc",
    "_z",
    "/",
    "|",
    ".",
    "-",
    ": ",
    " ",
    "\n",
)
NAMES = st.sets(
    st.lists(st.sampled_from(PARTS[:10]), min_size=1, max_size=3).map("".join), max_size=5
)


@given(NAMES, st.lists(st.sampled_from(PARTS), max_size=12).map("".join), st.data())
def test_a_name_is_to_blame_where_it_stands_by_itself_and_no_part_of_another(names, error, data):
    names = {name for name in names if name[0].isalnum()}
    if names:
        error += data.draw(st.sampled_from(["", " ", ".", "-"])) + data.draw(
            st.sampled_from(sorted(names))
        )
    alone = {
        name for name in names if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", error)
    }
    assert culprits(error, names) == alone


@both
def test_of_a_long_error_only_the_beginning_is_kept(protocol: Protocol) -> None:
    client = holding(protocol, a=1)
    client.publish(weights(a=2))
    client.nack(client.expect(ENDPOINT, "a"), "x" * 1_000_000)
    assert len(client.session.channels[ENDPOINT].refusal.error) == 4096


@both
def test_what_was_to_be_removed_with_a_refused_response_is_removed_after_it(protocol) -> None:
    client = Dialog(protocol, timeouts(a=1))
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, "a")
    client.publish(timeouts(b=-1))
    sotw = protocol is Protocol.SOTW
    removed = [] if sotw else ["a"]
    client.nack(client.expect(CLUSTER, "b", removed=removed), "b is bad")
    client.accept(CLUSTER, removed=removed)
    client.expect_nothing()


@both
def test_also_when_the_name_was_asked_for_while_a_response_was_under_way(protocol) -> None:
    client = Dialog(protocol, timeouts(a=1))
    client.subscribe(CLUSTER)
    first = client.expect(CLUSTER, "a")
    client.publish(timeouts(b=-1))
    client.names[CLUSTER] = ["a", "b"]
    client.say(CLUSTER, subscribe=["a", "b"], nonce="")
    client.expect_nothing()
    client.ack(first)
    sotw = protocol is Protocol.SOTW
    removed = [] if sotw else ["a"]
    client.nack(client.expect(CLUSTER, "b", removed=removed), "b is bad")
    client.accept(CLUSTER, removed=removed)
    client.expect_nothing()
