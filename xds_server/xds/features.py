"""What a proxy lacks of what the resources use, and what it has instead (pure).

Only Envoys say what they are made of: they list their extensions in the node. Of one that lists none, nothing is
held against it but its version.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from xds_server.resources.capability import Capability


@dataclass(frozen=True, slots=True)
class Extension:
    """A part of Envoy that the resources name."""

    name: str
    """As in `node.extensions`."""
    gives: str
    """What it is for, and what happens without it."""


@dataclass(frozen=True, slots=True)
class Novelty:
    """What an extension can do since some version of Envoy."""

    name: str
    since: tuple[int, int]
    gives: str


COMPOSITE = "envoy.clusters.composite"
EXTENSIONS = (
    Extension(
        COMPOSITE,
        "chains in the order of tiers (Envoy 1.40): aggregate clusters with previous_priorities instead; "
        "no class of requests gets more attempts on the same tier",
    ),
    Extension("envoy.clusters.aggregate", "chains for Envoys before 1.40: clusters are refused"),
    Extension(
        "envoy.bootstrap.internal_listener",
        "static answers and limits of tiers: listeners are refused",
    ),
    Extension(
        "envoy.filters.http.header_mutation",
        "x-served-model and the other headers of the truth: clusters are refused",
    ),
    Extension(
        "envoy.filters.http.lua",
        "static answers, what a body says of stream, model and max_tokens: listeners are refused; "
        "bodies rewritten for the tier: clusters are refused where a tier serves another name",
    ),
    Extension(
        "envoy.filters.http.custom_response",
        "the last net and honest errors for x-no-fallback: the listener is refused unless "
        "policy.failures.static_on_5xx is false",
    ),
    Extension(
        "envoy.filters.http.header_to_metadata",
        "the last net, and static answers by class or language: listeners are refused where they are used",
    ),
    Extension(
        "envoy.filters.http.local_ratelimit", "limits: the listener is refused where there are any"
    ),
    Extension(
        "envoy.access_loggers.http_grpc",
        "evidence of requests: the listener is refused unless policy.evidence.access_log is false",
    ),
)
"""What official Envoys of the last years all have, but for the first; smaller builds may not."""

NOVELTIES = (
    Novelty(
        "envoy.filters.http.local_ratelimit",
        (1, 40),
        "retry-after on the 429 of a limit (Envoy 1.40): without it clients guess",
    ),
)
"""Older Envoys skip a field that they do not know. (Composite clusters are another matter: see `node`.)"""

_GRPC = (
    "chains: a call that fails is not taken to the next tier",
    "static answers: the weight of the static tier goes to no one",
    "x-served-model and the other headers of the truth",
    "limits, rewritten bodies, routes by what a body says, and classes of requests",
)
"""gRPC follows weights and health, and nothing else that is served here."""


def numbers(version: str) -> tuple[int, int] | None:
    """Return major and minor of a version that is written so; None for all others."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def lacks(
    *, capability: Capability, missing: Collection[str], version: str = ""
) -> tuple[str, ...]:
    """Say in words what a proxy does without.

    Args:
        capability: What it is served.
        missing: Names of `EXTENSIONS` that are not among its extensions.
        version: Its own; nothing is held against one that cannot be read.
    """
    return _lacks(capability, frozenset(missing), version)


@lru_cache(maxsize=256)
def _lacks(capability: Capability, missing: frozenset[str], version: str) -> tuple[str, ...]:
    """As `lacks`; thousands of proxies are of a few kinds, and each would keep sentences of its own."""
    if capability is Capability.GRPC:
        return _GRPC
    absent = set(missing)
    if capability is Capability.AGGREGATE:
        absent.add(COMPOSITE)  # also where it has one that stops at members without an endpoint
    else:
        absent.discard("envoy.clusters.aggregate")
    told = numbers(version)
    too_new = [] if told is None else [each for each in NOVELTIES if told < each.since]
    found: list[Extension | Novelty] = [each for each in EXTENSIONS if each.name in absent]
    found += [each for each in too_new if each.name not in absent]
    return tuple(f"{each.name}: {each.gives}" for each in found)
