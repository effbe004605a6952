"""Keeps one object as it shall be: reads it, decides, writes; again when it or what is wanted changes.

Nothing is cached between a look and a write, so there is nothing to get out of step with; a watch only says
when to look. Newer wishes replace older ones that were not written yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Protocol

from xds_server.clock import Clock
from xds_server.istio.kubernetes.change import Change, Refusal, Unchanged, Wanted, decide
from xds_server.istio.kubernetes.client import MANAGER, TIMEOUT_S, Document, KubernetesClient
from xds_server.istio.kubernetes.errors import Cause, KubernetesError, Ref
from xds_server.istio.kubernetes.leadership import Leadership
from xds_server.istio.kubernetes.pace import Pace

LOOK_S = 30.0
"""Without a watch, and after a refusal, the object is looked at this often."""
WATCH_RETRY_S = 5.0
"""A watch that ended is begun again after so long; one that fails later each time, up to `LOOK_S`."""
NEEDS_LOOK_S = 10.0
"""A route that waits for what it goes to is looked at this often, and it is said what it waits for."""
SETTLE_S = 0.2
"""What a route goes to has been in place this long before the route is written: istiod needs its debounce."""


class Report(Protocol):
    """Told what becomes of objects."""

    def written(self, wanted: Wanted, change: Change, *, took_s: float | None) -> None:
        """Something was written, so long after it was wanted; None where it was written before."""
        ...

    def settled(self, title: str) -> None:
        """It is as it shall be."""
        ...

    def refused(self, title: str, refusal: Refusal) -> None:
        """It may not be written."""
        ...

    def failed(self, error: KubernetesError, title: str) -> None:
        """A request failed."""
        ...

    def taken_back(self, wanted: Wanted, by: str, *, gap_s: float, is_fight: bool) -> None:
        """Somebody else undid our last write."""
        ...


class Keeper:
    """One object."""

    def __init__(
        self,
        *,
        ref: Ref,
        client: KubernetesClient,
        leadership: Leadership,
        report: Report,
        clock: Clock,
        pace: Pace,
        title: str = "",
    ) -> None:
        self.ref = ref
        self.title = title or str(ref)
        self.needs: tuple[Keeper, ...] = ()
        """What must be in place before a route names it."""
        self.settled_at: float | None = None
        """Since when it is as it shall be; None while it is not, or nobody looked."""
        self._client = client
        self._leadership = leadership
        self._report = report
        self._clock = clock
        self._pace = pace
        self._wanted: Wanted | None = None
        self._wanted_at: float | None = None
        self._last: Wanted | None = None
        """What was last written or found."""
        self._answer: Document | None = None
        """The spec that the server made of `_last`: a webhook may have added something."""
        self._version = ""
        self._dirty = asyncio.Event()
        self.settled = asyncio.Event()
        """Set while `settled_at` is."""

    def want(self, wanted: Wanted) -> None:
        """Replace what is wanted; what is equal changes nothing."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._wanted_at = self._clock()
        self._dirty.set()

    def led(self, *, leads: bool) -> None:
        """Begin, or end to write: what others write meanwhile was not done against us."""
        self._last = None
        self._unsettle()
        if leads:
            self._dirty.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep(), name=f"keep-{self.ref.name}")
            group.create_task(self._watch(), name=f"watch-{self.ref.name}")

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._dirty.wait()
            while (wait_s := self._pace.due - self._clock()) > 0:
                await asyncio.sleep(wait_s)
            self._dirty.clear()
            if self._wanted is not None and self._leadership.is_leader:
                await self._try(self._wanted)

    async def _try(self, wanted: Wanted) -> None:
        try:
            await self._settle(wanted)
        except KubernetesError as error:
            self._unsettle()
            now = self._clock()
            if error.cause is Cause.INVALID and error.verb == "patch" and self._pace.may_be_stale:
                # A test of the patch failed: most likely somebody edited the object since it was read.
                error = KubernetesError(
                    Cause.CONFLICT, verb=error.verb, ref=error.ref, said=error.said
                )
            if error.cause is Cause.CONFLICT:
                self._pace.conflicted(now)
            else:
                self._pace.failed(now, error.cause, error.retry_after_s)
            self._report.failed(error, self.title)
            self._dirty.set()

    async def _settle(self, wanted: Wanted) -> None:
        live = await self._live()
        found = decide(wanted, live)
        if isinstance(found, Refusal):
            self._unsettle()
            self._report.refused(self.title, found)
        elif isinstance(found, Unchanged) or self._is_answer(wanted, live):
            self._is_settled(wanted)
        elif await self._may_write(wanted, found, live):
            await self._write(wanted, found)

    async def _live(self) -> Document | None:
        try:
            live = await self._client.get(self.ref)
        except KubernetesError as error:
            if error.cause is Cause.NOT_FOUND:
                return None
            raise
        self._version = str(live.get("metadata", {}).get("resourceVersion", ""))
        return live

    def _is_answer(self, wanted: Wanted, live: Document | None) -> bool:
        """Whether it is what the server made of the same wish before: writing it again would change nothing."""
        return (
            live is not None
            and wanted == self._last
            and self._answer is not None
            and live.get("spec") == self._answer
        )

    def _unsettle(self) -> None:
        self.settled_at = None
        self.settled.clear()

    def _settle_at(self, now: float) -> None:
        self.settled_at = now
        self.settled.set()

    def _is_settled(self, wanted: Wanted) -> None:
        if self.settled_at is None:
            self._settle_at(self._clock())
        self._last = wanted
        self._pace.settled()
        self._report.settled(self.title)

    async def _may_write(self, wanted: Wanted, change: Change, live: Document | None) -> bool:
        """Whether the write may go now; where it may not, the object is looked at again later."""
        if wanted == self._last and writer_of(live) != MANAGER:
            now = self._clock()
            self._last = None
            self._pace.taken_back(now)
            by = writer_of(live)
            gap_s, is_fight = self._pace.gap_s, self._pace.is_fight
            self._report.taken_back(wanted, by, gap_s=gap_s, is_fight=is_fight)
            if self._pace.due > now:
                self._dirty.set()
                return False
        if change.adds and not await self._needs_settled():
            self._dirty.set()
            return False
        return self._wanted is wanted

    async def _needs_settled(self) -> bool:
        """Wait for what the routes go to; return whether it is in place."""
        for each in self.needs:
            at = each.settled_at
            if at is None:
                # Nothing is asked meanwhile: what is missing may be missing until a person mends it.
                if not await _first_of(each.settled, self._dirty, within_s=NEEDS_LOOK_S):
                    self._report.refused(self.title, _waits(self.title, each.title))
                return False
            await asyncio.sleep(max(0.0, at + SETTLE_S - self._clock()))
        return True

    async def _write(self, wanted: Wanted, change: Change) -> None:
        # Between the look and here time has passed: who has lost its lease writes no more, and a write may not
        # outlive the lease either. If it does all the same, the version in it makes it fail.
        timeout_s = min(TIMEOUT_S, self._leadership.remaining_s)
        if timeout_s <= 0:
            return
        self._unsettle()
        match change.verb:
            case "create":
                stored = await self._client.create(self.ref, change.body, timeout_s=timeout_s)
            case "update":
                stored = await self._client.replace(self.ref, change.body, timeout_s=timeout_s)
            case _:
                stored = await self._client.patch(self.ref, change.body, timeout_s=timeout_s)
        now = self._clock()
        self._version = str(stored.get("metadata", {}).get("resourceVersion", ""))
        self._last, self._answer = wanted, stored.get("spec")
        self._settle_at(now)
        self._pace.written(now)
        since, self._wanted_at = self._wanted_at, None
        self._report.written(wanted, change, took_s=None if since is None else now - since)
        self._report.settled(self.title)

    async def _watch(self) -> None:
        """Look when somebody else writes the object; without the right to, every `LOOK_S` must do."""
        failures = 0
        while True:
            wait_s = WATCH_RETRY_S
            try:
                async for kind, found in self._client.watch(self.ref):
                    failures = 0
                    version = str(found.get("metadata", {}).get("resourceVersion", ""))
                    if kind != "BOOKMARK" and (version != self._version or kind == "DELETED"):
                        self._dirty.set()
            except KubernetesError as error:
                if error.cause is Cause.FORBIDDEN:
                    self._report.failed(error, self.title)
                    wait_s = 10 * LOOK_S
                elif error.cause is not Cause.GONE:
                    # A server in trouble is not asked by every object every few seconds.
                    wait_s = min(LOOK_S, WATCH_RETRY_S * 2 ** min(10, failures))
                    failures += 1
                    self._dirty.set()
                wait_s = max(wait_s, error.retry_after_s or 0.0)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))


async def _first_of(*events: asyncio.Event, within_s: float) -> bool:
    """Wait until one of them is set; return whether one was."""
    waits = [asyncio.create_task(each.wait()) for each in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
    return bool(done)


def _waits(title: str, on: str) -> Refusal:
    return Refusal(
        reason="needs",
        text=f"{title} is not written: it would send requests where {on} has to be first, and that is not in place. "
        "What keeps it is told of it; mend that",
    )


def writer_of(live: Document | None) -> str:
    """Return who wrote an object last, as far as it says; empty where it does not, or is gone.

    Times are whole seconds: of two in the same second it was the other one, or there would be nothing to ask.
    """
    entries = ((live or {}).get("metadata") or {}).get("managedFields") or ()
    newest = max(
        entries,
        key=lambda each: (str(each.get("time", "")), each.get("manager") != MANAGER),
        default=None,
    )
    return "" if newest is None else str(newest.get("manager", ""))
