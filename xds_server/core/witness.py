"""What proxies see against what the agent says: who is believed.

* Where proxies see requests fail that the agent knows nothing of, the proxies win: a hung engine answers
  its health check. The instance goes down and needs one hold of healthy evidence before its ramp, since
  that evidence was there before and was wrong. Where the agent cannot tell, it gets a trial after that time.
  It is not counted toward quarantine until the agent confirms it.
* At most half of a tier goes this way: what fails everywhere at once is the requests or the network, and
  Envoy's own ejection still guards each proxy.
* Where the agent sees a fault and requests still succeed, the agent wins: requests that began before the
  fault end well, and a lost GPU or a dead process shows to nobody else that early. The reason says so.
* Where the agent says nothing, the proxies' success is what a ramp advances on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from xds_server.core import faults
from xds_server.core.finding import Condition, Finding
from xds_server.core.inputs import Evidence
from xds_server.core.plan import FaultState
from xds_server.core.track import Context, Track

AGREES = "proxies see its requests fail too"
DISAGREES = "though proxies still see its requests succeed"


def witness(
    track: Track, evidence: Evidence, finding: Finding | None, context: Context, *, fresh: bool
) -> Track:
    """Take in what proxies saw of an instance's requests.

    Args:
        track: The instance so far.
        evidence: That its requests fail, or that they succeed.
        finding: What its last sample says; None when it never sent one.
        context: Instance, policy and time.
        fresh: Whether that sample is fresh.

    Returns:
        The same object when that says nothing new.
    """
    if evidence.is_failing:
        return _failing(track, evidence, finding, context, fresh=fresh)
    if track.is_ramping:
        track = replace(track, served_at=evidence.observed_at)
        return faults.settle(track, finding, context, fresh=fresh)
    is_out = track.state in (FaultState.DOWN, FaultState.QUARANTINED)
    # What ends well just after proxies saw failures began before: only an agent's word is contradicted.
    return faults.seeing(track, DISAGREES) if is_out and not track.is_out_by_proxies else track


def _failing(
    track: Track, evidence: Evidence, finding: Finding | None, context: Context, *, fresh: bool
) -> Track:
    if not faults.is_serving(track):
        is_told = track.state is FaultState.DRAINING or track.is_out_by_proxies
        return track if is_told else faults.seeing(track, AGREES)
    agent = "its agent is silent"
    if fresh and finding is not None:
        is_good = finding.condition is Condition.GOOD
        agent = "its agent says it is up" if is_good else "its agent cannot tell"
    found = Finding(Condition.FAULT, evidence.cause, f"{evidence.detail}; {agent}")
    return faults.fail(track, found, context, count=0)


def may_take_out(tier: Iterable[Track]) -> bool:
    """Whether what proxies saw may take one more instance of a tier out.

    Args:
        tier: The tracks of all of its instances.
    """
    tracks = list(tier)
    out = sum(track.is_out_by_proxies for track in tracks)
    return out + 1 <= (len(tracks) + 1) // 2
