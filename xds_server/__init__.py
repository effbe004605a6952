"""gpu-xds: the control plane that turns GPU telemetry into Envoy weights."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
