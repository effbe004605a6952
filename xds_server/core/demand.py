"""How much is asked of a model, and how much a tier can do: sums over the flows of its instances."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, sqrt
from typing import NamedTuple

from xds_server.core.flow import InstanceFlow
from xds_server.core.policy import SpillPolicy

_SEEN_MIN = 0.001
"""No share of the requests that engines see is taken as smaller: it divides."""
_NOTHING_PER_S = 1e-6
"""Fewer requests/s are none: rates of idle engines decay for ever and would underflow."""
_COVERED_MIN_S = 1.0
"""A rate is not taken over less: the first two samples of an agent may arrive milliseconds apart when the
server or the network was busy, and one request would read as hundreds per second."""


class Throughput(NamedTuple):
    """What a tier's instances do, added up."""

    admitted_per_s: float | None
    """Requests/s; None when no instance knows."""
    completed: float
    """Requests, exponentially weighted."""
    busy_slot_s: float
    """Slot-seconds that `completed` took."""
    tokens_per_request: float | None
    """Prompt and generated tokens; None when no engine counts them."""

    def per_slot(self, policy: SpillPolicy) -> float:
        """Return the requests/s that one busy slot completes; a prior where little was seen."""
        prior = policy.prior_requests
        return (self.completed + prior) / (self.busy_slot_s + prior * policy.prior_service_s)


def add_up(flows: Iterable[InstanceFlow]) -> Throughput:
    """Add up the flows of one tier.

    Args:
        flows: One per instance that ever sent a sample. A stale one counts as it last was.

    Returns:
        The tier's throughput.
    """
    admitted_per_s = completed = busy_slot_s = tokens = token_requests = 0.0
    known = False
    for flow in flows:
        seconds = flow.admitted_s
        if seconds > 0.0:
            known = True
            # A call per instance and step, written as a condition.
            covered = seconds if seconds > _COVERED_MIN_S else _COVERED_MIN_S  # noqa: FURB136
            admitted_per_s += flow.admitted / covered
        completed += flow.completed
        busy_slot_s += flow.busy_slot_s
        tokens += flow.tokens
        token_requests += flow.token_requests
    return Throughput(
        admitted_per_s if known else None,
        completed,
        busy_slot_s,
        tokens / token_requests if token_requests > 0.0 else None,
    )


def offered(
    before: float | None,
    tiers: Iterable[Throughput],
    *,
    unseen_ratio: float,
    policy: SpillPolicy,
    elapsed_s: float,
) -> float | None:
    """Estimate the load offered to a model.

    What arrived in the last few seconds is noisy (a Poisson stream of 25/s is known to 10 % over 4 s)
    and a tier's spill would shake with it. A move within that noise is therefore smoothed over a much
    longer time, and one beyond it is followed at once: steps are seen in seconds, noise is not.

    Args:
        before: The last estimate, requests/s; None when there is none.
        tiers: The throughput of every tier with instances.
        unseen_ratio: Share of the requests that static tiers answered, which no instance saw.
        policy: The time constants and what counts as noise.
        elapsed_s: Time since the last estimate.

    Returns:
        Requests/s; `before` where nothing can be seen, None when nothing was ever known.
    """
    rates = [tier.admitted_per_s for tier in tiers if tier.admitted_per_s is not None]
    if not rates:
        return before
    seen_ratio = max(_SEEN_MIN, 1.0 - unseen_ratio)
    recent = sum(rates) / seen_ratio
    larger = recent if before is None else max(before, recent)
    if larger < _NOTHING_PER_S:
        return 0.0
    if before is None:
        return recent
    # An exponentially weighted count is as noisy as a window of twice its time constant, and the less
    # of it is seen the more its noise is scaled up with it.
    noise = sqrt(larger / (2.0 * policy.demand_smoothing_s * seen_ratio))
    surprise = abs(recent - before) / noise
    span = policy.demand_noise_high - policy.demand_noise_low
    real = min(1.0, max(0.0, (surprise - policy.demand_noise_low) / span))
    rate = (1.0 - real) / policy.demand_steady_s + real / policy.demand_follow_s
    estimate = before + (recent - before) * (1.0 - exp(-elapsed_s * rate))
    # As above, or a second look at the same moment would find something else.
    return 0.0 if estimate < _NOTHING_PER_S else estimate
