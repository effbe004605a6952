"""Metrics of the control plane: every name in one table, counted cheaply, read at scrape time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from fleet_metrics import Labels, Metric, Reading, of_process
from xds_server.observability.metric_table import METRICS

__all__ = ["METRICS", "Exposition", "Reading", "Scrape", "Tally"]


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

    def __init__(
        self,
        tally: Tally,
        gauges: Callable[[], Iterable[Reading]],
        later: Callable[[], Iterator[Reading]] = lambda: iter(()),
    ) -> None:
        """Show `tally` and what the functions yield.

        Args:
            tally: Counters, histograms and the gauges that are set.
            gauges: Called and read through at once, on the event loop.
            later: Called on the event loop, read through by any thread: what it returns may only look at
                values that do not change any more. For what there is much of.
        """
        self._tally = tally
        self._gauges = gauges
        self._later = later

    def take(self) -> Scrape:
        """Read everything at one moment, quickly, on the event loop."""
        return Scrape(
            readings=[
                *self._gauges(),
                *((name, labels, value) for (name, labels), value in self._tally.counts.items()),
                *((name, labels, value) for (name, labels), value in self._tally.gauges.items()),
            ],
            histograms={name: list(rows) for name, rows in self._tally.histograms.items()},
            later=self._later(),
        )


class Scrape(Collector):
    """What was read for one scrape. Writing it as text takes long with many instances."""

    def __init__(
        self,
        readings: list[Reading],
        histograms: dict[str, list[float]],
        later: Iterable[Reading] = (),
    ) -> None:
        self._readings = readings
        self._histograms = histograms
        self._later = later

    def text(self) -> bytes:
        """Return the text; may run in any thread."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """Yield every family of the table."""
        readings: dict[str, list[tuple[Labels, float]]] = {}
        for name, labels, value in chain(self._readings, self._later, of_process()):
            readings.setdefault(name, []).append((labels, value))
        for name, metric in METRICS.items():
            if metric.kind == "histogram":
                yield self._histogram(name, metric)
                continue
            is_counter = metric.kind == "counter"
            family = metric.family(name)
            rows = readings.get(name, [])
            shown = {labels for labels, _ in rows} if metric.always else ()
            rows += [(labels, 0.0) for labels in metric.always if labels not in shown]
            if not rows and not metric.labels and name.startswith("fleet_") and is_counter:
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
