from __future__ import annotations

import asyncio
import inspect

import pytest

from tests.fakes.waiting import PATIENCE_S
from xds_server import cli
from xds_server.config import watch
from xds_server.config.addresses import format_address, parse_address
from xds_server.config.problems import ConfigError
from xds_server.config.schema import ServerSection
from xds_server.config.settings import SETTINGS, default_state_dir, require_token, resolve


def test_every_setting_has_a_flag_an_environment_variable_and_a_key_of_the_file():
    flags = set(inspect.signature(cli.serve).parameters) - {"config"}
    assert {row.name for row in SETTINGS} == set(ServerSection.model_fields) == flags


@pytest.mark.parametrize(
    ("flags", "environ", "file", "port"),
    [
        pytest.param({}, {}, {}, 18000, id="default"),
        pytest.param({}, {}, {"xds_listen": "127.0.0.1:1"}, 1, id="file"),
        pytest.param(
            {},
            {"XDS_SERVER_XDS_LISTEN": "127.0.0.1:2"},
            {"xds_listen": "127.0.0.1:1"},
            2,
            id="environment-over-file",
        ),
        pytest.param(
            {"xds_listen": "127.0.0.1:0"},
            {"XDS_SERVER_XDS_LISTEN": "127.0.0.1:2"},
            {"xds_listen": "127.0.0.1:1"},
            0,
            id="flag-over-environment",
        ),
    ],
)
def test_flags_win_over_environment_over_file_over_default(flags, environ, file, port):
    assert resolve(flags=flags, environ=environ, file=file).xds_port == port


@pytest.mark.parametrize(
    ("flags", "environ", "file", "expected"),
    [
        pytest.param(
            {"log_level": "loud"}, {}, {}, '--log-level: "loud": expected one of', id="flag"
        ),
        pytest.param(
            {},
            {"XDS_SERVER_GRACE_S": "soon"},
            {},
            'XDS_SERVER_GRACE_S: "soon": expected a number',
            id="environment",
        ),
        pytest.param(
            {},
            {},
            {"push_gap_ms": -1},
            "server.push_gap_ms: -1: expected a number of at least 0",
            id="file",
        ),
        pytest.param(
            {"admin_listen": "here"},
            {},
            {},
            '--admin-listen: "here": expected ip:port',
            id="address",
        ),
    ],
)
def test_a_bad_setting_is_named_as_the_user_wrote_it(flags, environ, file, expected):
    with pytest.raises(ConfigError) as caught:
        resolve(flags=flags, environ=environ, file=file)
    (problem,) = caught.value.problems
    assert str(problem).startswith(expected)


def test_the_token_is_read_from_a_file_and_never_too_weak(tmp_path):
    file = tmp_path / "token"
    for content in ("", "short", "with a space in the middle", "näh" * 10):
        file.write_text(content)
        with pytest.raises(ConfigError, match="at least 16 visible ASCII"):
            resolve(flags={"agents_token_file": str(file)}, environ={}, file={})
    file.write_text("0123456789abcdef\n")
    settings = resolve(flags={"agents_token_file": str(file)}, environ={}, file={})
    assert settings.agents_token == "0123456789abcdef"
    require_token(settings, discovers=True)
    with pytest.raises(ConfigError, match="readable file"):
        resolve(flags={"agents_token_file": str(tmp_path / "no")}, environ={}, file={})


def test_discovery_without_a_token_is_refused():
    settings = resolve(flags={}, environ={}, file={})
    require_token(settings, discovers=False)
    with pytest.raises(ConfigError, match=r"server\.agents_token_file: \(missing\)"):
        require_token(settings, discovers=True)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"STATE_DIRECTORY": "/a:/b", "HOME": "/h"}, "/a", id="systemd"),
        pytest.param({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/gpu-xds", id="xdg"),
        pytest.param({"HOME": "/h"}, "/h/.local/state/gpu-xds", id="home"),
    ],
)
def test_the_state_directory_follows_the_customs_of_the_place(environ, expected):
    assert str(default_state_dir(environ)) == expected


@pytest.mark.parametrize("text", ["10.0.0.1:80", "[::1]:80"])
def test_addresses_survive_parsing_and_formatting(text):
    assert format_address(*parse_address(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("::1:80", "brackets"),
        ("10.0.0.1", "no port"),
        ("10.0.0.1:", "port is not"),
        ("10.0.0.1:٣", "port is not"),
        (":80", "not an IP"),
        ("a.example:80", "not an IP"),
        ("10.0.0.1:0", "port is not"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text, why):
    with pytest.raises(ValueError, match=why):
        parse_address(text)


async def test_a_replaced_file_is_noticed_and_an_equal_one_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "POLL_S", 1)  # of a file system that gives no notice
    file = tmp_path / "config.yaml"
    file.write_text("one")
    stop = asyncio.Event()
    seen: asyncio.Queue[str | None] = asyncio.Queue()

    async def follow():
        async for text in watch.changes(file, stop, known="one"):
            seen.put_nowait(text)

    async with asyncio.TaskGroup() as group:
        group.create_task(follow(), name="watch")
        for content in ("one", "two", "three"):
            (tmp_path / "new").write_text(content)
            (tmp_path / "new").replace(file)
            if content != "one":
                async with asyncio.timeout(PATIENCE_S):
                    while await seen.get() != content:
                        pass
        file.unlink()
        assert await asyncio.wait_for(seen.get(), PATIENCE_S) is None
        file.write_text("three")
        assert await asyncio.wait_for(seen.get(), PATIENCE_S) == "three"
        stop.set()
    assert seen.empty()
