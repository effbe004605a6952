from __future__ import annotations

import time

from structlog.testing import capture_logs

from xds_server.observability.metrics import Tally
from xds_server.observability.xds_observer import XdsObserver
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER, ENDPOINT
from xds_server.xds.answer import Protocol
from xds_server.xds.node import Proxy


def proxy(capability: Capability = Capability.COMPOSITE) -> Proxy:
    return Proxy("envoy-1", "fleet", "envoy", "1.40.0", capability)


def test_a_nack_is_counted_and_logged_with_what_was_refused_and_why():
    tally = Tally()
    with capture_logs() as lines:
        observer = XdsObserver(tally, lambda _: None, time.monotonic)
        observer.nacked(
            proxy=proxy(), type_url=CLUSTER, version="v1", error="no", names=frozenset({"b", "a"})
        )
    (line,) = lines
    assert line["event"] == "xds_nack_received"
    assert (line["proxy"], line["type"], line["error"]) == ("envoy-1", "Cluster", "no")
    assert line["resources"] == ["a", "b"]
    assert tally.count("fleet_xds_nacks_total", "Cluster") == 1


def test_requests_responses_and_acks_are_counted_by_type():
    tally = Tally()
    observer = XdsObserver(tally, lambda _: None, time.monotonic)
    observer.stream_opened(protocol=Protocol.DELTA)
    observer.request(proxy=proxy(), type_url=ENDPOINT)
    observer.response_sent(proxy=proxy(), type_url=ENDPOINT, size_bytes=70)
    observer.acked(proxy=proxy(), type_url=ENDPOINT, version="v1", lag_s=0.002)
    observer.ignored(proxy=None, type_url="x", reason="unknown_type")
    observer.stream_closed(protocol=Protocol.DELTA, proxy=None)
    name = "ClusterLoadAssignment"
    assert tally.count("fleet_xds_requests_total", name) == 1
    assert tally.count("fleet_xds_pushes_total", name) == 1
    assert tally.count("fleet_xds_pushed_bytes_total", name) == 70
    assert tally.count("fleet_xds_acks_total", name) == 1
    assert tally.count("fleet_xds_ignored_total", "unknown_type") == 1


def test_the_first_proxy_of_a_kind_asks_for_its_resources_and_the_second_does_not():
    wanted: list[Capability] = []
    observer = XdsObserver(Tally(), wanted.append, time.monotonic)
    for each in (Capability.COMPOSITE, Capability.GRPC, Capability.GRPC, Capability.AGGREGATE):
        observer.request(proxy=proxy(each), type_url=CLUSTER)
    assert wanted == [Capability.GRPC, Capability.AGGREGATE]


def test_refused_streams_are_told_once_a_second_with_how_many_there_were():
    now = 100.0
    observer = XdsObserver(Tally(), lambda _: None, lambda: now)
    with capture_logs() as lines:
        for peer in ("a", "b", "c"):
            observer.refused(proxy=None, peer=peer, reason="node.id is missing")
        now += 1.0
        observer.refused(proxy=proxy(), peer="d", reason="too many streams")
    told = [(each["peer"], each["proxy"], each["reason"], each["untold"]) for each in lines]
    assert told == [
        ("a", None, "node.id is missing", 0),
        ("d", "envoy-1", "too many streams", 2),
    ]
    assert {(each["event"], each["log_level"]) for each in lines} == {
        ("xds_stream_refused", "info")
    }
