"""What of the mesh's own configuration makes istiod ask us, and what in one makes it do something else. Pure.

istiod says nothing about most of it: it ignores a TLS mode that it does not know and connects in plaintext, and it
forgets all of Kubernetes once any other source is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import yaml

from xds_server.config.istio_schema import ConfigSourceSection
from xds_server.config.problems import MISSING, Problem, join

KUBERNETES = "k8s://"
"""Literally: with anything after it the mesh's own objects are gone too (istio#34134)."""
_SOURCES = "configSources"
_IGNORED_MODES = ("MUTUAL", "ISTIO_MUTUAL")


def fragment(address: str, *, ca_pem: str | None) -> dict[str, Any]:
    """Return the part of MeshConfig that makes istiod ask us.

    Args:
        address: host:port as istiod reaches us.
        ca_pem: Certificates of the authority of ours; None = plaintext.
    """
    ours: dict[str, Any] = {"address": f"xds://{address}"}
    if ca_pem is not None:
        ours["tlsSettings"] = {"mode": "SIMPLE", "caCertificates": ca_pem}
    return {_SOURCES: [{"address": KUBERNETES}, ours]}


def read_mesh_config(text: str) -> dict[str, Any]:
    """Return the MeshConfig in a file: as it is, or in a ConfigMap (`data.mesh`) or an IstioOperator.

    Raises:
        ValueError: There is none; the message says what was expected.
    """
    expected = "a MeshConfig, the ConfigMap that has one (data.mesh), or an IstioOperator"
    try:
        raw = yaml.safe_load(text)
        if isinstance(raw, dict) and raw.get("kind") == "ConfigMap":
            raw = yaml.safe_load((raw.get("data") or {}).get("mesh") or "")
        elif isinstance(raw, dict) and raw.get("kind") == "IstioOperator":
            raw = (raw.get("spec") or {}).get("meshConfig")
    except (yaml.YAMLError, AttributeError) as error:
        raise ValueError(f"expected {expected} in YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"expected {expected}")  # noqa: TRY004 - it is the text that is wrong
    return raw


def check_mesh_config(raw: Mapping[str, Any], section: ConfigSourceSection) -> Iterator[Problem]:
    """Yield what keeps istiod from asking us, or makes it lose something.

    Args:
        raw: The MeshConfig; keys may be written as in YAML or as in protobuf.
        section: Our side.
    """
    listed = _get(raw, _SOURCES)
    sources = listed if isinstance(listed, list) else []
    found = [
        (join(_SOURCES, index), each)
        for index, each in enumerate(sources)
        if isinstance(each, dict)
    ]
    addresses = [str(each.get("address", "")) for _, each in found]
    if not any(each.startswith("xds://") for each in addresses):
        expected = "a source with our address: xds://HOST:PORT of istio.config_source.listen"
        yield Problem.of(_SOURCES, listed or MISSING, expected)
        return
    if KUBERNETES not in addresses and not any(each.startswith("fs://") for each in addresses):
        expected = f"{KUBERNETES} too: without it istiod no longer sees any object of Kubernetes"
        yield Problem.of(_SOURCES, addresses, expected)
    for path, each in found:
        yield from _check_source(path, each, section)


def _check_source(
    path: str, source: Mapping[str, Any], section: ConfigSourceSection
) -> Iterator[Problem]:
    address = str(source.get("address", ""))
    if address.startswith("k8s:") and address != KUBERNETES:
        yield Problem.of(join(path, "address"), address, f"{KUBERNETES}, literally")
    if not address.startswith("xds://"):
        return
    if not _has_port(address):
        yield Problem.of(join(path, "address"), address, "xds://host:port")
    tls = _get(source, "tlsSettings")
    where = join(path, "tlsSettings")
    mode = str(tls.get("mode", "DISABLE")) if isinstance(tls, dict) else "DISABLE"
    has_certificate = section.certificate_file is not None
    if mode in _IGNORED_MODES:
        expected = (
            "SIMPLE: istiod ignores this mode for a source, connects in plaintext and shows no certificate; "
            "who may connect is a NetworkPolicy's business"
        )
        yield Problem.of(join(where, "mode"), mode, expected)
    elif mode == "SIMPLE" and not has_certificate:
        expected = (
            "DISABLE, or istio.config_source.certificate_file on our side: we speak plaintext here"
        )
        yield Problem.of(join(where, "mode"), mode, expected)
    elif mode != "SIMPLE" and has_certificate:
        expected = "SIMPLE (Istio 1.26 or later): istio.config_source has a certificate"
        yield Problem.of(join(where, "mode"), mode, expected)
    if mode == "SIMPLE" and isinstance(tls, dict):
        pem = _get(tls, "caCertificates")
        if isinstance(pem, str) and pem and "-----BEGIN" not in pem:
            expected = "the certificates themselves, in PEM: istiod reads no file here"
            yield Problem.of(join(where, "caCertificates"), pem, expected)


def _has_port(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False


def _get(raw: Mapping[str, Any], key: str) -> Any:
    """Return a value by its name in YAML (`configSources`) or in protobuf (`config_sources`)."""
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in key)
    return raw.get(key, raw.get(snake))
