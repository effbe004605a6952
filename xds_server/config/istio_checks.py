"""What the `istio` section means together with the models: names, hosts, subsets."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any

from xds_server.config.addresses import parse_address
from xds_server.config.problems import MISSING, Problem, join

OBJECT_PREFIX = "gpu-xds-"
OBJECT_MOST = 253
"""RFC 1123: characters of the name of an object."""
LABEL_NAME_PATTERN = (
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
LABEL_VALUE_PATTERN = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
"""What Kubernetes takes as the name and the value of a label; to be matched in full."""
ROOT_NAMESPACE = "istio-system"
"""Of a mesh that names no other: rules in it are everybody's."""
_SERVICE = re.compile(r"[^.]+\.([^.]+)\.svc(\..+)?")
"""Host of a Service of Kubernetes, with its namespace."""


def object_name(model: str) -> str:
    """Return the name of the objects of a model that are not given one: RFC 1123 has no capitals and no `_`."""
    return OBJECT_PREFIX + re.sub(r"[^a-z0-9.-]|\.(?=[.-])|(?<=-)\.", "-", model.lower())


def check_istio(raw: dict[str, Any]) -> Iterator[Problem]:
    """Yield every problem between values that are each well-formed."""
    claimed: dict[tuple[str, ...], str] = {}
    places: dict[tuple[str, ...], str] = {}
    hosts = _Hosts()
    known = _known(raw)
    for path, model in _models(raw):
        name = model.get("model")
        if isinstance(name, str) and name not in known:
            yield Problem.of(join(path, "model"), name, f"one of the models: {', '.join(known)}")
            continue
        yield from _claim(claimed, ("model", name), join(path, "model"), name)
        made = model.get("name") or (object_name(name) if isinstance(name, str) else None)
        key = ("object", model.get("namespace"), made)
        yield from _claim(claimed, key, join(path, "name"), made)
        if model.get("delegate") is True:
            if "gateways" in model:
                expected = "no gateways: those of the VirtualService that delegates to it count"
                yield Problem.of(join(path, "gateways"), model["gateways"], expected)
        else:
            for gateway in _list(model.get("gateways", ["mesh"])):
                key = ("host", str(gateway), model.get("host"))
                yield from _claim(claimed, key, join(path, "host"), model.get("host"))
        if isinstance(name, str):
            yield from _check_tiers(join(path, "tiers"), model.get("tiers"), known[name], places)
        for where, tier in _mapped(path, model):
            yield from hosts.check(where, tier)
            yield from check_labels(where, tier)
    yield from hosts.check_subsets()
    yield from _check_source(raw)
    yield from _check_picker(raw, known)
    yield from _check_probe(raw)
    yield from _check_patches(raw)
    yield from _check_needed(raw)


def doubts(raw: dict[str, Any]) -> Iterator[Problem]:
    """Yield what works and is hardly meant in a document without problems."""
    known = _known(raw)
    for path, model in _models(raw):
        for name, tier in known[model["model"]].items():
            if tier.get("answer") is not None and name not in model["tiers"]:
                expected = (
                    "a host that gives the static answer: without one its share stays with the tier before, "
                    "and load is not shed until every tier is down"
                )
                yield Problem.of(join(join(path, "tiers"), name), MISSING, expected)
        for where, tier in _mapped(path, model):
            if tier.get("subset") and not tier.get("labels"):
                expected = (
                    f"a DestinationRule of {tier['host']} in the mesh that has this subset (503 without one); "
                    "or give its labels, and we make one"
                )
                yield Problem.of(join(where, "subset"), tier["subset"], expected)
            place = _SERVICE.fullmatch(tier["host"])
            if (
                tier.get("labels")
                and tier.get("endpoints", "mesh") == "mesh"
                and place is not None
                and model["namespace"] not in (place[1], ROOT_NAMESPACE)
            ):
                expected = (
                    f"clients in namespace {model['namespace']} only: ours is the DestinationRule of no other "
                    f"namespace's clients (503 there), gateways included, for the host is in namespace {place[1]}. "
                    "Make one there, or let istio.models[].namespace be that one"
                )
                yield Problem.of(join(where, "labels"), tier["labels"], expected)
    if _section(_section(raw, "istio"), "endpoint_picker").get("conformance"):
        expected = "false where clients are real: any of them could choose its endpoint"
        yield Problem.of("istio.endpoint_picker.conformance", True, expected)
    source = _section(_section(raw, "istio"), "config_source")
    listen = source.get("listen")
    if listen and "certificate_file" not in source:
        host, _ = parse_address(listen, lowest_port=0)
        if not ipaddress.ip_address(host).is_loopback:
            expected = (
                "certificate_file, or an address that only istiod reaches: it names no identity"
            )
            yield Problem.of("istio.config_source.listen", listen, expected)
    if not _is_there(raw, "config_source"):
        yield from _unmade(raw)
    both = [name for name in ("config_source", "kubernetes") if _is_there(raw, name)]
    if len(both) > 1:
        expected = "one of them: of two VirtualServices for a host the mesh obeys the older one, and both ways make one"
        yield Problem.of("istio", both, expected)


