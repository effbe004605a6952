"""Bounds of histograms."""

from __future__ import annotations

LATENCY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of all histograms, in seconds: from an evaluation to a slow proxy."""
