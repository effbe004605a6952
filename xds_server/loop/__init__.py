"""The control loop and what keeps it going: what arrived, when to think, other topologies, the state on disk, shares of limits."""

from __future__ import annotations
