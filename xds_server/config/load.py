"""A configuration file, read and checked."""

from __future__ import annotations

from pathlib import Path

from xds_server.config.config import Config
from xds_server.config.problems import ConfigError, Problem

MAX_BYTES = 4 * 1024 * 1024
"""A larger file is refused: ten thousand instances need about 1 MB."""


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
