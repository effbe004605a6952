"""What the endpoint picker costs a gateway's requests: one Envoy with it, the same Envoy without it.

The gateway has the filters that Istio gives it for an InferencePool. The picker is a process of its own, so that its
CPU time is its own. The engine answers at once, or streams events that carry the time at which they left it.

* `passed`: the body has no say, and goes through as it comes;
* `read`: the body's `model` is read and rewritten, so the whole of it is held;
* `grpc`: as `read`, served by grpc.aio instead of the picker's own framing;
* requests/s per core are requests by seconds of the picker's CPU (user and system, all threads).
"""

from __future__ import annotations

import json
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.end_to_end import connected, running
from benchmarks.request_cost import Loop, request
from benchmarks.request_cost import static_engine as instant_engine
from benchmarks.rig import Child, percentile, spread
from tests.fakes.inference_gateway import bootstrap

PICKERS = {
    "passed": ("gpt-bench", "framed"),
    "read": ("llama-3-70b", "framed"),
    "grpc": ("llama-3-70b", "grpc"),
}
"""What the tier serves, where clients ask for gpt-bench; and the transport."""
CASES = ((200, 1), (20_000, 1), (200, 16), (20_000, 16))
"""Sizes of the prompt in bytes, and connections."""
STREAMS, EVENTS, GAP_S = 16, 100, 0.02


@contextmanager
def _gateways(folder: Path, engine: int) -> Iterator[tuple[dict[str, int], dict[str, Child]]]:
    """Run the gateway with each picker and without one; yield their ports and the pickers."""
    with ExitStack() as stack:
        bare = bootstrap(picker=[], ports=[engine], is_bare=True)
        ports = {"bare": stack.enter_context(_gateway(folder / "bare", bare))}
        pickers = {}
        for kind, about in PICKERS.items():
            picker = stack.enter_context(Child("benchmarks.picker_server", str(engine), *about))
            config = bootstrap(picker=[picker.hear()["port"]], ports=[engine])
            ports[kind] = stack.enter_context(_gateway(folder / kind, config))
            pickers[kind] = picker
        yield ports, pickers


@contextmanager
def _gateway(folder: Path, document: dict[str, Any]) -> Iterator[int]:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    with running(folder, {"admin": {"address": address}, **document}) as port:
        yield port


