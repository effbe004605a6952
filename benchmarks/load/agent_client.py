"""N agents in one process: each opens a telemetry stream and sends samples at a fixed rate.

Open loop: messages leave on schedule whatever the server does; what the socket does not take is
counted as dropped (an agent is latest-wins). The engine's detail text carries the sender's monotonic
clock, so that a server on the same machine can tell how old a sample was when it decided.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import select
import socket
import sys
import time

from benchmarks.load.framing import Receiver, StreamEndedError, message, opening
from fleet_protos.telemetry.v1 import telemetry_pb2 as wire

PATH = "/fleet.telemetry.v1.Telemetry/Report"


class Agent:
    """One connection with one telemetry stream."""

    def __init__(self, *, port: int, name: str, instances: list[str]) -> None:
        self.sock = socket.socket()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.connect(("127.0.0.1", port))
        self.receiver = Receiver()
        self.sequence = 0
        self.samples = wire.AgentMessage()
        hello = wire.AgentMessage()
        hello.hello.agent = name
        hello.hello.epoch = int(time.time() * 1000)
        hello.hello.protocol = 1
        for instance in instances:
            hello.hello.instances.add(name=instance)
            self._sample(instance)
        self.sock.sendall(opening(PATH, f"127.0.0.1:{port}") + message(hello.SerializeToString()))
        self.sock.setblocking(False)

    def _sample(self, instance: str) -> None:
        sample = self.samples.samples.samples.add(instance=instance)
        sample.engine.state = wire.ENGINE_STATE_UP
        sample.engine.kv_ratio = 0.5
        sample.engine.running = 10
        sample.engine.waiting = 0
        sample.engine.finished_total = 0
        sample.engine.generation_tokens_total = 0
        sample.gpu.health = wire.GPU_HEALTH_OK
        sample.gpu.memory_kind = wire.MEMORY_KIND_DEDICATED
        sample.gpu.vram_ratio = 0.9
        sample.gpu.vram_free_bytes = 8 << 30

    def send(self, *, wobble: float) -> bool:
        """Send one message with a sample of every instance; return whether the socket took it."""
        self.sequence += 1
        stamp = f"{time.monotonic():.6f}"
        for sample in self.samples.samples.samples:
            sample.sequence = self.sequence
            sample.engine.detail = stamp
            sample.engine.kv_ratio = 0.5 + wobble
            sample.engine.finished_total += 1
            sample.engine.generation_tokens_total += 100
        try:
            self.sock.send(message(self.samples.SerializeToString()))
        except BlockingIOError:
            return False
        return True


def main() -> None:
    """Run from `benchmarks.rig`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--per-agent", type=int, default=1)
    parser.add_argument("--hz", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    epoll = select.epoll()
    agents: dict[int, Agent] = {}
    for number in range(arguments.agents):
        first = number * arguments.per_agent
        names = [f"i{index}" for index in range(first, first + arguments.per_agent)]
        agent = Agent(port=arguments.port, name=f"agent-{number}", instances=names)
        agents[agent.sock.fileno()] = agent
        epoll.register(agent.sock.fileno(), select.EPOLLIN)
    start = time.monotonic()
    end = start + arguments.seconds
    period = 1 / arguments.hz
    due = [(start + random.random() * period, fd) for fd in agents]
    heapq.heapify(due)
    sent = dropped = lost = 0
    while (now := time.monotonic()) < end:
        while due and due[0][0] <= now:
            at, descriptor = heapq.heappop(due)
            if descriptor not in agents:
                continue
            if agents[descriptor].send(wobble=random.uniform(-0.004, 0.004)):
                sent += arguments.per_agent
            else:
                dropped += arguments.per_agent
            heapq.heappush(due, (at + period, descriptor))
            now = time.monotonic()
        timeout = max(0.0, min(0.05, (due[0][0] - now) if due else 0.05))
        for descriptor, _ in epoll.poll(timeout, maxevents=4096):
            agent = agents[descriptor]
            try:
                data = agent.sock.recv(1 << 16)
                if not data:
                    raise StreamEndedError("closed")
                for _body in agent.receiver.feed(data):
                    pass
                if agent.receiver.replies:
                    agent.sock.sendall(b"".join(agent.receiver.replies))
                    agent.receiver.replies.clear()
            except (StreamEndedError, OSError):
                lost += 1
                epoll.unregister(descriptor)
                agents.pop(descriptor).sock.close()
    sys.stdout.write(json.dumps({"sent": sent, "dropped": dropped, "lost": lost}) + "\n")


if __name__ == "__main__":
    main()
