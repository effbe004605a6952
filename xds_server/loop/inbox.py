"""What arrived since the last evaluation: the newest sample of each instance, and every fault.

Ten thousand samples a second cost one dictionary write each; the loop is woken once per evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from xds_server.core.inputs import Drain, Evidence, Force, Input
from xds_server.core.model import InstanceId
from xds_server.core.sample import Sample


class Inbox:
    """Collects inputs between evaluations."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Call `wake` when there is something new to wait for: a first input, or a fault."""
        self._wake = wake
        self._samples: dict[InstanceId, Sample] = {}
        self._first: list[Input] = []
        self._faulty: set[InstanceId] = set()
        self.is_urgent = False
        """Whether a fault or a command arrived that may not wait for the throttle."""

    def __bool__(self) -> bool:
        return bool(self._samples or self._first)

    def offer(self, sample: Sample) -> None:
        """Take a sample; an older one of the instance gives way unless it said something urgent."""
        name = sample.instance
        samples = self._samples
        before = samples.get(name)
        is_new = not samples and not self._first
        if before is not None and before.urgent and not sample.urgent:
            self._first.append(before)
        samples[name] = sample
        if sample.urgent:
            if name not in self._faulty:
                self._faulty.add(name)
                self.is_urgent = True
                self._wake()
                return
        else:
            self._faulty.discard(name)
        if is_new:
            self._wake()

    def command(self, order: Drain | Force) -> None:
        """Take an operator's command; it does not wait."""
        self._first.append(order)
        self.is_urgent = True
        self._wake()

    def hear(self, evidence: Evidence) -> None:
        """Take in what proxies saw; that an instance fails does not wait."""
        is_first = not self
        self._first.append(evidence)
        if evidence.is_failing:
            self.is_urgent = True
        if is_first or evidence.is_failing:
            self._wake()

    def keep(self, instances: Collection[InstanceId]) -> None:
        """Forget which other instances were faulty: one that comes back under its name is another one."""
        self._faulty.intersection_update(instances)

    def take(self) -> list[Input]:
        """Hand everything over, oldest first."""
        taken = [*self._first, *self._samples.values()]
        self._first = []
        self._samples = {}
        self.is_urgent = False
        return taken
