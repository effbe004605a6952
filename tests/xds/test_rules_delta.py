"""Rules of the incremental protocol (docs/xds.md R29-R39, R42)."""

from __future__ import annotations

import pytest

from tests.xds.resources import cluster, endpoints, listener, route, snapshot
from tests.xds.transcript import Dialog
from xds_server.resources.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION_CONFIG,
    LISTENER,
    ROUTE,
    SECRET,
    Resource,
)
from xds_server.xds.answer import Protocol
from xds_server.xds.events import Ignored

DELTA = Protocol.DELTA
AB = snapshot(
    clusters=[cluster("a"), cluster("b")],
    endpoints=[endpoints("a"), endpoints("b")],
    listeners=[listener("l")],
    routes=[route("r", {"a": 1})],
)


def test_r29_the_legacy_wildcard_survives_names_and_ends_by_unsubscribing_it() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, "a", "b")
    client.subscribe(CLUSTER, "a")  # * and a
    client.accept(CLUSTER, "a")
    client.unsubscribe(CLUSTER, "*")  # a
    client.expect_nothing()
    client.publish(snapshot(clusters=[cluster("a", timeout_s=2), cluster("b", timeout_s=2)]))
    client.accept(CLUSTER, "a")
    client.unsubscribe(CLUSTER, "a")  # nothing, and not the wildcard again
    client.publish(snapshot(clusters=[cluster("a", timeout_s=3), cluster("b", timeout_s=3)]))
    client.expect_nothing()


def test_r29_an_explicit_wildcard_is_one_too() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(ENDPOINT, "*")
    client.accept(ENDPOINT, "a", "b")


def test_r30_a_name_subscribed_again_is_sent_again() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(ENDPOINT, "a")
    client.accept(ENDPOINT, "a")
    client.subscribe(ENDPOINT, "a")
    client.accept(ENDPOINT, "a")
    client.expect_nothing()


def test_r30_a_known_name_subscribed_under_the_wildcard_is_sent() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, "a", "b")
    client.subscribe(CLUSTER, "b")
    client.accept(CLUSTER, "b")


@pytest.mark.parametrize("type_url", [CLUSTER, ENDPOINT, LISTENER, ROUTE])
def test_r31_a_missing_name_is_reported_remembered_and_sent_when_created(type_url: str) -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(type_url, "zzz")
    client.accept(type_url, removed=["zzz"])
    client.expect_nothing()
    client.publish(
        snapshot(
            clusters=[cluster("zzz")],
            endpoints=[endpoints("zzz")],
            listeners=[listener("zzz")],
            routes=[route("zzz", {}, needs=())],
        )
    )
    client.accept(type_url, "zzz")
    client.expect_nothing()


def test_r31_a_missing_name_of_a_type_we_never_serve_is_reported_too() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(SECRET, "cert")
    assert client.inbox[0].type_url == SECRET


def test_r31_a_name_that_went_away_comes_back() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(ENDPOINT, "a")
    client.accept(ENDPOINT, "a")
    client.publish(snapshot(clusters=[cluster("a")]))
    client.accept(ENDPOINT, removed=["a"])
    client.publish(AB)
    client.accept(ENDPOINT, "a")
    client.expect_nothing()


def test_r32_unsubscribing_what_was_never_subscribed_is_ignored() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(ENDPOINT, "a")
    client.accept(ENDPOINT, "a")
    client.unsubscribe(ENDPOINT, "phantom")
    client.unsubscribe(CLUSTER, "phantom")
    client.inbox.clear()
    client.publish(AB)
    client.expect_nothing()


def test_r32_nor_is_a_phantom_answered_under_the_wildcard() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(CLUSTER)
    client.accept(CLUSTER, "a", "b")
    client.unsubscribe(CLUSTER, "b")
    client.expect_nothing()


def test_r29_naming_no_endpoints_means_none() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(ENDPOINT)
    client.expect_nothing()


def test_r33_a_name_given_up_under_the_wildcard_is_answered() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(CLUSTER, "*", "a", "gone")
    client.accept(CLUSTER, "a", "b", removed=["gone"])
    client.unsubscribe(CLUSTER, "a")
    client.accept(CLUSTER, "a")
    client.unsubscribe(CLUSTER, "gone")
    client.accept(CLUSTER, removed=["gone"])
    client.expect_nothing()


def test_r34_a_deleted_resource_is_removed_once_and_only_where_it_was() -> None:
    holder, other = Dialog(DELTA, AB), Dialog(DELTA, AB)
    holder.subscribe(CLUSTER)
    holder.accept(CLUSTER, "a", "b")
    other.subscribe(CLUSTER, "b")
    other.accept(CLUSTER, "b")
    for client in (holder, other):
        client.publish(snapshot(clusters=[cluster("b")]))
    holder.accept(CLUSTER, removed=["a"])
    for client in (holder, other):
        client.publish(snapshot(clusters=[cluster("b")], endpoints=[endpoints("b", weight=9)]))
        client.expect_nothing()


def test_r35_a_subscription_with_a_stale_nonce_is_honored() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(ENDPOINT, "a")
    first = client.accept(ENDPOINT, "a")
    client.publish(snapshot(endpoints=[endpoints("a", weight=2), endpoints("b")]))
    second = client.expect(ENDPOINT, "a")
    client.say(ENDPOINT, subscribe=["b"], nonce=first.nonce)
    client.expect_nothing()
    assert client.events[-1] == Ignored(ENDPOINT, "stale_nonce")
    client.ack(second)
    client.accept(ENDPOINT, "b")


