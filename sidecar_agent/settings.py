"""What the agent may be told, with its defaults; `sources.py` reads it from flags, environment and file."""

from __future__ import annotations

import errno
import functools
import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from yarl import URL

from sidecar_agent.engine.adapters import ADAPTERS, AUTO
from sidecar_agent.engine.adapters.named import FACTS
from sidecar_agent.engine.lifecycle import DEFAULT_HANG_S

NAME_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z"
"""The control plane's rule for names of instances: another can neither be configured nor drained there."""


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


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("expected text without line breaks or other control characters")
    return value


def _engine(value: str) -> str:
    if value != AUTO and value not in ADAPTERS:
        raise ValueError(f"expected one of: {', '.join([AUTO, *ADAPTERS])}")
    return value


def _token(value: str) -> str:
    if not all("!" <= each <= "~" for each in value):
        raise ValueError("expected one token of visible ASCII characters")
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
    token: Annotated[str, AfterValidator(_token)] = Field(default="", repr=False)
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

    node: Annotated[str, Field(max_length=200), AfterValidator(_printable)] = ""
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
        """Return the token, read anew from its file so that a rotated one is picked up.

        Raises:
            OSError: the file cannot be read, or holds what no header can.
        """
        path = self.control_plane.token_file
        if path is None:
            return self.control_plane.token
        token = path.read_text(encoding="utf-8", errors="replace").strip()
        try:
            return _token(token)
        except ValueError as error:
            raise OSError(errno.EINVAL, str(error), str(path)) from None

    def shown(self) -> dict[str, Any]:
        """Return the effective settings for people, without the token."""
        shown = self.model_dump(mode="json")
        if shown["control_plane"]["token"]:
            shown["control_plane"]["token"] = "(set)"  # noqa: S105 - says that there is one
        return shown
