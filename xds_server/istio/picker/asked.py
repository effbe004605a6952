"""Which of our models a request asks for, and in which class it is: as proxies' routes decide it.

The domain comes first, then the longest prefix, then the body's `model`, where a model has names. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from xds_server.core.model import ClassName, Model, ModelName, RequestClass, Topology
from xds_server.resources.bodies.path_kind import ENDINGS
from xds_server.resources.routing.model_routing import in_order

_MOST_KNOWN, _LONGEST_KNOWN = 1024, 256


class Asked:
    """Finds the models of requests of one topology."""

    def __init__(self, topology: Topology, served: Collection[ModelName]) -> None:
        """Look among the models of `served`; none = all."""
        self._by_domain: dict[str, tuple[Model, ...]] = {}
        for model in topology.models:
            if not served or model.name in served:
                for domain in model.domains:
                    self._by_domain[domain] = (*self._by_domain.get(domain, ()), model)
        self._by_domain = {name: in_order(each) for name, each in self._by_domain.items()}
        wild = (each for each in self._by_domain if "*" in each and each != "*")
        self._wild = sorted(wild, key=_wildness)
        self._known: dict[tuple[str, str], tuple[Model, ...]] = {}
        """What was asked for before: a few hosts and paths, again and again."""
        self._classes = tuple(sorted(topology.classes, key=lambda each: each.is_rest))

    def candidates(self, *, authority: str, path: str) -> tuple[Model, ...]:
        """Return the models that a request may be for, in the order in which they take it.

        A model that takes whatever the body says ends the list.
        """
        key = authority, path
        known = self._known.get(key)
        if known is None:
            known = self._look_up(authority, path)
            if len(authority) + len(path) <= _LONGEST_KNOWN:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[key] = known
        return known

    def _look_up(self, authority: str, path: str) -> tuple[Model, ...]:
        found = []
        for model in self._by_domain.get(self._domain(authority), ()):
            if path.startswith(model.prefix):
                found.append(model)
                if model.takes_any:
                    break
        return tuple(found)

    def request_class(self, *, headers: Mapping[str, str], path: str) -> ClassName | None:
        """Return the class of a request; None where there are no classes."""
        for each in self._classes:
            if _is_in(each, headers, path):
                return each.name
        return None

    def _domain(self, authority: str) -> str:
        host = authority.lower()
        if host not in self._by_domain:
            host = _without_port(host)
        if host in self._by_domain:
            return host
        for pattern in self._wild:
            head, _, tail = pattern.partition("*")
            if len(host) > len(head) + len(tail) and host.startswith(head) and host.endswith(tail):
                return pattern
        return "*"


def chosen(candidates: Sequence[Model], named: str | None) -> Model | None:
    """Return the candidate that a body asks for by name; None = nobody has that name."""
    for model in candidates:
        if model.takes_any or named in model.names:
            return model
    return None


def is_completion(path: str) -> bool:
    """Whether a path is one of the completions, which alone get `when_absent`."""
    plain = path.partition("?")[0].removesuffix("/")
    return plain.endswith(tuple(f"/{ending}" for ending in ENDINGS.values()))


def _is_in(each: RequestClass, headers: Mapping[str, str], path: str) -> bool:
    if each.prefix is not None and not path.startswith(each.prefix):
        return False
    if each.header is None:
        return True
    value = headers.get(each.header)
    return value is not None and (each.value is None or value == each.value)


def _wildness(domain: str) -> tuple[bool, int]:
    """Return a key that sorts as Envoy looks: `*.example.com` before `example.*`, the longest first."""
    return not domain.startswith("*"), -len(domain)


def _without_port(host: str) -> str:
    bare, colon, port = host.rpartition(":")
    return bare if colon and port.isdigit() and not bare.endswith(":") else host
