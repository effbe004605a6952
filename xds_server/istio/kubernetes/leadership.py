"""Holds the Lease, or waits for it: the only place that says whether we may write now."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Protocol

from xds_server.clock import Clock
from xds_server.istio.kubernetes import lease
from xds_server.istio.kubernetes.errors import Cause, KubernetesError, Ref
from xds_server.istio.kubernetes.lease import Document, LeaseRules, Seen

RELEASE_TIMEOUT_S = 2.0
"""A server that does not answer does not hold up our end; the lease then runs out by itself."""


class LeaseServer(Protocol):
    """What is needed of a client."""

    async def get(self, ref: Ref) -> Document:
        """See `KubernetesClient`."""
        ...

    async def create(self, ref: Ref, body: Document) -> Document:
        """See `KubernetesClient`."""
        ...

    async def replace(self, ref: Ref, body: Document, *, timeout_s: float) -> Document:
        """See `KubernetesClient`."""
        ...


class Leadership:
    """One candidate."""

    def __init__(
        self,
        *,
        client: LeaseServer,
        target: Ref,
        me: str,
        rules: LeaseRules,
        clock: Clock,
        wall: Clock = time.time,
    ) -> None:
        self.on_change: Callable[[bool, str], None] = lambda *_: None
        """Told when it begins or ends that we may write, and why."""
        self.on_trouble: Callable[[KubernetesError | None], None] = lambda _: None
        """Told what keeps us from the lease; None once nothing does any more."""
        self.me = me
        self.rules = rules
        self.target = target
        self._client = client
        self._clock = clock
        self._wall = wall
        self._document: Document | None = None
        self._seen: Seen | None = None
        self._until = float("-inf")
        self._is_held = False

    @property
    def is_leader(self) -> bool:
        """Whether we may write at this moment; asked before every write."""
        return self._clock() < self._until

    @property
    def remaining_s(self) -> float:
        """Seconds that we may still write without another renewal; a write may not take longer."""
        return max(0.0, self._until - self._clock())

    @property
    def holder(self) -> str:
        """Who holds the lease as far as we saw; empty = nobody."""
        return self._seen.holder if self._seen is not None else ""

    async def run(self) -> None:
        """Take part until cancelled; then give the lease back."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._elect(), name="lease-elect")
                group.create_task(self._expire(), name="lease-expire")
        finally:
            await self._release()

    async def _elect(self) -> None:
        while True:
            try:
                async with asyncio.timeout(max(0.1, self.rules.deadline_s / 2)):
                    await self.attempt()
                self.on_trouble(None)
            except KubernetesError as error:
                self.on_trouble(error)
            except TimeoutError:
                said = f"no answer within {self.rules.deadline_s / 2:g} s"
                self.on_trouble(
                    KubernetesError(Cause.UNREACHABLE, verb="get", ref=self.target, said=said)
                )
            # Candidates that started together must not ask together for ever.
            await asyncio.sleep(self.rules.retry_s * random.uniform(0.9, 1.1))

    async def _expire(self) -> None:
        """Say that the time is over at the moment it is, though no answer may ever come."""
        while True:
            if self._is_held and not self.is_leader:
                self._lost("it could not be renewed in time")
            await asyncio.sleep(
                min(max(self.remaining_s, 0.01), self.rules.retry_s)
                if self._is_held
                else self.rules.retry_s / 2
            )

    async def attempt(self) -> None:
        """Renew the lease, or take it if it may be taken.

        Raises:
            KubernetesError: The server refuses, or does not answer.
        """
        try:
            self._document = await self._client.get(self.target)
        except KubernetesError as error:
            if error.cause is not Cause.NOT_FOUND:
                raise
            self._document = None
        now = self._clock()
        if self._document is not None:
            self._seen = lease.see(self._document, self._seen, now)
            if not lease.may_take(self._seen, self.me, now):
                if self._is_held:
                    self._lost(f"{self._seen.holder} took it")
                return
        await self._take()

    async def _take(self) -> None:
        sent = self._clock()
        wanted = lease.taken(
            self._document, target=self.target, me=self.me, rules=self.rules, wall=self._wall()
        )
        try:
            if self._document is None:
                self._document = await self._client.create(self.target, wanted)
            else:
                self._document = await self._client.replace(
                    self.target, wanted, timeout_s=self.rules.deadline_s / 2
                )
        except KubernetesError as error:
            if error.cause is not Cause.CONFLICT:
                raise
            # Somebody was faster. What they wrote is looked at next time; until then we trust nothing.
            self._lost("somebody else wrote it at the same time")
            return
        self._seen = lease.see(self._document, self._seen, self._clock())
        self._until = sent + self.rules.deadline_s
        if not self._is_held and self.is_leader:
            self._is_held = True
            self._tell(leads=True, why=f"the lease {self.target} is ours")

    def _lost(self, why: str) -> None:
        self._until = float("-inf")
        if self._is_held:
            self._is_held = False
            self._tell(leads=False, why=why)

    def _tell(self, *, leads: bool, why: str) -> None:
        self.on_change(leads, why)

    async def _release(self) -> None:
        document, was_held = self._document, self._is_held
        self._lost("this control plane ends")
        if document is None or not was_held:
            return
        with contextlib.suppress(KubernetesError, TimeoutError):
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                try:
                    await self._empty(document)
                except KubernetesError as error:
                    if error.cause is not Cause.CONFLICT:
                        raise
                    # Most likely our own renewal: it was accepted, and our end cut off the answer.
                    document = await self._client.get(self.target)
                    if lease.see(document, None, self._clock()).holder == self.me:
                        await self._empty(document)

    async def _empty(self, document: Document) -> None:
        emptied = lease.released(document, target=self.target, wall=self._wall())
        await self._client.replace(self.target, emptied, timeout_s=RELEASE_TIMEOUT_S)
