"""The control loop and what keeps it going.

What arrived, when to think, other topologies, the state on disk, and shares of limits.
"""

from __future__ import annotations
