"""The agent's own Prometheus page, read from its state when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sidecar_agent.agent import Agent
from sidecar_agent.engine.token_watch import applied
from sidecar_agent.gpu.facts import GpuSnapshot
from sidecar_agent.gpu.worker import GpuWorker

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class _AgentCollector(Collector):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        yield from self._stream()
        yield from self._instances()
        if self._agent.gpu is not None:
            snapshot = self._agent.gpu.latest()
            state = GaugeMetricFamily(
                "fleet_agent_gpu_driver", "1 for the state the driver is in", labels=["state"]
            )
            state.add_metric([snapshot.driver.value], 1)
            yield state
            if snapshot.read_at is not None:
                yield GaugeMetricFamily(
                    "fleet_agent_gpu_age_seconds",
                    "Age of the newest GPU reading",
                    value=self._agent.clock() - snapshot.read_at,
                )
            yield CounterMetricFamily(
                "fleet_agent_gpu_rejected_values",
                "GPU values that were out of range",
                value=snapshot.rejected,
            )
            yield from _devices(self._agent.gpu, snapshot)

    def _stream(self) -> Iterator[Metric]:
        status, slots = self._agent.uplink.status, self._agent.uplink.slots
        now = self._agent.clock()
        yield GaugeMetricFamily(
            "fleet_agent_connected", "Whether the stream is up", value=status.connected
        )
        for name, help_text, value in (
            ("streams", "Streams that the control plane welcomed", status.streams),
            ("messages", "Messages sent", status.messages),
            ("samples", "Samples sent", status.samples),
            ("superseded_samples", "Samples replaced before they were sent", slots.superseded),
            ("expired_samples", "Samples that got too old to send", slots.expired),
        ):
            yield CounterMetricFamily(f"fleet_agent_{name}", help_text, value=value)
        yield GaugeMetricFamily(
            "fleet_agent_send_interval_seconds",
            "Time between samples when nothing moves",
            value=slots.interval_s,
        )
        for name, help_text, at in (
            ("sent", "Time since the last message was sent", status.last_sent_at),
            ("ack", "Time since the last ack arrived", status.last_ack_at),
        ):
            if at is not None:
                yield GaugeMetricFamily(
                    f"fleet_agent_last_{name}_seconds", help_text, value=now - at
                )

    def _instances(self) -> Iterator[Metric]:
        now = self._agent.clock()
        scrapes = CounterMetricFamily(
            "fleet_agent_scrapes", "Scrapes by outcome", labels=["instance", "outcome"]
        )
        rejected = CounterMetricFamily(
            "fleet_agent_rejected_values", "Engine values out of range", labels=["instance"]
        )
        restarts = CounterMetricFamily(
            "fleet_agent_engine_restarts", "Engine restarts seen", labels=["instance"]
        )
        age = GaugeMetricFamily(
            "fleet_agent_age_seconds", "Age of what is said last", labels=["instance"]
        )
        took = GaugeMetricFamily(
            "fleet_agent_scrape_seconds", "Duration of the last scrape", labels=["instance"]
        )
        state = GaugeMetricFamily(
            "fleet_agent_engine_state", "1 for the engine's state", labels=["instance", "state"]
        )
        draining = GaugeMetricFamily(
            "fleet_agent_draining", "Whether the instance drains", labels=["instance"]
        )
        tokens = CounterMetricFamily(
            "fleet_agent_token_probes",
            "Requests for one token, by how they ended",
            labels=["instance", "reply"],
        )
        for name, one in self._agent.instances.items():
            for reply, count in sorted(one.replies.items()):
                tokens.add_metric([name, reply], count)
            for outcome, count in sorted(one.outcomes.items()):
                scrapes.add_metric([name, outcome], count)
            rejected.add_metric([name], one.rejected)
            restarts.add_metric([name], one.engine.lifetime.count)
            if one.said_at is not None:
                age.add_metric([name], now - one.said_at)
            if one.outcome is not None:
                took.add_metric([name], one.outcome.took_s)
            facts = one.engine.facts
            if facts is not None:
                facts = applied(facts, one.tokens)
            state.add_metric([name, facts.state.value if facts else "unread"], 1)
            draining.add_metric([name], one.draining)
        yield from (scrapes, rejected, restarts, age, took, state, draining, tokens)


def _devices(worker: GpuWorker, snapshot: GpuSnapshot) -> Iterator[Metric]:
    health = GaugeMetricFamily(
        "fleet_agent_gpu_health", "1 for the GPU's health", labels=["gpu", "health"]
    )
    for one in snapshot.gpus:
        health.add_metric([one.uuid, one.health.value], 1)
    yield health
    xids = CounterMetricFamily(
        "fleet_agent_gpu_xids", "XID errors since the start", labels=["gpu", "xid"]
    )
    for (uuid, xid), count in sorted(worker.xids.items()):
        xids.add_metric([uuid, str(xid)], count)
    yield xids


class Metrics:
    """Renders the page from a registry of its own."""

    def __init__(self, agent: Agent) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_AgentCollector(agent))

    def page(self) -> bytes:
        """Return the page."""
        return generate_latest(self._registry)
