"""Tokens and TLS of a real process: as an operator, a proxy and an agent meet them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.fakes.envoy import running_envoy
from tests.fakes.waiting import PATIENCE_S, until
from tests.fakes.xds_process import ROOT, command, running_server
from xds_server.cli import app
from xds_server.config.admin_tokens import read_tokens

TLS = ROOT / "tests/data/tls"
CERT, KEY = str(TLS / "cert.pem"), str(TLS / "key.pem")
DESIGN = ROOT / "tests/config/design.yaml"
FLAGS = ("--grace-s", "0")


def typed(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environ)


async def types(*arguments: str, **environ: str) -> Result:
    return await asyncio.to_thread(typed, *arguments, **environ)


def token_of(name: str, file: Path, *more: str) -> Path:
    """Make a token and return the file of the person who has it."""
    done = typed("token", name, "--file", str(file), *more)
    assert done.exit_code == 0, done.stderr
    (token,) = done.stdout.split()
    assert token not in file.read_text(), "the file holds no secrets"
    own = file.with_name(f"{name}.token")
    own.write_text(done.stdout)
    return own


async def test_an_operator_orders_a_viewer_looks_and_who_has_nothing_gets_a_sentence(tmp_path):
    file = tmp_path / "tokens"
    ada = token_of("ada", file, "--role", "operator", "--for", "90d")
    bob = token_of("bob", file)
    flags = (*FLAGS, "--admin-tokens-file", str(file))
    async with running_server(DESIGN, tmp_path / "state", flags) as server:
        at = ("--admin", server.admin_url)
        drain = ("drain", "a100-0", "--why", "test", *at)

        done = await types("status", *at)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == (
            "xds-server: a token is missing: give one with --token-file or XDS_SERVER_TOKEN_FILE, "
            "or log in on the page\n"
        )
        assert (await types("status", *at, XDS_SERVER_TOKEN_FILE=str(bob))).exit_code == 0
        done = await types(*drain, "--token-file", str(bob))
        assert done.exit_code == 1
        assert done.stderr == ("xds-server: bob may look, not order: the token's role is viewer\n")
        done = await types(*drain, "--token-file", str(ada), "--who", "somebody else")
        assert done.exit_code == 0, done.stderr
        done = await types("events", "--json", *at, "--kind", "operator", "--token-file", str(bob))
        (event,) = map(json.loads, done.stdout.splitlines())
        assert (event["name"], event["who"]) == ("drain_requested", "ada")

        file.write_text(
            "\n".join(each for each in file.read_text().splitlines() if "ada" not in each)
        )
        async with asyncio.timeout(PATIENCE_S):
            while (await types(*drain, "--token-file", str(ada))).exit_code == 0:
                await asyncio.sleep(0.1)
        await server.event("admin_tokens_reloaded")


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("status", ()),
        ("explain", ("chat",)),
        ("proxies", ()),
        ("events", ()),
        ("incident", ("1",)),
        ("drain", ("a100-0", "--why", "x")),
        ("undrain", ("a100-0",)),
        ("force", ("chat/fallback", "--for", "5m", "--why", "x")),
        ("unforce", ()),
        ("record", ("/nowhere/never.gz",)),
        ("diff", (str(DESIGN),)),
    ],
)
@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(None, "No such file or directory: expected a readable file", id="gone"),
        pytest.param(b"", "expected one token and nothing else", id="empty"),
        pytest.param(b"two tokens", "expected one token and nothing else", id="two"),
        pytest.param("\u00fc".encode(), "not ASCII", id="not-ascii"),
    ],
)
def test_every_command_that_asks_a_server_takes_a_token_and_says_what_is_wrong_with_it(
    tmp_path, verb, arguments, content, said
):
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    done = typed(verb, *arguments, "--token-file", str(path))
    assert done.exit_code == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


async def test_elsewhere_than_on_loopback_orders_are_off_and_the_log_says_so(tmp_path):
    flags = (*FLAGS, "--admin-listen", "0.0.0.0:0")
    async with running_server(DESIGN, tmp_path / "state", flags) as server:
        (said,) = server.named("admin_orders_off")
        assert "server.admin_tokens_file is not set" in said["why"]
        at = ("--admin", server.admin_url)
        assert (await types("status", *at)).exit_code == 0
        done = await types("drain", "a100-0", "--why", "x", *at)
        assert (done.exit_code, "orders are off" in done.stderr) == (1, True)


def test_a_broken_file_of_tokens_is_told_at_start_and_nothing_runs(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("ada operator mysecret\n")
    done = subprocess.run(
        command(DESIGN, tmp_path / "state", "--admin-tokens-file", str(file)),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "line 1, SHA-256: 8 characters: expected 64 hexadecimal digits" in done.stderr
    assert "mysecret" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("a b",), 'NAME: "a b": expected at most 63 letters', id="name"),
        pytest.param(("ada", "--for", "soon"), "--for: 'soon': expected a span", id="span"),
        pytest.param(("ada", "--for", "1s"), "expected at least 1m", id="short"),
        pytest.param(("ada", "--for", "90000000w"), "--for", id="for-ever"),
        pytest.param(("ada", "--role", "root"), "'root' is not one of", id="role"),
    ],
)
def test_what_cannot_be_a_token_is_told_and_nothing_is_written(tmp_path, arguments, said):
    file = tmp_path / "tokens"
    done = typed("token", *arguments, "--file", str(file))
    assert done.exit_code == 2
    assert said in done.stderr
    assert not file.exists()


def test_a_file_of_tokens_grows_by_whole_lines_and_keeps_what_it_is(tmp_path):
    file = tmp_path / "tokens"
    token_of("ada", file, "--role", "operator")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o640)
    file.write_text(file.read_text().rstrip("\n"))
    token_of("ada", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [each.name for each in read_tokens(file)] == ["ada", "ada"], "two, while one is replaced"
    assert {each.name for each in tmp_path.iterdir()} == {"ada.token", "tokens"}

    file.write_text("half\n")
    done = typed("token", "bob", "--file", str(file))
    assert (done.exit_code, done.stdout, file.read_text()) == (2, "", "half\n")
    done = typed("token", "bob", "--file", str(tmp_path / "no/folder"))
    assert (done.exit_code, done.stdout) == (1, "")


async def test_the_admin_address_speaks_tls(tmp_path):
    flags = (*FLAGS, "--admin-cert-file", CERT, "--admin-key-file", KEY)
    async with running_server(DESIGN, tmp_path / "state", flags) as server:
        url = server.admin_url.replace("http:", "https:")
        trusting = ssl.create_default_context(cafile=CERT)
        async with (
            aiohttp.ClientSession() as session,
            session.get(url + "/readyz", ssl=trusting) as got,
        ):
            assert got.status == 200
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "xds_server", "status", "--admin", url],
            cwd=ROOT,
            env=os.environ | {"SSL_CERT_FILE": CERT},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        done = await types("status", "--admin", url)
        assert (done.exit_code, "certificate verify failed" in done.stderr) == (1, True)


def bootstrap(server, *flags: str) -> dict:
    done = typed("bootstrap", "--node-id", "edge-1", "--server", server.target, *flags)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--cert-file", "a"), "--cert-file and --key-file: expected both or none"),
        (
            ("--ca-file", "c", "--key-file", "a"),
            "--cert-file and --key-file: expected both or none",
        ),
        (("--cert-file", "a", "--key-file", "b"), "--ca-file: (missing): expected a file"),
    ],
)
def test_a_bootstrap_with_half_of_tls_is_refused(flags, said):
    done = typed("bootstrap", "--node-id", "edge-1", *flags)
    assert (done.exit_code, said in done.stderr) == (2, True)


@pytest.mark.envoy
async def test_a_proxy_believes_a_server_of_another_name_as_little_as_one_without_certificate(
    tmp_path,
):
    flags = (*FLAGS, "--xds-cert-file", CERT, "--xds-key-file", KEY)
    async with running_server(DESIGN, tmp_path / "state", flags) as server:
        for name, host in (("other", "127.0.0.2"), ("same", "localhost")):
            done = typed(
                *("bootstrap", "--node-id", name, "--ca-file", CERT),
                *("--server", f"{host}:{server.xds_port}"),
            )
            given = json.loads(done.stdout)
            (cluster,) = given["static_resources"]["clusters"]
            # It is at this address all the same.
            (lb,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            lb["endpoint"]["address"]["socket_address"]["address"] = "127.0.0.1"
            async with running_envoy(given, tmp_path / name, wait_live=False) as envoy:

                async def is_judged(envoy=envoy, name=name) -> bool:
                    if name == "same":
                        return await envoy.stat("control_plane.connected_state") == 1
                    return sum((await envoy.stats("ssl.fail_verify_san")).values()) > 0

                await envoy.until(is_judged)


@pytest.mark.envoy
async def test_only_proxies_and_agents_with_a_certificate_are_served(tmp_path):
    config = yaml.safe_load(DESIGN.read_text())
    config["listener"] = {"address": "127.0.0.1", "port": 0}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    flags = (*FLAGS, "--xds-cert-file", CERT, "--xds-key-file", KEY, "--xds-client-ca-file", CERT)
    async with running_server(path, tmp_path / "state", flags) as server:
        own = ("--ca-file", CERT, "--cert-file", CERT, "--key-file", KEY)
        async with running_envoy(bootstrap(server, *own), tmp_path / "with"):
            (stands,) = await server.get_json("/debug/syncz")
            assert stands["proxy"]["id"] == "edge-1"
        for name, given in (("without", ()), ("no-certificate", ("--ca-file", CERT))):
            async with running_envoy(
                bootstrap(server, *given), tmp_path / name, wait_live=False
            ) as envoy:

                async def failed(envoy=envoy) -> bool:
                    stats = await envoy.stats(
                        "^cluster[.].*upstream_c(x|onnection)_(connect_fail|destroy)"
                    )
                    return sum(stats.values()) > 0

                await envoy.until(failed, what="a refused connection")
                assert await envoy.stat("control_plane.connected_state") == 0

        agent = {
            "node": "host-1",
            "control_plane": {
                "address": server.target,
                "tls": {"ca": CERT, "cert": CERT, "key": KEY},
            },
            "instances": [{"name": "a100-0", "url": "http://127.0.0.1:9"}],
            "gpu": {"backend": "none"},
            "admin": "127.0.0.1:0",
        }
        (tmp_path / "agent.yaml").write_text(yaml.safe_dump(agent))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar_agent", "run", "-c", str(tmp_path / "agent.yaml")),
            cwd=ROOT,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await server.event("agent_connected")
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), PATIENCE_S)


def other_certificate(directory: Path) -> tuple[str, str]:
    """Make a certificate of another authority for the same name."""
    cert, key = directory / "other.pem", directory / "other.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key)),
            *("-out", str(cert), "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return str(cert), str(key)


async def reaches(server, ca: str) -> bool:
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes())
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(server.target, credentials, options=options) as channel:
        try:
            await asyncio.wait_for(channel.channel_ready(), 2)
        except TimeoutError:
            return False
        return True


async def test_a_renewed_certificate_is_used_without_a_restart_and_a_missing_one_changes_nothing(
    tmp_path,
):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(CERT, cert)
    shutil.copy(KEY, key)
    flags = (*FLAGS, "--xds-cert-file", str(cert), "--xds-key-file", str(key))
    async with running_server(DESIGN, tmp_path / "state", flags) as server:
        await until(lambda: reaches(server, CERT))
        cert.unlink()
        await until(lambda: reaches(server, CERT))
        new_cert, new_key = other_certificate(tmp_path)
        shutil.copy(new_key, key)
        shutil.copy(new_cert, cert)
        await until(lambda: reaches(server, new_cert))
        assert not await reaches(server, CERT)
