"""One instance on its way between fault and health, fed with one sample per second."""

from __future__ import annotations

from tests.fakes.brain import sample
from xds_server.core import faults
from xds_server.core.finding import judge
from xds_server.core.policy import RecoveryPolicy
from xds_server.core.sample import EngineState
from xds_server.core.track import Context

POLICY = RecoveryPolicy(jitter_ratio=0.0)
UP, DOWN, LOADING = EngineState.UP, EngineState.DOWN, EngineState.LOADING


def at(now, policy=POLICY):
    return Context("a", policy, now)


class Instance:
    """One track fed with one sample per second."""

    def __init__(self, policy=POLICY):
        self.policy = policy
        self.track = faults.present(0.0)
        self.now = 0.0

    def see(self, now=None, **facts):
        self.now = self.now + 1.0 if now is None else now
        self.last = sample("a", self.now, **facts)
        self.track = faults.observe(self.track, self.last, at(self.now, self.policy))
        return self.track

    def stay(self, seconds, **facts):
        for _ in range(int(seconds)):
            self.see(**facts)
        return self.track

    def settle(self, now, *, fresh):
        self.now = now
        finding = judge(self.last)
        self.track = faults.settle(self.track, finding, at(now, self.policy), fresh=fresh)
        return self.track

    @property
    def ceiling(self):
        return faults.ceiling(self.track, self.policy)
