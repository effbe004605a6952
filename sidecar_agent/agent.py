"""The agent's loop: scrape every engine, join with its GPUs, offer the sample to every uplink.

One task per instance, so that a silent engine delays nobody else; one scrape in flight per instance.
Everything runs on one event loop except the GPU driver, which has its own thread.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import structlog

import sidecar_agent
from sidecar_agent import encode
from sidecar_agent.engine import probe
from sidecar_agent.engine.adapters import Options
from sidecar_agent.engine.facts import EngineFacts, EngineState
from sidecar_agent.engine.lifecycle import Engine, Limits, observe
from sidecar_agent.engine.outcome import Outcome
from sidecar_agent.engine.probe import Probe, Target
from sidecar_agent.engine.token_request import TokenRequest, TokenTarget, token_session
from sidecar_agent.engine.token_watch import TokenWatch
from sidecar_agent.engine.token_watch import observe as observe_token
from sidecar_agent.gpu.facts import GpuSnapshot
from sidecar_agent.gpu.reduce import GpuGroup, reduce_instances
from sidecar_agent.gpu.worker import GpuWorker
from sidecar_agent.identity import Identity, Owned, config_hash
from sidecar_agent.join import join
from sidecar_agent.settings import InstanceSettings, Settings
from sidecar_agent.uplink import Server, Uplink

RETRY_S = 2.0
"""How soon a token is asked for again while the last answer was none."""


@dataclass(slots=True)
class Instance:
    """What the agent knows about one instance."""

    settings: InstanceSettings
    probe: Probe
    engine: Engine = field(default_factory=Engine)
    outcome: Outcome | None = None
    said_at: float | None = None
    """When an outcome last let us say something about the engine."""
    gpu: GpuGroup | None = None
    sequence: int = 0
    draining: bool = False
    drain_sequence: int = 0
    """The first sample that said so; older confirmations are of an earlier drain."""
    outcomes: Counter[str] = field(default_factory=Counter)
    rejected: int = 0
    last_said: tuple[Any, ...] = ()
    token_request: TokenRequest | None = None
    """None where the agent is not told to ask for tokens."""
    tokens: TokenWatch = field(default_factory=TokenWatch)
    replies: Counter[str] = field(default_factory=Counter)
    """Of requests for a token."""


class Agent:
    """All instances of one host."""

    def __init__(
        self,
        settings: Settings,
        *,
        gpu: GpuWorker | None,
        epoch: int,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.gpu = gpu
        self.instances: dict[str, Instance] = {}
        self.identity = Identity(
            agent=settings.node, epoch=epoch, instances=tuple(map(_owned, settings.instances))
        )
        self._gpus = {one.name: one.gpus for one in settings.instances}
        self._snapshot: GpuSnapshot | None = None
        self._groups: Mapping[str, GpuGroup] = {}
        self._rng = rng
        self._hash = config_hash(str(settings.shown()))
        plane = settings.control_plane
        tls = plane.tls
        self.uplinks = tuple(
            Uplink(
                Server(
                    address=address,
                    ca=tls.ca if tls else None,
                    cert=tls.cert if tls else None,
                    key=tls.key if tls else None,
                    server_name=tls.server_name if tls else "",
                    keepalive_s=plane.keepalive_s,
                    keepalive_timeout_s=plane.keepalive_timeout_s,
                ),
                token=settings.token,
                hello=self._hello,
                interval_s=settings.send_interval_s,
                clock=clock,
                rng=rng,
            )
            for address in plane.address
        )
        self._log: Any = structlog.get_logger("agent")

    async def run(self) -> None:
        """Scrape and stream until cancelled."""
        async with probe.session() as http, token_session() as token_http:
            self.open(http, token_http)
            if self.gpu is not None:
                self.gpu.attach(asyncio.get_running_loop(), self.on_gpus)
            async with asyncio.TaskGroup() as tasks:
                for uplink in self.uplinks:
                    tasks.create_task(uplink.run(), name=f"uplink-{uplink.server.address}")
                for name, instance in self.instances.items():
                    tasks.create_task(self._watch(instance), name=f"scrape-{name}")
                    if instance.token_request is not None:
                        tasks.create_task(self._ask(instance), name=f"token-{name}")

    def open(
        self, http: aiohttp.ClientSession, token_http: aiohttp.ClientSession | None = None
    ) -> None:
        """Make the instances' probes on open sessions; without the second no token is asked for."""
        self.instances = {
            one.name: Instance(
                settings=one,
                probe=Probe(
                    Target(
                        url=one.url,
                        engine=one.engine,
                        deadline_s=self.settings.scrape.deadline_s,
                        options=Options(
                            kv_capacity_tokens=one.kv_capacity_tokens,
                            slots=one.capacity,
                            metrics=one.metrics,
                        ),
                    ),
                    http,
                    clock=self.clock,
                ),
                token_request=self._token_request(one, token_http),
            )
            for one in self.settings.instances
        }

    def _token_request(
        self, instance: InstanceSettings, http: aiohttp.ClientSession | None
    ) -> TokenRequest | None:
        asking = self.settings.token_probe
        if http is None or not asking.enabled:
            return None
        target = TokenTarget(
            url=instance.probe_url or instance.url,
            deadline_s=asking.deadline_s,
            model=instance.probe_model,
            key_file=asking.api_key_file,
        )
        return TokenRequest(target, http, clock=self.clock)

    def drain(self, name: str, *, draining: bool) -> None:
        """Mark an instance as draining, or take the mark back, and say so at once.

        Raises:
            KeyError: the agent owns no such instance.
        """
        instance = self.instances[name]
        if instance.draining != draining:
            instance.draining = draining
            instance.drain_sequence = instance.sequence + 1
            self._log.info("drain_changed", instance=name, draining=draining)
            self._publish(instance)

    async def scrape(self, instance: Instance) -> Outcome:
        """Scrape one instance once and take the outcome in."""
        outcome = await instance.probe.scrape()
        self._regroup(instance)
        gpu = instance.gpu
        instance.outcome = outcome
        instance.outcomes[outcome.kind.value] += 1
        instance.engine = observe(
            instance.engine,
            outcome,
            limits=Limits(
                hang_s=instance.settings.hang_s,
                silence_s=instance.settings.hang_s or Limits().silence_s,
            ),
            vram_free_bytes=None if gpu is None else gpu.vram_free_bytes,
            expected_end=instance.draining,
        )
        if outcome.facts is not None:
            instance.rejected += outcome.facts.rejected
        facts = instance.engine.facts
        if facts is not None and facts.state is not EngineState.UNKNOWN:
            instance.said_at = outcome.at
        self._note(instance)
        return outcome

    async def _watch(self, instance: Instance) -> None:
        interval_s = self.settings.scrape.interval_s
        # Instances of one host are not all read in the same moment.
        next_at = self.clock() + self._rng.uniform(0.0, interval_s / 2)
        while True:
            await asyncio.sleep(max(0.0, next_at - self.clock()))
            await self.scrape(instance)
            self._publish(instance)
            next_at = max(next_at + interval_s, self.clock())

    async def _ask(self, instance: Instance) -> None:
        """Ask for a token now and then; sooner while the last answer was none."""
        asking = self.settings.token_probe
        pause_s = self._rng.uniform(0.0, asking.interval_s)
        while True:
            await asyncio.sleep(pause_s)
            await self.ask_token(instance)
            pause_s = asking.interval_s
            if not instance.tokens.is_well:
                pause_s = min(pause_s, RETRY_S)

    async def ask_token(self, instance: Instance) -> None:
        """Ask one instance for one token and take the answer in, unless it is known not to serve."""
        before = self._tells(instance)
        if before is None:
            return
        assert instance.token_request is not None
        answer = await instance.token_request.ask()
        instance.replies[answer.reply.value] += 1
        after = self._tells(instance)
        if after is None:
            return
        was = instance.tokens
        instance.tokens = observe_token(was, answer, before=before, after=after)
        if (was.state, was.is_well) != (instance.tokens.state, instance.tokens.is_well):
            self._log.info(
                "token_probe_changed",
                instance=instance.settings.name,
                result=None if instance.tokens.said is None else instance.tokens.said.result.value,
                detail=instance.tokens.detail,
                took_s=round(answer.took_s, 3),
            )
            self._publish(instance)

    def _tells(self, instance: Instance) -> EngineFacts | None:
        """Return the engine's facts if a token would tell more; forget old answers of one that ended."""
        facts = instance.engine.facts
        if instance.draining or (facts is not None and facts.state is not EngineState.UP):
            instance.tokens = TokenWatch()
            return None
        return facts

    def on_gpus(self) -> None:
        """Take in that the GPU worker has read, or that a fault arrived: faults do not wait."""
        for instance in self.instances.values():
            before = None if instance.gpu is None else instance.gpu.health
            self._regroup(instance)
            if instance.gpu is not None and instance.gpu.health is not before:
                self._note(instance)
                self._publish(instance)

    def _regroup(self, instance: Instance) -> None:
        if self.gpu is not None and instance.settings.gpus:
            # A driver that hangs gives a snapshot without numbers, so old ones never travel on.
            snapshot = self.gpu.latest()
            if snapshot is not self._snapshot:
                self._snapshot = snapshot
                self._groups = reduce_instances(snapshot, self._gpus)
            instance.gpu = self._groups[instance.settings.name]

    def _publish(self, instance: Instance) -> None:
        """Offer what can be said now; a failed read publishes nothing."""
        now = self.clock()
        outcome = instance.outcome
        sample = join(
            instance.engine,
            instance.gpu,
            instance=instance.settings.name,
            observed_at=now if outcome is None or instance.engine.facts is None else outcome.at,
            sequence=instance.sequence + 1,
            draining=instance.draining,
            tokens=instance.tokens,
        )
        if sample is not None:
            instance.sequence += 1
            for uplink in self.uplinks:
                uplink.offer(sample)

    def _note(self, instance: Instance) -> None:
        """Log changes of what is said, never one line per scrape."""
        facts = instance.engine.facts
        outcome = instance.outcome
        unread = facts is None and outcome is not None
        said = (
            None if facts is None else facts.state.value,
            () if facts is None else facts.warnings,
            outcome.kind if unread and outcome is not None else None,
            instance.engine.lifetime.count,
            None if instance.gpu is None else instance.gpu.health.value,
        )
        if said == instance.last_said:
            return
        instance.last_said = said
        shown = facts or EngineFacts(detail="" if outcome is None else outcome.detail)
        self._log.info(
            "instance_changed",
            instance=instance.settings.name,
            state=said[0] or "unread",
            detail=shown.detail,
            warnings=list(shown.warnings),
            restarts=said[3],
            gpu=said[4],
        )

    def _hello(self) -> bytes:
        return encode.hello(
            self.identity, agent_version=sidecar_agent.__version__, config_hash=self._hash
        )


def _owned(instance: InstanceSettings) -> Owned:
    return Owned(
        name=instance.name,
        address=instance.endpoint,
        model=instance.model,
        tier=instance.tier,
        capacity=instance.capacity,
        engine=instance.engine,
        gpus=instance.gpus,
    )
