"""Our own validation of what we are about to tell istiod. Pure.

istiod takes a response whatever is in it and never says that it refuses an object (it keeps the old
version, or deletes it), so everything that its validation or its conversion would stumble over is held
back here, with the name of the object and what mends it. The rules mirror Istio's pkg/config/validation.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xds_server.config.istio_checks import (
    LABEL_NAME_PATTERN,
    LABEL_VALUE_PATTERN,
    OBJECT_MOST,
)
from xds_server.config.names import HOST_PATTERN, LABEL_PATTERN, OBJECT_PATTERN
from xds_server.istio.mcp.catalog import Draft, Key
from xds_server.istio.mcp.kinds import Kind
from xds_server.istio.weights import TOTAL

BODY_MOST_BYTES = 1_000_000
"""Istio refuses the body of a direct response that is larger than 1 MB."""
WEIGHT_MOST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an object is held back."""

    key: Key
    text: str
    """What is wrong, and what mends it."""


def judge(drafts: Iterable[Draft], good: Collection[Key] = ()) -> list[Refusal]:
    """Return what istiod would refuse, misread or delete, alone or next to the others.

    Args:
        drafts: All objects.
        good: Those that are as they were when they were last judged: only their company may have changed.
    """
    listed = list(drafts)
    refusals = [
        Refusal(each.key, text) for each in listed if each.key not in good for text in _faults(each)
    ]
    return [*refusals, *_clashes(listed), *_lost_subsets(listed)]


def _faults(draft: Draft) -> Iterator[str]:
    if not re.fullmatch(LABEL_PATTERN, draft.namespace):
        yield f"namespace {draft.namespace!r}: expected a DNS label; mend istio.models[].namespace"
    if len(draft.name) > OBJECT_MOST or not re.fullmatch(OBJECT_PATTERN, draft.name):
        mend = "istio.models[].name" if draft.kind is Kind.VIRTUAL_SERVICE else "the tier's host"
        yield f"name {draft.name!r}: expected a DNS subdomain; mend {mend}"
    match draft.kind:
        case Kind.VIRTUAL_SERVICE:
            yield from _virtual_service(draft.message)
        case Kind.DESTINATION_RULE:
            yield from _destination_rule(draft.message)
        case Kind.SERVICE_ENTRY:
            yield from _service_entry(draft.message)


def _virtual_service(message: Any) -> Iterator[str]:
    if bool(message.hosts) != bool(message.gateways):
        yield "hosts without gateways or gateways without hosts: one that is delegated to has neither"
    yield from _hosts(message.hosts)
    if not message.http:
        yield "no routes: a model needs one at least"
    names = [each.name for each in message.http]
    for name in {each for each in names if names.count(each) > 1}:
        yield f"route {name!r} is there twice: classes need names of their own"
    for index, route in enumerate(message.http):
        where = f"route {route.name or index}"
        is_answer = route.HasField("direct_response")
        if bool(route.route) == is_answer:
            yield f"{where}: expected hosts or an answer, not both and not neither"
        if is_answer:
            yield from _answer(where, route.direct_response)
        else:
            yield from _weights(where, route.route)
        if not route.match and index < len(message.http) - 1:
            yield f"{where} takes everything, so those after it are never reached: it must be the last"


def _answer(where: str, answer: Any) -> Iterator[str]:
    if not 200 <= answer.status <= 599:
        yield f"{where}: status {answer.status}: expected 200-599; mend the static tier's answer"
    size = len(answer.body.string.encode())
    if size > BODY_MOST_BYTES:
        yield f"{where}: a body of {size} bytes: expected at most {BODY_MOST_BYTES}; shorten the static answer"


def _weights(where: str, parts: Any) -> Iterator[str]:
    total = sum(part.weight for part in parts)
    if any(part.weight < 0 for part in parts) or total != TOTAL:
        yield f"{where}: weights add up to {total}: expected {TOTAL}, none of them below 0"
    seen: set[tuple[str, str, int]] = set()
    for part in parts:
        place = part.destination
        key = (place.host, place.subset, place.port.number)
        if key in seen:
            yield f"{where}: {place.host} {place.subset} is there twice: one tier is one host or subset"
        seen.add(key)
        yield from _hosts([place.host])


def _destination_rule(message: Any) -> Iterator[str]:
    yield from _hosts([message.host])
    names = [each.name for each in message.subsets]
    for name in {each for each in names if names.count(each) > 1}:
        yield f"subset {name!r} is there twice: the labels of one name must be the same"
    for subset in message.subsets:
        if not re.fullmatch(LABEL_PATTERN, subset.name):
            yield f"subset {subset.name!r}: expected a DNS label"
        if not subset.labels:
            yield f"subset {subset.name!r} has no labels: it would be all of the host"
        for name, value in subset.labels.items():
            if not _is_label(name, value):
                yield _bad_label(f"subset {subset.name}", name, value)
    ejection = message.traffic_policy.outlier_detection
    if not 0 <= ejection.max_ejection_percent <= 100:
        yield f"max_ejection_percent {ejection.max_ejection_percent}: expected 0-100"


