"""Metrics of the control plane: every name in one table, counted cheaply, read at scrape time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

Labels = tuple[str, ...]
Reading = tuple[str, Labels, float]
"""Name of a gauge, its label values, its value now."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    kind: str
    help: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()


_LATENCY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

METRICS: dict[str, Metric] = {
    # Telemetry.
    "fleet_agents_connected": Metric("gauge", "Agents with an open telemetry stream."),
    "fleet_telemetry_streams_total": Metric("counter", "Telemetry streams opened."),
    "fleet_samples_total": Metric("counter", "Samples taken in."),
    "fleet_telemetry_refused_total": Metric(
        "counter", "Messages, samples and instances refused.", ("reason",)
    ),
    "fleet_ownership_conflicts": Metric("gauge", "Instances that more than one agent claims."),
    "fleet_sample_age_seconds": Metric(
        "histogram", "Age of a sample when it was decided on.", (), _LATENCY
    ),
    # The loop.
    "fleet_evaluations_total": Metric("counter", "Runs of the brain."),
    "fleet_evaluation_seconds": Metric("histogram", "Time of one run of the brain.", (), _LATENCY),
    "fleet_publish_seconds": Metric(
        "histogram", "Time to build and publish changed resources.", (), _LATENCY
    ),
    "fleet_snapshots_published_total": Metric(
        "counter", "Snapshots published because something in them changed.", ("capability",)
    ),
    "fleet_control_loop_errors_total": Metric(
        "counter", "Exceptions the loop survived with its last good plan.", ("stage",)
    ),
    "fleet_events_total": Metric("counter", "Decisions of the brain.", ("event",)),
    # Configuration and state.
    "fleet_config_reloads_total": Metric("counter", "Reloads of the configuration.", ("result",)),
    "fleet_config_valid": Metric("gauge", "1 if the file as it is now is the one in use."),
    "fleet_state_writes_total": Metric("counter", "Writes of the state file.", ("result",)),
    # The plan.
    "fleet_warm": Metric("gauge", "1 once proxies are answered."),
    "fleet_tier_share_ratio": Metric(
        "gauge", "Share of a model's requests that a tier is given.", ("model", "tier")
    ),
    "fleet_tier_pressure_ratio": Metric("gauge", "Pressure of a tier.", ("model", "tier")),
    "fleet_tier_spill_ratio": Metric(
        "gauge", "Share of what reaches a tier that it passes on.", ("model", "tier")
    ),
    "fleet_tier_demand_requests_per_second": Metric(
        "gauge", "Requests offered to the model, where known.", ("model", "tier")
    ),
    "fleet_tier_capacity_requests_per_second": Metric(
        "gauge", "Requests a tier can complete.", ("model", "tier")
    ),
    "fleet_tier_level": Metric(
        "gauge", "1 for the level a tier is at.", ("model", "tier", "level")
    ),
    "fleet_class_demand_ratio": Metric(
        "gauge", "Share of a model's requests that belong to a class.", ("model", "class")
    ),
    "fleet_class_share_ratio": Metric(
        "gauge", "Share of a class's requests that a tier is given.", ("model", "class", "tier")
    ),
    "fleet_class_shed": Metric(
        "gauge", "1 while a class is not served because its model is critical.", ("model", "class")
    ),
    "fleet_instance_weight": Metric(
        "gauge", "Endpoint weight of an instance.", ("model", "tier", "instance")
    ),
    "fleet_instance_ceiling_ratio": Metric(
        "gauge", "Share of its capacity that faults allow.", ("model", "tier", "instance")
    ),
    "fleet_instance_pressure_ratio": Metric(
        "gauge", "Pressure of an instance.", ("model", "tier", "instance")
    ),
    "fleet_instance_state": Metric(
        "gauge", "1 for the fault state of an instance.", ("model", "tier", "instance", "state")
    ),
    "fleet_instance_freshness": Metric(
        "gauge", "1 for the freshness of its telemetry.", ("model", "tier", "instance", "freshness")
    ),
    # What became of requests, as proxies log it.
    "fleet_requests_total": Metric(
        "counter",
        "Requests that ended, by the tier that answered and how.",
        ("model", "class", "tier", "outcome"),
    ),
    "fleet_static_answers_total": Metric(
        "counter", "Requests answered statically.", ("model", "class", "template")
    ),
    "fleet_attempts_total": Metric(
        "counter",
        "Attempts at an instance, by how they ended.",
        ("model", "tier", "instance", "outcome"),
    ),
    "fleet_degraded_request_ratio": Metric(
        "gauge",
        "Share of the last minute's requests that a lower tier answered.",
        ("model", "class"),
    ),
    "fleet_static_answer_ratio": Metric(
        "gauge",
        "Share of the last minute's requests that were answered statically.",
        ("model", "class", "template"),
    ),
    "fleet_retry_amplification_ratio": Metric(
        "gauge", "Attempts at engines per request over the last minute.", ("model", "class")
    ),
    "fleet_attempt_failure_ratio": Metric(
        "gauge", "Share of the recent attempts at a tier that failed.", ("model", "tier")
    ),
    "fleet_attempt_latency_seconds": Metric(
        "gauge",
        "Recent whole answers of a tier, from the start of the attempt.",
        ("model", "tier", "quantile"),
    ),
    "fleet_first_byte_seconds": Metric(
        "gauge",
        "Recent first bytes of a tier's answers, from the start of the attempt.",
        ("model", "tier", "quantile"),
    ),
    "fleet_requests_in_progress": Metric(
        "gauge", "Requests that proxies have running at an instance.", ("model", "tier", "instance")
    ),
    "fleet_kv_cache_allocation_failure_rate": Metric(
        "gauge",
        "Requests per second that engines put back because the KV cache was full.",
        ("model", "tier"),
    ),
    "fleet_oom_restart_loop_count": Metric(
        "gauge",
        "Instances that get nothing because they ran out of memory or restarted too often.",
        ("model", "tier"),
    ),
    "fleet_token_admission_load": Metric(
        "gauge", "Tokens admitted per second as a share of the limit.", ("model", "class")
    ),
    "fleet_load_reported_attempts_total": Metric(
        "counter", "Attempts at instances as proxies count them.", ("model", "tier", "kind")
    ),
    "fleet_evidence_verdicts_total": Metric(
        "counter", "Times that what proxies saw spoke against an instance.", ("cause",)
    ),
    "fleet_engine_reports_total": Metric(
        "counter", "Answers in which an engine reported its load (ORCA).", ("model", "tier")
    ),
    "fleet_agent_doubted": Metric(
        "gauge",
        "1 while load reports of its engine contradict an agent, or come though the agent is silent.",
        ("model", "tier", "instance", "standing"),
    ),
    # How it comes here.
    "fleet_evidence_streams": Metric("gauge", "Open streams of logs and load reports."),
    "fleet_evidence_entries_total": Metric("counter", "Log entries read."),
    "fleet_load_reports_total": Metric("counter", "Load reports read."),
    "fleet_evidence_waits_total": Metric(
        "counter", "Times a log stream had to wait: proxies drop what they cannot send."
    ),
    "fleet_evidence_stale_total": Metric(
        "counter", "Log entries that came too late to be evidence; they are counted as requests."
    ),
    "fleet_evidence_refused_total": Metric(
        "counter", "Streams, entries and reports that were not used.", ("reason",)
    ),
    # Proxies.
    "fleet_proxies_connected": Metric("gauge", "Proxies with an open xDS stream."),
    "fleet_xds_streams_total": Metric("counter", "xDS streams opened.", ("protocol",)),
    "fleet_xds_requests_total": Metric("counter", "Requests of proxies.", ("type",)),
    "fleet_xds_pushes_total": Metric("counter", "Responses sent to proxies.", ("type",)),
    "fleet_xds_pushed_bytes_total": Metric("counter", "Size of the responses sent.", ("type",)),
    "fleet_xds_acks_total": Metric("counter", "Responses that proxies accepted.", ("type",)),
    "fleet_xds_nacks_total": Metric("counter", "Responses that proxies refused.", ("type",)),
    "fleet_xds_ignored_total": Metric("counter", "Requests not acted upon.", ("reason",)),
    "fleet_xds_ack_seconds": Metric(
        "histogram", "From sending a response to its ACK.", (), _LATENCY
    ),
    "fleet_xds_nacked": Metric("gauge", "Types that a proxy refuses now.", ("type",)),
}