def _unmade(raw: dict[str, Any]) -> Iterator[Problem]:
    """Yield what tiers say that only objects of ours could have, where a model's weights are patched instead."""
    patches = _list(_section(_section(raw, "istio"), "kubernetes").get("patch"))
    patched = {each["model"] for each in patches}
    for path, model in _models(raw):
        if model["model"] not in patched:
            continue
        for where, tier in _mapped(path, model):
            for key, unused in (("labels", {}), ("endpoints", "mesh")):
                if tier.get(key, unused) != unused:
                    expected = "nothing: no object is made for a model in istio.kubernetes.patch"
                    yield Problem.of(join(where, key), tier[key], expected)


def _is_there(raw: dict[str, Any], way: str) -> bool:
    return isinstance(_section(raw, "istio").get(way), dict)


def _check_tiers(
    path: str,
    written: Any,
    known: dict[str, dict[str, Any]],
    others: dict[tuple[str, ...], str],
) -> Iterator[Problem]:
    """Yield what is wrong with a model's tiers; `others` are the places of those before, and gets these."""
    if not isinstance(written, dict):
        return
    for name, tier in written.items():
        if name not in known:
            expected = f"one of the model's tiers: {', '.join(known)}"
            yield Problem.of(join(path, str(name)), str(name), expected)
        elif (
            isinstance(tier, dict)
            and tier.get("endpoints") == "instances"
            and known[name].get("answer") is not None
        ):
            expected = "mesh: a static tier has no instances that could be endpoints"
            yield Problem.of(join(join(path, name), "endpoints"), "instances", expected)
    for name, tier in known.items():
        if tier.get("answer") is None and name not in written:
            yield Problem.of(join(path, name), MISSING, "required: the host of this tier")
    places: dict[tuple[str, ...], str] = {}
    for name, tier in written.items():
        if isinstance(tier, dict) and isinstance(tier.get("host"), str):
            key = (tier["host"], str(tier.get("subset")), str(tier.get("port")))
            where = join(path, str(name))
            # Models may have one host for their static answers; instances are one model's.
            is_static = known.get(name, {}).get("answer") is not None
            first = (places if is_static else others).setdefault(key, where)
            first = places.setdefault(key, first)
            if first != where:
                expected = f"another host, subset or port than {first}: the same pods are one tier"
                yield Problem.of(join(where, "host"), tier["host"], expected)


