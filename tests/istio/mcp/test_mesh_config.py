"""The mesh's own configuration: what makes istiod ask us, and what in one does not."""

from __future__ import annotations

import pytest
import yaml

from xds_server.config.istio_schema import ConfigSourceSection
from xds_server.istio.mcp.mesh_config import check_mesh_config, fragment, read_mesh_config

PLAIN = ConfigSourceSection()
SECURE = ConfigSourceSection(certificate_file="c.pem", key_file="k.pem")
PEM = "-----BEGIN CERTIFICATE-----\n"
K8S = {"address": "k8s://"}
OURS = {"address": "xds://fleet-xds.istio-system.svc:18010"}


def tls(mode: str, **more: str) -> dict:
    return OURS | {"tlsSettings": {"mode": mode, **more}}


def checked(sources, section: ConfigSourceSection = PLAIN) -> dict[str, str]:
    raw = {} if sources is None else {"configSources": sources}
    return {each.path: f"{each.value}: {each.expected}" for each in check_mesh_config(raw, section)}


@pytest.mark.parametrize(
    ("section", "ca"), [(PLAIN, None), (SECURE, PEM)], ids=["plaintext", "tls"]
)
def test_what_is_printed_is_good(section, ca):
    made = fragment("fleet-xds.istio-system.svc:18010", ca_pem=ca)
    again = read_mesh_config(yaml.safe_dump(made))
    assert list(check_mesh_config(again, section)) == []
    assert [each["address"] for each in again["configSources"]] == [K8S["address"], OURS["address"]]


@pytest.mark.parametrize(
    ("sources", "section", "path", "said"),
    [
        pytest.param(None, PLAIN, "configSources", "a source with our address", id="none"),
        pytest.param([K8S], PLAIN, "configSources", "a source with our address", id="not-ours"),
        pytest.param([OURS], PLAIN, "configSources", "no longer sees any object of Kubernetes", id="alone"),
        pytest.param([{"address": "k8s:///x"}, OURS], PLAIN, "configSources[0].address", "literally", id="k8s-slash"),
        pytest.param([K8S, {"address": "xds://host"}], PLAIN, "configSources[1].address", "host:port", id="no-port"),
        pytest.param([K8S, {"address": "xds://host:x"}], PLAIN, "configSources[1].address", "host:port", id="bad-port"),
        pytest.param([K8S, tls("MUTUAL")], PLAIN, "configSources[1].tlsSettings.mode",
                     "connects in plaintext and shows no certificate", id="mutual"),
        pytest.param([K8S, tls("ISTIO_MUTUAL")], SECURE, "configSources[1].tlsSettings.mode",
                     "a NetworkPolicy's business", id="istio-mutual"),
        pytest.param([K8S, tls("SIMPLE")], PLAIN, "configSources[1].tlsSettings.mode",
                     "we speak plaintext here", id="tls-to-plaintext"),
        pytest.param([K8S, OURS], SECURE, "configSources[1].tlsSettings.mode",
                     "config_source has a certificate", id="plaintext-to-tls"),
        pytest.param([K8S, tls("SIMPLE", caCertificates="/etc/ca.pem")], SECURE,
                     "configSources[1].tlsSettings.caCertificates", "istiod reads no file", id="path-for-pem"),
    ],
)  # fmt: skip
def test_what_istiod_ignores_or_loses_is_named(sources, section, path, said):
    assert said in checked(sources, section)[path]


@pytest.mark.parametrize(
    "sources",
    [[K8S, OURS], [{"address": "fs:///etc/istio"}, OURS], [K8S, OURS, OURS]],
    ids=["usual", "files", "two-of-us"],
)
def test_good_ones_are_good(sources):
    assert checked(sources) == {}


def test_names_of_protobuf_are_read_too():
    raw = {"config_sources": [K8S, OURS | {"tls_settings": {"mode": "MUTUAL"}}]}
    assert len(list(check_mesh_config(raw, PLAIN))) == 1


MESH = {"configSources": [K8S, OURS]}


@pytest.mark.parametrize(
    "document",
    [
        MESH,
        {"kind": "ConfigMap", "data": {"mesh": yaml.safe_dump(MESH)}},
        {"kind": "IstioOperator", "spec": {"meshConfig": MESH}},
    ],
    ids=["plain", "config-map", "operator"],
)
def test_a_mesh_config_is_found_where_it_is_kept(document):
    assert read_mesh_config(yaml.safe_dump(document)) == MESH


@pytest.mark.parametrize(
    "text", ["- a", "", "{", "kind: ConfigMap\ndata: {}", "kind: ConfigMap\ndata: [a]"]
)
def test_what_is_none_is_told(text):
    with pytest.raises(ValueError, match="expected a MeshConfig"):
        read_mesh_config(text)
