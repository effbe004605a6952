"""An agent's word against the engine's own: agents that lie or are dead. Pure: time is an argument.

Reports are made when answers end and averaged over an interval, an agent's numbers at any moment. They
are therefore compared with all that the agent said over some seconds, with a wide margin, and only many
reports over some time are a contradiction. It changes no weight: an operator has to look which of both is wrong (an
agent that reads another engine's page, an address that leads elsewhere).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from xds_server.core import freshness
from xds_server.core.plan import Freshness, Reason
from xds_server.core.policy import TelemetryPolicy
from xds_server.core.sample import Sample
from xds_server.evidence.orca import Report

SPAN_S = 10.0
"""An agent's numbers of this long are believed to show its range; contradictions must last as long."""
REPORTS = 20
"""Fewer reports are chance."""
KV_MARGIN = 0.25
"""More than a long prompt moves the KV usage between two samples."""
WAITING_MARGIN = 8.0
"""Requests; and half of the longest queue that the agent saw."""


class Standing(StrEnum):
    """How an agent and the load reports of its engine stand to each other."""

    UNKNOWN = "unknown"
    """No agent, or no reports for some time."""
    AGREES = "agrees"
    CONTRADICTED = "contradicted"
    SILENT = "silent"
    """The agent is not heard, while its engine answers and reports."""


@dataclass(slots=True)
class CrossCheck:
    """One instance's agent and reports."""

    standing: Standing = Standing.UNKNOWN
    text: str = ""
    """What contradicts what, for a person."""
    heard_at: float = float("-inf")
    """When the last report came."""
    _said: deque[tuple[float, float | None, float | None]] = field(default_factory=deque)
    _off_since: float | None = None
    _off_reports: int = 0

    def take(
        self, agent: Sample | None, report: Report, policy: TelemetryPolicy, now: float
    ) -> Reason | None:
        """Compare a report with what the agent says.

        Args:
            agent: Its last sample; None when the instance has no agent.
            report: What the engine reported.
            policy: How old a sample may be.
            now: Monotonic seconds.

        Returns:
            Why the standing changed, or None when it did not.
        """
        self.heard_at = now
        if agent is None:
            return self._become(Standing.UNKNOWN, "", None, report)
        age = freshness.classify(agent.observed_at, policy, now)
        if age is not Freshness.FRESH:
            self._said.clear()
            self._off_since = None
            text = f"nothing for {now - agent.observed_at:.0f} s, while its engine answers requests"
            return self._become(Standing.SILENT, text, agent, report)
        self._remember(agent, now)
        text = self._contradiction(report)
        if not text:
            self._off_since = None
            return self._become(Standing.AGREES, "", agent, report)
        if self._off_since is None:
            self._off_since, self._off_reports = now, 0
        self._off_reports += report.answers
        if now - self._off_since >= SPAN_S and self._off_reports >= REPORTS:
            return self._become(Standing.CONTRADICTED, text, agent, report)
        if self.standing is Standing.SILENT:
            return self._become(Standing.UNKNOWN, "", agent, report)
        return None

    def _become(
        self, standing: Standing, text: str, agent: Sample | None, report: Report
    ) -> Reason | None:
        self.text = text
        if standing is self.standing:
            return None
        # From not knowing to agreeing is no news; neither is forgetting.
        was, self.standing = self.standing, standing
        bad = (Standing.CONTRADICTED, Standing.SILENT)
        if standing not in bad and was not in bad:
            return None
        return Reason(
            rule=f"agent_{standing}", text=_sentence(standing, text), inputs=_inputs(agent, report)
        )

    def _remember(self, agent: Sample, now: float) -> None:
        said = self._said
        if not said or said[-1][0] != agent.observed_at:
            said.append((agent.observed_at, agent.engine.kv_ratio, agent.engine.waiting))
        while said and said[0][0] < now - SPAN_S:
            said.popleft()

    def _contradiction(self, report: Report) -> str:
        parts = []
        ratios = [kv for _, kv, _ in self._said if kv is not None]
        if report.kv_ratio is not None and ratios:
            low, high = min(ratios), max(ratios)
            if not low - KV_MARGIN <= report.kv_ratio <= high + KV_MARGIN:
                parts.append(
                    f"KV usage {report.kv_ratio:.0%}, while the agent says {low:.0%} to {high:.0%}"
                )
        queues = [waiting for _, _, waiting in self._said if waiting is not None]
        if report.waiting is not None and queues:
            fewest, most = min(queues), max(queues)
            margin = max(WAITING_MARGIN, 0.5 * most)
            if not fewest - margin <= report.waiting <= most + margin:
                parts.append(
                    f"{report.waiting:.0f} waiting, while the agent says {fewest:.0f} to {most:.0f}"
                )
        return f"its engine reports {' and '.join(parts)}" if parts else ""


def _inputs(agent: Sample | None, report: Report) -> dict[str, float | str]:
    numbers = {
        "reported_kv_ratio": report.kv_ratio,
        "reported_waiting": report.waiting,
        "agent_kv_ratio": agent.engine.kv_ratio if agent else None,
        "agent_waiting": agent.engine.waiting if agent else None,
    }
    inputs: dict[str, float | str] = {
        name: value for name, value in numbers.items() if value is not None
    }
    if agent is not None:
        inputs["agent"] = agent.agent
    return inputs


def _sentence(standing: Standing, text: str) -> str:
    match standing:
        case Standing.CONTRADICTED:
            return f"The agent is contradicted: {text}."
        case Standing.SILENT:
            return f"The agent is silent: {text}."
        case _:
            return "Agent and engine agree again."
