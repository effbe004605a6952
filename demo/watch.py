"""Looks at the control plane, the engines and the proxies while the play goes on.

What the control plane says is read into small values of the demo's own: a field it does not send is
missing here, and the view shows that.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

POLL_S = 0.2
"""Often enough for a picture that feels live."""
ATTEMPT_POLL_S = 0.03
"""How often the proxies' counters are read while an instance is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One instance in the control plane's plan."""

    name: str
    state: str
    health: str
    ceiling: float | None
    weight: int | None
    pressure: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TierView:
    """One tier in the control plane's plan."""

    name: str
    level: str
    share: float
    pressure: float | None
    spill: float | None
    reason: str
    instances: tuple[InstanceView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleView:
    """What the control plane last heard of one instance; None where it was not told."""

    state: str
    kv_ratio: float | None
    running: float | None
    waiting: float | None
    vram_ratio: float | None
    age_s: float | None


def parse_fleet(body: Mapping[str, Any]) -> dict[str, SampleView]:
    """Read the instances of `/debug/fleet` of which something was heard."""
    return {
        each["instance"]: _sample(each["sample"], each.get("sample_age_s"))
        for each in body.get("instances", ())
        if each.get("sample")
    }


def _sample(raw: Mapping[str, Any], age_s: float | None) -> SampleView:
    engine, gpu = raw.get("engine") or {}, raw.get("gpu") or {}
    return SampleView(
        state=engine.get("state", ""),
        kv_ratio=engine.get("kv_ratio"),
        running=engine.get("running"),
        waiting=engine.get("waiting"),
        vram_ratio=gpu.get("vram_ratio"),
        age_s=age_s,
    )


def parse_plan(body: Mapping[str, Any]) -> tuple[TierView, ...]:
    """Read the tiers of the first model of `/debug/plan`."""
    models = body.get("models") or []
    return tuple(_tier(each) for each in models[0]["tiers"]) if models else ()


def _tier(raw: Mapping[str, Any]) -> TierView:
    return TierView(
        name=raw["name"],
        level=raw.get("level", ""),
        share=raw["share"],
        pressure=raw.get("pressure"),
        spill=raw.get("spill"),
        reason=_reason(raw),
        instances=tuple(
            InstanceView(
                name=each["id"],
                state=each.get("state", ""),
                health=each.get("health", ""),
                ceiling=each.get("ceiling"),
                weight=each.get("weight"),
                pressure=each.get("pressure"),
                reason=_reason(each),
            )
            for each in raw.get("instances", ())
        ),
    )


def _reason(raw: Mapping[str, Any]) -> str:
    reason = raw.get("reason")
    return str(reason.get("text", "")) if isinstance(reason, Mapping) else str(reason or "")


class Watch:
    """The latest picture of everything. `follow` keeps it fresh."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        server: str,
        engines: Mapping[str, str],
        proxies: Mapping[str, str],
    ) -> None:
        """`server` is the control plane's admin URL; engines' and proxies' URLs come by name."""
        self.tiers: tuple[TierView, ...] = ()
        self.samples: dict[str, SampleView] = {}
        self.engines: dict[str, dict[str, Any]] = {}
        self._session = session
        self._server = server
        self._engine_urls = engines
        self._proxy_urls = proxies

    async def follow(self) -> None:
        """Look again and again until cancelled; who does not answer keeps the last picture."""
        while True:
            await self.look()
            await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Look once."""
        await asyncio.gather(
            self._look_at_plan(),
            self._look_at_fleet(),
            *map(self._look_at_engine, self._engine_urls),
        )

    async def _look_at_plan(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            self.tiers = parse_plan(await self._json(f"{self._server}/debug/plan"))

    async def _look_at_fleet(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            self.samples = parse_fleet(await self._json(f"{self._server}/debug/fleet"))

    async def _look_at_engine(self, name: str) -> None:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            self.engines[name] = await self._json(self._engine_urls[name] + "/sim/state")

    async def order(self, engine: str, order: str) -> dict[str, Any]:
        """Give an engine an order, e.g. `oom`, and return its answer."""
        async with self._session.post(f"{self._engine_urls[engine]}/sim/{order}") as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer

    async def farewell(self, address: str, *, since_s: float, seconds: float) -> Farewell:
        """Watch both proxies let go of a dead endpoint."""
        before = await self._traces(address)
        first, last_s, told_s = before.attempts, since_s, None
        while time.monotonic() - since_s < seconds:
            now = await self._traces(address)
            if now.attempts != before.attempts:
                last_s = time.monotonic()
            if told_s is None and not now.is_offered:
                told_s = time.monotonic()
            before = now
            await asyncio.sleep(ATTEMPT_POLL_S)
        return Farewell(
            last_attempt_after_s=last_s - since_s,
            attempts=before.attempts - first,
            told_after_s=None if told_s is None else told_s - since_s,
        )

    async def _traces(self, address: str) -> Traces:
        pages = [self._json(f"{url}/clusters?format=json") for url in self._proxy_urls.values()]
        found = [traces_of(page, address) for page in await asyncio.gather(*pages)]
        return Traces(
            attempts=sum(each.attempts for each in found),
            is_offered=any(each.is_offered for each in found),
        )

    async def _json(self, url: str) -> dict[str, Any]:
        async with self._session.get(url) as response:
            response.raise_for_status()
            body: dict[str, Any] = await response.json(content_type=None)
            return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    """How the proxies let go of a dead instance. Seconds since its death."""

    last_attempt_after_s: float
    """When a proxy last tried it; 0 when none did."""
    attempts: int
    """Attempts that the proxies made in vain."""
    told_after_s: float | None
    """When the control plane had taken it away from both proxies; None when it never did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What proxies know of one endpoint."""

    attempts: int
    """Requests sent to it and connections that failed."""
    is_offered: bool
    """The control plane tells them that it may be used."""


def traces_of(page: Mapping[str, Any], address: str) -> Traces:
    """Read one endpoint from the admin page `/clusters` of a proxy."""
    attempts, is_offered = 0, False
    for cluster in page.get("cluster_statuses", ()):
        for host in cluster.get("host_statuses", ()):
            socket = host.get("address", {}).get("socket_address", {})
            if f"{socket.get('address')}:{socket.get('port_value')}" != address:
                continue
            health = host.get("health_status", {}).get("eds_health_status")
            is_offered = is_offered or health in {"HEALTHY", "UNKNOWN"}
            attempts += sum(
                int(stat.get("value", 0))
                for stat in host.get("stats", ())
                if stat.get("name") in {"rq_total", "cx_connect_fail"}
            )
    return Traces(attempts=attempts, is_offered=is_offered)
