"""The files of a listener's TLS, and whether they fit together."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from xds_server.config.problems import MISSING, ConfigError, Problem
from xds_server.config.schema import ServerSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The files of a listener's TLS, in PEM."""

    cert: Path
    """The chain, the server's own first."""
    key: Path
    client_ca: Path | None = None
    """Clients must have a certificate of these; None = they need none."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        both = (self.cert, self.key)
        return both if self.client_ca is None else (*both, self.client_ca)

    def trouble(self) -> str:
        """Return why a listener cannot use the files as they are now; empty = it can."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # An encrypted key would be asked for on the terminal.
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except (OSError, ValueError) as error:
            return str(error.strerror if isinstance(error, OSError) and error.strerror else error)
        return ""


def tls_of(section: ServerSection, side: str, *, told: Mapping[str, str]) -> Tls | None:
    """Return the TLS of a listener; None = it has none.

    Args:
        section: The settings.
        side: `xds` or `admin`.
        told: By setting, the name under which it was told: the file's key, a variable or a flag.

    Raises:
        ConfigError: A file is missing, cannot be read, or does not fit the others.
    """
    names = [f"{side}_{part}_file" for part in ("cert", "key", "client_ca")]
    paths = [getattr(section, name, None) for name in names]
    if not any(paths):
        return None
    problems = list(_problems(dict(zip(names, paths, strict=True)), told))
    if problems:
        raise ConfigError("settings", problems)
    cert, key, client_ca = (Path(path) if path else None for path in paths)
    assert cert is not None
    assert key is not None
    made = Tls(cert=cert, key=key, client_ca=client_ca)
    if trouble := made.trouble():
        expected = f"certificate and key that fit and are not encrypted ({trouble})"
        raise ConfigError("settings", [Problem.of(told[names[0]], str(cert), expected)])
    return made


def _problems(files: Mapping[str, str | None], told: Mapping[str, str]) -> Iterator[Problem]:
    given = [name for name, path in files.items() if path]
    for name, path in files.items():
        if not path:
            if not name.endswith("client_ca_file"):
                expected = f"a file, as there is {told[given[0]]}"
                yield Problem.of(told[name], MISSING, expected)
            continue
        try:
            is_pem = "-----BEGIN " in Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            is_pem = False
        if not is_pem:
            yield Problem.of(told[name], path, "a readable file in PEM")
