"""Rules of the state-of-the-world protocol (docs/xds.md R15-R28)."""

from __future__ import annotations

import pytest

from tests.xds.resources import cluster, endpoints, listener, route, snapshot
from tests.xds.transcript import Dialog
from xds_server.resources.snapshot import CLUSTER, ENDPOINT, LISTENER, ROUTE, SECRET
from xds_server.xds.answer import Protocol

SOTW = Protocol.SOTW
AB = snapshot(
    clusters=[cluster("a"), cluster("b")],
    endpoints=[endpoints("a"), endpoints("b")],
    listeners=[listener("l")],
    routes=[route("r", {"a": 1})],
)


@pytest.mark.parametrize(("type_url", "names"), [(CLUSTER, "ab"), (LISTENER, "l")])
def test_r15_naming_nothing_at_first_means_everything(type_url: str, names: str) -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(type_url)
    client.accept(type_url, *names)
    client.expect_nothing()


@pytest.mark.parametrize("type_url", [ENDPOINT, ROUTE, SECRET])
def test_r15_naming_nothing_means_nothing_for_types_that_are_named_by_others(type_url) -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(type_url)
    client.expect_nothing()


def test_r16_the_legacy_wildcard_ends_with_the_first_name_and_does_not_return() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, "a", "b")
    client.subscribe(CLUSTER, "a")
    client.accept(CLUSTER, "a")
    client.unsubscribe(CLUSTER, "a")
    client.publish(snapshot(clusters=[cluster("a", timeout_s=2), cluster("b", timeout_s=2)]))
    client.expect_nothing()


def test_r16_wildcard_then_names_then_nothing() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(CLUSTER, "*")
    client.accept(CLUSTER, "a", "b")
    client.subscribe(CLUSTER, "a")  # [*, a]
    client.accept(CLUSTER, "a", "b")
    client.unsubscribe(CLUSTER, "*")  # [a]
    client.expect_nothing()
    client.publish(snapshot(clusters=[cluster("a", timeout_s=2), cluster("b", timeout_s=2)]))
    client.accept(CLUSTER, "a")
    client.unsubscribe(CLUSTER, "a")  # []
    client.publish(snapshot(clusters=[cluster("a", timeout_s=3), cluster("b", timeout_s=3)]))
    client.expect_nothing()


def test_r16_an_explicit_wildcard_works_for_endpoints_too() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(ENDPOINT, "*")
    client.accept(ENDPOINT, "a", "b")


def test_r17_a_stale_nonce_is_not_answered_but_its_names_are_kept() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(ENDPOINT, "a")
    first = client.accept(ENDPOINT, "a")
    client.publish(snapshot(endpoints=[endpoints("a", weight=2), endpoints("b")]))
    second = client.expect(ENDPOINT, "a")
    client.names[ENDPOINT] = ["a", "b"]
    client.say(ENDPOINT, nonce=first.nonce)
    client.expect_nothing()
    client.ack(second)
    client.accept(ENDPOINT, "b")


def test_r18_only_the_newly_named_resource_is_sent_for_endpoints() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(ENDPOINT, "a")
    client.accept(ENDPOINT, "a")
    client.subscribe(ENDPOINT, "b")
    client.accept(ENDPOINT, "b")
    client.expect_nothing()


@pytest.mark.parametrize(("type_url", "names"), [(ENDPOINT, ["a"]), (CLUSTER, ["a", "b"])])
def test_r19_a_name_given_up_and_taken_again_is_sent_again(type_url, names) -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(type_url, "a", "b")
    client.accept(type_url, "a", "b")
    client.unsubscribe(type_url, "a")
    client.expect_nothing()
    client.subscribe(type_url, "a")
    client.accept(type_url, *names)


def test_r19_also_when_it_happens_while_a_response_is_under_way() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(ENDPOINT, "a", "b")
    reply = client.expect(ENDPOINT, "a", "b")
    client.names[ENDPOINT] = ["b"]
    client.say(ENDPOINT, nonce="")
    client.names[ENDPOINT] = ["a", "b"]
    client.say(ENDPOINT, nonce="")
    client.expect_nothing()
    client.ack(reply)
    client.accept(ENDPOINT, "a")


def test_r20_a_change_of_one_cluster_sends_all_and_absence_deletes() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, "a", "b")
    client.publish(snapshot(clusters=[cluster("a", timeout_s=2), cluster("b")]))
    client.accept(CLUSTER, "a", "b")
    client.publish(snapshot(clusters=[cluster("b")]))
    client.accept(CLUSTER, "b")
    client.publish(snapshot())
    client.accept(CLUSTER)
    client.expect_nothing()


def test_r20_a_warm_but_empty_server_says_so() -> None:
    client = Dialog(SOTW, snapshot())
    client.subscribe(CLUSTER)
    client.accept(CLUSTER)
    client.expect_nothing()


def test_r21_endpoints_come_in_parts_and_absence_says_nothing() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(ENDPOINT, "a", "b")
    client.accept(ENDPOINT, "a", "b")
    client.publish(snapshot(endpoints=[endpoints("a"), endpoints("b", weight=2)]))
    client.accept(ENDPOINT, "b")
    client.publish(snapshot(endpoints=[endpoints("b", weight=2)]))
    client.expect_nothing()


def test_r22_a_named_subset_of_clusters_is_answered_with_it() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(CLUSTER, "a")
    client.accept(CLUSTER, "a")
    client.publish(snapshot(clusters=[cluster("a"), cluster("b", timeout_s=2)]))
    client.expect_nothing()


def test_r22_a_grpc_client_swaps_one_cluster_for_another() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(CLUSTER, "a", "b")
    client.accept(CLUSTER, "a", "b")
    client.unsubscribe(CLUSTER, "a")
    client.expect_nothing()


