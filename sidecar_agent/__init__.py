"""The agent that runs next to the GPUs and streams what they and their engines say."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