class Tally:
    """Counters and histograms: dictionaries, so that counting costs a fraction of a microsecond."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, Labels], float] = {}
        self.gauges: dict[tuple[str, Labels], float] = {}
        self.histograms: dict[str, list[float]] = {}

    def add(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Count `by` more."""
        key = (name, labels)
        self.counts[key] = self.counts.get(key, 0.0) + by

    def set(self, name: str, *labels: str, value: float | None) -> None:
        """Set a gauge to what it is now; None takes it away."""
        if value is None:
            self.gauges.pop((name, labels), None)
        else:
            self.gauges[name, labels] = value

    def count(self, name: str, *labels: str) -> float:
        """Return a counter."""
        return self.counts.get((name, labels), 0.0)

    def observe(self, name: str, *values: float) -> None:
        """Put values into a histogram."""
        buckets = METRICS[name].buckets
        rows = self.histograms.get(name)
        if rows is None:
            rows = self.histograms[name] = [0.0] * (len(buckets) + 2)
        for value in values:
            rows[bisect_left(buckets, value)] += 1
            rows[-1] += value


class Exposition:
    """All metrics as Prometheus text; gauges are asked for when somebody scrapes."""

    def __init__(self, tally: Tally, gauges: Callable[[], Iterable[Reading]]) -> None:
        self._tally = tally
        self._gauges = gauges

    def take(self) -> Scrape:
        """Read everything at one moment, quickly, on the event loop."""
        return Scrape(
            readings=[
                *self._gauges(),
                *((name, labels, value) for (name, labels), value in self._tally.counts.items()),
                *((name, labels, value) for (name, labels), value in self._tally.gauges.items()),
            ],
            histograms={name: list(rows) for name, rows in self._tally.histograms.items()},
        )


