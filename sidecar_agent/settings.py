"""The agent's settings: one file, the environment and flags, with one precedence.

Flags win over environment variables, those over the file, the file over the defaults. All problems
are reported at once, each with its path, the value found and what was expected.
"""

from __future__ import annotations

import functools
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from yarl import URL

from sidecar_agent.engine.adapters import ADAPTERS, AUTO
from sidecar_agent.engine.adapters.named import FACTS
from sidecar_agent.engine.lifecycle import DEFAULT_HANG_S
from sidecar_agent.identity import agent_name

DEFAULT_PATH: Final = Path("/etc/gpu-xds/agent.yaml")
NAME_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z"
"""The control plane's rule for names of instances: another can neither be configured nor drained there."""
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


def _address(value: str, port_like: int = 8001) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected host:port, for example 127.0.0.1:{port_like}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"expected brackets around an IPv6 host, for example [::1]:{port_like}")
    return value


def _url(value: str) -> str:
    try:
        url = URL(value)
        port = url.port
    except ValueError as error:
        raise ValueError(f"expected a URL, for example http://127.0.0.1:8000 ({error})") from None
    if url.scheme not in {"http", "https"} or not url.host or port is None:
        raise ValueError("expected an http or https URL, for example http://127.0.0.1:8000")
    if url.user or url.password:
        raise ValueError("expected a URL without user and password")
    return value


def _name(value: str) -> str:
    if not re.match(NAME_PATTERN, value):
        raise ValueError(
            "expected a name: at most 63 letters, digits, '.', '_' or '-', none of these at an end"
        )
    return value


def _engine(value: str) -> str:
    if value != AUTO and value not in ADAPTERS:
        raise ValueError(f"expected one of: {', '.join([AUTO, *ADAPTERS])}")
    return value


def _gpu(value: str) -> str:
    if not value.startswith(("GPU-", "MIG-")):
        raise ValueError(
            "expected a GPU's UUID (GPU-... or MIG-..., see nvidia-smi -L); an index is no identity"
        )
    return value


Address = Annotated[str, AfterValidator(_address)]
ControlPlaneAddress = Annotated[str, AfterValidator(functools.partial(_address, port_like=18000))]
AdminAddress = Annotated[str, AfterValidator(functools.partial(_address, port_like=9477))]
ADDRESSES_MAX: Final = 8


