"""The rows of `metric_table` that are about a mesh: what istiod, gateways and API servers are told."""

from __future__ import annotations

from fleet_metrics import Metric
from xds_server.observability.buckets import LATENCY

MESH_GROUPS: dict[str, dict[str, Metric]] = {
    "The config source of a mesh": {
        "fleet_istio_streams": Metric(
            "gauge", "istiods", "istiods that ask for configuration now."
        ),
        "fleet_istio_objects": Metric(
            "gauge", "objects", "Objects that istiods are told.", labels=("kind",)
        ),
        "fleet_istio_objects_held_back": Metric(
            "gauge",
            "objects",
            "Objects that istiod would not take as they are now: their last good version is served, if there "
            "was one.",
        ),
        "fleet_istio_objects_refused_total": Metric(
            "counter", "refusals", "New reasons to hold an object back.", labels=("kind",)
        ),
        "fleet_istio_changes_total": Metric(
            "counter", "changes", "Times that what istiods are told changed: at most 4 a second."
        ),
        "fleet_istio_responses_total": Metric(
            "counter",
            "responses",
            "Responses sent to istiods; `other`: empty ones.",
            labels=("kind",),
        ),
        "fleet_istio_ack_seconds": Metric(
            "histogram",
            "seconds",
            "Time from a response to istiod's ACK: received, not obeyed; it says the same of objects that it "
            "drops.",
            buckets=LATENCY,
        ),
        "fleet_istio_refusals_total": Metric(
            "counter",
            "responses",
            "Responses that a client refused; istiod never does.",
            labels=("kind",),
        ),
        "fleet_istio_streams_refused_total": Metric(
            "counter", "streams", "Streams that were no istiod's, or not in its protocol."
        ),
        "fleet_istio_unknown_types_total": Metric(
            "counter",
            "types",
            "Types asked for that no known istiod asks for; answered with nothing.",
        ),
    },
    "The endpoint picker": {
        "fleet_picker_streams": Metric(
            "gauge", "requests", "Requests that gateways ask about, or whose answers they pass."
        ),
        "fleet_picker_picks_total": Metric(
            "counter", "requests", "Requests that were given an endpoint.", labels=("model", "tier")
        ),
        "fleet_picker_refusals_total": Metric(
            "counter",
            "requests",
            "Requests that the picker answered by itself: `shed`, `class_shed` (429), `not_ready` (503), `no_model`, "
            "`unreadable`, `too_large`, `overloaded` (too much is held); and gateways that it cannot serve, `bad_message`.",
            labels=("model", "reason"),
        ),
        "fleet_picker_landings_total": Metric(
            "counter",
            "requests",
            "Where picked requests were answered: `picked`, `retried` (further down the list), `elsewhere` (the gateway "
            "does not know the endpoint, and walked round), `unknown` (it does not say).",
            labels=("landing",),
            always=(("elsewhere",),),
        ),
    },
    "Istio": {
        "fleet_istio_probe_connected": Metric(
            "gauge", "0 or 1", "1 while the probe knows what istiod tells sidecars."
        ),
        "fleet_istio_applied_seconds": Metric(
            "histogram",
            "seconds",
            "From telling the mesh new weights to their arrival at a sidecar.",
            buckets=LATENCY,
        ),
        "fleet_istio_unapplied_seconds": Metric(
            "gauge",
            "seconds",
            "For how long sidecars have not had the weights that a model is to have; 0 when they have.",
            labels=("model",),
        ),
    },
    "Istio by the Kubernetes API": {
        "fleet_kubernetes_leader": Metric(
            "gauge", "0 or 1", "1 while this control plane is the one that writes."
        ),
        "fleet_kubernetes_leadership_changes_total": Metric(
            "counter",
            "changes",
            "Times this control plane began to write, or stopped.",
            labels=("change",),
            always=(("gained",), ("lost",)),
        ),
        "fleet_kubernetes_in_sync": Metric(
            "gauge",
            "0 or 1",
            "1 if the object is as it shall be; told by who writes.",
            labels=("object",),
        ),
        "fleet_kubernetes_writes_total": Metric(
            "counter",
            "writes",
            "Writes that were accepted, by kind of object and verb.",
            labels=("kind", "verb"),
        ),
        "fleet_kubernetes_write_seconds": Metric(
            "histogram",
            "seconds",
            "From the decision to the accepted write, waiting for the object's turn included.",
            buckets=LATENCY,
        ),
        "fleet_kubernetes_conflicts_total": Metric(
            "counter",
            "conflicts",
            "Writes that failed because somebody wrote the object in between (409); they are made again.",
            labels=("kind",),
        ),
        "fleet_kubernetes_reverts_total": Metric(
            "counter", "reverts", "Times somebody changed back what was written.", labels=("kind",)
        ),
        "fleet_kubernetes_refusals_total": Metric(
            "counter",
            "refusals",
            "Objects that are left alone: `not_ours`, `other_owner`, `no_object`, `route`, `fault`, `needs`; each counts "
            "once until it is another reason.",
            labels=("reason",),
        ),
        "fleet_kubernetes_failures_total": Metric(
            "counter",
            "failures",
            "Requests that failed otherwise, by cause; `forbidden` is a missing verb in the role.",
            labels=("cause",),
            always=(("forbidden",), ("unreachable",)),
        ),
    },
}
