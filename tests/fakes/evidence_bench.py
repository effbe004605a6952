"""The log and load services over two tiers, with everything in reach of a test."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.fakes.plans import a_model, a_static_tier, a_tier, a_topology
from xds_server.core.policy import EvidencePolicy, Policy
from xds_server.evidence.intake import Intake
from xds_server.evidence.server import ALS_SERVICE, LRS_SERVICE, EvidenceServer
from xds_server.fleet import Fleet
from xds_server.observability.metrics import Tally


class Bench:
    """Two tiers on 127.0.0.1 (ports 8001, 8002 and 8003), and the services before them."""

    def __init__(self) -> None:
        self.policy = Policy()
        self.now: float | None = None
        """A manual clock; None = the real one."""
        self.tally = Tally()
        self.verdicts = []
        self.known = {"edge-1", "edge-2"}
        self.clusters = frozenset({"chat/primary", "chat/fallback"})
        self.fleet = Fleet(a_fleet(), self.policy, 0.0)
        self.intake = Intake(
            fleet=lambda: self.fleet,
            offer=self.verdicts.append,
            clock=self.clock,
            tally=self.tally,
        )
        self.server = EvidenceServer(
            intake=self.intake,
            policy=lambda: self.policy.evidence,
            clusters=lambda: self.clusters,
            is_known=self.known.__contains__,
            clock=time.monotonic,
            tally=self.tally,
        )
        self.channel = None

    def clock(self) -> float:
        return time.monotonic() if self.now is None else self.now

    def evidence(self, **changes) -> None:
        self.policy = replace(self.policy, evidence=EvidencePolicy(**changes))

    def refused(self, reason: str) -> float:
        return self.tally.count("fleet_evidence_refused_total", reason)

    def requests(self, **labels) -> dict[tuple[str, ...], float]:
        return {
            key: count
            for (name, key), count in self.tally.counts.items()
            if name == "fleet_requests_total"
        }

    def attempts(self) -> dict[tuple[str, ...], float]:
        return {
            (key[2], key[3]): count
            for (name, key), count in self.tally.counts.items()
            if name == "fleet_attempts_total"
        }

    def logs(self):
        return self.channel.stream_unary(f"/{ALS_SERVICE}/StreamAccessLogs")()

    def loads(self):
        return self.channel.stream_stream(f"/{LRS_SERVICE}/StreamLoadStats")()

    @property
    def entries(self) -> float:
        return self.tally.count("fleet_evidence_entries_total")


def a_fleet():
    tiers = [
        a_tier("primary", "big", [8001, 8002]),
        a_tier("fallback", "small", [8003]),
        a_static_tier(),
    ]
    return a_topology(a_model(tiers=tiers))