def _addresses(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


def _once_each(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(value)) != len(value):
        raise ValueError("expected every control plane once")
    return value


Addresses = Annotated[
    tuple[ControlPlaneAddress, ...],
    BeforeValidator(_addresses),
    AfterValidator(_once_each),
    Field(min_length=1, max_length=ADDRESSES_MAX),
]
"""One address, several with commas between them, or a list."""
Seconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


class InstanceSettings(_Strict):
    """One engine server process and the GPUs it runs on."""

    name: Annotated[str, AfterValidator(_name)]
    url: Annotated[str, AfterValidator(_url)]
    """Base URL of the engine, or the full URL of its metrics page."""
    engine: Annotated[str, AfterValidator(_engine)] = AUTO
    address: Address | None = None
    """ip:port as Envoy sees it; None = the URL's."""
    gpus: tuple[Annotated[str, AfterValidator(_gpu)], ...] = ()
    model: str = ""
    tier: str = ""
    capacity: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Concurrent requests; also used where the engine's page has no slots."""
    kv_capacity_tokens: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    metrics: dict[str, str] = Field(default_factory=dict)
    """Generic engine: fact name to exact sample name."""
    probe_url: Annotated[str, AfterValidator(_url)] | None = None
    """Where `token_probe` asks, if that is not `url`: Triton's metrics have a port of their own."""
    probe_model: Annotated[str, Field(max_length=256)] = ""
    """The engine's own name of its model, for `token_probe`; empty = the first of its /v1/models."""
    hang_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = DEFAULT_HANG_S
    """Work without progress for this long is a hung engine; 0 = never."""

    @model_validator(mode="after")
    def _generic(self) -> Self:
        if self.engine == "generic" and not self.metrics:
            raise ValueError(f"expected metrics: {{fact: sample name}}, facts: {', '.join(FACTS)}")
        if self.engine != "generic" and self.metrics:
            raise ValueError("expected metrics only with engine: generic")
        if unknown := sorted(set(self.metrics) - set(FACTS)):
            raise ValueError(f"expected facts out of {', '.join(FACTS)}; found {unknown}")
        if len(set(self.gpus)) != len(self.gpus):
            raise ValueError("expected every GPU once in gpus")
        return self

    @property
    def endpoint(self) -> str:
        """ip:port of the engine as Envoy sees it."""
        if self.address is not None:
            return self.address
        url = URL(self.url)
        host = f"[{url.host}]" if ":" in (url.host or "") else url.host
        return f"{host}:{url.port}"


class TlsSettings(_Strict):
    """TLS to the control plane; a client certificate makes it mutual."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    server_name: str = ""

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("expected cert and key together")
        return self


class ControlPlaneSettings(_Strict):
    """Where samples go."""

    address: Addresses = ("127.0.0.1:18000",)
    """Each is told everything, by a stream of its own: control planes share nothing."""
    token: str = Field(default="", repr=False)
    token_file: Path | None = None
    tls: TlsSettings | None = None
    keepalive_s: Seconds = 20.0
    keepalive_timeout_s: Seconds = 10.0


class ScrapeSettings(_Strict):
    """How engines are read."""

    interval_s: Seconds = 0.5
    deadline_s: Seconds = 1.0


class TokenProbeSettings(_Strict):
    """Asking every engine for one token now and then, as a client would."""

    enabled: bool = False
    interval_s: Seconds = 10.0
    deadline_s: Seconds = 0.8
    """For one token from an engine with nothing else to do; an engine at work may take longer."""
    api_key_file: Path | None = None
    """Sent as a bearer token (vLLM's and SGLang's --api-key)."""

    @model_validator(mode="after")
    def _deadline(self) -> Self:
        if self.deadline_s > self.interval_s:
            raise ValueError(f"expected deadline_s at most interval_s ({self.interval_s:g})")
        return self


class GpuSettings(_Strict):
    """How GPUs are read."""

    backend: Literal["auto", "nvml", "none"] = "auto"
    interval_s: Seconds = 1.0


class LogSettings(_Strict):
    """How the agent logs."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


class Settings(_Strict):
    """Everything an agent is told."""

    node: Annotated[str, Field(max_length=200)] = ""
    """Name of this agent; empty = NODE_NAME, then the host's name."""
    control_plane: ControlPlaneSettings = Field(default_factory=ControlPlaneSettings)
    instances: tuple[InstanceSettings, ...] = Field(default=(), max_length=256)
    send_interval_s: Seconds = 1.0
    """When nothing moves; the control plane's wish wins."""
    scrape: ScrapeSettings = Field(default_factory=ScrapeSettings)
    token_probe: TokenProbeSettings = Field(default_factory=TokenProbeSettings)
    gpu: GpuSettings = Field(default_factory=GpuSettings)
    admin: AdminAddress = "127.0.0.1:9477"
    log: LogSettings = Field(default_factory=LogSettings)

    @model_validator(mode="after")
    def _unique(self) -> Self:
        problems = []
        for what, values in (
            ("name", [one.name for one in self.instances]),
            ("endpoint address", [one.endpoint for one in self.instances]),
        ):
            seen: set[str] = set()
            for index, value in enumerate(values):
                if value in seen:
                    problems.append(f"instances[{index}]: {what} {value!r} is used twice")
                seen.add(value)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def token(self) -> str:
        """Return the token, read anew from its file so that a rotated one is picked up."""
        if self.control_plane.token_file is not None:
            return self.control_plane.token_file.read_text(encoding="utf-8").strip()
        return self.control_plane.token

    def shown(self) -> dict[str, Any]:
        """Return the effective settings for people, without the token."""
        shown = self.model_dump(mode="json")
        if shown["control_plane"]["token"]:
            shown["control_plane"]["token"] = "(set)"  # noqa: S105 - says that there is one
        return shown


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
    values["node"] = agent_name(str(values.get("node") or ""), environment, socket.gethostname())
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
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read ({error.strerror})"]) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError([f"{path}: not YAML: {' '.join(str(error).split())}"]) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError([f"{path}: found {type(values).__name__}, expected a mapping"])
    return values


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
