"""Goes over to another topology while serving: the file changed, or agents registered instances.

Both ways end in `ControlLoop.reconfigure`, one after the other. What cannot be used is kept out: the
last good topology stays, and the operator is told what is wrong and where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from xds_server import logs
from xds_server.clock import Clock
from xds_server.config.config import Config
from xds_server.config.difference import differences
from xds_server.config.load import load_file
from xds_server.config.problems import ConfigError
from xds_server.config.settings import Settings, require_token
from xds_server.config.watch import changes
from xds_server.ingest.registry import Registry
from xds_server.ingest.server import TelemetryServer
from xds_server.loop.control_loop import ControlLoop
from xds_server.observability.metrics import Tally
from xds_server.registered import with_registered


class TopologySwitch:
    """Follows the configuration file and the agents' registrations."""

    def __init__(
        self,
        *,
        path: Path,
        config: Config,
        settings: Settings,
        loop: ControlLoop,
        registry: Registry,
        telemetry: TelemetryServer,
        clock: Clock,
        tally: Tally,
        switched: Callable[[], None],
    ) -> None:
        """Start with `config`, read from `path`; `switched` is called after every change."""
        self.config = config
        self.is_valid = True
        """Whether the file as it is now is the configuration in use."""
        self.reload = asyncio.Event()
        """Set it to have the file read again."""
        self.registered = asyncio.Event()
        """Set it when the set of registered instances changed."""
        self.on_reloaded: Callable[[Config, Sequence[str]], None] = lambda *_: None
        """Told what is in use from now on, and what is different in it."""
        self.on_refused: Callable[[Sequence[str]], None] = lambda _: None
        """Told why a changed file is not used."""
        self._path = path
        self._settings = settings
        self._loop = loop
        self._registry = registry
        self._telemetry = telemetry
        self._clock = clock
        self._tally = tally
        self._switched = switched
        self._lock = asyncio.Lock()
        self._log = logs.get("config")

    def say_doubts(self) -> None:
        """Say what of the configuration in use works and is hardly meant."""
        if self.config.doubts:
            doubts = [str(each) for each in self.config.doubts]
            self._log.warning(logs.CONFIG_DOUBTED, config=str(self._path), doubts=doubts)

    async def watch(self) -> None:
        """Notice changes of the file until cancelled."""
        async for _ in changes(self._path, asyncio.Event(), known=self.config.text):
            self.reload.set()

    async def follow_file(self) -> None:
        """Go over to what the file says, whenever `reload` is set."""
        while True:
            await self.reload.wait()
            self.reload.clear()
            try:
                await self._apply()
            except ConfigError as error:
                self._refuse([str(each) for each in error.problems])
            except Exception as error:  # noqa: BLE001 - the last good configuration stays
                self._log.debug(logs.CONFIG_REFUSED, exc_info=True)
                self._refuse([f"no resources can be made of it: {error}"])

    async def follow_agents(self) -> None:
        """Include the instances that agents registered, whenever `registered` is set."""
        while True:
            await self.registered.wait()
            self.registered.clear()
            async with self._lock:
                await self._include_registered()

    async def _apply(self) -> None:
        config = load_file(self._path)
        require_token(self._settings, discovers=config.discovers)
        changed = differences(self.config, config)
        if config.at_start != self.config.at_start:
            note = "they take effect at the next start"
            self._log.warning(logs.SERVER_SETTINGS_CHANGED, note=note)
        async with self._lock:
            topology = with_registered(config.topology, self._registry.registered())
            await self._loop.reconfigure(topology, config.policy)
            self.config = config
            self._registry.retopology(config.topology, self._clock())
            self._telemetry.policy = config.policy.telemetry
        self.registered.set()
        self.is_valid = True
        self._switched()
        self._tally.add("fleet_config_reloads_total", "accepted")
        self.say_doubts()
        self._log.info(logs.CONFIG_RELOADED, config=str(self._path), changed=changed)
        self.on_reloaded(config, changed)

    def _refuse(self, problems: list[str]) -> None:
        self.is_valid = False
        self._tally.add("fleet_config_reloads_total", "refused")
        self._log.error(
            logs.CONFIG_REFUSED,
            config=str(self._path),
            problems=problems,
            note="last good is kept",
        )
        self.on_refused(problems)

    async def _include_registered(self) -> None:
        registered = self._registry.registered()
        topology = with_registered(self.config.topology, registered)
        if topology == self._loop.fleet.topology:
            return
        try:
            await self._loop.reconfigure(topology, self.config.policy)
        except Exception:  # noqa: BLE001 - the old topology stays
            self._tally.add("fleet_control_loop_errors_total", "register")
            self._log.exception(logs.PUBLISH_FAILED, stage="register")
            return
        self._log.info(
            logs.INSTANCES_REGISTERED, instances=[each.instance.id for each in registered]
        )
        self._switched()
