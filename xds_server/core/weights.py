"""Real shares to integer weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor


def allocate(shares: Sequence[float], total: int) -> tuple[int, ...]:
    """Split an integer by largest remainder.

    Args:
        shares: Non-negative; they need not add up to 1.
        total: What is split; at least the number of shares that are above zero.

    Returns:
        Integers in the order of `shares` that add up to `total`, or all zero when every share is.
        A zero share is exactly zero and any other at least 1. Ties go to the earlier one.

    Raises:
        ValueError: A share is negative or not finite, or `total` is too small.
    """
    if any(not 0.0 <= share < float("inf") for share in shares):
        raise ValueError(f"shares: {list(shares)!r}; expected finite numbers of at least 0")
    largest = max(shares, default=0.0)
    if largest <= 0.0:
        return (0,) * len(shares)
    positive = sum(1 for share in shares if share > 0.0)
    if total < positive:
        raise ValueError(f"total: {total}; expected at least {positive}, one for each share")
    # Scaled first: the sum of huge shares must not overflow, nor tiny ones vanish in it.
    scaled = [share / largest for share in shares]
    whole = sum(scaled)
    exact = [share / whole * total for share in scaled]
    parts = [
        max(1, floor(value)) if share > 0.0 else 0
        for value, share in zip(exact, shares, strict=True)
    ]
    missing = total - sum(parts)
    by_remainder = sorted(
        (index for index, share in enumerate(shares) if share > 0.0),
        key=lambda index: (parts[index] - exact[index], index),
    )
    step = 0
    while missing > 0:
        parts[by_remainder[step % positive]] += 1
        missing -= 1
        step += 1
    while missing < 0:
        # The floor of 1 gave too much: taken back where the excess over the exact share is largest.
        giver = max(
            (index for index in by_remainder if parts[index] > 1),
            key=lambda index: (parts[index] - exact[index], -index),
        )
        parts[giver] -= 1
        missing += 1
    return tuple(parts)
