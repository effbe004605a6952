"""The addresses that the process listens on, and what is said where it cannot."""

from __future__ import annotations

import socket
from typing import Any

from xds_server.config.addresses import format_address
from xds_server.config.settings import Settings


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
        got: int = server.add_insecure_port(address)
    except RuntimeError as error:
        raise StartError(
            f"cannot listen on {address} for xDS (choose another with --xds-listen)"
        ) from error
    return got


def bound(host: str, port: int, *, purpose: str, flag: str) -> socket.socket:
    """Return a socket that has the address; it does not listen yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
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
