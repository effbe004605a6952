"""Every metric of the control plane: name, kind, unit, labels, meaning. The only place that has them.

The exposition (`xds_server.observability.metrics`) and docs/metrics.md are made from this table. The label of an
instance is `engine_instance`: `instance` is Prometheus' own label for whom it scraped.
"""

from __future__ import annotations

from fleet_metrics import PROCESS, Metric
from xds_server.observability.buckets import LATENCY
from xds_server.observability.mesh_metrics import MESH_GROUPS

TYPES = tuple(
    (name,)
    for name in (
        "Cluster",
        "ClusterLoadAssignment",
        "Listener",
        "RouteConfiguration",
        "Runtime",
        "Secret",
        "TypedExtensionConfig",
    )
)
"""What proxies are served, by the last word of the type URL."""

GROUPS: dict[str, dict[str, Metric]] = {
    "Telemetry": {
        "fleet_agents_connected": Metric(
            "gauge", "agents", "Agents with an open telemetry stream."
        ),
        "fleet_telemetry_streams_total": Metric("counter", "streams", "Telemetry streams opened."),
        "fleet_samples_total": Metric("counter", "samples", "Samples taken in."),
        "fleet_telemetry_refused_total": Metric(
            "counter", "refusals", "Messages, samples and instances refused.", labels=("reason",)
        ),
        "fleet_ownership_conflicts": Metric(
            "gauge", "instances", "Instances that more than one agent claims."
        ),
        "fleet_sample_age_seconds": Metric(
            "histogram", "seconds", "Age of a sample when it was decided on.", buckets=LATENCY
        ),
    },
    "The loop": {
        "fleet_evaluations_total": Metric("counter", "evaluations", "Runs of the brain."),
        "fleet_evaluation_seconds": Metric(
            "histogram", "seconds", "Time of one run of the brain.", buckets=LATENCY
        ),
        "fleet_publish_seconds": Metric(
            "histogram", "seconds", "Time to build and publish changed resources.", buckets=LATENCY
        ),
        "fleet_snapshots_published_total": Metric(
            "counter",
            "snapshots",
            "Snapshots published because something in them changed.",
            labels=("capability",),
        ),
        "fleet_control_loop_errors_total": Metric(
            "counter",
            "exceptions",
            "Exceptions the loop survived with its last good plan.",
            labels=("stage",),
            always=(("evaluate",), ("publish",)),
        ),
        "fleet_events_total": Metric(
            "counter", "events", "Decisions of the brain.", labels=("event",)
        ),
    },
    "Configuration and state": {
        "fleet_config_reloads_total": Metric(
            "counter",
            "reloads",
            "Reloads of the configuration.",
            labels=("result",),
            always=(("accepted",), ("refused",)),
        ),
        "fleet_config_valid": Metric(
            "gauge", "0 or 1", "1 if the file as it is now is the one in use."
        ),
        "fleet_admin_tokens_valid": Metric(
            "gauge",
            "0 or 1",
            "1 if the file of admin tokens as it is now is the one in use, or there is none.",
        ),
        "fleet_state_writes_total": Metric(
            "counter",
            "writes",
            "Writes of the state file.",
            labels=("result",),
            always=(("written",), ("failed",)),
        ),
        "fleet_store_rows_total": Metric(
            "counter",
            "events",
            "Events for the history, by whether they reached the disk.",
            ("result",),
        ),
        "fleet_store_failures_total": Metric(
            "counter", "failures", "Times the disk did not take events."
        ),
        "fleet_store_files_moved_aside_total": Metric(
            "counter", "files", "Times the history began anew because its file was broken or gone."
        ),
        "fleet_store_rows_waiting": Metric(
            "gauge", "events", "Events that wait in memory for the disk."
        ),
        "fleet_store_failing": Metric("gauge", "0 or 1", "1 while events do not reach the disk."),
        "fleet_store_size_bytes": Metric("gauge", "bytes", "Size of the history on disk."),
        "fleet_build_info": Metric(
            "gauge", "1", "1 for the version that runs.", labels=("version",)
        ),
    },
    "The plan": {
        "fleet_warm": Metric("gauge", "0 or 1", "1 once proxies are answered."),
        "fleet_tier_share_ratio": Metric(
            "gauge",
            "ratio",
            "Share of a model's requests that a tier is given.",
            labels=("model", "tier"),
        ),
        "fleet_tier_pressure_ratio": Metric(
            "gauge", "ratio", "Pressure of a tier.", labels=("model", "tier")
        ),
        "fleet_tier_spill_ratio": Metric(
            "gauge",
            "ratio",
            "Share of what reaches a tier that it passes on.",
            labels=("model", "tier"),
        ),
        "fleet_tier_demand_requests_per_second": Metric(
            "gauge",
            "requests per second",
            "Requests offered to the model, where known.",
            labels=("model", "tier"),
        ),
        "fleet_tier_capacity_requests_per_second": Metric(
            "gauge",
            "requests per second",
            "Requests a tier can complete.",
            labels=("model", "tier"),
        ),
        "fleet_tier_level": Metric(
            "gauge", "0 or 1", "1 for the level a tier is at.", labels=("model", "tier", "level")
        ),
        "fleet_class_demand_ratio": Metric(
            "gauge",
            "ratio",
            "Share of a model's requests that belong to a class.",
            labels=("model", "class"),
        ),
        "fleet_class_share_ratio": Metric(
            "gauge",
            "ratio",
            "Share of a class's requests that a tier is given.",
            labels=("model", "class", "tier"),
        ),
        "fleet_class_shed": Metric(
            "gauge",
            "0 or 1",
            "1 while a class is not served because its model is critical.",
            labels=("model", "class"),
        ),
        "fleet_instance_weight": Metric(
            "gauge",
            "weight",
            "Endpoint weight of an instance.",
            labels=("model", "tier", "engine_instance"),
        ),
        "fleet_instance_ceiling_ratio": Metric(
            "gauge",
            "ratio",
            "Share of its capacity that faults allow.",
            labels=("model", "tier", "engine_instance"),
        ),
        "fleet_instance_pressure_ratio": Metric(
            "gauge",
            "ratio",
            "Pressure of an instance.",
            labels=("model", "tier", "engine_instance"),
        ),
        "fleet_instance_state": Metric(
            "gauge",
            "1",
            "1 for the fault state of an instance.",
            labels=("model", "tier", "engine_instance", "state"),
        ),
        "fleet_instance_freshness": Metric(
            "gauge",
            "1",
            "1 for the freshness of its telemetry.",
            labels=("model", "tier", "engine_instance", "freshness"),
        ),
        "fleet_instance_telemetry_age_seconds": Metric(
            "gauge",
            "seconds",
            "Age of the newest sample of an instance.",
            labels=("model", "tier", "engine_instance"),
        ),
        "fleet_instance_kv_cache_ratio": Metric(
            "gauge",
            "ratio",
            "Used share of the KV cache, as last said.",
            labels=("model", "tier", "engine_instance"),
        ),
        "fleet_instance_vram_ratio": Metric(
            "gauge",
            "ratio",
            "Used and reserved share of the GPU memory, as last said.",
            labels=("model", "tier", "engine_instance"),
        ),
        "fleet_instance_vram_tripped": Metric(
            "gauge",
            "0 or 1",
            "1 while GPU memory above what the engine reserves takes capacity away.",
            labels=("model", "tier", "engine_instance"),
        ),
        "fleet_instance_waiting_requests": Metric(
            "gauge",
            "requests",
            "Requests queued inside the engine, as last said.",
            labels=("model", "tier", "engine_instance"),
        ),
        "fleet_instance_running_requests": Metric(
            "gauge",
            "requests",
            "Requests that the engine computes, as last said.",
            labels=("model", "tier", "engine_instance"),
        ),
    },
    "What became of requests": {
        "fleet_requests_total": Metric(
            "counter",
            "requests",
            "Requests that ended, by the tier that answered and how.",
            labels=("model", "class", "tier", "outcome"),
        ),
        "fleet_static_answers_total": Metric(
            "counter",
            "requests",
            "Requests answered statically.",
            labels=("model", "class", "template"),
        ),
        "fleet_attempts_total": Metric(
            "counter",
            "attempts",
            "Attempts at an instance, by how they ended.",
            labels=("model", "tier", "engine_instance", "outcome"),
        ),
        "fleet_degraded_request_ratio": Metric(
            "gauge",
            "ratio",
            "Share of the last minute's requests that a lower tier answered.",
            labels=("model", "class"),
        ),
        "fleet_static_answer_ratio": Metric(
            "gauge",
            "ratio",
            "Share of the last minute's requests that were answered statically.",
            labels=("model", "class", "template"),
        ),
        "fleet_retry_amplification_ratio": Metric(
            "gauge",
            "ratio",
            "Attempts at engines per request over the last minute.",
            labels=("model", "class"),
        ),
        "fleet_attempt_failure_ratio": Metric(
            "gauge",
            "ratio",
            "Share of the recent attempts at a tier that failed.",
            labels=("model", "tier"),
        ),
        "fleet_attempt_latency_seconds": Metric(
            "gauge",
            "seconds",
            "Recent whole answers of a tier, from the start of the attempt.",
            labels=("model", "tier", "quantile"),
        ),
        "fleet_first_byte_seconds": Metric(
            "gauge",
            "seconds",
            "Recent first bytes of a tier's answers, from the start of the attempt.",
            labels=("model", "tier", "quantile"),
        ),
        "fleet_requests_in_progress": Metric(
            "gauge",
            "requests",
            "Requests that proxies have running at an instance.",
            labels=("model", "tier", "engine_instance"),
        ),
        "fleet_kv_cache_allocation_failure_rate": Metric(
            "gauge",
            "requests per second",
            "Requests per second that engines put back because the KV cache was full.",
            labels=("model", "tier"),
        ),
        "fleet_oom_restart_loop_count": Metric(
            "gauge",
            "instances",
            "Instances that get nothing because they ran out of memory or restarted too often.",
            labels=("model", "tier"),
        ),
        "fleet_token_admission_load": Metric(
            "gauge",
            "ratio",
            "Tokens admitted per second as a share of the limit.",
            labels=("model", "class"),
        ),
        "fleet_load_reported_attempts_total": Metric(
            "counter",
            "attempts",
            "Attempts at instances as proxies count them.",
            labels=("model", "tier", "kind"),
        ),
        "fleet_evidence_verdicts_total": Metric(
            "counter",
            "verdicts",
            "Times that what proxies saw spoke against an instance.",
            labels=("cause",),
        ),
        "fleet_engine_reports_total": Metric(
            "counter",
            "answers",
            "Answers in which an engine reported its load (ORCA).",
            labels=("model", "tier"),
        ),
        "fleet_agent_doubted": Metric(
            "gauge",
            "0 or 1",
            "1 while load reports of its engine contradict an agent, or come though the agent is silent.",
            labels=("model", "tier", "engine_instance", "standing"),
        ),
    },
    "Evidence": {
        "fleet_evidence_streams": Metric(
            "gauge", "streams", "Open streams of logs and load reports."
        ),
        "fleet_evidence_entries_total": Metric("counter", "entries", "Log entries read."),
        "fleet_load_reports_total": Metric("counter", "reports", "Load reports read."),
        "fleet_evidence_waits_total": Metric(
            "counter",
            "waits",
            "Times a log stream had to wait: proxies drop what they cannot send.",
        ),
        "fleet_evidence_stale_total": Metric(
            "counter",
            "entries",
            "Log entries that came too late to be evidence; they are counted as requests.",
        ),
        "fleet_evidence_refused_total": Metric(
            "counter",
            "refusals",
            "Streams, entries and reports that were not used.",
            labels=("reason",),
        ),
    },
    **MESH_GROUPS,
    "Proxies": {
        "fleet_proxies_connected": Metric(
            "gauge",
            "proxies",
            "Proxies with an open xDS stream, by node id; several streams of one are one.",
        ),
        "fleet_xds_open_streams": Metric("gauge", "streams", "xDS streams that are open now."),
        "fleet_xds_streams_total": Metric(
            "counter", "streams", "xDS streams opened.", labels=("protocol",)
        ),
        "fleet_xds_requests_total": Metric(
            "counter", "requests", "Requests of proxies.", labels=("type",)
        ),
        "fleet_xds_pushes_total": Metric(
            "counter", "responses", "Responses sent to proxies.", labels=("type",)
        ),
        "fleet_xds_pushed_bytes_total": Metric(
            "counter", "bytes", "Size of the responses sent.", labels=("type",)
        ),
        "fleet_xds_acks_total": Metric(
            "counter", "responses", "Responses that proxies accepted.", labels=("type",)
        ),
        "fleet_xds_nacks_total": Metric(
            "counter",
            "responses",
            "Responses that proxies refused.",
            labels=("type",),
            always=TYPES,
        ),
        "fleet_xds_ignored_total": Metric(
            "counter", "requests", "Requests not acted upon.", labels=("reason",)
        ),
        "fleet_xds_ack_seconds": Metric(
            "histogram", "seconds", "From sending a response to its ACK.", buckets=LATENCY
        ),
        "fleet_xds_nacked": Metric(
            "gauge", "proxies", "Proxies that refuse something of a type now.", labels=("type",)
        ),
        "fleet_xds_proxies": Metric(
            "gauge",
            "proxies",
            "Proxies by how they stand in a type, the worst of their streams.",
            labels=("type", "state"),
        ),
        "fleet_xds_unaccepted_seconds": Metric(
            "gauge",
            "seconds",
            "The longest time that a proxy has not accepted what it was sent, refused or unanswered; 0 when all have.",
            labels=("type",),
        ),
    },
    "The process": PROCESS,
}
"""The table, in the order of its documentation."""

METRICS: dict[str, Metric] = {name: row for rows in GROUPS.values() for name, row in rows.items()}
