"""The log of requests and of failed attempts, as proxies get it."""

from __future__ import annotations

import json

import pytest

from tests.fakes.plans import a_plan, a_topology
from xds_server.core.policy import EvidencePolicy, Policy
from xds_server.resources import snapshot as served
from xds_server.resources.access_log import FLAGS, attempt_log, request_log
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.render import render

CHAINS = [Capability.COMPOSITE, Capability.AGGREGATE]


def listener(capability, **changes):
    topology = a_topology()
    policy = Policy(evidence=EvidencePolicy(**changes))
    snapshot = SnapshotBuilder(topology, policy, capability).build(a_plan(topology))
    page = render(snapshot)["listeners"]["resources"]["llm"]["resource"]
    return page, snapshot.of_type(served.LISTENER).resources["llm"].body


def manager(page):
    return page["filter_chains"][0]["filters"][0]["typed_config"]


@pytest.mark.parametrize("capability", CHAINS)
def test_requests_and_failed_attempts_share_one_stream_so_their_order_is_right(capability):
    page, _ = listener(capability, flush_s=0.5)
    (requests,) = manager(page)["access_log"]
    (attempts,) = manager(page)["http_filters"][-1]["typed_config"]["upstream_log"]
    # Envoy keeps one stream per worker for equal common configurations.
    assert requests["typed_config"]["common_config"] == attempts["typed_config"]["common_config"]
    assert requests["typed_config"]["common_config"]["buffer_flush_interval"] == "0.5s"
    assert "filter" not in requests


def test_only_attempts_that_failed_are_logged_beside_their_request():
    page, _ = listener(Capability.COMPOSITE)
    (attempts,) = manager(page)["http_filters"][-1]["typed_config"]["upstream_log"]
    status, flags = attempts["filter"]["or_filter"]["filters"]
    assert status["status_code_filter"]["comparison"]["value"]["default_value"] == 429
    assert tuple(flags["response_flag_filter"]["flags"]) == FLAGS
    assert "DC" not in FLAGS, "a client that leaves is no failure"


def test_no_more_headers_are_logged_than_are_read():
    page, _ = listener(Capability.COMPOSITE)
    (requests,) = manager(page)["access_log"]
    assert "additional_request_headers_to_log" not in requests["typed_config"]
    assert requests["typed_config"]["additional_response_headers_to_log"] == [
        "x-served-model",
        "x-model-downgraded",
        "x-degrade-reason",
        "x-static-template",
    ]


@pytest.mark.parametrize("capability", CHAINS)
def test_the_switch_leaves_nothing_of_it(capability):
    page, body = listener(capability, access_log=False)
    assert b"accesslog" not in body
    assert b"GrpcAccessLog" not in body
    assert "upstream_log" not in json.dumps(page)


@pytest.mark.parametrize(
    ("changes", "is_there"),
    [
        pytest.param({}, False, id="by default"),
        pytest.param({"stream_errors": True}, True, id="asked for"),
        pytest.param({"stream_errors": True, "access_log": False}, False, id="nobody to tell"),
    ],
)
def test_streams_are_looked_into_only_where_it_is_asked_for(changes, is_there):
    _, body = listener(Capability.COMPOSITE, **changes)
    assert (b"sse_to_metadata" in body) is is_there


def test_older_proxies_are_not_asked_to_look_into_streams():
    page, body = listener(Capability.AGGREGATE, stream_errors=True)
    assert b"sse_to_metadata" not in body
    assert manager(page)["access_log"]


def test_proxyless_grpc_clients_get_no_log():
    topology = a_topology()
    snapshot = SnapshotBuilder(topology, Policy(), Capability.GRPC).build(a_plan(topology))
    assert b"access_loggers" not in snapshot.of_type(served.LISTENER).resources["llm"].body


def test_off_is_an_empty_list():
    off = EvidencePolicy(access_log=False)
    assert request_log(off) == attempt_log(off) == []
