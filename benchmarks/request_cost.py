"""What a request costs in Envoy: a bare route, ours with what a configuration uses, a Python hop beside them.

The same closed-loop client sends the same requests through one Envoy thread each, in turn, several rounds:

* `bare`: a route to a cluster, nothing else;
* `plain`: ours with every option off that needs a filter, so only chains and truth headers;
* `default`: ours as a short configuration has it;
* `everything`: routing by the body's model, rewriting, shorter answers, limits by tokens of the model, of tenants
  and of the fallback, classes, evidence;
* `gated`: the same, and the primary has a limit of its own, which costs a second pass through Envoy's HTTP;
* `ext_proc`: the bare route with a Python ext_proc server that reads headers and body.

The engine is an Envoy of its own that answers at once, or, for `first_byte`, after 50 ms. Ratios are those
of the medians of each round to the bare one's of the same round; their median counts. Rounds are short, so that a
machine that changes its speed does so between rounds and not within one.
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

import yaml

from benchmarks.end_to_end import connected, envoy, running, server
from benchmarks.rig import Child, percentile, spread

TYPES = "type.googleapis.com/envoy.extensions"
DELAY_S = 0.05
INSTANT = ((200, 1), (20_000, 1), (200, 8), (20_000, 8))
SLOW = ((200, 4), (20_000, 4))
"""Sizes of the prompt in bytes, and connections."""


def _listener_config(name: str, filters: list[Any], route: dict[str, Any]) -> dict[str, Any]:
    router = {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{TYPES}.filters.http.router.v3.Router"},
    }
    manager = {
        "@type": f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "http_filters": [*filters, router],
        "route_config": {
            "virtual_hosts": [
                {"name": name, "domains": ["*"], "routes": [{"match": {"prefix": "/"}, **route}]}
            ]
        },
    }
    return {
        "name": name,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "per_connection_buffer_limit_bytes": 8 << 20,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }


def _cluster(name: str, port: int, *, http2: bool = False) -> dict[str, Any]:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    result: dict[str, Any] = {
        "name": name,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }
    if http2:
        result["typed_extension_protocol_options"] = {
            f"{TYPES[20:]}.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{TYPES}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
    return result


def _engine(*, delay_s: float) -> dict[str, Any]:
    """An Envoy that answers by itself once it has read the request."""
    filters: list[Any] = [
        {
            "name": "envoy.filters.http.buffer",
            "typed_config": {
                "@type": f"{TYPES}.filters.http.buffer.v3.Buffer",
                "max_request_bytes": 8 << 20,
            },
        }
    ]
    if delay_s:
        filters.append(
            {
                "name": "envoy.filters.http.fault",
                "typed_config": {
                    "@type": f"{TYPES}.filters.http.fault.v3.HTTPFault",
                    "delay": {
                        "fixed_delay": f"{delay_s}s",
                        "percentage": {"numerator": 100},
                    },
                },
            }
        )
    answer = {"status": 200, "body": {"inline_string": '{"choices": []}'}}
    return {"listeners": [_listener_config("engine", filters, {"direct_response": answer})]}


def _bare(port: int) -> dict[str, Any]:
    route = {"route": {"cluster": "engine", "timeout": "0s"}}
    return {
        "listeners": [_listener_config("bare", [], route)],
        "clusters": [_cluster("engine", port)],
    }


def _ext_proc(port: int, processor: int) -> dict[str, Any]:
    hop = {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "processor"}, "timeout": "5s"},
            "message_timeout": "5s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SKIP",
                "request_body_mode": "BUFFERED",
            },
        },
    }
    route = {"route": {"cluster": "engine", "timeout": "0s"}}
    return {
        "listeners": [_listener_config("ext_proc", [hop], route)],
        "clusters": [_cluster("engine", port), _cluster("processor", processor, http2=True)],
    }


@contextmanager
def _static_envoy(folder: Path, resources: dict[str, Any]) -> Iterator[int]:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    document = {"admin": {"address": address}, "static_resources": resources}
    with running(folder, document) as port:
        yield port


def fleet(kind: str, port: int) -> str:
    """Return the configuration of a case: two tiers on the same engine, and the static one."""

    def tier(name: str, **more: Any) -> dict[str, Any]:
        # The fallback is never asked; addresses must differ.
        address = f"127.0.0.{1 if name == 'primary' else 2}:{port}"
        instance = {"name": f"{kind}-{name}", "address": address, "capacity": 1000}
        return {"name": name, "serves": "chat", "instances": [instance], **more}

    static = {"name": "static", "answer": {"status": 200, "json": {"choices": []}}}
    model: dict[str, Any] = {"name": "chat", "tiers": [tier("primary"), tier("fallback"), static]}
    document: dict[str, Any] = {"listener": {"address": "127.0.0.1", "port": 0}, "models": [model]}
    if kind == "plain":
        document |= PLAIN
    if kind in {"everything", "gated"}:
        large = {"requests_per_second": 1_000_000, "tokens_per_second": 1_000_000_000}
        model["match"] = {"models": ["gpt-bench"]}
        model["limit"] = large
        model["tiers"] = [
            tier("primary", serves="llama-3-70b", **({"limit": large} if kind == "gated" else {})),
            tier("fallback", serves="llama-3-8b", limit=large, max_tokens={"scale": 0.5}),
            static,
        ]
        document |= {
            "classes": [
                {"name": "core", "match": {"header": "x-class", "value": "core"}},
                {"name": "elastic"},
            ],
            "tenants": {"header": "x-tenant", "others": large, "missing": large},
        }
    return yaml.safe_dump(document)


PLAIN: dict[str, Any] = {
    "policy": {
        "failures": {"answer_timeout_s": None, "static_on_5xx": False},
        "evidence": {"access_log": False},
    }
}
"""Every option off that needs a filter, and the log of requests."""


@contextmanager
def static_engine(folder: Path, *, delay_s: float) -> Iterator[int]:
    """Run the engine that answers by itself; yield its port."""
    with _static_envoy(folder, _engine(delay_s=delay_s)) as port:
        yield port


def request(prompt_bytes: int) -> bytes:
    """Return a completion request with a prompt of this size."""
    body = json.dumps(
        {
            "model": "gpt-bench",
            "max_tokens": 128,
            "messages": [{"role": "user", "content": "lorem ip " * (prompt_bytes // 9)}],
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"x-class: core\r\nx-tenant: acme\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Loop:
    """Connections that each send the next request once the last is answered."""

    def __init__(self, port: int, connections: int) -> None:
        self._socks = [connected(port) for _ in range(connections)]
        for sock in self._socks:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(True)

    def run(self, data: bytes, requests: int) -> list[float]:
        """Send this many requests in all; return the time of each to its last byte, in seconds."""
        times: list[float] = []
        sent = 0
        with selectors.DefaultSelector() as selector:
            for sock in self._socks:
                selector.register(sock, selectors.EVENT_READ, [time.perf_counter(), b""])
                sock.sendall(data)
                sent += 1
            while selector.get_map():
                for key, _ in selector.select():
                    answered, state = key.fileobj, key.data
                    assert isinstance(answered, socket.socket)
                    state[1] += answered.recv(65536)
                    if not _is_whole(state[1]):
                        continue
                    times.append(time.perf_counter() - state[0])
                    if sent < requests:
                        sent += 1
                        state[:] = [time.perf_counter(), b""]
                        answered.sendall(data)
                    else:
                        selector.unregister(answered)
        return times

    def close(self) -> None:
        """Close the connections."""
        for sock in self._socks:
            sock.close()


def _is_whole(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not answer:
        raise ConnectionError("closed")
    if not found:
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        raise ValueError(answer[:500].decode())
    if b"\r\ntransfer-encoding: chunked" in head.lower():
        return body.endswith(b"0\r\n\r\n")
    length = next(
        line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    return len(body) >= int(length.split(b":")[1])


@contextmanager
def _proxies(folder: Path, port: int) -> Iterator[dict[str, int]]:
    """Run every case at once, each with its own Envoy; yield their listeners' ports."""
    with ExitStack() as stack:
        processor = stack.enter_context(Child("benchmarks.ext_proc")).hear()["port"]
        ports = {"bare": stack.enter_context(_static_envoy(folder / "bare", _bare(port)))}
        for kind in ("plain", "default", "everything", "gated"):
            (folder / kind).mkdir()
            xds = stack.enter_context(server(folder / kind, fleet(kind, port)))
            here = envoy(folder / kind / "envoy", xds_port=xds, delta=False)
            ports[kind] = stack.enter_context(here)
        hop = _static_envoy(folder / "ext_proc", _ext_proc(port, processor))
        ports["ext_proc"] = stack.enter_context(hop)
        yield ports


