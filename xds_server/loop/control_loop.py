"""The loop: samples in, plan, resources, push. Event-driven and never dying.

It sleeps until something arrives or the plan's own deadline. An isolated change is evaluated and
pushed at once; under a storm there is at most one push per gap, and faults do not wait. Whatever goes
wrong, the last good plan keeps being served, and the loop goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from xds_server import logs
from xds_server.clock import Clock
from xds_server.core.inputs import Drain, Evidence, Force, Input
from xds_server.core.model import InstanceId, Topology
from xds_server.core.plan import Event, ModelPlan, Plan
from xds_server.core.policy import Policy
from xds_server.core.sample import Sample
from xds_server.fleet import Fleet, takes_no_traffic
from xds_server.loop.inbox import Inbox
from xds_server.loop.throttle import Throttle
from xds_server.observability.metrics import Tally
from xds_server.observability.step import Step
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import Snapshot

RETRY_S = 1.0
"""After an exception the loop thinks again this much later, even if nothing arrives."""


class Builder(Protocol):
    """Turns plans into the resources of one capability."""

    def build(self, plan: Plan) -> Snapshot:
        """Return the resources; parts that did not change are the same objects as before."""
        ...


MakeBuilder = Callable[[Topology, Policy, Capability], Builder]
Publish = Callable[[Capability, Snapshot], None]


class ControlLoop:
    """Owns the fleet's state while the process runs."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        make_builder: MakeBuilder,
        publish: Publish,
        clock: Clock,
        tally: Tally,
        push_gap_s: float,
        capabilities: Iterable[Capability],
        proxies: Callable[[], int] = lambda: 0,
        cpu_clock: Clock = time.thread_time,
    ) -> None:
        """Prepare; nothing runs and nothing is published before `run`."""
        self.fleet = fleet
        self.is_warm = False
        self.on_published: Callable[[frozenset[InstanceId]], None] = lambda _: None
        """Told the instances that take no traffic, after each publication that changes them."""
        self.on_event: Callable[[Event], None] = lambda _: None
        """Told everything that happened, once it is counted and logged."""
        self.on_step: Callable[[Step], None] | None = None
        """Told every step that published something."""
        self.snapshots: dict[Capability, Snapshot] = {}
        """What is published, by capability."""
        self.latest: dict[InstanceId, Sample] = {}
        """The newest sample of each instance."""
        self._make_builder = make_builder
        self._publish = publish
        self._clock = clock
        self._proxies = proxies
        self._cpu_clock = cpu_clock
        self._tally = tally
        self._capabilities = tuple(capabilities)
        self._builders: Mapping[Capability, Builder] = {}
        self._throttle = Throttle(push_gap_s)
        self._wake = asyncio.Event()
        self._inbox = Inbox(self._wake.set)
        self._deadline = float("inf")
        self._is_forced = False
        self._is_held = False
        """Whether a decision waits for its push."""
        self._published: tuple[ModelPlan, ...] | None = None
        self._drained: frozenset[InstanceId] = frozenset()
        self._reconfiguring = asyncio.Lock()
        self._listeners: list[Callable[[Plan], None]] = []
        self._log = logs.get("loop")

    def subscribe(self, listener: Callable[[Plan], None]) -> None:
        """Tell `listener` every plan from now on, also before proxies are answered (`is_warm`)."""
        self._listeners.append(listener)

    def offer(self, sample: Sample) -> None:
        """Take a sample in."""
        self._inbox.offer(sample)

    def drain(self, drain: Drain) -> None:
        """Take an operator's command in."""
        self._log.info(
            logs.DRAIN_REQUESTED,
            instance=drain.instance,
            draining=drain.draining,
            who=drain.who,
            why=drain.why,
        )
        self._inbox.command(drain)

    def force_tier(self, order: Force) -> None:
        """Take an operator's order in that one tier gets everything, or the end of it."""
        self._log.info(
            logs.FORCE_REQUESTED,
            model=order.model,
            tier=order.tier or "",
            who=order.who,
            why=order.why,
        )
        self._inbox.command(order)

    def hear(self, evidence: Evidence) -> None:
        """Take in what proxies saw of an instance."""
        self._inbox.hear(evidence)

    @property
    def silent(self) -> frozenset[InstanceId]:
        """Instances that nothing was heard of since the start."""
        return frozenset(
            each.id for _, _, each in self.fleet.topology.instances() if each.id not in self.latest
        )

    async def prepare(self) -> None:
        """Make the builders: slow, so off the event loop."""
        self._builders = await self._make_builders(self.fleet.topology, self.fleet.policy)

    async def reconfigure(self, topology: Topology, policy: Policy) -> None:
        """Go over to another topology or policy between two evaluations.

        The builders are made in a thread; the old topology is served meanwhile.
        """
        async with self._reconfiguring:
            builders = await self._make_builders(topology, policy)
            self.fleet.reconfigure(topology, policy, self._clock())
            self._builders = builders
            self._published = None
            names = {each.id for _, _, each in topology.instances()}
            self._inbox.keep(names)
            self.latest = {name: each for name, each in self.latest.items() if name in names}
        self.force()

    async def add_capability(self, capability: Capability) -> None:
        """Serve proxies of another capability from now on."""
        async with self._reconfiguring:
            if capability in self._capabilities:
                return
            builder = await asyncio.to_thread(
                self._make_builder, self.fleet.topology, self.fleet.policy, capability
            )
            self._capabilities = (*self._capabilities, capability)
            self._builders = {**self._builders, capability: builder}
            self._published = None
        self.force()

    def warm_up(self) -> None:
        """Start to answer proxies."""
        self.is_warm = True
        self.force()

    def force(self) -> None:
        """Evaluate and publish at once, whether something arrived or not."""
        self._is_forced = True
        self._wake.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._wait()
            self.step()

    def step(self) -> None:
        """Evaluate what arrived, and publish what changed once a push may leave."""
        may_wait = not (self._is_forced or self._inbox.is_urgent)
        inputs = self._inbox.take()
        self._is_forced = False
        started, spent = self._clock(), self._cpu_clock()
        self._deadline = started + RETRY_S
        plan, events = self._evaluate(inputs, started)
        decided = self._clock()
        self._tally.observe("fleet_evaluation_seconds", decided - started)
        try:
            published = self._push(plan, started=started, decided=decided, may_wait=may_wait)
            if published is not None and self.on_step is not None:
                self.on_step(
                    Step(
                        started=started,
                        decided=decided,
                        published=published,
                        inputs=len(inputs),
                        oldest_s=_oldest_s(inputs, started),
                        may_wait=may_wait,
                        events=events,
                    )
                )
        finally:
            # Proxies first: an avalanche of events must not wait in front of the push that ends it. And told it is,
            # whatever went wrong there.
            for event in events:
                self.tell(event)
            if plan is not None:
                self._spread(plan)
        self._throttle.evaluated(ended=self._clock(), cost_s=self._cpu_clock() - spent)

    def _push(
        self, plan: Plan | None, *, started: float, decided: float, may_wait: bool
    ) -> float | None:
        """Publish what changed, if it may leave now; return when that was done, None if nothing left."""
        if plan is None or not self.is_warm:
            return None
        self._is_held = (
            may_wait
            and started < self._throttle.push_earliest
            and plan.models is not self._published
        )
        if self._is_held or not self.publish(plan):
            return None
        self._throttle.pushed(at=started, proxies=self._proxies())
        published = self._clock()
        self._tally.observe("fleet_publish_seconds", published - decided)
        return published

    def due(self) -> float:
        """Return when the next step is due (monotonic seconds)."""
        if self._is_forced or self._inbox.is_urgent:
            return float("-inf")
        if self._inbox:
            return self._throttle.earliest
        waited_for = self._deadline
        if self._is_held:
            waited_for = min(waited_for, self._throttle.push_earliest)
        return max(waited_for, self._throttle.earliest)

    async def _wait(self) -> None:
        while (wait_s := self.due() - self._clock()) > 0:
            self._wake.clear()
            try:
                async with asyncio.timeout(None if wait_s == float("inf") else wait_s):
                    await self._wake.wait()
            except TimeoutError:
                return

    def _evaluate(
        self, inputs: Sequence[Input], now: float
    ) -> tuple[Plan | None, tuple[Event, ...]]:
        """Return the plan that follows, None if there can be none, and what happened on the way."""
        samples = [each for each in inputs if isinstance(each, Sample)]
        self.latest.update({each.instance: each for each in samples})
        ages = [now - each.observed_at for each in samples]
        self._tally.observe("fleet_sample_age_seconds", *ages)
        plan = self._try(inputs, now)
        plans = [] if plan is None else [plan]
        if plan is None and len(inputs) > 1:
            # One of them is poison; the others must not suffer for it.
            plans = [each for each in (self._try([one], now) for one in inputs) if each is not None]
        if not plans:
            return None, ()
        plan = plans[-1]
        self._deadline = float("inf") if plan.next_deadline is None else plan.next_deadline
        return plan, tuple(event for each in plans for event in each.events)

    def _spread(self, plan: Plan) -> None:
        for listener in self._listeners:
            try:
                listener(plan)
            except Exception:  # noqa: BLE001 - what one does with it is no other's trouble
                self._tally.add("fleet_control_loop_errors_total", "listener")
                self._log.exception(logs.PLAN_LISTENER_FAILED)

    def _try(self, inputs: Sequence[Input], now: float) -> Plan | None:
        self._tally.add("fleet_evaluations_total")
        try:
            return self.fleet.evaluate(inputs, now)
        except Exception:  # noqa: BLE001 - the loop survives whatever happens
            self._tally.add("fleet_control_loop_errors_total", "evaluate")
            self._log.exception(logs.EVALUATION_FAILED, inputs=[repr(each) for each in inputs[:3]])
            return None

    def tell(self, event: Event) -> None:
        """Count and log something that happened."""
        self._tally.add("fleet_events_total", event.name)
        fields: dict[str, object] = {"model": event.model, "tier": event.tier}
        if event.instance:
            fields["instance"] = event.instance
        if event.before or event.after:
            fields["before"], fields["after"] = event.before, event.after
        self._log.info(
            event.name, **fields, rule=event.reason.rule, reason=event.reason.text,
            inputs=dict(event.reason.inputs),
        )  # fmt: skip
        self.on_event(event)

    def publish(self, plan: Plan) -> bool:
        """Hand the proxies what differs from the last publication; return whether anything did."""
        if plan.models is self._published:
            return False
        is_changed = False
        self._published = plan.models
        for capability, builder in self._builders.items():
            try:
                snapshot = builder.build(plan)
                before = self.snapshots.get(capability)
                if before is snapshot or (before is not None and before.is_same(snapshot)):
                    continue
                self._publish(capability, snapshot)
            except Exception:  # noqa: BLE001 - the loop survives whatever happens
                self._tally.add("fleet_control_loop_errors_total", "publish")
                self._log.exception(logs.PUBLISH_FAILED, capability=capability.value)
                self._deadline = min(self._deadline, self._clock() + RETRY_S)
                self._published = None
                continue
            self.snapshots[capability] = snapshot
            self._tally.add("fleet_snapshots_published_total", capability.value)
            self._log.debug(logs.SNAPSHOT_PUBLISHED, capability=capability.value)
            is_changed = True
        if is_changed:
            self._tell_drained(plan)
        return is_changed

    def _tell_drained(self, plan: Plan) -> None:
        drained = takes_no_traffic(plan)
        if drained != self._drained:
            self._drained = drained
            self.on_published(drained)

    async def _make_builders(
        self, topology: Topology, policy: Policy
    ) -> Mapping[Capability, Builder]:
        def make() -> dict[Capability, Builder]:
            return {
                capability: self._make_builder(topology, policy, capability)
                for capability in self._capabilities
            }

        return await asyncio.to_thread(make)


def _oldest_s(inputs: Sequence[Input], now: float) -> float | None:
    """Return the age of the oldest sample; None without any."""
    ages = [now - each.observed_at for each in inputs if isinstance(each, Sample)]
    return max(ages, default=None)
