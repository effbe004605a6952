"""The admin HTTP: what people and probes ask of a running server, and what operators order. The live page too."""

from __future__ import annotations
