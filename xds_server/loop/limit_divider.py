"""Divides the fleet's limits over the proxies that are connected, while the process runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from xds_server import logs
from xds_server.clock import Clock
from xds_server.core.handover import Handover
from xds_server.core.policy import AdmissionPolicy
from xds_server.core.shares import Shares
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import Snapshot
from xds_server.xds.cache import SnapshotCache

LOOK_S = 5.0
"""How often it is looked at what each proxy is asked for."""
SHARED_S = 60.0
"""A proxy that comes again has two streams until the old one is given up; longer than this, they are two proxies."""
GAP_S = 0.05
"""Proxies that come within this time are one change: thousands may come at once."""


class LimitDivider:
    """Follows the proxies that come and go, and what each of them is asked for."""

    def __init__(
        self,
        *,
        cache: SnapshotCache,
        proxies: Callable[[], Collection[str]],
        policy: Callable[[], AdmissionPolicy],
        clock: Clock,
        demand: Callable[[], Mapping[str, float]] = dict,
        adopted: Mapping[str, float] | None = None,
        divided: Callable[[], None] = lambda: None,
        shared: Callable[[], Mapping[str, int]] = dict,
        accepted: Callable[[], Collection[str]] | None = None,
    ) -> None:
        """Prepare.

        Args:
            cache: Serves each proxy its part.
            proxies: Node ids of those that are connected.
            policy: The policy as it is now.
            clock: Monotonic seconds.
            demand: Requests/s by node id, of those it is known of.
            adopted: Parts by node id that proxies may still have from an earlier run.
            divided: Called after every change of a part.
            shared: Node ids by which more than one proxy goes, and how many: each of them admits the whole part.
            accepted: Node ids of those that have accepted the limits that they were served last; None: nobody is waited
                for.
        """
        self.changed = asyncio.Event()
        """Set it when a proxy came or went."""
        self._cache = cache
        self._proxies = proxies
        self._policy = policy
        self._clock = clock
        self._demand = demand
        self._shares = Shares(policy())
        self._log = logs.get("limits")
        self._divided = divided
        self._shared = shared
        self._accepted = accepted
        self._shared_since: dict[str, float] = {}
        self._told: set[str] = set()
        self._shares.adopt(adopted or {}, clock())
        self._handover = Handover(self._shares.parts)
        cache.divide(self._handover.served)
        cache.subscribe(self._published)

    @property
    def parts(self) -> Mapping[str, float]:
        """Part of every limit by proxy, as it shall be; what a proxy is to have more waits until others have less."""
        return self._shares.parts

    def _published(self, _: Capability, snapshot: Snapshot) -> None:
        if snapshot.limiters is not None and not self._shares.parts:
            self.changed.set()

    async def run(self) -> None:
        """Divide until cancelled."""
        while True:
            self.changed.clear()
            self.step()
            await asyncio.sleep(GAP_S)
            deadline = self._shares.deadline
            wait_s = LOOK_S if deadline is None else min(LOOK_S, deadline - self._clock())
            if not self._handover.is_done:
                wait_s = 0.0
            try:
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self.changed.wait()
            except TimeoutError:
                continue

    def step(self) -> None:
        """Look at who is there, and hand out what changed; without limits there is nothing to do."""
        if not self._cache.has_limits:
            return
        self._shares.policy = self._policy()
        self._look_for_shared_ids(self._clock())
        changed = self._shares.update(self._proxies(), self._demand(), self._clock())
        if changed or not self._handover.is_done:
            self._hand_over()
        if changed:
            self._divided()
            self._log.debug(logs.LIMITS_DIVIDED, proxies=len(self._shares.parts))

    def _hand_over(self) -> None:
        """Serve what can be: at once what is less, and what is more once that is accepted."""
        asked = self._accepted
        if self._handover.update(
            self._shares.parts,
            accepted=frozenset() if asked is None else asked(),
            patience_s=0.0 if asked is None else self._policy().absent_s,
            now=self._clock(),
        ):
            self._cache.divide(self._handover.served)

    def _look_for_shared_ids(self, now: float) -> None:
        shared = self._shared()
        since = self._shared_since
        self._shared_since = {name: since.get(name, now) for name in shared}
        self._told &= shared.keys()
        for name, proxies in shared.items():
            if name not in self._told and now - self._shared_since[name] >= SHARED_S:
                self._told.add(name)
                note = "each admits the whole part of the limits: give every proxy a node.id of its own"
                self._log.warning(logs.PROXY_ID_SHARED, proxy=name, proxies=proxies, note=note)