def _measure(
    ports: dict[str, int], *, prompt: int, connections: int, requests: int, rounds: int
) -> dict[str, Any]:
    loops = {kind: Loop(port, connections) for kind, port in ports.items()}
    data = request(prompt)
    medians: dict[str, list[float]] = {kind: [] for kind in ports}
    tails: dict[str, list[float]] = {kind: [] for kind in ports}
    for loop in loops.values():
        loop.run(data, max(connections, requests // 10))
    for _ in range(rounds):
        for kind, loop in loops.items():
            times = loop.run(data, requests)
            medians[kind].append(percentile(times, 0.5) * 1e3)
            tails[kind].append(percentile(times, 0.99) * 1e3)
    for loop in loops.values():
        loop.close()
    bare = medians["bare"]
    added = {
        kind: statistics.median(ours - base for ours, base in zip(each, bare, strict=True))
        for kind, each in medians.items()
    }
    return {
        "prompt_bytes": prompt,
        "connections": connections,
        "p50_ms": {kind: spread(each) for kind, each in medians.items()},
        "p99_ms": {kind: spread(each) for kind, each in tails.items()},
        "p50_ratio": {
            kind: spread([ours / base for ours, base in zip(each, bare, strict=True)])
            for kind, each in medians.items()
            if kind != "bare"
        },
        "added_ms": added,
        "ext_proc_over_everything": added["ext_proc"] / added["everything"],
    }


def run(*, quick: bool) -> dict[str, Any]:
    """Measure prompts of 200 B and 20 KB against an instant engine, and the first byte of a slow one."""
    requests, rounds = (200, 2) if quick else (300, 31)
    cases = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for delay_s in (0.0, DELAY_S):
            here = folder / f"delay-{delay_s}"
            here.mkdir()
            with (
                static_engine(here / "engine", delay_s=delay_s) as port,
                _proxies(here, port) as ports,
            ):
                time.sleep(1.0)  # the processes that have just started settle
                # The slow engine is asked by several at once, or it would be waited for most of the time.
                for prompt, connections in SLOW if delay_s else INSTANT:
                    case = _measure(
                        ports,
                        prompt=prompt,
                        connections=connections,
                        requests=100 if delay_s else requests,
                        rounds=min(rounds, 5) if delay_s else rounds,
                    )
                    cases.append({"engine_ms": delay_s * 1e3, **case})
    return {"cases": cases}


if __name__ == "__main__":
    print(json.dumps(run(quick=True), indent=1))
