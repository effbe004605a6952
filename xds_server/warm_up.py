"""The start: proxies are answered once enough is known, and go on with what they have until then."""

from __future__ import annotations

import asyncio

from xds_server import logs
from xds_server.clock import Clock
from xds_server.loop.control_loop import ControlLoop
from xds_server.loop.topology_switch import TopologySwitch
from xds_server.observability.history import History
from xds_server.xds.health import Health

GRACE_STEP_S = 0.1


class WarmUp:
    """Waits for telemetry, and lets the loop publish."""

    def __init__(
        self,
        loop: ControlLoop,
        topology: TopologySwitch,
        history: History,
        clock: Clock,
        grace_s: float,
    ) -> None:
        self._loop = loop
        self._topology = topology
        self._history = history
        self._clock = clock
        self._grace_s = grace_s
        self.health: Health | None = None
        """Told that the services serve; None before there are any."""

    async def wait(self) -> None:
        """Return once every instance was heard of, or the grace period is over.

        Where agents register instances, nobody knows how many will come: the period is waited for.
        """
        if self._loop.is_warm:
            return
        end = self._clock() + self._grace_s
        while self._clock() < end:
            if not self._loop.silent and not self._topology.config.discovers:
                self.end("telemetry")
                break
            await asyncio.sleep(min(GRACE_STEP_S, max(0.0, end - self._clock())))
        else:
            self.end("grace_over")
        if self.health is not None:
            await self.health.set(serving=True)

    def end(self, cause: str) -> None:
        """Answer proxies from now on; `cause` says why now, in snake_case."""
        log = logs.get("server")
        log.info(logs.SERVER_WARM, cause=cause, silent=logs.listed(self._loop.silent))
        self._history.process("server_warm", f"Proxies are answered: {cause.replace('_', ' ')}.")
        self._loop.warm_up()
