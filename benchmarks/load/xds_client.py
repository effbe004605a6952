"""N proxies in one process: each opens a connection and an ADS stream, and ACKs everything.

Per stream the sequence is Envoy's: CDS, EDS (by name), LDS, RDS (by name), node only in the first
request, names repeated in every SotW ACK. Once configured, the arrival time of every response is kept
by version (CLOCK_MONOTONIC, comparable with the server's stamp on the same machine).

Commands arrive as JSON lines on standard input, answers leave as JSON lines on standard output:
`{"do": "wait_configured"}`, `{"do": "collect"}` (arrivals since the last one), `{"do": "stall", "count": n}`
(these stop reading), `{"do": "resume"}`, `{"do": "quit"}`.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.load.framing import (
    Receiver,
    StreamEndedError,
    message,
    opening,
    scan,
    text_field,
)

TYPES = {
    short: f"type.googleapis.com/{full}".encode()
    for short, full in (
        ("cds", "envoy.config.cluster.v3.Cluster"),
        ("eds", "envoy.config.endpoint.v3.ClusterLoadAssignment"),
        ("lds", "envoy.config.listener.v3.Listener"),
        ("rds", "envoy.config.route.v3.RouteConfiguration"),
    )
}
NEXT = {TYPES["cds"]: "eds", TYPES["eds"]: "lds", TYPES["lds"]: "rds"}
PATH = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"


class Dialect:
    """The messages of one protocol variant, with everything constant prepared."""

    def __init__(self, *, delta: bool, eds_names: list[str]) -> None:
        self.delta = delta
        self.path = PATH + ("DeltaAggregatedResources" if delta else "StreamAggregatedResources")
        # Field numbers: envoy/service/discovery/v3/discovery.proto.
        self._type_field, self._nonce_field = (2, 6) if delta else (4, 5)
        self._names = {
            TYPES["cds"]: b"",
            TYPES["eds"]: b"".join(text_field(3, name.encode()) for name in eds_names),
            TYPES["lds"]: b"",
            TYPES["rds"]: text_field(3, b"llm"),
        }

    def first(self, node: bytes) -> bytes:
        """Return the first request of a stream, which carries the node."""
        node_field = text_field(1 if self.delta else 2, node)
        return message(node_field + text_field(self._type_field, TYPES["cds"]))

    def subscribe(self, type_url: bytes) -> bytes:
        """Return the initial request of a type."""
        return message(self._names[type_url] + text_field(self._type_field, type_url))

    def ack(self, type_url: bytes, version: bytes, nonce: bytes) -> bytes:
        """Return the ACK of a response."""
        tail = text_field(self._type_field, type_url) + text_field(self._nonce_field, nonce)
        if self.delta:
            return message(tail)
        return message(text_field(1, version) + self._names[type_url] + tail)


class Proxy:
    """One connection with one ADS stream."""

    __slots__ = ("configured", "receiver", "sock", "stalled", "types")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.receiver = Receiver()
        self.types: set[bytes] = set()
        self.configured = False
        self.stalled = False


class Fleet:
    """All proxies of this process and the one loop that serves them."""

    def __init__(self, *, port: int, count: int, dialect: Dialect, node: bytes) -> None:
        self._dialect = dialect
        self._epoll = select.epoll()
        self._proxies: dict[int, Proxy] = {}
        self._acks: dict[bytes, bytes] = {}
        self.arrivals: dict[str, list[float]] = defaultdict(list)
        self.configured_at: list[float] = []
        self.lost = 0
        self.received_bytes = 0
        self.started = time.monotonic()
        for number in range(count):
            self._connect(port, number, node)

    def _connect(self, port: int, number: int, node: bytes) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect(("127.0.0.1", port))
        named = text_field(1, f"proxy-{os.getpid()}-{number}".encode()) + node
        sock.sendall(opening(self._dialect.path, f"127.0.0.1:{port}") + self._dialect.first(named))
        sock.setblocking(False)
        self._proxies[sock.fileno()] = Proxy(sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        if number % 50 == 49:  # serve those that are already there
            self.serve(0)

    def serve(self, timeout: float) -> bool:
        """Handle what is readable; return whether standard input is."""
        commanded = False
        for descriptor, _ in self._epoll.poll(timeout, maxevents=4096):
            if descriptor == 0:
                commanded = True
                continue
            proxy = self._proxies[descriptor]
            try:
                data = proxy.sock.recv(1 << 18)
                if not data:
                    raise StreamEndedError("closed")
                self.received_bytes += len(data)
                for body in proxy.receiver.feed(data):
                    self._response(proxy, body)
                if proxy.receiver.replies:
                    proxy.sock.sendall(b"".join(proxy.receiver.replies))
                    proxy.receiver.replies.clear()
            except (StreamEndedError, OSError):
                self.lost += 1
                self._epoll.unregister(descriptor)
                proxy.sock.close()
        return commanded

    def _response(self, proxy: Proxy, body: bytes) -> None:
        now = time.monotonic()
        fields = scan(body)
        type_url, nonce = fields[4], fields[5]
        if proxy.configured:
            self.arrivals[fields[1].decode()].append(now)
        key = type_url + nonce
        answer = self._acks.get(key)
        if answer is None:
            answer = self._dialect.ack(type_url, fields.get(1, b""), nonce)
            self._acks[key] = answer
        if type_url not in proxy.types:
            proxy.types.add(type_url)
            following = NEXT.get(type_url)
            if following:
                answer += self._dialect.subscribe(TYPES[following])
            else:
                proxy.configured = True
                self.configured_at.append(now)
        proxy.sock.sendall(answer)

    def listen_to_commands(self) -> None:
        """Let `serve` report when a command line is waiting."""
        self._epoll.register(0, select.EPOLLIN)

    def stall(self, count: int) -> None:
        """Stop reading the first `count` streams."""
        for descriptor, proxy in list(self._proxies.items())[:count]:
            proxy.stalled = True
            self._epoll.modify(descriptor, 0)

    def resume(self) -> None:
        """Read every stream again."""
        for descriptor, proxy in self._proxies.items():
            if proxy.stalled:
                proxy.stalled = False
                self._epoll.modify(descriptor, select.EPOLLIN)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run from `benchmarks.rig`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--delta", action="store_true")
    parser.add_argument("--setup", type=Path, required=True, help="JSON: node (hex), eds_names")
    arguments = parser.parse_args()
    setup = json.loads(arguments.setup.read_text())
    dialect = Dialect(delta=arguments.delta, eds_names=setup["eds_names"])
    fleet = Fleet(
        port=arguments.port,
        count=arguments.streams,
        dialect=dialect,
        node=bytes.fromhex(setup["node"]),
    )
    fleet.listen_to_commands()
    waiting: int | None = None
    while True:
        if fleet.serve(0.5):
            line = sys.stdin.readline()
            if not line:
                return
            command = json.loads(line)
            match command["do"]:
                case "wait_configured":
                    waiting = arguments.streams
                case "collect":
                    _say(
                        {
                            "arrivals": fleet.arrivals,
                            "lost": fleet.lost,
                            "bytes": fleet.received_bytes,
                        }
                    )
                    fleet.arrivals = defaultdict(list)
                case "stall":
                    fleet.stall(command["count"])
                    _say({})
                case "resume":
                    fleet.resume()
                    _say({})
                case "quit":
                    return
        if waiting is not None and len(fleet.configured_at) + fleet.lost >= waiting:
            waiting = None
            last = max(fleet.configured_at, default=fleet.started)
            _say({"seconds": last - fleet.started, "lost": fleet.lost})


if __name__ == "__main__":
    main()
