"""Write the configuration of a fleet whose engines are given as URLs in the environment.

compose.engines.yaml runs this once before everything else; it needs nothing but the product's image.

    PRIMARY_URLS    URLs of the engines of the first model, separated by spaces
    PRIMARY_MODEL   the name that those engines serve it under
    FALLBACK_URLS   the same for the model to fall back to; without it there is only the static answer
    FALLBACK_MODEL
    CAPACITY        requests that one engine runs at once, 40 where nothing is said
    PUBLIC_MODEL    the name that clients ask for, "chat" where nothing is said

Two files are written into the folder given as the argument: `fleet.yaml` for the control plane and
`agent.yaml` for the agent. Envoy wants ip:port, so host names are looked up now: start it again after
an engine has moved.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

BUSY = "The service is busy, please try again shortly."
DEFAULT_CAPACITY = "40"
DEFAULT_MODEL = "chat"
TIERS = ("primary", "fallback")

Document = dict[str, Any]


class UrlsError(Exception):
    """The environment cannot be used; the text says which variable, what it holds and what is expected."""


def documents(
    environment: Mapping[str, str], resolve: Callable[[str], str] = socket.gethostbyname
) -> tuple[Document, Document]:
    """Return the configurations of control plane and agent.

    Raises:
        UrlsError: a variable is missing or wrong, or a host has no address.
    """
    capacity = _capacity(environment)
    tiers: list[Document] = []
    watched: list[Document] = []
    for tier in TIERS:
        urls = environment.get(f"{tier.upper()}_URLS", "").split()
        if not urls:
            continue
        served = environment.get(f"{tier.upper()}_MODEL", "").strip()
        if not served:
            raise UrlsError(
                f"{tier.upper()}_MODEL is empty; expected the name that the engines serve their model under"
            )
        instances: list[Document] = []
        for number, url in enumerate(urls):
            name = f"{tier}-{number}"
            address = _address(f"{tier.upper()}_URLS", url, resolve)
            instances.append({"name": name, "address": address, "capacity": capacity})
            watched.append({"name": name, "url": url, "address": address, "capacity": capacity})
        tiers.append({"name": tier, "serves": served, "instances": instances})
    if not tiers or tiers[0]["name"] != TIERS[0]:
        raise UrlsError(
            "PRIMARY_URLS is empty; expected one or more URLs, like http://10.0.0.7:8000"
        )
    answer = {"choices": [{"message": {"role": "assistant", "content": BUSY}}]}
    tiers.append({"name": "static", "answer": {"status": 200, "json": answer}})
    model = environment.get("PUBLIC_MODEL") or DEFAULT_MODEL
    fleet = {
        "listener": {"address": "0.0.0.0", "port": 10000},
        "models": [{"name": model, "match": {"domains": ["*"], "prefix": "/v1/"}, "tiers": tiers}],
    }
    return fleet, {"instances": watched}


def _address(variable: str, url: str, resolve: Callable[[str], str]) -> str:
    expected = "expected URLs without a path, like http://10.0.0.7:8000"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UrlsError(f"{variable}: {url!r}; {expected}") from None
    if parts.scheme != "http" or not host or parts.path.strip("/") or parts.query:
        raise UrlsError(f"{variable}: {url!r}; {expected}")
    try:
        ip = resolve(host)
    except OSError as error:
        raise UrlsError(f"{variable}: {url!r}: no address for {host} ({error.strerror})") from None
    return f"{ip}:{port or 80}"


def _capacity(environment: Mapping[str, str]) -> int:
    text = environment.get("CAPACITY") or DEFAULT_CAPACITY
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UrlsError(f"CAPACITY: {text!r}; expected a whole number above 0")
    return int(text)


def main(arguments: list[str], environment: Mapping[str, str] = os.environ) -> int:
    """Write both files; 2 and one sentence when the environment cannot be used."""
    if len(arguments) != 1:
        print("usage: from_urls.py FOLDER", file=sys.stderr)
        return 2
    try:
        fleet, agent = documents(environment)
    except UrlsError as error:
        print(f"from_urls: {error}", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    for name, document in (("fleet.yaml", fleet), ("agent.yaml", agent)):
        partial = folder / f".{name}"
        partial.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        # In one step: a server that watches the file never sees half of it.
        partial.replace(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
