"""How old telemetry may be used: fresh, hold, blind.

Missing is never zero. *Hold* freezes the last weight and every timer that needs evidence; *blind*
returns to the static weight of the capacity, while Envoy's own outlier detection goes on guarding.
Staleness alone takes no instance out: a halted tier is worse than an old number.
"""

from __future__ import annotations

from xds_server.core.plan import Freshness
from xds_server.core.policy import TelemetryPolicy


def classify(observed_at: float | None, policy: TelemetryPolicy, now: float) -> Freshness:
    """Say how a sample of this moment may be used now.

    Args:
        observed_at: When the sample was true; None when there never was one.
        policy: Holds the two ages.
        now: Monotonic seconds on the same clock.

    Returns:
        FRESH below `stale_intervals` intervals, BLIND from `blind_after_s` on, HOLD between.
    """
    if observed_at is None or now >= observed_at + policy.blind_after_s:
        return Freshness.BLIND
    if now >= observed_at + policy.interval_s * policy.stale_intervals:
        return Freshness.HOLD
    return Freshness.FRESH


def deadline(observed_at: float | None, freshness: Freshness, policy: TelemetryPolicy) -> float:
    """Return when `classify` will say something else; infinity when never."""
    if observed_at is None or freshness is Freshness.BLIND:
        return float("inf")
    if freshness is Freshness.HOLD:
        return observed_at + policy.blind_after_s
    return min(
        observed_at + policy.interval_s * policy.stale_intervals,
        observed_at + policy.blind_after_s,
    )
