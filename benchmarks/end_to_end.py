"""From an agent's sample to the first request that obeys it, through a real Envoy.

The instance of the primary tier is drained and taken back in turn by its agent, so every change moves
all requests to the fallback tier or back; recovery has one stage without a hold and shares move as fast
as they like, so that nothing but the path is measured. The clock starts before the sample is written to the socket and stops when the
first answer of the new tier has been read; requests follow each other on one connection. The baseline
pushes prepared route bytes from the bare server to the same Envoy.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fleet import model_plan
from benchmarks.load.agent_client import PATH
from benchmarks.load.framing import message, opening
from benchmarks.rig import Child, percentile
from demo.stage import envoy_binary
from fleet_protos.telemetry.v1 import telemetry_pb2 as wire
from xds_server.config.load import load_text
from xds_server.core.plan import Plan
from xds_server.core.policy import Policy
from xds_server.resources.bootstrap import bootstrap
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER, ENDPOINT, LISTENER, ROUTE

BODY = b'{"model": "m", "messages": []}'
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: " + str(len(BODY)).encode() + b"\r\n\r\n" + BODY
)
START_S = 30.0


def config(primary: int, fallback: int) -> str:
    """Return a fleet of one instance per tier, on these ports."""
    return yaml.safe_dump(
        {
            "listener": {"address": "127.0.0.1", "port": 0},
            "models": [
                {
                    "name": "chat",
                    "match": {"domains": ["*"], "prefix": "/v1/"},
                    "tiers": [
                        {
                            "name": name,
                            "serves": name,
                            "instances": [
                                {"name": name, "address": f"127.0.0.1:{port}", "capacity": 40}
                            ],
                        }
                        for name, port in (("primary", primary), ("fallback", fallback))
                    ]
                    + [{"name": "static", "answer": {"status": 200, "json": {"choices": []}}}],
                }
            ],
            "policy": {
                "recovery": {"stages": [1.0], "hold_s": 0.001, "quarantine_faults": 1000},
                "spill": {"rise_per_s": 1000.0, "fall_per_s": 1000.0, "ease_per_s": 1000.0},
            },
        }
    )


def connected(port: int) -> socket.socket:
    """Connect; Envoy names a listener a moment before its workers accept on it."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Client:
    """One keep-alive connection through Envoy."""

    def __init__(self, port: int) -> None:
        self._sock = connected(port)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def served_by(self) -> str:
        """Send one request and return `x-served-model`."""
        self._sock.sendall(REQUEST)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(
            line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if b": " in line
        )
        missing = int(fields[b"content-length"]) - len(body)
        while missing > 0:
            missing -= len(self._receive())
        return fields[b"x-served-model"].decode()

    def _receive(self) -> bytes:
        data = self._sock.recv(65536)
        if not data:
            raise ConnectionError("Envoy closed the connection")
        return data

    def until(self, model: str, since: float) -> float:
        """Send requests until `model` answers; return the seconds since `since`."""
        while self.served_by() != model:
            if time.monotonic() - since > 10:
                raise TimeoutError(f"{model} never answered")
        return time.monotonic() - since


