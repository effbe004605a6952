"""Where settings come from: one file, the environment and flags, with one precedence.

Flags win over environment variables, those over the file, the file over the defaults. All problems
are reported at once, each with its path, the value found and what was expected.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from sidecar_agent.identity import agent_name
from sidecar_agent.settings import Settings

DEFAULT_PATH: Final = Path("/etc/gpu-xds/agent.yaml")
ENVIRONMENT: Final = {
    "SIDECAR_AGENT_CONTROL_PLANE": ("control_plane", "address"),
    "SIDECAR_AGENT_TOKEN": ("control_plane", "token"),
    "SIDECAR_AGENT_TOKEN_FILE": ("control_plane", "token_file"),
    "SIDECAR_AGENT_ADMIN": ("admin",),
    "SIDECAR_AGENT_GPU": ("gpu", "backend"),
    "SIDECAR_AGENT_LOG_LEVEL": ("log", "level"),
    "SIDECAR_AGENT_LOG_FORMAT": ("log", "format"),
}
"""Environment variables and the setting each one stands for."""


class SettingsError(Exception):
    """The settings cannot be used; `problems` says all of why, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What the command line says; None or empty = nothing."""

    config: Path | None = None
    control_plane: str | None = None
    instances: tuple[str, ...] = ()
    """`NAME=URL[,key=value...]`, instead of the file's list."""
    gpu: str | None = None
    admin: str | None = None
    node: str | None = None
    log_level: str | None = None
    log_format: str | None = None


def load(
    flags: Flags,
    environment: Mapping[str, str] = os.environ,
    *,
    need_instances: bool = True,
) -> Settings:
    """Return the settings that flags, environment and file make together.

    Raises:
        SettingsError: with every problem found.
    """
    values = _file(flags, environment)
    for variable, path in ENVIRONMENT.items():
        if environment.get(variable):
            _put(values, path, environment[variable])
    for path, value in (
        (("control_plane", "address"), flags.control_plane),
        (("gpu", "backend"), flags.gpu),
        (("admin",), flags.admin),
        (("node",), flags.node),
        (("log", "level"), flags.log_level),
        (("log", "format"), flags.log_format),
    ):
        if value is not None:
            _put(values, path, value)
    if flags.instances:
        values["instances"] = [_instance(text) for text in flags.instances]
    node = values.get("node")
    if node is None or isinstance(node, str):
        values["node"] = agent_name(node or "", environment, socket.gethostname())
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError([_problem(one) for one in error.errors()]) from None
    if need_instances and not settings.instances:
        raise SettingsError(
            ["instances: found none, expected at least one (a file, or --instance NAME=URL)"]
        )
    return settings


def _file(flags: Flags, environment: Mapping[str, str]) -> dict[str, Any]:
    chosen = flags.config or (
        Path(environment["SIDECAR_AGENT_CONFIG"])
        if environment.get("SIDECAR_AGENT_CONFIG")
        else None
    )
    path = chosen or DEFAULT_PATH
    if chosen is None and not path.exists():
        return {}
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - it is a safe one
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read ({error.strerror})"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError([f"{path}: not YAML: {' '.join(str(error).split())}"]) from None
    except RecursionError:
        raise SettingsError([f"{path}: not YAML: nested too deeply"]) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError([f"{path}: found {type(values).__name__}, expected a mapping"])
    return values


_MERGE = "tag:yaml.org,2002:merge"
"""Of `<<`, which may be there more than once."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that is written twice, of which YAML would silently take the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (key.tag, key.value) in seen:
                problem = f"key {key.value!r} twice in a mapping, expected once"
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            seen.add((key.tag, key.value))
        return node


def _put(values: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    for key in path[:-1]:
        below = values.get(key)
        if not isinstance(below, dict):
            below = values[key] = {}
        values = below
    values[path[-1]] = value


def _instance(text: str) -> dict[str, Any]:
    """Read `NAME=URL[,key=value...]`; gpus are separated by +."""
    first, *rest = text.split(",")
    name, equals, url = first.partition("=")
    if not equals:
        raise SettingsError([f"--instance: found {text!r}, expected NAME=URL[,key=value...]"])
    instance: dict[str, Any] = {"name": name, "url": url}
    for pair in rest:
        key, _, value = pair.partition("=")
        instance[key] = value.split("+") if key == "gpus" else value
    return instance


def _problem(error: Mapping[str, Any]) -> str:
    path = ""
    for part in error["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    found = error["input"]
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return f"{path}: unknown key (value {_short(found)}), expected one of the documented keys"
    if error["type"] == "missing":
        return f"{path}: found nothing, expected a value"
    if path.endswith("token"):
        found = "(hidden)"
    if isinstance(found, dict):
        return f"{path}: {message}" if path else message
    return f"{path}: found {_short(found)}, {_expected(message)}"


def _expected(message: str) -> str:
    text = message[:1].lower() + message[1:]
    for start in ("input should be ", "string should "):
        if text.startswith(start):
            return f"expected {text.removeprefix(start)}"
    return text if text.startswith("expected") else f"expected otherwise: {text}"


def _short(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
