"""What the process tells about itself: metrics, traces, and the history of what happened."""

from __future__ import annotations
