"""The agent's own Prometheus page, read from its state when it is asked for.

A number that is not known has no series: missing is never zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

import sidecar_agent
from fleet_metrics import Labels, Reading, of_process
from sidecar_agent.agent import Agent, Instance
from sidecar_agent.engine.token_watch import applied
from sidecar_agent.gpu.facts import GpuReading
from sidecar_agent.gpu.worker import GpuWorker
from sidecar_agent.metric_table import METRICS
from sidecar_agent.uplink import Uplink

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Renders the page from a registry of its own."""

    def __init__(self, agent: Agent) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Page(agent))

    def page(self) -> bytes:
        """Return the page."""
        return generate_latest(self._registry)


class _Page(Collector):
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield every family of the table, also those that nothing is known for."""
        readings: dict[str, list[tuple[Labels, float]]] = {}
        for name, labels, value in _readings(self._agent):
            readings.setdefault(name, []).append((labels, value))
        for name, metric in METRICS.items():
            family = metric.family(name)
            for labels, value in readings.get(name, ()):
                family.add_metric(labels, value)
            yield family


def _readings(agent: Agent) -> Iterator[Reading]:
    now = agent.clock()
    yield "fleet_agent_build_info", (sidecar_agent.__version__,), 1.0
    for uplink in agent.uplinks:
        yield from _of_stream(uplink, now)
    for name, instance in agent.instances.items():
        yield from _of_instance(name, instance, now)
    if agent.gpu is not None:
        yield from _of_gpus(agent.gpu, now)
    yield from of_process()


def _of_stream(uplink: Uplink, now: float) -> Iterator[Reading]:
    status, slots, plane = uplink.status, uplink.slots, (uplink.server.address,)
    yield "fleet_agent_connected", plane, float(status.connected)
    yield "fleet_agent_streams_total", plane, float(status.streams)
    yield "fleet_agent_messages_total", plane, float(status.messages)
    yield "fleet_agent_samples_total", plane, float(status.samples)
    yield "fleet_agent_superseded_samples_total", plane, float(slots.superseded)
    yield "fleet_agent_expired_samples_total", plane, float(slots.expired)
    yield "fleet_agent_send_interval_seconds", plane, slots.interval_s
    if status.last_sent_at is not None:
        yield "fleet_agent_last_sent_seconds", plane, now - status.last_sent_at
    if status.last_ack_at is not None:
        yield "fleet_agent_last_ack_seconds", plane, now - status.last_ack_at


def _of_instance(name: str, one: Instance, now: float) -> Iterator[Reading]:
    for outcome, count in sorted(one.outcomes.items()):
        yield "fleet_agent_scrapes_total", (name, outcome), float(count)
    for reply, count in sorted(one.replies.items()):
        yield "fleet_agent_token_probes_total", (name, reply), float(count)
    yield "fleet_agent_rejected_values_total", (name,), float(one.rejected)
    yield "fleet_agent_engine_restarts_total", (name,), float(one.engine.lifetime.count)
    yield "fleet_agent_draining", (name,), float(one.draining)
    if one.said_at is not None:
        yield "fleet_agent_age_seconds", (name,), now - one.said_at
    if one.outcome is not None:
        yield "fleet_agent_scrape_seconds", (name,), one.outcome.took_s
    if one.engine.facts is None:
        yield "fleet_agent_engine_state", (name, "unread"), 1.0
        return
    facts = applied(one.engine.facts, one.tokens)
    yield "fleet_agent_engine_state", (name, facts.state.value), 1.0
    for metric, value in (
        ("fleet_agent_engine_kv_cache_ratio", facts.kv_ratio),
        ("fleet_agent_engine_waiting_requests", facts.waiting),
        ("fleet_agent_engine_running_requests", facts.running),
    ):
        if value is not None:
            yield metric, (name,), value


def _of_gpus(worker: GpuWorker, now: float) -> Iterator[Reading]:
    snapshot = worker.latest()
    yield "fleet_agent_gpu_driver", (snapshot.driver.value,), 1.0
    yield "fleet_agent_gpu_rejected_values_total", (), float(snapshot.rejected)
    if snapshot.read_at is not None:
        yield "fleet_agent_gpu_age_seconds", (), now - snapshot.read_at
    for one in snapshot.gpus:
        yield from _of_gpu(one)
    for (uuid, xid), count in sorted(worker.xids.items()):
        yield "fleet_agent_gpu_xids_total", (uuid, str(xid)), float(count)


def _of_gpu(one: GpuReading) -> Iterator[Reading]:
    yield "fleet_agent_gpu_health", (one.uuid, one.health.value), 1.0
    for metric, fact in (
        ("fleet_agent_gpu_memory_total_bytes", one.memory_total_bytes),
        ("fleet_agent_gpu_memory_used_bytes", one.memory_used_bytes),
        ("fleet_agent_gpu_memory_reserved_bytes", one.memory_reserved_bytes),
        ("fleet_agent_gpu_memory_free_bytes", one.memory_free_bytes),
        ("fleet_agent_gpu_utilization_ratio", one.utilization_ratio),
        ("fleet_agent_gpu_temperature_celsius", one.temperature_celsius),
        ("fleet_agent_gpu_power_watts", one.power_watts),
    ):
        if fact.number is not None:
            yield metric, (one.uuid,), fact.number