@pytest.mark.parametrize(
    ("type_url", "then"), [(CLUSTER, ["a", "zzz"]), (ENDPOINT, ["zzz"])], ids=["CDS", "EDS"]
)
def test_r23_a_missing_resource_is_sent_when_it_appears(type_url: str, then: list[str]) -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(type_url, "a", "zzz")
    client.accept(type_url, "a")
    client.expect_nothing()
    client.publish(
        snapshot(
            clusters=[cluster("a"), cluster("b"), cluster("zzz")],
            endpoints=[endpoints("a"), endpoints("b"), endpoints("zzz")],
        )
    )
    client.accept(type_url, *then)
    client.expect_nothing()


def test_r23_asking_again_for_a_missing_name_makes_no_loop() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(ENDPOINT, "zzz")
    for _ in range(10):
        client.say(ENDPOINT)
        client.expect_nothing()


def test_r24_after_all_names_are_dropped_nothing_is_sent() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(ENDPOINT, "a", "b")
    client.accept(ENDPOINT, "a", "b")
    client.unsubscribe(ENDPOINT, "a", "b")
    client.publish(snapshot(endpoints=[endpoints("a", weight=2), endpoints("b", weight=2)]))
    client.expect_nothing()
    client.subscribe(ENDPOINT, "a", "b")
    client.accept(ENDPOINT, "a", "b")


def changed_cluster(client: Dialog) -> None:
    client.subscribe(CLUSTER)
    client.subscribe(ENDPOINT, "a", "b")
    client.accept(CLUSTER, "a", "b")
    client.accept(ENDPOINT, "a", "b")
    client.expect_nothing()
    client.publish(
        snapshot(
            clusters=[cluster("a", timeout_s=2), cluster("b")],
            endpoints=[endpoints("a"), endpoints("b")],
        )
    )


def test_r25_the_endpoints_of_a_changed_cluster_follow_unasked() -> None:
    client = Dialog(SOTW, AB)
    changed_cluster(client)
    cds = client.expect(CLUSTER, "a", "b")
    eds = client.expect(ENDPOINT, "a")
    client.ack(eds)
    client.ack(cds)
    client.expect_nothing()


def test_r25_the_warming_request_that_crosses_them_is_not_answered_twice() -> None:
    client = Dialog(SOTW, AB)
    changed_cluster(client)
    before = client.last[ENDPOINT]
    cds = client.expect(CLUSTER, "a", "b")
    client.say(ENDPOINT, nonce=before.nonce, version=before.version)
    client.accept(ENDPOINT, "a")
    client.ack(cds)
    client.repeat(ENDPOINT)
    client.expect_nothing()


def test_r25_a_warming_request_after_them_is_answered_once() -> None:
    client = Dialog(SOTW, AB)
    changed_cluster(client)
    client.accept(CLUSTER, "a", "b")
    client.accept(ENDPOINT, "a")
    client.repeat(ENDPOINT)
    client.accept(ENDPOINT, "a")
    client.repeat(ENDPOINT)
    client.expect_nothing()


@pytest.mark.parametrize(("type_url", "names"), [(CLUSTER, []), (ENDPOINT, ["a"]), (ROUTE, ["r"])])
def test_r26_a_client_that_reconnects_is_answered_even_if_it_is_current(type_url, names) -> None:
    current = AB.of_type(type_url).version
    client = Dialog(SOTW, AB)
    client.names[type_url] = names
    client.say(type_url, version=current, nonce="", first=True)
    client.expect(type_url, *(names or "ab"))


def test_r27_endpoints_asked_before_clusters_are_sent_again_after_them() -> None:
    client = Dialog(SOTW, AB)
    client.reconnect(ENDPOINT, "a", "b")
    client.accept(ENDPOINT, "a", "b")
    client.reconnect(CLUSTER)
    client.expect(CLUSTER, "a", "b")
    client.accept(ENDPOINT, "a", "b")
    client.repeat(ENDPOINT)  # looks like an ACK, is a request of warming clusters
    client.accept(ENDPOINT, "a", "b")


def test_endpoints_of_known_names_do_not_wait_for_those_of_unknown_ones() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(ENDPOINT, "gone", "a")
    client.accept(ENDPOINT, "a")


def test_an_ack_is_not_answered() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(CLUSTER)
    reply = client.accept(CLUSTER, "a", "b")
    client.expect_nothing()
    client.ack(reply)
    client.expect_nothing()


def test_r23_asking_later_for_a_missing_cluster_is_answered_with_what_there_is() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(CLUSTER, "a")
    client.accept(CLUSTER, "a")
    client.subscribe(CLUSTER, "zzz")
    client.accept(CLUSTER, "a")
    client.expect_nothing()


def test_r21_endpoints_that_vanish_and_return_unchanged_are_not_sent_again() -> None:
    client = Dialog(SOTW, AB)
    client.subscribe(ENDPOINT, "a", "b")
    client.accept(ENDPOINT, "a", "b")
    client.publish(snapshot(endpoints=[endpoints("b", weight=2)]))
    client.accept(ENDPOINT, "b")
    client.publish(snapshot(endpoints=[endpoints("a"), endpoints("b", weight=2)]))
    client.expect_nothing()


def test_r25_a_new_subscription_ends_the_wait_for_a_warming_request() -> None:
    client = Dialog(SOTW, AB)
    changed_cluster(client)
    client.accept(CLUSTER, "a", "b")
    client.accept(ENDPOINT, "a")
    client.subscribe(ENDPOINT, "c")
    client.repeat(ENDPOINT)
    client.expect_nothing()
