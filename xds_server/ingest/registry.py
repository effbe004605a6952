"""Who may speak for which instance. Pure: time and stream numbers are arguments.

Rules:

* An agent is known by its name; one run of it by its epoch. A newer run (or a newer stream of the same
  run) replaces the older one at once, so that a dead agent's late stream cannot overwrite what its
  successor says.
* An instance has one owner. Another agent that claims it is refused and reported as a conflict until
  the owner is gone: at once after a clean end, `release_after_s` after a broken one.
* What configuration lists needs no more than its name; an instance of a tier that discovers is
  registered by its owner with address, model and tier.
* An address has one instance. What configuration lists wins; a registered one keeps its address for as long as
  its owner may come back, and until its owner says that it is elsewhere: addresses of pods are given out again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from xds_server.config.addresses import parse_endpoint
from xds_server.config.names import NAME_PATTERN, NAME_RULE
from xds_server.core.model import Instance, InstanceId, ModelName, Tier, TierName, Topology
from xds_server.ingest.decode import Claim, Hello
from xds_server.registered import Registered


class Code(StrEnum):
    """Why something is refused; the names of `Refusal.Code` on the wire."""

    UNAUTHENTICATED = "unauthenticated"
    UNKNOWN_INSTANCE = "unknown_instance"
    OWNED_BY_ANOTHER_AGENT = "owned_by_another_agent"
    STALE_EPOCH = "stale_epoch"
    BAD_MESSAGE = "bad_message"


@dataclass(frozen=True, slots=True)
class Refused:
    """One instance, or (with an empty name) the whole stream, is not accepted."""

    instance: str
    code: Code
    reason: str


@dataclass(slots=True, eq=False)
class Speaker:
    """One stream of one run of an agent. Compared by identity: only the newest is listened to."""

    hello: Hello
    claims: dict[InstanceId, Claim]
    connected: bool = True
    closed_at: float = 0.0
    was_clean: bool = False


_Address = tuple[str, int]


@dataclass(slots=True)
class _Ownership:
    speaker: Speaker
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two agents claim one instance; the owner is listened to."""

    instance: InstanceId
    owner: str
    claimant: str
    since: float


