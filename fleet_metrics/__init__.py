"""What a row of a table of metrics says, and the Prometheus families that are made of rows.

Agent and control plane have a table each, from which their pages and docs/metrics.md are made, and may not import
each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

Labels = tuple[str, ...]
Reading = tuple[str, Labels, float]
"""Name of a metric, its label values, its value now."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of a table."""

    kind: str
    """`counter`, `gauge` or `histogram`."""
    unit: str
    """What one of it is; `0 or 1` and `1` say that something is so."""
    help: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram."""
    always: tuple[Labels, ...] = ()
    """Label values that are shown before anything was counted.

    Prometheus cannot see a counter rise that appears with its first count; alert rules need these.
    """

    def family(self, name: str) -> CounterMetricFamily | GaugeMetricFamily:
        """Return the family of a counter or a gauge of this name, without series."""
        if self.kind == "counter":
            return CounterMetricFamily(name.removesuffix("_total"), self.help, labels=self.labels)
        return GaugeMetricFamily(name, self.help, labels=self.labels)


PROCESS: dict[str, Metric] = {
    "process_cpu_seconds_total": Metric("counter", "seconds", "CPU time that the process used."),
    "process_resident_memory_bytes": Metric("gauge", "bytes", "Memory of the process."),
    "process_virtual_memory_bytes": Metric(
        "gauge", "bytes", "Addresses that the process has mapped."
    ),
    "process_open_fds": Metric("gauge", "files", "Open files and sockets."),
    "process_max_fds": Metric("gauge", "files", "How many there may be."),
    "process_start_time_seconds": Metric(
        "gauge", "seconds", "When the process started, as Unix time."
    ),
}
"""The rows of what `of_process` yields."""


def of_process() -> Iterator[Reading]:
    """Yield what the kernel says about this process; nothing where it says nothing."""
    for family in ProcessCollector(registry=None).collect():
        for sample in family.samples:
            yield sample.name, (), sample.value
