"""Settings of the process, from flags, environment and file, in this order of precedence.

`SETTINGS` is the one table of them: the command line, the environment, the `server` section of the
file and the documentation follow it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from xds_server.config.addresses import parse_address
from xds_server.config.admin_tokens import read_tokens
from xds_server.config.load import problems_of
from xds_server.config.problems import MISSING, ConfigError, Problem
from xds_server.config.schema import ServerSection
from xds_server.config.tls import Tls, tls_of

ENV_PREFIX = "XDS_SERVER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table."""

    name: str
    """Key in the file's `server` section."""
    default: str | float | None
    help: str
    number: bool = False

    @property
    def env(self) -> str:
        """Name of the environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Name of the command line flag."""
        return "--" + self.name.replace("_", "-")


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="xds_listen",
        # Neither side is authenticated by default: who lets other hosts in decides so.
        default="127.0.0.1:18000",
        help="ip:port for proxies (xDS) and agents (telemetry); port 0 takes a free one; "
        "0.0.0.0:18000 lets other hosts in.",
    ),
    Setting(
        name="admin_listen",
        default="127.0.0.1:18001",
        help="ip:port of the admin HTTP server (health, metrics, debug, drain).",
    ),
    Setting(
        name="state_dir",
        default=None,
        help="Directory in which the last plan survives a restart; default: $STATE_DIRECTORY "
        "(systemd), else ~/.local/state/gpu-xds.",
    ),
    Setting(
        name="agents_token_file",
        default=None,
        help="File with the bearer token that agents must present; without one, agents may not "
        "register instances.",
    ),
    Setting(
        name="admin_tokens_file",
        default=None,
        help="File of who may look and order at the admin address: one token per line "
        "(docs/security.md, xds-server token).",
    ),
    Setting(
        name="admin_anonymous",
        default=None,
        help="What is permitted without a token: none, viewer or operator. Default: none where there "
        "is a file of tokens, else operator on loopback and viewer elsewhere.",
    ),
    Setting(
        name="xds_cert_file",
        default=None,
        help="TLS for proxies and agents: file of the certificate chain (PEM).",
    ),
    Setting(name="xds_key_file", default=None, help="File of its private key (PEM)."),
    Setting(
        name="xds_client_ca_file",
        default=None,
        help="Only proxies and agents with a certificate of these authorities may connect (PEM).",
    ),
    Setting(
        name="admin_cert_file",
        default=None,
        help="TLS for the admin address: file of the certificate chain (PEM).",
    ),
    Setting(name="admin_key_file", default=None, help="File of its private key (PEM)."),
    Setting(
        name="log_format",
        default="auto",
        help="console, json, or auto: console on a terminal, JSON otherwise.",
    ),
    Setting(name="log_level", default="info", help="debug, info, warning or error."),
    Setting(
        name="grace_s",
        default=5.0,
        number=True,
        help="Without a restored plan, how long proxies wait for the first telemetry.",
    ),
    Setting(
        name="push_gap_ms",
        default=50.0,
        number=True,
        help="Least time between two pushes under a storm of changes; faults do not wait.",
    ),
    Setting(
        name="store_file",
        default=None,
        help="File of the history of events (SQLite); default: events.db in the state directory.",
    ),
    Setting(
        name="store_keep_days",
        default=30.0,
        number=True,
        help="Events that are older are deleted.",
    ),
    Setting(
        name="store_max_bytes",
        default=256.0 * 1024 * 1024,
        number=True,
        help="When the history is larger its oldest events are deleted.",
    ),
    Setting(
        name="traces_url",
        default=None,
        help="Where traces of pushes go: an OTLP/HTTP receiver, like http://127.0.0.1:4318/v1/traces; "
        "needs gpu-xds[otel]; without it there are none.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings as resolved."""

    xds_host: str
    xds_port: int
    admin_host: str
    admin_port: int
    state_dir: Path
    agents_token: str | None
    admin_tokens_file: Path | None
    admin_anonymous: str | None
    xds_tls: Tls | None
    admin_tls: Tls | None
    log_format: str
    log_level: str
    grace_s: float
    push_gap_s: float
    store_file: Path
    store_keep_s: float
    store_max_bytes: int
    traces_url: str | None


def resolve(
    *, flags: Mapping[str, Any], environ: Mapping[str, str], file: Mapping[str, Any]
) -> Settings:
    """Resolve every setting; a flag of None was not given.

    Raises:
        ConfigError: With every value that cannot be used, named as the user wrote it.
    """
    raw: dict[str, Any] = {}
    names: dict[str, str] = {}
    for row in SETTINGS:
        value: Any = row.default
        names[row.name] = f"server.{row.name}"
        if flags.get(row.name) is not None:
            value, names[row.name] = flags[row.name], row.flag
        elif environ.get(row.env):
            value, names[row.name] = environ[row.env], row.env
            value = _number(value) if row.number else value
        elif row.name in file:
            value = file[row.name]
        raw[row.name] = value
    try:
        section = ServerSection.model_validate(raw)
    except ValidationError as error:
        problems = [
            Problem(names.get(each.path, each.path), each.value, each.expected)
            for each in problems_of(error)
        ]
        raise ConfigError("settings", problems) from error
    token = _read_token(names["agents_token_file"], section.agents_token_file)
    if section.admin_tokens_file is not None:
        read_tokens(Path(section.admin_tokens_file))
    return _settings(section, token, environ, names)


def _settings(
    section: ServerSection,
    token: str | None,
    environ: Mapping[str, str],
    names: Mapping[str, str],
) -> Settings:
    xds_host, xds_port = parse_address(section.xds_listen or "", lowest_port=0)
    admin_host, admin_port = parse_address(section.admin_listen or "", lowest_port=0)
    state_dir = Path(section.state_dir) if section.state_dir else default_state_dir(environ)
    return Settings(
        xds_host=xds_host,
        xds_port=xds_port,
        admin_host=admin_host,
        admin_port=admin_port,
        state_dir=state_dir,
        agents_token=token,
        admin_tokens_file=Path(section.admin_tokens_file) if section.admin_tokens_file else None,
        admin_anonymous=section.admin_anonymous,
        xds_tls=tls_of(section, "xds", told=names),
        admin_tls=tls_of(section, "admin", told=names),
        log_format=section.log_format or "auto",
        log_level=section.log_level or "info",
        grace_s=section.grace_s or 0.0,
        push_gap_s=(section.push_gap_ms or 0.0) / 1000,
        store_file=Path(section.store_file) if section.store_file else state_dir / "events.db",
        store_keep_s=(section.store_keep_days or 0.0) * 86400,
        store_max_bytes=int(section.store_max_bytes or 0),
        traces_url=section.traces_url,
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return ipaddress.ip_address(host).is_loopback


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Where state is kept if nobody says otherwise."""
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(os.pathsep)[0])
    home = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME", "."), ".local/state")  # noqa: PTH118
    return Path(home) / "gpu-xds"


def _read_token(name: str, path: str | None) -> str | None:
    if path is None:
        return None
    expected = "a readable file with one token of at least 16 visible ASCII characters"
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("settings", [Problem.of(name, path, expected)]) from error
    if len(token) < 16 or not all("!" <= each <= "~" for each in token):
        raise ConfigError("settings", [Problem(name, path, expected)])
    return token


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def require_token(settings: Settings, *, discovers: bool) -> None:
    """Refuse discovery without authentication: anyone could send traffic anywhere.

    Raises:
        ConfigError: Instances are discovered and no token is set.
    """
    if discovers and settings.agents_token is None:
        expected = "a token, because instances are registered by agents ({discover: agents})"
        raise ConfigError("settings", [Problem.of("server.agents_token_file", MISSING, expected)])
