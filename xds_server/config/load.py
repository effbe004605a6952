"""A configuration file, read and checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xds_server.config.problems import ConfigError, Problem
from xds_server.core.model import Topology
from xds_server.core.policy import Policy

if TYPE_CHECKING:
    from xds_server.config.istio_schema import IstioSection

MAX_BYTES = 4 * 1024 * 1024
"""A larger file is refused: ten thousand instances need about 1 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One valid configuration file."""

    topology: Topology
    policy: Policy
    server: dict[str, Any]
    """The `server` section as far as it was written; see `settings.py`."""
    istio: IstioSection | None = None
    """The `istio` section as it was written; `xds_server.istio.mesh` makes values of it."""
    text: str = field(default="", repr=False, compare=False)
    """The file as it was read."""
    doubts: tuple[Problem, ...] = field(default=(), compare=False)
    """What works and is hardly meant."""

    @property
    def discovers(self) -> bool:
        """Whether agents may register instances."""
        return any(tier.discovers for model in self.topology.models for tier in model.tiers)

    @property
    def at_start(self) -> tuple[Any, ...]:
        """What is read once, when the process starts: the settings, and which ways lead to an Istio mesh."""
        return self.server, None if self.istio is None else self.istio.routes()


def load_file(path: Path) -> Config:
    """Read and check a configuration file.

    Raises:
        ConfigError: With every problem found.
    """
    source = str(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            problem = Problem(
                "(file)", f"{path.stat().st_size} bytes", f"at most {MAX_BYTES} bytes"
            )
            raise ConfigError(source, [problem])
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            source, [Problem("(file)", f"byte {error.start} is not UTF-8", "text in UTF-8")]
        ) from error
    except OSError as error:
        raise ConfigError(
            source, [Problem("(file)", error.strerror or str(error), "a file that can be read")]
        ) from error
    return load_text(text, source=source)


def load_text(text: str, *, source: str = "config") -> Config:
    """Check the text of a configuration file.

    Raises:
        ConfigError: With every problem found.
    """
    # Pydantic and the schema take as long as all else at the start of a process; most commands read no file.
    from xds_server.config.document import read  # noqa: PLC0415

    return read(text, source)