def _requests(
    ports: dict[str, int],
    pickers: dict[str, Child],
    *,
    prompt: int,
    connections: int,
    requests: int,
    rounds: int,
) -> dict[str, Any]:
    loops = {kind: Loop(port, connections) for kind, port in ports.items()}
    data = request(prompt)
    medians: dict[str, list[float]] = {kind: [] for kind in ports}
    tails: dict[str, list[float]] = {kind: [] for kind in ports}
    rates: dict[str, list[float]] = {kind: [] for kind in ports}
    spent = dict.fromkeys(pickers, 0.0)
    for loop in loops.values():
        loop.run(data, max(connections, requests // 10))
    for _ in range(rounds):
        for kind, loop in loops.items():
            before = pickers[kind].cpu_s() if kind in pickers else 0.0
            started = time.perf_counter()
            times = loop.run(data, requests)
            rates[kind].append(requests / (time.perf_counter() - started))
            medians[kind].append(percentile(times, 0.5) * 1e3)
            tails[kind].append(percentile(times, 0.99) * 1e3)
            if kind in pickers:
                spent[kind] += pickers[kind].cpu_s() - before
    for loop in loops.values():
        loop.close()
    return {
        "prompt_bytes": prompt,
        "connections": connections,
        "p50_ms": {kind: spread(each) for kind, each in medians.items()},
        "p99_ms": {kind: spread(each) for kind, each in tails.items()},
        "requests_per_s": {kind: spread(each) for kind, each in rates.items()},
        "added_p50_ms": {
            kind: statistics.median(
                ours - base for ours, base in zip(medians[kind], medians["bare"], strict=True)
            )
            for kind in pickers
        },
        "picker_cpu_us_per_request": {
            kind: 1e6 * each / (requests * rounds) for kind, each in spent.items()
        },
        "requests_per_s_per_core": {
            kind: requests * rounds / each if each else None for kind, each in spent.items()
        },
    }


def _stream(port: int, connections: int) -> list[float]:
    """Read one stream per connection; return how old each event was when it came, in seconds.

    They begin one after the other within the gap between two events: a transport that is slow at the start would
    otherwise spread them by itself, and the quick one would have them all at once.
    """
    ages: list[float] = []
    data = request(200)
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        waiting = []
        for _ in range(connections):
            sock = stack.enter_context(connected(port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(sock, selectors.EVENT_READ, bytearray())
            waiting.append(sock)
        begins = time.monotonic()
        while selector.get_map():
            if waiting and time.monotonic() >= begins:
                waiting.pop().sendall(data)
                begins += GAP_S / connections
            timeout_s = max(0.0, begins - time.monotonic()) if waiting else None
            for key, _ in selector.select(timeout_s):
                readable, read = key.fileobj, key.data
                assert isinstance(readable, socket.socket)
                got = readable.recv(65536)
                now = time.monotonic_ns()
                if not got:
                    raise ConnectionError("closed in the middle of a stream")
                read += got
                while (end := read.find(b"\n\n")) >= 0:
                    start = read.find(b"data: ")
                    ages.append((now - int(read[start + 6 : end])) / 1e9)
                    del read[: end + 2]
                if read.endswith(b"0\r\n\r\n"):
                    selector.unregister(readable)
    return ages


def _streams(ports: dict[str, int], pickers: dict[str, Child], *, rounds: int) -> dict[str, Any]:
    ages: dict[str, list[float]] = {kind: [] for kind in ports}
    spent = dict.fromkeys(pickers, 0.0)
    for _ in range(rounds):
        for kind, port in ports.items():
            before = pickers[kind].cpu_s() if kind in pickers else 0.0
            ages[kind] += _stream(port, STREAMS)
            if kind in pickers:
                spent[kind] += pickers[kind].cpu_s() - before
    return {
        "streams": STREAMS,
        "events_per_stream": EVENTS,
        "events_per_s": STREAMS / GAP_S,
        "event_age_p50_ms": {kind: percentile(each, 0.5) * 1e3 for kind, each in ages.items()},
        "event_age_p99_ms": {kind: percentile(each, 0.99) * 1e3 for kind, each in ages.items()},
        "picker_cpu_us_per_event": {
            kind: 1e6 * each / len(ages[kind]) for kind, each in spent.items()
        },
    }


def run(*, quick: bool) -> dict[str, Any]:
    """Measure requests of 200 B and 20 KB, and streams."""
    requests, rounds = (200, 2) if quick else (400, 15)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "requests").mkdir()
        (folder / "streams").mkdir()
        with (
            instant_engine(folder / "engine", delay_s=0.0) as engine,
            _gateways(folder / "requests", engine) as (ports, pickers),
        ):
            time.sleep(1.0)  # the processes that have just started settle
            cases = [
                _requests(
                    ports,
                    pickers,
                    prompt=prompt,
                    connections=connections,
                    requests=requests,
                    rounds=rounds,
                )
                for prompt, connections in CASES
            ]
            memory = {kind: each.rss_bytes() / 2**20 for kind, each in pickers.items()}
        with Child("benchmarks.streaming_engine", str(EVENTS), str(GAP_S)) as streaming:
            port = streaming.hear()["port"]
            with _gateways(folder / "streams", port) as (ports, pickers):
                time.sleep(1.0)
                streams = _streams(ports, pickers, rounds=1 if quick else 5)
    return {"requests": cases, "streams": streams, "picker_rss_mib": memory}


if __name__ == "__main__":
    print(json.dumps(run(quick=True), indent=1))
