"""Our subset of Istio's messages: names and field numbers are Istio's, or istiod reads something else."""

from __future__ import annotations

import pytest

from fleet_protos.istio.mcp.v1alpha1 import resource_pb2
from fleet_protos.istio.networking.v1alpha3 import (
    destination_rule_pb2,
    service_entry_pb2,
    virtual_service_pb2,
)

FILES = {
    "istio.mcp.v1alpha1": [resource_pb2],
    "istio.networking.v1alpha3": [destination_rule_pb2, service_entry_pb2, virtual_service_pb2],
}
NUMBERS = {
    "Resource": "metadata=1 body=2",
    "Metadata": "name=1 create_time=2 version=3 labels=4 annotations=5",
    "VirtualService": "hosts=1 gateways=2 http=3",
    "HTTPRoute": "match=1 route=2 headers=16 name=17 direct_response=21",
    "HTTPMatchRequest": "uri=1 headers=5",
    "StringMatch": "exact=1 prefix=2 regex=3",
    "HTTPRouteDestination": "destination=1 weight=2",
    "Destination": "host=1 subset=2 port=3",
    "PortSelector": "number=1",
    "Headers": "request=1 response=2",
    "HTTPDirectResponse": "status=1 body=2",
    "HTTPBody": "string=1 bytes=2",
    "DestinationRule": "host=1 traffic_policy=2 subsets=3",
    "Subset": "name=1 labels=2",
    "TrafficPolicy": "load_balancer=1 outlier_detection=3",
    "LoadBalancerSettings": "simple=1 locality_lb_setting=3",
    "LocalityLoadBalancerSetting": "enabled=3",
    "OutlierDetection": "interval=2 base_ejection_time=3 max_ejection_percent=4 consecutive_5xx_errors=7",
    "ServiceEntry": "hosts=1 ports=3 location=4 resolution=5 endpoints=6",
    "ServicePort": "number=1 protocol=2 name=3",
    "WorkloadEntry": "address=1 ports=2 labels=3 weight=6",
}
"""From istio/api at b8f8791d (2026-07-21)."""


def messages():
    return {
        name: (package, message)
        for package, files in FILES.items()
        for file in files
        for name, message in file.DESCRIPTOR.message_types_by_name.items()
    }


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_fields_have_istios_numbers(name):
    package, message = messages()[name]
    published = dict(pair.split("=") for pair in NUMBERS[name].split())
    assert {each.name: str(each.number) for each in message.fields} == published
    assert message.full_name == f"{package}.{name}", "the name travels in Any"


def test_every_message_is_under_that_watch():
    assert set(NUMBERS) == set(messages())


def test_operations_on_headers_have_istios_numbers():
    inner = virtual_service_pb2.Headers.HeaderOperations.DESCRIPTOR
    assert {each.name: each.number for each in inner.fields} == {"set": 1, "add": 2, "remove": 3}


def test_values_of_enums_are_istios():
    entry = service_entry_pb2.ServiceEntry
    assert (entry.MESH_INTERNAL, entry.STATIC) == (1, 1)
