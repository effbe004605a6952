"""The addresses that the process listens on, and what is said where it cannot."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import grpc

from xds_server.config.addresses import format_address
from xds_server.config.settings import Settings
from xds_server.config.tls import Tls


class StartError(Exception):
    """The server cannot start; the text is one sentence for the operator."""


def listen_for_xds(server: Any, settings: Settings) -> int:
    """Let the gRPC server listen and return the port.

    Raises:
        StartError: The address cannot be had.
    """
    host, port = settings.xds_host, settings.xds_port
    address = format_address(host, port)
    # gRPC would say on the terminal, not to us, why it cannot: a socket of our own is asked first.
    bound(host, port, purpose="xDS", flag="--xds-listen").close()
    try:
        got: int = (
            server.add_insecure_port(address)
            if settings.xds_tls is None
            else server.add_secure_port(address, credentials(settings.xds_tls))
        )
    except RuntimeError as error:
        raise StartError(
            f"cannot listen on {address} for xDS (choose another with --xds-listen)"
        ) from error
    return got


def credentials(tls: Tls) -> Any:
    """Return the credentials of a gRPC listener; files that have changed are used from the next connection on.

    Files that cannot be used, such as a new certificate beside the old key, leave what was read last.
    """

    def read() -> Any:
        roots = None if tls.client_ca is None else tls.client_ca.read_bytes()
        pairs = [(tls.key.read_bytes(), tls.cert.read_bytes())]
        return grpc.ssl_server_certificate_configuration(pairs, root_certificates=roots)

    seen = _signatures(tls)
    first = read()

    def changed() -> Any:
        # gRPC asks at every handshake, from a thread of its own.
        nonlocal seen
        found = _signatures(tls)
        if found == seen or tls.trouble():
            return None
        seen = found
        try:
            return read()
        except OSError:
            return None

    return grpc.dynamic_ssl_server_credentials(
        first, changed, require_client_authentication=tls.client_ca is not None
    )


def _signatures(tls: Tls) -> tuple[tuple[int, int, int] | None, ...]:
    return tuple(map(_signature, tls.files))


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def bound(host: str, port: int, *, purpose: str, flag: str) -> socket.socket:
    """Return a socket that has the address; it does not listen yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Without the protocol's number asyncio leaves Nagle's algorithm on for the connections: small answers would wait for the
    # acknowledgment of those before, up to 40 ms.
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
    except OSError as error:
        taken.close()
        raise StartError(
            f"cannot listen on {format_address(host, port)} for {purpose}: {error.strerror} "
            f"(choose another with {flag})"
        ) from error
    return taken