class _Hosts:
    """What tiers say about the hosts that they share."""

    def __init__(self) -> None:
        self._endpoints: dict[str, tuple[str, str]] = {}
        self._labels: dict[tuple[str, str], tuple[dict[str, Any], str]] = {}
        self._whole: dict[str, str] = {}
        self._ours: dict[str, str] = {}
        """Hosts that we make a DestinationRule for, and where that is written."""
        self._bare: list[tuple[str, str, str]] = []
        """Host, subset and place of tiers that leave a subset's labels to somebody else's."""

    def check(self, where: str, tier: dict[str, Any]) -> Iterator[Problem]:
        """Yield what is wrong with a tier's place, alone and next to those before."""
        host, subset, labels = tier.get("host"), tier.get("subset"), tier.get("labels")
        endpoints = tier.get("endpoints", "mesh")
        if labels and not subset:
            yield Problem.of(join(where, "labels"), labels, "a subset that has these labels")
        if endpoints == "instances":
            if tier.get("port") is None:
                expected = "required: the port that clients call, because the endpoints are ours"
                yield Problem.of(join(where, "port"), MISSING, expected)
            if subset and not labels:
                expected = "the labels of the subset, because the endpoints that have them are ours"
                yield Problem.of(join(where, "labels"), MISSING, expected)
        if not isinstance(host, str):
            return
        if labels or endpoints == "instances":
            self._ours.setdefault(host, where)
            if len(OBJECT_PREFIX + host) > OBJECT_MOST:
                expected = (
                    f"at most {OBJECT_MOST - len(OBJECT_PREFIX)} characters, because an object that we make for it is "
                    f"named {OBJECT_PREFIX} and the host"
                )
                yield Problem.of(join(where, "host"), host, expected)
        elif subset:
            self._bare.append((host, str(subset), where))
        said, first = self._endpoints.setdefault(host, (endpoints, where))
        if said != endpoints:
            expected = f"{said}, as for the same host (see {first})"
            yield Problem.of(join(where, "endpoints"), endpoints, expected)
        elif endpoints == "instances" and not subset:
            whole = self._whole.setdefault(host, where)
            if whole != where:
                expected = f"a subset with labels: without one its endpoints are those of {whole}"
                yield Problem.of(join(where, "subset"), MISSING, expected)
        if isinstance(subset, str) and isinstance(labels, dict) and labels:
            other, first = self._labels.setdefault((host, subset), (labels, where))
            if other != labels:
                expected = f"the same labels as the same subset (see {first})"
                yield Problem.of(join(where, "labels"), labels, expected)

    def check_subsets(self) -> Iterator[Problem]:
        """Yield subsets that the DestinationRule that we make for their host would not have."""
        for host, subset, where in self._bare:
            if host in self._ours:
                expected = (
                    f"the labels of subset {subset}: the DestinationRule of {host} is ours (see {self._ours[host]}), "
                    "and has the subsets with labels only"
                )
                yield Problem.of(join(where, "labels"), MISSING, expected)


def check_labels(where: str, written: dict[str, Any]) -> Iterator[Problem]:
    """Yield the labels of a section that Kubernetes would not take."""
    labels = written.get("labels")
    for name, value in (labels if isinstance(labels, dict) else {}).items():
        path = join(join(where, "labels"), str(name))
        if not isinstance(name, str) or not re.fullmatch(LABEL_NAME_PATTERN, name):
            expected = (
                "a label's name: at most 63 letters, digits, '.', '_' or '-', none of these at an end, "
                "perhaps after a domain and /"
            )
            yield Problem.of(path, str(name), expected)
        if isinstance(value, str) and not re.fullmatch(LABEL_VALUE_PATTERN, value):
            expected = "a label's value: at most 63 letters, digits, '.', '_' or '-', none of these at an end"
            yield Problem.of(path, value, expected)


def _check_source(raw: dict[str, Any]) -> Iterator[Problem]:
    source = _section(_section(raw, "istio"), "config_source")
    for one, other in (("certificate_file", "key_file"), ("key_file", "certificate_file")):
        if source.get(one) is not None and source.get(other) is None:
            expected = f"required: {one} is of no use alone"
            yield Problem.of(join("istio.config_source", other), MISSING, expected)


def _check_picker(
    raw: dict[str, Any], known: dict[str, dict[str, dict[str, Any]]]
) -> Iterator[Problem]:
    picker = _section(_section(raw, "istio"), "endpoint_picker")
    for index, name in enumerate(_list(picker.get("models"))):
        if isinstance(name, str) and name not in known:
            path = join("istio.endpoint_picker.models", index)
            yield Problem.of(path, name, f"one of the models: {', '.join(known)}")


