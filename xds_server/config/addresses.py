"""Addresses as they are written in files, flags and hellos: `ip:port`, `[ipv6]:port`."""

from __future__ import annotations

import ipaddress


def parse_address(text: str, *, lowest_port: int = 1) -> tuple[str, int]:
    """Split an address into host and port.

    Host names are refused: endpoints travel in EDS, which takes IP addresses only.

    Raises:
        ValueError: It is no `ip:port`; the message says what is wrong.
    """
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise ValueError("no port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError("the host is not an IP address") from None
    if not (port_text.isascii() and port_text.isdigit() and lowest_port <= int(port_text) <= 65535):
        raise ValueError(f"the port is not {lowest_port}-65535")
    return str(ip), int(port_text)


def parse_endpoint(text: str) -> tuple[str, int]:
    """Split an address that is connected to, not listened on.

    Raises:
        ValueError: It is no `ip:port`, or nobody can be reached there; the message says what is wrong.
    """
    host, port = parse_address(text)
    if ipaddress.ip_address(host).is_unspecified:
        raise ValueError(f"{host} is every address of a host and no address to connect to")
    return host, port


def format_address(host: str, port: int) -> str:
    """Join host and port, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
