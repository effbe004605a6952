"""The shared memory of answers stays bounded and keeps nonces apart."""

from __future__ import annotations

import gc

import pytest

from tests.xds.resources import cluster, endpoints, snapshot
from tests.xds.transcript import Dialog
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER, ENDPOINT
from xds_server.xds import rendered as module
from xds_server.xds.answer import Protocol
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.rendered import Rendered
from xds_server.xds.transport import tune_gc
from xds_server.xds.view import EMPTY, View

NAMES = [f"c{each}" for each in range(8)]
MANY = snapshot(
    clusters=[cluster(each) for each in NAMES], endpoints=[endpoints(each) for each in NAMES]
)


def test_more_client_states_than_are_remembered_are_answered_all_the_same(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    shared = Rendered()
    for name in NAMES:
        client = Dialog(Protocol.SOTW, MANY, rendered=shared)
        client.subscribe(ENDPOINT, name)
        client.accept(ENDPOINT, name)
    assert len(shared._responses) <= 2


def test_nonces_stay_new_when_old_versions_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_VERSIONS", 1)
    client = Dialog(Protocol.SOTW, MANY)
    client.subscribe(CLUSTER, NAMES[0])
    client.accept(CLUSTER, NAMES[0])
    client.subscribe(ENDPOINT, *NAMES)
    client.accept(ENDPOINT, *NAMES)
    assert len(client.rendered._used) == 1


def test_views_are_shared_between_streams_in_the_same_state(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    shared = Rendered()
    known = dict.fromkeys(NAMES, "1")
    view = shared.known(known)
    assert shared.known(dict(known)) is view
    assert shared.known({}) is EMPTY
    one = frozenset(NAMES[:1])
    assert shared.without(view, one) is shared.without(view, one)
    assert shared.without(view, frozenset({"other"})) is view
    for name in NAMES:
        shared.known({name: "1"})
        assert name not in shared.without(view, frozenset({name})).held
    assert len(shared._known) <= 2
    assert len(shared._forgotten) <= 2


def test_a_stream_that_saw_a_shared_response_gets_its_content_under_a_new_nonce() -> None:
    shared = Rendered()
    again, first = (Dialog(Protocol.DELTA, MANY, rendered=shared) for _ in range(2))
    for client in (first, again):
        client.subscribe(ENDPOINT, "c0")
        client.accept(ENDPOINT, "c0")
    for _ in range(3):
        again.subscribe(ENDPOINT, "c0")
        again.accept(ENDPOINT, "c0")
    assert len(again.nonces) == 4


def test_a_view_knows_the_clusters_that_its_resources_need() -> None:
    from tests.xds.resources import route

    view = View({"r": route("r", {"a": 1, "b": 1}), "s": route("s", {"b": 1, "c": 1})})
    assert view.needs == {"a", "b", "c"}


def test_publishing_equal_content_wakes_nobody() -> None:
    cache = SnapshotCache()
    woken = []
    cache.subscribe(lambda capability, _: woken.append(capability))
    group = Capability.COMPOSITE
    cache.publish(group, MANY)
    cache.publish(group, snapshot(clusters=map(cluster, NAMES), endpoints=map(endpoints, NAMES)))
    assert woken == [group]
    assert cache.snapshot(group) is MANY
    assert cache.snapshot(Capability.GRPC) is None


@pytest.fixture
def collector():
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collector")
def test_tuning_takes_what_lives_out_of_the_collectors_sight() -> None:
    tune_gc()
    assert gc.get_freeze_count() > 1000
    assert gc.get_threshold()[0] == 200_000
