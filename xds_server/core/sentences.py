"""The sentences of the rules that give an ordinary instance its weight; their numbers never enter the text."""

from __future__ import annotations

ABOVE_MEAN = "load_above_mean"
BELOW_MEAN = "load_below_mean"
BALANCED = "load_balanced"
LOAD_UNKNOWN = "load_unknown"
HOLD = "telemetry_hold"
BLIND = "telemetry_blind"
EASING = "telemetry_easing"
FROZEN = "tier_frozen"

SENTENCES = {
    BALANCED: "At its tier's mean pressure: the weight of its capacity.",
    ABOVE_MEAN: "Busier than its tier's mean: less than the weight of its capacity.",
    BELOW_MEAN: "Less busy than its tier's mean: more than the weight of its capacity.",
    LOAD_UNKNOWN: "Its load is unknown: the weight of its capacity.",
    HOLD: "Its telemetry is stale: the last correction is kept.",
    BLIND: "It sends no telemetry: the weight of its capacity, without a correction.",
    FROZEN: "More than half of its tier is blind: the whole tier keeps its corrections.",
    EASING: "Its telemetry changed: the correction moves slowly to where it belongs.",
}
