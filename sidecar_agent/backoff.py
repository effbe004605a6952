"""Delays between attempts: exponential, full jitter, reset only by a stream that lived (pure)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

BASE_S: Final = 0.5
CAP_S: Final = 10.0
LIVED_S: Final = 30.0
"""A stream that ends sooner does not prove that the control plane is well again."""


@dataclass(slots=True)
class Backoff:
    """The delay before the next attempt, drawn from [0, min(cap, base * 2^n)]."""

    random: random.Random
    attempt: int = 0

    def ended(self, lived_s: float) -> float:
        """Take in that a stream (or an attempt: 0 s) ended; return how long to wait."""
        if lived_s >= LIVED_S:
            self.attempt = 0
        ceiling = min(CAP_S, BASE_S * 2.0**self.attempt)
        if ceiling < CAP_S:
            self.attempt += 1
        return self.random.uniform(0.0, ceiling)
