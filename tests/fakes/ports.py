"""A port to be had later, for what has to come back under its address."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return a port of the loopback that nobody has, and that the kernel gives to nobody who asks for any port.

    Port 0 is better wherever it will do: between this and its use another program may still name the same.
    """
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("a hundred ports in a row are taken")
