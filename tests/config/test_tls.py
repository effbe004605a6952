"""The files of TLS: together, readable, and of one another."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fakes.xds_process import ROOT
from xds_server.config.problems import ConfigError
from xds_server.config.settings import resolve
from xds_server.config.tls import Tls

CERT, KEY = (ROOT / "tests/data/tls" / name for name in ("cert.pem", "key.pem"))


def resolved(**files: Path):
    flags = {name: str(path) for name, path in files.items()}
    return resolve(flags=flags, environ={}, file={})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("xds_cert_file", "server.xds_key_file: (missing)", id="no-key"),
        pytest.param("admin_key_file", "server.admin_cert_file: (missing)", id="no-cert"),
        pytest.param("xds_client_ca_file", "server.xds_cert_file: (missing)", id="only-clients"),
    ],
)
def test_a_file_of_tls_does_not_come_alone(name, said):
    with pytest.raises(ConfigError) as caught:
        resolved(**{name: CERT})
    assert said in str(caught.value)


def test_a_file_of_tls_is_named_as_it_was_told(tmp_path):
    gone = str(tmp_path / "gone.pem")
    with pytest.raises(ConfigError) as caught:
        resolve(
            flags={"xds_cert_file": gone},
            environ={"XDS_SERVER_XDS_KEY_FILE": gone},
            file={"xds_client_ca_file": gone},
        )
    assert [each.path for each in caught.value.problems] == [
        "--xds-cert-file",
        "XDS_SERVER_XDS_KEY_FILE",
        "server.xds_client_ca_file",
    ]


@pytest.mark.parametrize("content", [None, b"nothing", b"\xff"], ids=["gone", "no-pem", "binary"])
def test_a_file_of_tls_that_is_no_pem_is_refused(tmp_path, content):
    path = tmp_path / "x.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="2 problems") as caught:
        resolved(admin_cert_file=path, admin_key_file=path)
    assert "expected a readable file in PEM" in str(caught.value)


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)


@pytest.mark.parametrize("kind", ["of-another", "encrypted", "no-key-at-all", "no-authority"])
def test_files_that_do_not_fit_are_refused_and_nobody_is_asked_for_a_password(tmp_path, kind):
    key, client_ca = tmp_path / "key.pem", CERT
    if kind == "of-another":
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
    elif kind == "encrypted":
        openssl("ec", "-in", str(KEY), "-aes256", "-passout", "pass:x", "-out", str(key))
    elif kind == "no-key-at-all":
        key.write_text("-----BEGIN PRIVATE KEY-----\nbm90aGluZw==\n-----END PRIVATE KEY-----\n")
    else:
        key, client_ca = KEY, KEY
    with pytest.raises(ConfigError, match="certificate and key that fit and are not encrypted"):
        resolved(xds_cert_file=CERT, xds_key_file=key, xds_client_ca_file=client_ca)


def test_files_of_tls_are_kept_by_side():
    made = resolved(xds_cert_file=CERT, xds_key_file=KEY, xds_client_ca_file=CERT)
    assert made.xds_tls == Tls(cert=CERT, key=KEY, client_ca=CERT)
    assert made.xds_tls.files == (CERT, KEY, CERT)
    assert made.xds_tls.trouble() == ""
    assert made.admin_tls is None
    made = resolved(admin_cert_file=CERT, admin_key_file=KEY)
    assert made.admin_tls == Tls(cert=CERT, key=KEY)
    assert made.admin_tls.files == (CERT, KEY)