class Agent:
    """One telemetry stream that speaks for both instances."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = wire.AgentMessage()
        hello.hello.agent, hello.hello.protocol = "bench", 1
        hello.hello.epoch = int(time.time() * 1000)
        for name in ("primary", "fallback"):
            hello.hello.instances.add(name=name)
        self._sock.sendall(opening(PATH, f"127.0.0.1:{port}") + message(hello.SerializeToString()))
        self._sequence = 0

    def say(self, *, draining: bool) -> float:
        """Send a sample of both; return the time just before."""
        self._sequence += 1
        told = wire.AgentMessage()
        for name in ("primary", "fallback"):
            sample = told.samples.samples.add(instance=name, sequence=self._sequence)
            sample.engine.state = wire.ENGINE_STATE_UP
            sample.engine.kv_ratio, sample.engine.running, sample.engine.waiting = 0.3, 5, 0
            sample.draining = draining and name == "primary"
        data = message(told.SerializeToString())
        at = time.monotonic()
        self._sock.sendall(data)
        return at


@contextmanager
def envoy(folder: Path, *, xds_port: int, delta: bool) -> Iterator[int]:
    """Run an Envoy that is configured by xDS and yield the port of its listener."""
    document = bootstrap(
        node_id="bench",
        cluster="bench",
        xds_host="127.0.0.1",
        xds_port=xds_port,
        admin_port=0,
        delta=delta,
    )
    with running(folder, document) as port:
        yield port


@contextmanager
def running(folder: Path, document: dict[str, Any]) -> Iterator[int]:
    """Run an Envoy of one worker with a bootstrap and yield the port of its first listener."""
    folder.mkdir()
    (folder / "envoy.json").write_text(json.dumps(document))
    admin = folder / "admin"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(str(envoy_binary()), "-c", str(folder / "envoy.json"), "--concurrency", "1"),
                *("-l", "warning", "--disable-hot-restart", "--admin-address-path", str(admin)),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _listener(process, admin)
    finally:
        process.terminate()
        process.wait(10)


def _listener(process: subprocess.Popen[bytes], admin: Path) -> int:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
        if not admin.exists() or not admin.read_text():
            continue
        url = f"http://{admin.read_text()}/listeners?format=json"
        with urllib.request.urlopen(url, timeout=5) as answer:
            page = json.load(answer)
        for each in page.get("listener_statuses", ()):
            port = each["local_address"].get("socket_address", {}).get("port_value")
            if port:
                return int(port)
    raise TimeoutError("Envoy got no listener")


@contextmanager
def server(folder: Path, text: str) -> Iterator[int]:
    """Run `xds-server serve` and yield its xDS port."""
    path = folder / "fleet.yaml"
    path.write_text(text)
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "xds_server", "serve", str(path), "--log-format", "json"),
                *("--xds-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
                *("--grace-s", "0.1", "--state-dir", str(folder / "state")),
            ],
            stdout=output,
            stderr=output,
        )
    try:
        yield _xds_port(process, log)
    finally:
        process.terminate()
        process.wait(10)


def _xds_port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
        for line in log.read_text().splitlines():
            if line.startswith("{") and "xds_port" in (told := json.loads(line)):
                return int(told["xds_port"])
    raise TimeoutError(f"the control plane did not start: {log.read_text()}")


def summary(times: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    return {
        "changes": len(times),
        **{
            name: percentile(times, share) * 1e3
            for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99))
        },
        "worst_ms": max(times) * 1e3,
    }


def product(folder: Path, text: str, *, delta: bool, changes: int) -> dict[str, float]:
    """Measure the whole path."""
    with ExitStack() as stack:
        port = stack.enter_context(server(folder, text))
        agent = Agent(port)
        agent.say(draining=False)
        client = Client(stack.enter_context(envoy(folder / "envoy", xds_port=port, delta=delta)))
        client.until("primary", time.monotonic())
        times = []
        for number in range(changes):
            drain = number % 2 == 0
            times.append(
                client.until("fallback" if drain else "primary", agent.say(draining=drain))
            )
            time.sleep(0.07)  # an isolated change: the last push is longer ago than the throttle
    return summary(times)


def baseline(folder: Path, text: str, *, delta: bool, changes: int) -> dict[str, float]:
    """Measure the push alone, with prepared bytes."""
    topology = load_text(text, source="bench").topology
    builder = SnapshotBuilder(topology, Policy(), Capability.COMPOSITE)
    (model,) = topology.models
    bodies = {}
    for name, weights in (("primary", (1000, 0, 0)), ("fallback", (0, 1000, 0))):
        plan = Plan(
            models=(model_plan(model, tier_weights=weights, weight=1000),), next_deadline=None
        )
        snapshot = builder.build(plan)
        bodies[name] = {
            url: [(r.name, r.body.hex()) for r in snapshot.of_type(url).resources.values()]
            for url in (CLUSTER, ENDPOINT, LISTENER, ROUTE)
        }
    setup = folder / "setup.json"
    setup.write_text(json.dumps({"bodies": bodies["primary"]}))
    with ExitStack() as stack:
        bare = stack.enter_context(Child("benchmarks.bare_server", "--setup", str(setup)))
        port = bare.hear()["port"]
        client = Client(stack.enter_context(envoy(folder / "bare", xds_port=port, delta=delta)))
        client.until("primary", time.monotonic())
        times = []
        for number in range(changes):
            name = "fallback" if number % 2 == 0 else "primary"
            sent = bare.ask(do="swap", type_url=ROUTE, bodies=bodies[name][ROUTE])
            times.append(client.until(name, sent["at"]))
            time.sleep(0.07)
    return summary(times)


def run(*, quick: bool) -> dict[str, Any]:
    """Measure SotW and delta, product and baseline in turn."""
    changes, rounds = (20, 1) if quick else (200, 3)
    result: dict[str, Any] = {}
    for delta in (False, True):
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
                folder = Path(name)
                ports = [
                    stack.enter_context(Child("benchmarks.backend")).hear()["port"]
                    for _ in range(2)
                ]
                text = config(*ports)
                for key, measure in (("gpu-xds", product), ("bare push", baseline)):
                    result.setdefault(f"{key}/{'delta' if delta else 'sotw'}", []).append(
                        measure(folder, text, delta=delta, changes=changes)
                    )
    return result


if __name__ == "__main__":
    print(json.dumps(run(quick=True), indent=1))
