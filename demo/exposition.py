"""The simulated engine's /metrics page, under vLLM's names and with its labels.

Names and labels are those of a captured page of vLLM 0.32.0; only the series that carry meaning for
a simulated engine are there.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from demo.batch import Batch, Histogram

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
"""What vLLM 0.32.0 says, whatever the client accepts."""

GPU_MEMORY_UTILIZATION = 0.92
"""Share of the GPU that vLLM reserves by default."""


def metrics_page(batch: Batch, *, model: str, started_at_unix_s: float) -> bytes:
    """Write the page of one engine process that has been up since `started_at_unix_s`."""
    registry = CollectorRegistry()
    registry.register(_Page(batch, model, started_at_unix_s))
    return generate_latest(registry)


class _Page:
    """A collector that reads the batch when it is asked."""

    def __init__(self, batch: Batch, model: str, started_at_unix_s: float) -> None:
        self._batch = batch
        self._started_at_unix_s = started_at_unix_s
        self._labels = {"engine": "0", "model_name": model}

    def collect(self) -> Iterator[Metric]:
        """Yield every family of the page."""
        batch, counters = self._batch, self._batch.counters
        started = GaugeMetricFamily(
            "process_start_time_seconds", "Start time of the process since unix epoch in seconds."
        )
        started.add_metric([], self._started_at_unix_s)
        yield started
        yield self._gauge(
            "num_requests_running",
            "Number of requests in model execution batches.",
            float(len(batch.running)),
        )
        yield self._gauge(
            "num_requests_waiting",
            "Number of requests waiting to be processed.",
            float(len(batch.waiting)),
        )
        yield self._gauge(
            "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", batch.kv_ratio
        )
        yield self._counter(
            "num_preemptions", "Cumulative number of preemptions.", counters.preemptions
        )
        yield self._counter(
            "prompt_tokens", "Number of prefill tokens processed.", counters.prompt_tokens
        )
        yield self._counter(
            "generation_tokens",
            "Number of generation tokens processed.",
            counters.generation_tokens,
        )
        yield self._finished()
        yield self._histogram("time_to_first_token_seconds", counters.first_token_s)
        yield self._histogram("e2e_request_latency_seconds", counters.whole_request_s)
        yield self._cache_config()

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: int) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), float(value))
        return family

    def _histogram(self, name: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", name, labels=list(self._labels))
        family.add_metric(
            list(self._labels.values()), histogram.cumulative(), sum_value=histogram.sum
        )
        return family

    def _finished(self) -> Metric:
        family = CounterMetricFamily(
            "vllm:request_success",
            "Count of successfully processed requests.",
            labels=[*self._labels, "finished_reason"],
        )
        by_reason = {
            "stop": 0,
            "length": self._batch.counters.finished,
            # A real vLLM leaves this at zero when clients go away; so do we.
            "abort": 0,
            "error": 0,
        }
        for reason, count in by_reason.items():
            family.add_metric([*self._labels.values(), reason], float(count))
        return family

    def _cache_config(self) -> Metric:
        spec = self._batch.spec
        labels = {
            "block_size": str(spec.block_tokens),
            "cache_dtype": "auto",
            "engine": "0",
            "gpu_memory_utilization": str(GPU_MEMORY_UTILIZATION),
            "kv_cache_size_tokens": str(spec.blocks * spec.block_tokens),
            "num_gpu_blocks": str(spec.blocks),
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            labels=list(labels),
        )
        family.add_metric(list(labels.values()), 1.0)
        return family