def _service_entry(message: Any) -> Iterator[str]:
    yield from _hosts(message.hosts)
    if not message.hosts:
        yield "no hosts: expected one"
    numbers, names = [each.number for each in message.ports], [each.name for each in message.ports]
    if not numbers or len(set(numbers)) < len(numbers) or len(set(names)) < len(names):
        yield f"ports {numbers}: expected one at least, with numbers and names of their own"
    for number in numbers:
        if not 1 <= number <= 65535:
            yield f"port {number}: expected 1-65535"
    seen: set[tuple[str, int]] = set()
    for each in message.endpoints:
        address = each.address
        if not _is_ip(address):
            yield f"endpoint {address!r}: expected an IP address, because resolution is STATIC"
        if not 1 <= each.weight <= WEIGHT_MOST:
            yield f"endpoint {address}: weight 0 would become 1: expected at least 1, or no such endpoint"
        # By key: views of a map are slow, and there may be thousands of endpoints.
        places = {(address, each.ports[name]) for name in each.ports}
        for place in sorted(places & seen):
            yield f"endpoint {address}:{place[1]} is there twice: an instance is in one tier of a host"
        seen |= places
        for name in each.labels:
            if not _is_label(name, each.labels[name]):
                yield _bad_label(f"endpoint {address}", name, each.labels[name])


@functools.lru_cache(maxsize=65536)
def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _hosts(hosts: Iterable[str]) -> Iterator[str]:
    for host in hosts:
        if len(host) > OBJECT_MOST or not re.fullmatch(HOST_PATTERN, host):
            yield f"host {host!r}: expected a full host name, like llm.ai.svc.cluster.local"


@functools.lru_cache(maxsize=4096)
def _is_label(name: str, value: str) -> bool:
    return bool(re.fullmatch(LABEL_NAME_PATTERN, name) and re.fullmatch(LABEL_VALUE_PATTERN, value))


def _bad_label(where: str, name: str, value: str) -> str:
    return f"{where}: label {name}={value!r}: expected what Kubernetes takes as a label"


def _clashes(drafts: list[Draft]) -> Iterator[Refusal]:
    """Yield objects that take another one's name or host: the mesh would take one of them, and not say which."""
    names: dict[Key, Draft] = {}
    hosts: dict[tuple[Kind, str, str], Draft] = {}
    for each in drafts:
        if names.setdefault(each.key, each) is not each:
            yield Refusal(each.key, "its name is another object's: give istio.models[].name")
            continue
        for place in _places(each):
            first = hosts.setdefault((each.kind, *place), each)
            if first is not each:
                yield Refusal(
                    each.key,
                    f"host {place[1]} is that of {first.title} too: the mesh obeys one of them",
                )


def _places(draft: Draft) -> Iterator[tuple[str, str]]:
    match draft.kind:
        case Kind.VIRTUAL_SERVICE:
            for gateway in draft.message.gateways:
                for host in draft.message.hosts:
                    yield gateway, host
        case Kind.DESTINATION_RULE:
            yield "", draft.message.host
        case Kind.SERVICE_ENTRY:
            for host in draft.message.hosts:
                yield "", host


def _lost_subsets(drafts: list[Draft]) -> Iterator[Refusal]:
    """Yield routes to subsets that our own DestinationRule of the host does not have: 503 for all of them."""
    known = {
        each.message.host: {subset.name for subset in each.message.subsets}
        for each in drafts
        if each.kind is Kind.DESTINATION_RULE
    }
    for each in drafts:
        if each.kind is not Kind.VIRTUAL_SERVICE:
            continue
        places = {
            (part.destination.host, part.destination.subset)
            for route in each.message.http
            for part in route.route
        }
        for host, subset in sorted(places):
            if subset and host in known and subset not in known[host]:
                yield Refusal(
                    each.key,
                    f"subset {subset} of {host}: the DestinationRule that we make for this host has "
                    f"{sorted(known[host])}; give the tier's labels",
                )


def stranded(drafts: Iterable[Draft], missing: Collection[Key]) -> list[Refusal]:
    """Return the VirtualServices that would send requests to a host or subset that istiod is not told of.

    Args:
        drafts: All objects.
        missing: Those that are held back and have no last good version either.
    """
    listed = list(drafts)
    without: dict[str, Draft] = {}
    for each in listed:
        if each.key in missing and each.kind is not Kind.VIRTUAL_SERVICE:
            _, host = next(iter(_places(each)))
            without.setdefault(host, each)
    return [
        refusal
        for each in listed
        if without and each.kind is Kind.VIRTUAL_SERVICE
        for refusal in _stranded(each, without)
    ]


def _stranded(draft: Draft, without: Mapping[str, Draft]) -> Iterator[Refusal]:
    for part in (part for route in draft.message.http for part in route.route if part.weight):
        lost = without.get(part.destination.host)
        if lost is None or (lost.kind is Kind.DESTINATION_RULE and not part.destination.subset):
            continue
        text = f"it sends requests to {part.destination.host}, and {lost.title} is held back: mend that"
        yield Refusal(draft.key, text)
