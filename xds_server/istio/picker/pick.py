"""Which endpoint gets a request: tiers by their weights, endpoints by weighted power of two choices.

Two endpoints of the tier are drawn by weight. The first one gets the request, unless it has so many requests under
way for its weight that the second one would still have fewer with this one. So while nobody is behind, shares are
the weights, exactly as proxies have them; who is slow gets fewer.

Chance is an argument, and nothing here waits or knows the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from xds_server.core.model import ClassName
from xds_server.istio.picker.tables import ModelTable, Shares, TierTable

DRAWS = 8
"""How often another endpoint for the list is drawn before the next one in order is taken."""


class Refusal(StrEnum):
    """Why there is no endpoint for a request."""

    NOT_READY = "not_ready"
    """No instance of the model takes requests."""
    SHED = "shed"
    """The plan gives this request to the static tier."""
    CLASS_SHED = "class_shed"
    """The plan serves more critical classes only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Where a request shall go."""

    tier: TierTable
    start: int
    """The tier that the plan gave the request to; `tier` is another one where that has nobody."""
    endpoints: tuple[str, ...]
    """The picked one, and where to try again, in order. Bodies are the same for all of them."""


class Picker:
    """Picks, and knows what is under way where. The counts are of this process alone."""

    def __init__(self, *, chance: Callable[[], float], most_endpoints: int) -> None:
        """Pick with `chance`, which returns numbers in [0, 1), lists of at most `most_endpoints`."""
        self._chance = chance
        self._most = most_endpoints
        self.in_flight: dict[str, int] = {}
        """Endpoint -> requests under way; no entry = none."""

    def pick(
        self,
        table: ModelTable,
        *,
        request_class: ClassName | None,
        subset: Collection[str] | None,
    ) -> Pick | Refusal:
        """Pick endpoints for a request. It counts from `began` on.

        Args:
            table: Of the model that is asked for.
            request_class: The class of the request, if any.
            subset: The only endpoints that the gateway allows; None = all.
        """
        shares = table.shares
        if request_class is not None:
            shares = table.classes.get(request_class, shares)
        tiers = table.tiers
        if subset is not None:
            tiers = tuple(_within(each, subset) for each in tiers)
        if not any(each.endpoints for each in tiers):
            return Refusal.NOT_READY
        if shares.is_rejected:
            return Refusal.CLASS_SHED
        drawn = self._draw_tier(shares)
        if drawn is None or tiers[drawn].is_static:
            return Refusal.SHED
        order = (*range(drawn, len(tiers)), *range(drawn))
        chosen = next(index for index in order if tiers[index].endpoints)
        tier = tiers[chosen]
        first = self._draw_endpoint(tier)
        if self._most == 1:
            return Pick(tier=tier, start=drawn, endpoints=(tier.endpoints[first],))
        endpoints = [tier.endpoints[first]]
        endpoints += self._more(tier, endpoints, self._most - 1)
        for index in order:
            below = tiers[index]
            if len(endpoints) < self._most and index > chosen and below.rewrite == tier.rewrite:
                endpoints += self._more(below, endpoints, self._most - len(endpoints))
        return Pick(tier=tier, start=drawn, endpoints=tuple(endpoints))

    def began(self, endpoint: str) -> None:
        """Count a request that is under way."""
        self.in_flight[endpoint] = self.in_flight.get(endpoint, 0) + 1

    def ended(self, endpoint: str) -> None:
        """Count no more a request that `began`."""
        left = self.in_flight[endpoint] - 1
        if left:
            self.in_flight[endpoint] = left
        else:
            del self.in_flight[endpoint]

    def _draw_tier(self, shares: Shares) -> int | None:
        total = shares.bounds[-1] if shares.bounds else 0
        if total <= 0:
            return None
        return bisect_right(shares.bounds, int(self._chance() * total))

    def _draw(self, tier: TierTable) -> int:
        return bisect_right(tier.bounds, int(self._chance() * tier.bounds[-1]))

    def _draw_endpoint(self, tier: TierTable) -> int:
        if len(tier.endpoints) == 1:
            return 0
        first, second = self._draw(tier), self._draw(tier)
        busy = self.in_flight.get(tier.endpoints[first], 0)
        if not busy or first == second:
            return first
        would = self.in_flight.get(tier.endpoints[second], 0) + 1
        return second if would * tier.weights[first] < busy * tier.weights[second] else first

    def _more(self, tier: TierTable, taken: Collection[str], wanted: int) -> list[str]:
        """Return other endpoints to try, drawn by weight."""
        endpoints = tier.endpoints
        found: list[str] = []
        if not endpoints or (len(endpoints) == 1 and endpoints[0] in taken):
            return found
        for index in self._candidates(tier):
            if len(found) == wanted:
                break
            if endpoints[index] not in taken and endpoints[index] not in found:
                found.append(endpoints[index])
        return found

    def _candidates(self, tier: TierTable) -> Iterator[int]:
        index = 0
        if len(tier.endpoints) == 2:
            yield from (0, 1)  # there is no choice
            return
        for _ in range(DRAWS):
            index = self._draw(tier)
            yield index
        for step in range(1, len(tier.endpoints)):
            yield (index + step) % len(tier.endpoints)


def _within(tier: TierTable, subset: Collection[str]) -> TierTable:
    """Return the tier with the endpoints of the subset only."""
    kept = [
        (endpoint, weight)
        for endpoint, weight in zip(tier.endpoints, tier.weights, strict=True)
        if endpoint in subset
    ]
    bounds: list[int] = []
    for _, weight in kept:
        bounds.append((bounds[-1] if bounds else 0) + weight)
    return replace(
        tier,
        endpoints=tuple(endpoint for endpoint, _ in kept),
        weights=tuple(weight for _, weight in kept),
        bounds=tuple(bounds),
    )
