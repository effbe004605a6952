"""`proxies` on terminals of every width: how each type stands is always there."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from xds_server.commands.proxies import show

TYPES = ("endpoint.v3.ClusterLoadAssignment", "route.v3.RouteConfiguration", "core.v3.Strange")


def a_proxy() -> dict:
    types = [
        {
            "type_url": f"type.googleapis.com/envoy.config.{name}",
            "state": "error",
            "sent_version": "3302f0b57336aaaa",
            "sent_age_s": 5400.0,
            "acked_version": "282cd5b111cdbbbb",
            "acked_age_s": 12.0,
            "lag_s": None,
            "nacks": 12,
            "error": "no such cluster",
            "error_names": ["chat"],
            "error_age_s": 3.0,
        }
        for name in TYPES
    ]
    proxy = {
        "id": "edge-1",
        "cluster": "edge",
        "agent": "envoy",
        "version": "1.40.0",
        "capability": "composite",
        "lacks": [],
    }
    return {"proxy": proxy, "protocol": "delta", "connected_s": 60.0, "types": types}


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_state_of_every_type_is_there_and_no_line_of_the_table_is_wider(width):
    out = io.StringIO()
    show(a_proxy(), Console(file=out, force_terminal=True, width=width, color_system=None))
    text = out.getvalue()
    rows = [each for each in text.splitlines() if "nacked" in each]
    assert len(rows) == len(TYPES)
    assert all("90 min ago" in each and "12.0 s ago" in each for each in rows)
    assert max(map(len, rows)) <= width
    assert ("EDS" if width < 100 else "ClusterLoadAssignment") in text
    assert "3302f0b57336" in text or width < 100
    assert "no such cluster" in text
