"""Objects for the tests of the config source."""

from __future__ import annotations

from typing import Any

from xds_server.istio.mcp.catalog import Catalog, Draft, finished
from xds_server.istio.mcp.kinds import Kind
from xds_server.istio.mcp.proto import DestinationRule, ServiceEntry, VirtualService


def virtual_service(
    weight: int = 50, *, name: str = "chat", host: str = "llm.ai.svc", to: tuple[str, str] = ("a.ai.svc", "b.ai.svc"),
    subset: str = "",
) -> Draft:  # fmt: skip
    message = VirtualService(hosts=[host], gateways=["mesh"])
    route = message.http.add(name=name)
    for target, share in zip(to, (weight, 100 - weight), strict=True):
        part = route.route.add(weight=share)
        part.destination.host = target
        part.destination.subset = subset
    return draft(Kind.VIRTUAL_SERVICE, name, message)


def destination_rule(*subsets: str, host: str = "a.ai.svc") -> Draft:
    message = DestinationRule(host=host)
    for each in subsets:
        message.subsets.add(name=each).labels["version"] = each
    return draft(Kind.DESTINATION_RULE, f"rule-{host}", message)


def service_entry(*addresses: str, host: str = "a.ai.svc", weight: int = 1) -> Draft:
    message = ServiceEntry(hosts=[host], location=1, resolution=1)
    message.ports.add(number=8000, protocol="HTTP", name="http")
    for each in addresses:
        message.endpoints.add(address=each, weight=weight).ports["http"] = 8000
    return draft(Kind.SERVICE_ENTRY, f"entry-{host}", message)


def draft(kind: Kind, name: str, message: Any) -> Draft:
    return Draft(kind=kind, namespace="ai", name=name, message=message)


def catalog_of(*drafts: Draft) -> Catalog:
    return Catalog.of(finished(each, ()) for each in drafts)