class Scrape(Collector):
    """What was read for one scrape. Writing it as text takes long with many instances."""

    def __init__(self, readings: list[Reading], histograms: dict[str, list[float]]) -> None:
        self._readings = readings
        self._histograms = histograms

    def text(self) -> bytes:
        """Return the text; may run in any thread."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """Yield every family of the table."""
        readings: dict[str, list[tuple[Labels, float]]] = {}
        for name, labels, value in self._readings:
            readings.setdefault(name, []).append((labels, value))
        for name, metric in METRICS.items():
            if metric.kind == "histogram":
                yield self._histogram(name, metric)
                continue
            family = (
                CounterMetricFamily(name.removesuffix("_total"), metric.help, labels=metric.labels)
                if metric.kind == "counter"
                else GaugeMetricFamily(name, metric.help, labels=metric.labels)
            )
            rows = readings.get(name, [])
            if not rows and not metric.labels and metric.kind == "counter":
                rows = [((), 0.0)]
            for labels, value in rows:
                family.add_metric(labels, value)
            yield family

    def _histogram(self, name: str, metric: Metric) -> HistogramMetricFamily:
        rows = self._histograms.get(name, [0.0] * (len(metric.buckets) + 2))
        total = 0.0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*metric.buckets, float("inf")), rows[:-1], strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", total))
        family = HistogramMetricFamily(name, metric.help)
        family.add_metric((), buckets, sum_value=rows[-1])
        return family