@dataclass(slots=True)
class Registry:
    """Every agent that was heard of, and who owns what."""

    topology: Topology
    """As configured, without registered instances."""
    release_after_s: float = 30.0
    """Longer than an agent needs to reconnect (its back-off ends at 10 s)."""
    forget_after_s: float = 300.0
    """A registered instance without an owner is removed after this."""
    revision: int = 0
    """Grows whenever the set of registered instances changes."""
    _speakers: dict[str, Speaker] = field(default_factory=dict)
    _owners: dict[InstanceId, _Ownership] = field(default_factory=dict)
    _registered: dict[InstanceId, Registered] = field(default_factory=dict)
    _lost_at: dict[InstanceId, float] = field(default_factory=dict)
    _conflicts: dict[InstanceId, Conflict] = field(default_factory=dict)
    _configured: dict[InstanceId, Instance] = field(default_factory=dict)
    _configured_at: dict[_Address, InstanceId] = field(default_factory=dict)
    _registered_at: dict[_Address, InstanceId] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._configure(self.topology)

    def hello(self, hello: Hello, now: float) -> tuple[Speaker | None, list[Refused]]:
        """Take a new stream in. Without a speaker, the stream is refused as a whole."""
        before = self._speakers.get(hello.agent)
        if before is not None and hello.epoch < before.hello.epoch and self._holds(before, now):
            reason = (
                f"a newer run of agent {hello.agent} (epoch {before.hello.epoch}) is known; "
                f"this is epoch {hello.epoch}. Two agents may not share a name: give each its own (--node)"
            )
            return None, [Refused("", Code.STALE_EPOCH, reason)]
        speaker = Speaker(hello, {each.name: each for each in hello.claims})
        self._speakers[hello.agent] = speaker
        if before is not None:
            before.connected = False
            self._inherit(before, speaker)
            self._end_conflicts(now)
        refused = [
            refusal
            for claim in hello.claims
            if (refusal := self._claim(speaker, claim, now)) is not None
        ]
        return speaker, refused

    def admit(
        self, speaker: Speaker, instance: InstanceId, sequence: int, now: float
    ) -> Refused | None:
        """Judge one sample; None = take it in."""
        owned = self._owners.get(instance)
        if owned is None or owned.speaker is not speaker:
            refusal = self._admit_stranger(speaker, instance, now)
            if refusal is not None:
                return refusal
            owned = self._owners[instance]
        if sequence and sequence <= owned.sequence:
            reason = f"sequence {sequence} after {owned.sequence}"
            return Refused(instance, Code.BAD_MESSAGE, reason)
        owned.sequence = sequence
        return None

    def closed(self, speaker: Speaker, now: float, *, clean: bool) -> None:
        """Note that a stream ended; `clean` means that the agent ended it on purpose."""
        speaker.connected = False
        speaker.closed_at = now
        speaker.was_clean = clean
        for name in speaker.claims:
            owned = self._owners.get(name)
            if owned is not None and owned.speaker is speaker:
                self._lost_at[name] = now
        self._end_conflicts(now)

    def retopology(self, topology: Topology, now: float) -> None:
        """Go on with another configuration; claims that were refused are judged again."""
        self._configure(topology)
        for name, each in list(self._registered.items()):
            if not self._fits(each):
                self._unregister(name)
        for name in list(self._owners):
            if name not in self._configured and name not in self._registered:
                del self._owners[name]
        for speaker in self._speakers.values():
            if speaker.connected:
                for claim in speaker.claims.values():
                    self._claim(speaker, claim, now)
        self._end_conflicts(now)

    def adopt(self, registered: Iterable[Registered], now: float) -> None:
        """Take over registered instances from a state file; their owners must come back."""
        for each in registered:
            if self._fits(each) and _address(each.instance) not in self._registered_at:
                self._put(each)
                self._lost_at[each.instance.id] = now

    def expire(self, now: float) -> None:
        """Forget agents and registered instances that have been gone for too long."""
        for agent, speaker in list(self._speakers.items()):
            if not speaker.connected and now - speaker.closed_at >= self.forget_after_s:
                del self._speakers[agent]
        for name, lost_at in list(self._lost_at.items()):
            owned = self._owners.get(name)
            if owned is not None and owned.speaker.connected:
                del self._lost_at[name]
            elif now - lost_at >= self.forget_after_s:
                del self._lost_at[name]
                self._owners.pop(name, None)
                self._unregister(name)
        self._end_conflicts(now)

    def _configure(self, topology: Topology) -> None:
        self.topology = topology
        self._configured = {each.id: each for _, _, each in topology.instances()}
        self._configured_at = {_address(each): each.id for each in self._configured.values()}

    def _fits(self, each: Registered) -> bool:
        """Whether the configuration still has a place for it, and has not taken its name or address."""
        return (
            each.instance.id not in self._configured
            and _address(each.instance) not in self._configured_at
            and self._tier(each.model, each.tier) is not None
        )

    def registered(self) -> tuple[Registered, ...]:
        """Return the registered instances, in order of their names."""
        return tuple(self._registered[name] for name in sorted(self._registered))

    def conflicts(self) -> tuple[Conflict, ...]:
        """Return the instances that more than one agent claims now."""
        return tuple(self._conflicts[name] for name in sorted(self._conflicts))

    def speakers(self) -> Iterator[Speaker]:
        """Yield the newest stream of every agent."""
        yield from self._speakers.values()

    def owner(self, instance: InstanceId) -> str | None:
        """Return the name of the agent that owns an instance."""
        owned = self._owners.get(instance)
        return owned.speaker.hello.agent if owned else None

    def _holds(self, speaker: Speaker, now: float) -> bool:
        if speaker.connected:
            return True
        return not speaker.was_clean and now - speaker.closed_at < self.release_after_s

    def _inherit(self, before: Speaker, speaker: Speaker) -> None:
        same_run = before.hello.epoch == speaker.hello.epoch
        for name, owned in list(self._owners.items()):
            if owned.speaker is not before:
                continue
            if name in speaker.claims:
                owned.speaker = speaker
                owned.sequence = owned.sequence if same_run else 0
            else:
                del self._owners[name]
                self._unregister(name)

    def _end_conflicts(self, now: float) -> None:
        """Forget conflicts whose claimant is gone or claims something else, or over what is no instance any more."""
        for name, conflict in list(self._conflicts.items()):
            claimant = self._speakers.get(conflict.claimant)
            goes_on = (
                name in self._owners
                and claimant is not None
                and name in claimant.claims
                and self._holds(claimant, now)
            )
            if not goes_on:
                del self._conflicts[name]

    def _admit_stranger(self, speaker: Speaker, instance: InstanceId, now: float) -> Refused | None:
        if self._speakers.get(speaker.hello.agent) is not speaker:
            reason = f"a newer stream of agent {speaker.hello.agent} is known"
            return Refused("", Code.STALE_EPOCH, reason)
        claim = speaker.claims.get(instance)
        if claim is None:
            return Refused(instance, Code.UNKNOWN_INSTANCE, "the hello did not claim it")
        return self._claim(speaker, claim, now)

    def _claim(self, speaker: Speaker, claim: Claim, now: float) -> Refused | None:
        owned = self._owners.get(claim.name)
        if owned is not None and owned.speaker is not speaker and self._holds(owned.speaker, now):
            owner = owned.speaker.hello.agent
            if claim.name not in self._conflicts:
                self._conflicts[claim.name] = Conflict(
                    instance=claim.name, owner=owner, claimant=speaker.hello.agent, since=now
                )
            reason = f"agent {owner} owns it; one instance has one agent"
            return Refused(claim.name, Code.OWNED_BY_ANOTHER_AGENT, reason)
        if claim.name not in self._configured:
            refusal = self._register(speaker, claim, now)
            if refusal is not None:
                if claim.name not in self._registered:
                    self._owners.pop(claim.name, None)
                return refusal
        if owned is None or owned.speaker is not speaker:
            self._owners[claim.name] = _Ownership(speaker)
        self._lost_at.pop(claim.name, None)
        self._conflicts.pop(claim.name, None)
        return None

    def _register(self, speaker: Speaker, claim: Claim, now: float) -> Refused | None:
        tier = self._tier(ModelName(claim.model), TierName(claim.tier))
        if tier is None:
            where = f"model {claim.model!r} has no tier {claim.tier!r} that discovers instances"
            reason = where if claim.model or claim.tier else "the configuration does not list it"
            return Refused(claim.name, Code.UNKNOWN_INSTANCE, reason)
        if not re.fullmatch(NAME_PATTERN, claim.name):
            reason = f"name {claim.name!a} cannot be used: {NAME_RULE}"
            return Refused(claim.name, Code.BAD_MESSAGE, reason)
        try:
            host, port = parse_endpoint(claim.address)
        except ValueError as error:
            reason = f"address {claim.address!r} is not ip:port to connect to: {error}"
            return Refused(claim.name, Code.BAD_MESSAGE, reason)
        instance = Instance(id=claim.name, host=host, port=port, capacity=claim.capacity)
        other = self._configured_at.get((host, port)) or self._registered_at.get((host, port))
        if other is not None and other != claim.name:
            if other in self._configured or self._stays(other, speaker, now):
                reason = f"address {claim.address} belongs to instance {other}"
                return Refused(claim.name, Code.BAD_MESSAGE, reason)
            self._unregister(other)
            self._owners.pop(other, None)  # Its next sample is judged as a claim again.
        self._put(
            Registered(model=ModelName(claim.model), tier=TierName(claim.tier), instance=instance)
        )
        return None

    def _stays(self, name: InstanceId, speaker: Speaker, now: float) -> bool:
        """Whether a registered instance keeps its address though `speaker` says that another is there."""
        owned = self._owners.get(name)
        if owned is None:
            return now - self._lost_at.get(name, now) < self.release_after_s
        if owned.speaker is speaker:
            # The agent owns both: its old entry is no word against what it says now.
            return _endpoint(speaker.claims[name]) == _address(self._registered[name].instance)
        return self._holds(owned.speaker, now)

    def _put(self, entry: Registered) -> None:
        name = entry.instance.id
        before = self._registered.get(name)
        if before == entry:
            return
        if before is not None:
            self._registered_at.pop(_address(before.instance), None)
        self._registered[name] = entry
        self._registered_at[_address(entry.instance)] = name
        self.revision += 1

    def _unregister(self, name: InstanceId) -> None:
        before = self._registered.pop(name, None)
        if before is not None:
            self._registered_at.pop(_address(before.instance), None)
            self.revision += 1

    def _tier(self, model: ModelName, tier: TierName) -> Tier | None:
        for each in self.topology.models:
            if each.name == model:
                return next((one for one in each.tiers if one.name == tier and one.discovers), None)
        return None


def _address(instance: Instance) -> _Address:
    return instance.host, instance.port


def _endpoint(claim: Claim) -> _Address | None:
    try:
        return parse_endpoint(claim.address)
    except ValueError:
        return None
