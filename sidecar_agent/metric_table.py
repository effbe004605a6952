"""Every metric of the agent: name, kind, unit, labels, meaning. The only place that has them.

The exposition (`sidecar_agent.metrics`) and docs/metrics.md are made from this table. The label of an
instance is `engine_instance`: `instance` is Prometheus' own label for whom it scraped.
"""

from __future__ import annotations

from fleet_metrics import PROCESS, Metric

_OF_STREAM = ("control_plane",)
_OF_INSTANCE = ("engine_instance",)
_OF_GPU = ("gpu",)

GROUPS: dict[str, dict[str, Metric]] = {
    "The stream to the control plane": {
        "fleet_agent_build_info": Metric(
            "gauge", "1", "1 for the version that runs.", ("version",)
        ),
        "fleet_agent_connected": Metric("gauge", "0 or 1", "1 while the stream is up.", _OF_STREAM),
        "fleet_agent_streams_total": Metric(
            "counter", "streams", "Streams that the control plane welcomed.", _OF_STREAM
        ),
        "fleet_agent_messages_total": Metric("counter", "messages", "Messages sent.", _OF_STREAM),
        "fleet_agent_samples_total": Metric("counter", "samples", "Samples sent.", _OF_STREAM),
        "fleet_agent_superseded_samples_total": Metric(
            "counter", "samples", "Samples replaced before they were sent.", _OF_STREAM
        ),
        "fleet_agent_expired_samples_total": Metric(
            "counter", "samples", "Samples that got too old to send.", _OF_STREAM
        ),
        "fleet_agent_send_interval_seconds": Metric(
            "gauge", "seconds", "Time between samples when nothing moves.", _OF_STREAM
        ),
        "fleet_agent_last_sent_seconds": Metric(
            "gauge", "seconds", "Time since the last message was sent.", _OF_STREAM
        ),
        "fleet_agent_last_ack_seconds": Metric(
            "gauge", "seconds", "Time since the last ack arrived.", _OF_STREAM
        ),
    },
    "Engines": {
        "fleet_agent_scrapes_total": Metric(
            "counter", "scrapes", "Scrapes of an engine by outcome.", (*_OF_INSTANCE, "outcome")
        ),
        "fleet_agent_rejected_values_total": Metric(
            "counter", "values", "Values of an engine that were out of range.", _OF_INSTANCE
        ),
        "fleet_agent_engine_restarts_total": Metric(
            "counter", "restarts", "Restarts of an engine that were seen.", _OF_INSTANCE
        ),
        "fleet_agent_age_seconds": Metric(
            "gauge", "seconds", "Age of what was last said about an engine.", _OF_INSTANCE
        ),
        "fleet_agent_scrape_seconds": Metric(
            "gauge", "seconds", "Time that the last scrape took.", _OF_INSTANCE
        ),
        "fleet_agent_engine_state": Metric(
            "gauge", "1", "1 for the state an engine is in.", (*_OF_INSTANCE, "state")
        ),
        "fleet_agent_engine_kv_cache_ratio": Metric(
            "gauge", "ratio", "Used share of an engine's KV cache.", _OF_INSTANCE
        ),
        "fleet_agent_engine_waiting_requests": Metric(
            "gauge", "requests", "Requests queued inside an engine.", _OF_INSTANCE
        ),
        "fleet_agent_engine_running_requests": Metric(
            "gauge", "requests", "Requests that an engine computes.", _OF_INSTANCE
        ),
        "fleet_agent_draining": Metric(
            "gauge", "0 or 1", "1 while an instance drains.", _OF_INSTANCE
        ),
        "fleet_agent_token_probes_total": Metric(
            "counter",
            "requests",
            "Requests for one token, by how they ended.",
            (*_OF_INSTANCE, "reply"),
        ),
    },
    "GPUs": {
        "fleet_agent_gpu_driver": Metric(
            "gauge", "1", "1 for the state the driver is in.", ("state",)
        ),
        "fleet_agent_gpu_age_seconds": Metric(
            "gauge", "seconds", "Age of the newest reading of the GPUs."
        ),
        "fleet_agent_gpu_rejected_values_total": Metric(
            "counter", "values", "Values of GPUs that were out of range."
        ),
        "fleet_agent_gpu_health": Metric("gauge", "1", "1 for a GPU's health.", ("gpu", "health")),
        "fleet_agent_gpu_xids_total": Metric(
            "counter", "errors", "XID errors since the start.", ("gpu", "xid")
        ),
        "fleet_agent_gpu_memory_total_bytes": Metric("gauge", "bytes", "Memory of a GPU.", _OF_GPU),
        "fleet_agent_gpu_memory_used_bytes": Metric(
            "gauge", "bytes", "Memory of a GPU that is in use.", _OF_GPU
        ),
        "fleet_agent_gpu_memory_reserved_bytes": Metric(
            "gauge", "bytes", "Memory of a GPU that the driver keeps.", _OF_GPU
        ),
        "fleet_agent_gpu_memory_free_bytes": Metric(
            "gauge", "bytes", "Memory of a GPU that is free.", _OF_GPU
        ),
        "fleet_agent_gpu_utilization_ratio": Metric(
            "gauge", "ratio", "Share of the time in which a GPU computed.", _OF_GPU
        ),
        "fleet_agent_gpu_temperature_celsius": Metric(
            "gauge", "degrees Celsius", "Temperature of a GPU.", _OF_GPU
        ),
        "fleet_agent_gpu_power_watts": Metric("gauge", "watts", "Power that a GPU draws.", _OF_GPU),
    },
    "The process": PROCESS,
}
"""The table, in the order of its documentation."""

METRICS: dict[str, Metric] = {name: row for rows in GROUPS.values() for name, row in rows.items()}
