"""What may reach the brain besides the passing of time."""

from __future__ import annotations

from dataclasses import dataclass

from xds_server.core.model import InstanceId
from xds_server.core.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An operator drains an instance, or takes the drain back."""

    instance: InstanceId
    draining: bool
    who: str
    why: str = ""


Input = Sample | Drain