def _check_probe(raw: dict[str, Any]) -> Iterator[Problem]:
    istio = _section(raw, "istio")
    if not isinstance(istio.get("probe"), dict):
        return
    probe, path = istio["probe"], "istio.probe"
    yield from check_labels(path, probe)
    for one, other in (
        ("certificate_file", "key_file"),
        ("key_file", "certificate_file"),
        ("certificate_file", "ca_file"),
        ("token_file", "ca_file"),
    ):
        if probe.get(one) is not None and probe.get(other) is None:
            expected = f"required: {one} is of no use without it, or goes out in plaintext"
            yield Problem.of(join(path, other), MISSING, expected)
    mapped = [tier for where, model in _models(raw) for _, tier in _mapped(where, model)]
    if mapped and not probe.get("ports") and all(tier.get("port") is None for tier in mapped):
        expected = "the ports at which clients call the models' hosts: no tier has a port"
        yield Problem.of(join(path, "ports"), probe.get("ports", MISSING), expected)


def _check_patches(raw: dict[str, Any]) -> Iterator[Problem]:
    mapped = [each.get("model") for _, each in _models(raw)]
    kubernetes = _section(_section(raw, "istio"), "kubernetes")
    routes: dict[tuple[Any, ...], str] = {}
    models: dict[Any, str] = {}
    for index, each in enumerate(_list(kubernetes.get("patch"))):
        path = join("istio.kubernetes.patch", index)
        name = each.get("model") if isinstance(each, dict) else None
        if not isinstance(name, str):
            continue
        if name not in mapped:
            expected = "one of istio.models: its tiers' hosts are the destinations"
            yield Problem.of(join(path, "model"), name, expected)
        elif (first := models.setdefault(name, path)) != path:
            yield Problem.of(
                join(path, "model"), name, f"a model that is not patched yet (see {first})"
            )
        route = (each.get("namespace"), each.get("virtual_service"), each.get("route"))
        if (first := routes.setdefault(route, path)) != path:
            expected = f"a route that no other model sets (see {first})"
            yield Problem.of(join(path, "route"), each.get("route"), expected)


def _check_needed(raw: dict[str, Any]) -> Iterator[Problem]:
    """Yield whether models are missing: all ways but the picker are about their hosts."""
    section = raw.get("istio")
    if not isinstance(section, dict) or section.get("models"):
        return
    others = sorted(section.keys() - {"models", "endpoint_picker"})
    if others or section.get("endpoint_picker") is None:
        expected = f"at least one entry: istio.{others[0] if others else 'models'} is about them"
        yield Problem.of("istio.models", section.get("models", MISSING), expected)


def _claim(
    claimed: dict[tuple[str, ...], str], key: tuple[Any, ...], path: str, shown: Any
) -> Iterator[Problem]:
    if not all(isinstance(part, str) for part in key):
        return
    first = claimed.setdefault(key, path)
    if first != path:
        what = {
            "model": "a model that is not listed yet",
            "object": "a name that no other object of this namespace has",
            "host": "a host that no other model has: of two VirtualServices the mesh takes one",
        }[key[0]]
        yield Problem.of(path, shown, f"{what} (see {first})")


def _known(raw: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the tiers of every model by name."""
    return {
        model["name"]: {
            tier["name"]: tier
            for tier in _list(model.get("tiers"))
            if isinstance(tier, dict) and isinstance(tier.get("name"), str)
        }
        for model in _list(raw.get("models"))
        if isinstance(model, dict) and isinstance(model.get("name"), str)
    }


def _models(raw: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, each in enumerate(_list(_section(raw, "istio").get("models"))):
        if isinstance(each, dict):
            yield join("istio.models", index), each


def _mapped(path: str, model: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    tiers = model.get("tiers")
    for name, each in (tiers if isinstance(tiers, dict) else {}).items():
        if isinstance(each, dict):
            yield join(join(path, "tiers"), str(name)), each


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _section(raw: dict[str, Any], name: str) -> dict[str, Any]:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}
