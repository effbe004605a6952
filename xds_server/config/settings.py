"""Settings of the process, from flags, environment and file, in this order of precedence.

`setting_table.py` is the one table of them: the command line, the environment, the `server` section of
the file and the documentation follow it.
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
from xds_server.config.document import problems_of
from xds_server.config.problems import MISSING, ConfigError, Problem
from xds_server.config.schema import ServerSection
from xds_server.config.setting_table import SETTINGS
from xds_server.config.tls import Tls, tls_of


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