def test_r35_a_subscription_between_push_and_ack_is_not_taken_for_the_ack() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(ENDPOINT, "a")
    reply = client.expect(ENDPOINT, "a")
    client.subscribe(ENDPOINT, "b")
    client.expect_nothing()
    assert client.session.channels[ENDPOINT].pending is not None
    client.ack(reply)
    client.accept(ENDPOINT, "b")
    assert client.session.channels[ENDPOINT].pending is None


def test_r36_versions_that_survived_are_skipped_and_vanished_names_removed() -> None:
    client = Dialog(DELTA, AB)
    b = AB.of_type(CLUSTER).resources["b"].version
    client.reconnect(CLUSTER, known={"a": "bogus", "b": b, "gone": "1"})
    client.accept(CLUSTER, "a", removed=["gone"])
    client.expect_nothing()


def test_r36_a_client_that_is_current_gets_an_empty_answer_only() -> None:
    client = Dialog(DELTA, AB)
    known = {name: each.version for name, each in AB.of_type(CLUSTER).resources.items()}
    client.reconnect(CLUSTER, known=known)
    client.accept(CLUSTER)
    client.expect_nothing()


def test_r36_names_subscribed_on_reconnect_are_sent_even_if_their_version_is_equal() -> None:
    client = Dialog(DELTA, AB)
    a = AB.of_type(ENDPOINT).resources["a"].version
    client.reconnect(ENDPOINT, "a", known={"a": a})
    client.accept(ENDPOINT, "a")
    client.subscribe(ENDPOINT, "b")  # later names are answered as on any other stream
    client.accept(ENDPOINT, "b")


def test_r36_a_reconnect_with_sixty_thousand_versions_is_answered() -> None:
    client = Dialog(DELTA, AB)
    known = {f"cluster-{each}": "1" for each in range(60_000)}
    client.reconnect(CLUSTER, known=known)
    client.accept(CLUSTER, "a", "b", removed=known)


def test_r37_a_first_wildcard_request_is_answered_even_by_nothing() -> None:
    client = Dialog(DELTA, snapshot())
    client.subscribe(CLUSTER)
    client.accept(CLUSTER)
    client.expect_nothing()


def test_r38_the_endpoints_of_a_changed_cluster_follow_unasked() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(CLUSTER)
    client.subscribe(ENDPOINT, "a", "b")
    client.accept(CLUSTER, "a", "b")
    client.accept(ENDPOINT, "a", "b")
    client.publish(
        snapshot(
            clusters=[cluster("a", timeout_s=2), cluster("b")],
            endpoints=[endpoints("a"), endpoints("b")],
        )
    )
    cds = client.expect(CLUSTER, "a")
    client.accept(ENDPOINT, "a")
    client.ack(cds)
    client.expect_nothing()


def test_r38_an_endpoint_push_under_way_does_not_hide_the_change_of_its_cluster() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(CLUSTER)
    client.subscribe(ENDPOINT, "a")
    client.accept(CLUSTER, "a", "b")
    client.accept(ENDPOINT, "a")
    client.publish(
        snapshot(
            clusters=[cluster("a"), cluster("b")],
            endpoints=[endpoints("a", weight=2), endpoints("b")],
        )
    )
    eds = client.expect(ENDPOINT, "a")
    client.publish(
        snapshot(
            clusters=[cluster("a", timeout_s=2), cluster("b")],
            endpoints=[endpoints("a", weight=2), endpoints("b")],
        )
    )
    client.accept(CLUSTER, "a")
    client.ack(eds)  # the proxy had it before the cluster changed, and lost it then
    client.accept(ENDPOINT, "a")


def test_r39_an_ack_is_not_answered_and_resources_carry_their_own_versions() -> None:
    client = Dialog(DELTA, AB)
    client.subscribe(CLUSTER)
    reply = client.accept(CLUSTER, "a", "b")
    client.expect_nothing()
    assert reply.versions == {
        name: each.version for name, each in AB.of_type(CLUSTER).resources.items()
    }


LIMITS = Resource.of("limits", b"a filter")


def test_r42_the_configuration_of_a_filter_is_never_removed() -> None:
    client = Dialog(DELTA, snapshot(filters=[LIMITS, Resource.of("other", b"one")]))
    client.subscribe(EXTENSION_CONFIG, "limits", "other")
    client.accept(EXTENSION_CONFIG, "limits", "other")
    client.publish(snapshot(filters=[Resource.of("other", b"two")]))
    client.accept(EXTENSION_CONFIG, "other")
    client.publish(snapshot())
    client.expect_nothing()
    client.publish(snapshot(filters=[LIMITS]))  # what the client still has
    client.expect_nothing()
    client.publish(snapshot(filters=[Resource.of("limits", b"another filter")]))
    client.accept(EXTENSION_CONFIG, "limits")


@pytest.mark.parametrize("named", [(), ("limits",)], ids=["known", "known and named"])
def test_r42_nor_after_a_reconnect(named: tuple[str, ...]) -> None:
    client = Dialog(DELTA, snapshot())
    client.reconnect(EXTENSION_CONFIG, *named, known={"limits": "1"})
    client.expect_nothing()
    client.publish(snapshot(filters=[LIMITS]))
    if not named:
        client.subscribe(EXTENSION_CONFIG, "limits")
    client.accept(EXTENSION_CONFIG, "limits")


def test_r42_a_filter_that_the_client_gave_up_is_sent_when_it_is_asked_for_again() -> None:
    client = Dialog(DELTA, snapshot(filters=[LIMITS]))
    client.subscribe(EXTENSION_CONFIG, "limits")
    client.accept(EXTENSION_CONFIG, "limits")
    client.publish(snapshot())
    client.unsubscribe(EXTENSION_CONFIG, "limits")
    client.publish(snapshot(filters=[LIMITS]))
    client.expect_nothing()
    client.subscribe(EXTENSION_CONFIG, "limits")
    client.accept(EXTENSION_CONFIG, "limits")
