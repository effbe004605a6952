"""What proxies saw, as a table for people: `/debug/evidence`."""

from __future__ import annotations

from typing import Any

from xds_server.core.evidence import Summary, Times
from xds_server.core.model import Topology
from xds_server.evidence.intake import Intake


def describe_evidence(intake: Intake, topology: Topology) -> dict[str, Any]:
    """Return the window's attempts, failures by kind and times of each tier and instance.

    An instance that no proxy ever named has no numbers: they are missing, not zero.
    """
    running = intake.in_progress()
    tiers = intake.tiers()
    return {
        "models": [
            {
                "model": model.name,
                "tiers": [
                    {
                        "tier": tier.name,
                        **_numbers(tiers.get((model.name, tier.name))),
                        "instances": [
                            {
                                "instance": each.id,
                                "in_progress": running.get(each.id),
                                **_numbers(intake.instance(each.id)),
                            }
                            for each in tier.instances
                        ],
                    }
                    for tier in model.tiers
                    if not tier.is_static
                ],
            }
            for model in topology.models
        ]
    }


def _numbers(summary: Summary | None) -> dict[str, Any]:
    if summary is None:
        return {}
    return {
        "attempts": summary.attempts,
        "failures": summary.failures,
        "outcomes": {str(kind): count for kind, count in sorted(summary.outcomes.items())},
        "latency_s": _times(summary.latency),
        "first_byte_s": _times(summary.first_byte),
    }


def _times(times: Times) -> dict[str, float | None]:
    return {
        name: None if value is None else round(value, 4) for name, value in times._asdict().items()
    }
