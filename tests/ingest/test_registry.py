from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from tests.fakes.plans import one_tier
from xds_server.core.model import (
    InstanceId,
)
from xds_server.ingest.decode import Claim, Hello
from xds_server.ingest.registry import Code, Registry, Speaker


def claim(name: str, address: str = "", tier: str = "more", model: str = "chat") -> Claim:
    return Claim(name=InstanceId(name), address=address, model=model, tier=tier)


def hello(agent: str, epoch: int, *claims: str | Claim) -> Hello:
    made = tuple(Claim(name=InstanceId(each)) if isinstance(each, str) else each for each in claims)
    return Hello(agent=agent, epoch=epoch, claims=made)


def greet(registry: Registry, said: Hello, now: float = 0.0) -> Speaker:
    speaker, refused = registry.hello(said, now)
    assert speaker is not None
    assert refused == []
    return speaker


def code(registry: Registry, speaker: Speaker, name: str, sequence: int = 0, now: float = 0.0):
    refused = registry.admit(speaker, InstanceId(name), sequence, now)
    return None if refused is None else refused.code


def test_a_dead_agents_late_stream_cannot_overwrite_its_successor():
    registry = Registry(one_tier("a"))
    old = greet(registry, hello("host", 1, "a"))
    new = greet(registry, hello("host", 2, "a"))
    assert code(registry, old, "a", 99) is Code.STALE_EPOCH
    assert code(registry, new, "a", 1) is None
    registry.closed(old, 5.0, clean=False)
    assert code(registry, new, "a", 2) is None


def test_an_older_run_that_connects_late_is_refused_as_a_whole():
    registry = Registry(one_tier("a"))
    new = greet(registry, hello("host", 2, "a"))
    speaker, (refused,) = registry.hello(hello("host", 1, "a"), 1.0)
    assert speaker is None
    assert (refused.instance, refused.code) == ("", Code.STALE_EPOCH)
    assert "epoch 2" in refused.reason
    assert code(registry, new, "a") is None


def test_a_host_whose_clock_went_back_is_heard_once_its_last_run_is_gone():
    registry = Registry(one_tier("a"), release_after_s=30)
    last = greet(registry, hello("host", 2000, "a"))
    registry.closed(last, 10.0, clean=False)
    assert registry.hello(hello("host", 1000, "a"), 39.0)[0] is None
    assert registry.hello(hello("host", 1000, "a"), 40.0)[0] is not None


def test_a_second_stream_of_the_same_run_replaces_the_half_open_first():
    registry = Registry(one_tier("a"))
    first = greet(registry, hello("host", 1, "a"))
    assert code(registry, first, "a", 5) is None
    second = greet(registry, hello("host", 1, "a"))
    assert code(registry, first, "a", 6) is Code.STALE_EPOCH
    assert code(registry, second, "a", 5) is Code.BAD_MESSAGE
    assert code(registry, second, "a", 6) is None


def test_a_new_run_counts_its_samples_from_one_again():
    registry = Registry(one_tier("a"))
    first = greet(registry, hello("host", 1, "a"))
    assert code(registry, first, "a", 500) is None
    second = greet(registry, hello("host", 2, "a"))
    assert code(registry, second, "a", 1) is None


def test_samples_out_of_order_are_dropped():
    registry = Registry(one_tier("a"))
    speaker = greet(registry, hello("host", 1, "a"))
    assert [code(registry, speaker, "a", each) for each in (1, 3, 2, 3, 4)] == [
        None,
        None,
        Code.BAD_MESSAGE,
        Code.BAD_MESSAGE,
        None,
    ]


def test_two_owners_are_a_reported_conflict_and_the_first_is_listened_to():
    registry = Registry(one_tier("a", "b"))
    first = greet(registry, hello("one", 1, "a"))
    second, (refused,) = registry.hello(hello("two", 9, "a", "b"), 3.0)
    assert second is not None
    assert (refused.instance, refused.code) == ("a", Code.OWNED_BY_ANOTHER_AGENT)
    assert "agent one owns it" in refused.reason
    assert code(registry, second, "a") is Code.OWNED_BY_ANOTHER_AGENT
    assert code(registry, second, "b") is None
    assert code(registry, first, "a") is None
    (conflict,) = registry.conflicts()
    assert (conflict.instance, conflict.owner, conflict.claimant) == ("a", "one", "two")
    assert conflict.since == 3.0
    assert registry.owner(InstanceId("a")) == "one"


@pytest.mark.parametrize(
    ("clean", "wait_s", "expected"),
    [
        pytest.param(True, 0.0, None, id="at-once-after-a-clean-end"),
        pytest.param(False, 29.0, Code.OWNED_BY_ANOTHER_AGENT, id="not-while-it-may-reconnect"),
        pytest.param(False, 30.0, None, id="later-after-a-broken-end"),
    ],
)
def test_ownership_passes_on_when_the_owner_is_gone(clean, wait_s, expected):
    registry = Registry(one_tier("a"), release_after_s=30)
    first = greet(registry, hello("one", 1, "a"))
    second, _ = registry.hello(hello("two", 1, "a"), 1.0)
    assert second is not None
    registry.closed(first, 10.0, clean=clean)
    assert code(registry, second, "a", now=10.0 + wait_s) is expected
    assert bool(registry.conflicts()) is (expected is not None)


def test_the_conflict_ends_when_the_claimant_claims_it_no_more():
    registry = Registry(one_tier("a"))
    greet(registry, hello("one", 1, "a"))
    registry.hello(hello("two", 1, "a"), 0.0)
    greet(registry, hello("two", 2))
    assert registry.conflicts() == ()


@pytest.mark.parametrize(
    ("clean", "gone_s", "is_over"),
    [
        pytest.param(True, 0.0, True, id="at-once-after-a-clean-end"),
        pytest.param(False, 29.0, False, id="not-while-it-may-reconnect"),
        pytest.param(False, 30.0, True, id="later-after-a-broken-end"),
    ],
)
def test_the_conflict_ends_when_the_claimant_is_gone(clean, gone_s, is_over):
    registry = Registry(one_tier("a"), release_after_s=30)
    greet(registry, hello("one", 1, "a"))
    second, _ = registry.hello(hello("two", 1, "a"), 0.0)
    assert second is not None
    registry.closed(second, 10.0, clean=clean)
    if gone_s:
        registry.expire(10.0 + gone_s)
    assert bool(registry.conflicts()) is not is_over


def test_the_conflict_ends_with_the_instance():
    registry = Registry(one_tier("a", "b"))
    greet(registry, hello("one", 1, "a"))
    registry.hello(hello("two", 1, "a"), 0.0)
    assert registry.conflicts()
    registry.retopology(one_tier("b"), 1.0)
    assert registry.conflicts() == ()


def test_what_nobody_configured_or_claimed_is_refused():
    registry = Registry(one_tier("a"))
    speaker, (refused,) = registry.hello(hello("host", 1, "a", "x"), 0.0)
    assert speaker is not None
    assert (refused.instance, refused.code) == ("x", Code.UNKNOWN_INSTANCE)
    assert refused.reason == "the configuration does not list it"
    assert code(registry, speaker, "x") is Code.UNKNOWN_INSTANCE
    assert code(registry, speaker, "y") is Code.UNKNOWN_INSTANCE
    assert code(registry, speaker, "a") is None


def test_an_instance_given_up_by_its_agent_is_free_for_another():
    registry = Registry(one_tier("a"))
    greet(registry, hello("one", 1, "a"))
    greet(registry, hello("one", 2))
    assert registry.owner(InstanceId("a")) is None
    assert code(registry, greet(registry, hello("two", 1, "a")), "a") is None


def test_agents_register_instances_where_the_tier_discovers():
    registry = Registry(one_tier("a", discovers=True))
    speaker = greet(registry, hello("host", 1, claim("n", "10.0.0.9:80"), "a"))
    assert code(registry, speaker, "n") is None
    (entry,) = registry.registered()
    assert (entry.model, entry.tier, entry.instance.id) == ("chat", "more", "n")
    assert (entry.instance.host, entry.instance.port) == ("10.0.0.9", 80)
    revision = registry.revision
    greet(registry, hello("host", 1, claim("n", "10.0.0.9:80"), "a"))
    assert registry.revision == revision
    greet(registry, hello("host", 2, claim("n", "10.0.0.10:80")))
    assert registry.revision == revision + 1
    assert registry.registered()[0].instance.host == "10.0.0.10"
    greet(registry, hello("host", 3))
    assert registry.registered() == ()


@pytest.mark.parametrize(
    ("each", "expected", "reason"),
    [
        pytest.param(
            claim("n", "10.0.0.1:8000"), Code.BAD_MESSAGE, "belongs to instance a", id="taken"
        ),
        pytest.param(
            claim("n", "[::]:80"), Code.BAD_MESSAGE, "no address to connect to", id="everywhere"
        ),
        pytest.param(
            claim("a b/..", "10.0.0.9:80"), Code.BAD_MESSAGE, "at most 63 letters", id="bad-name"
        ),
        pytest.param(
            claim("n\n", "10.0.0.9:80"), Code.BAD_MESSAGE, "at most 63 letters", id="line-break"
        ),
        pytest.param(claim("n", "host:1"), Code.BAD_MESSAGE, "not an IP address", id="host-name"),
        pytest.param(claim("n"), Code.BAD_MESSAGE, "no port", id="no-address"),
        pytest.param(
            claim("n", "10.0.0.9:1", tier="primary"),
            Code.UNKNOWN_INSTANCE,
            "tier",
            id="listed-tier",
        ),
        pytest.param(
            claim("n", "10.0.0.9:1", model="x"), Code.UNKNOWN_INSTANCE, "model 'x'", id="no-model"
        ),
    ],
)
def test_a_registration_that_cannot_be_is_refused_with_its_reason(each, expected, reason):
    registry = Registry(one_tier("a", discovers=True))
    _, (refused,) = registry.hello(hello("host", 1, each), 0.0)
    assert refused.code is expected
    assert reason in refused.reason
    assert registry.registered() == ()


def test_a_registered_instance_without_owner_is_forgotten_after_a_while():
    registry = Registry(one_tier(discovers=True), forget_after_s=300)
    speaker = greet(registry, hello("host", 1, claim("n", "10.0.0.9:80")))
    registry.expire(1000.0)
    assert registry.registered()
    registry.closed(speaker, 1000.0, clean=True)
    registry.expire(1299.0)
    assert registry.registered()
    registry.expire(1300.0)
    assert registry.registered() == ()


def test_an_owner_that_comes_back_keeps_its_registration():
    registry = Registry(one_tier(discovers=True), forget_after_s=300)
    speaker = greet(registry, hello("host", 1, claim("n", "10.0.0.9:80")))
    registry.closed(speaker, 0.0, clean=False)
    greet(registry, hello("host", 2, claim("n", "10.0.0.9:80")), 100.0)
    registry.expire(1000.0)
    assert registry.registered()


def test_agents_that_are_gone_are_forgotten_in_the_end():
    registry = Registry(one_tier("a"), forget_after_s=300)
    for number in range(10):
        speaker = greet(registry, hello(f"host-{number}", 1))
        registry.closed(speaker, 0.0, clean=True)
    stays = greet(registry, hello("host", 1, "a"))
    registry.expire(300.0)
    assert list(registry.speakers()) == [stays]


def test_registrations_of_a_state_file_wait_for_their_owner():
    first = Registry(one_tier(discovers=True))
    greet(first, hello("host", 1, claim("n", "10.0.0.9:80")))
    second = Registry(one_tier(discovers=True), forget_after_s=300)
    second.adopt(first.registered(), 0.0)
    assert second.registered() == first.registered()
    second.expire(299.0)
    assert second.registered()
    second.expire(300.0)
    assert second.registered() == ()


def test_a_new_configuration_judges_refused_claims_again_and_drops_what_it_lost():
    registry = Registry(one_tier("a"))
    speaker, refused = registry.hello(hello("host", 1, "a", "b"), 0.0)
    assert speaker is not None
    assert [each.instance for each in refused] == ["b"]
    registry.retopology(one_tier("b"), 1.0)
    assert code(registry, speaker, "b") is None
    assert code(registry, speaker, "a") is Code.UNKNOWN_INSTANCE


def test_a_registered_instance_that_the_file_lists_now_is_no_registration_any_more():
    registry = Registry(one_tier(discovers=True))
    greet(registry, hello("host", 1, claim("n", "10.0.0.9:80")))
    registry.retopology(one_tier("n", discovers=True), 1.0)
    assert registry.registered() == ()
    assert registry.owner(InstanceId("n")) == "host"


def addresses(registry: Registry) -> dict[str, str]:
    return {each.instance.id: each.instance.host for each in registry.registered()}


@pytest.mark.parametrize(
    ("clean", "wait_s", "passes"),
    [
        pytest.param(True, 0.0, True, id="ended"),
        pytest.param(False, 29.0, False, id="may-come-back"),
        pytest.param(False, 30.0, True, id="gone"),
    ],
)
def test_an_address_that_is_given_out_again_passes_to_its_new_instance(clean, wait_s, passes):
    registry = Registry(one_tier(discovers=True), release_after_s=30)
    gone = greet(registry, hello("host-1", 1, claim("old", "10.0.0.9:80")))
    registry.closed(gone, 100.0, clean=clean)
    speaker, refused = registry.hello(
        hello("host-2", 1, claim("new", "10.0.0.9:80")), 100.0 + wait_s
    )
    assert speaker is not None
    assert [each.instance for each in refused] == ([] if passes else ["new"])
    assert addresses(registry) == {"new" if passes else "old": "10.0.0.9"}
    # Whoever waited has it with the first sample after that.
    assert code(registry, speaker, "new", now=131.0) is None
    assert addresses(registry) == {"new": "10.0.0.9"}


def test_who_lost_its_address_is_refused_until_it_has_another_or_that_one_is_free():
    registry = Registry(one_tier(discovers=True), release_after_s=30)
    registry.closed(
        greet(registry, hello("host-1", 1, claim("old", "10.0.0.9:80"))), 0.0, clean=True
    )
    new = greet(registry, hello("host-2", 1, claim("new", "10.0.0.9:80")), 1.0)
    back, (refused,) = registry.hello(hello("host-1", 2, claim("old", "10.0.0.9:80")), 2.0)
    assert back is not None
    assert refused.reason == "address 10.0.0.9:80 belongs to instance new"
    assert code(registry, back, "old", now=3.0) is Code.BAD_MESSAGE
    registry.closed(new, 4.0, clean=True)
    assert code(registry, back, "old", now=5.0) is None
    assert addresses(registry) == {"old": "10.0.0.9"}
    greet(registry, hello("host-1", 3, claim("old", "10.0.0.10:80")), 6.0)
    greet(registry, hello("host-2", 2, claim("new", "10.0.0.9:80")), 6.0)
    assert addresses(registry) == {"old": "10.0.0.10", "new": "10.0.0.9"}


def test_an_agent_may_swap_the_addresses_of_its_instances():
    registry = Registry(one_tier(discovers=True))
    greet(registry, hello("host", 1, claim("a", "10.0.0.1:80"), claim("b", "10.0.0.2:80")))
    speaker = greet(
        registry, hello("host", 2, claim("a", "10.0.0.2:80"), claim("b", "10.0.0.1:80"))
    )
    assert addresses(registry) == {"a": "10.0.0.2", "b": "10.0.0.1"}
    assert [code(registry, speaker, name) for name in "ab"] == [None, None]


def test_an_agent_may_not_claim_one_address_twice():
    registry = Registry(one_tier(discovers=True))
    twice = hello("host", 1, claim("a", "10.0.0.1:80"), claim("b", "10.0.0.1:80"))
    speaker, (refused,) = registry.hello(twice, 0.0)
    assert refused.instance == "b"
    assert addresses(registry) == {"a": "10.0.0.1"}
    assert speaker is not None
    assert code(registry, speaker, "b") is Code.BAD_MESSAGE


def test_a_configuration_that_lists_the_address_of_a_registered_instance_wins():
    registry = Registry(one_tier(discovers=True))
    speaker = greet(registry, hello("host", 1, claim("n", "10.0.0.1:8000")))
    kept = registry.registered()
    registry.retopology(one_tier("a", discovers=True), 1.0)
    assert registry.registered() == ()
    refused = registry.admit(speaker, InstanceId("n"), 1, 1.0)
    assert refused is not None
    assert refused.reason == "address 10.0.0.1:8000 belongs to instance a"
    restarted = Registry(one_tier("a", discovers=True))
    restarted.adopt(kept, 0.0)
    assert restarted.registered() == ()


def test_a_state_file_that_has_an_address_twice_gives_it_to_the_first():
    registry = Registry(one_tier(discovers=True))
    greet(registry, hello("host", 1, claim("n", "10.0.0.9:80")))
    (entry,) = registry.registered()
    twin = replace(entry, instance=replace(entry.instance, id=InstanceId("twin")))
    restarted = Registry(one_tier(discovers=True))
    restarted.adopt([entry, twin], 0.0)
    assert restarted.registered() == (entry,)


class OwnershipMachine(RuleBasedStateMachine):
    """However agents come, go and lie, an instance has one voice and it is never an old one."""

    streams = Bundle("streams")

    def __init__(self):
        super().__init__()
        self.registry = Registry(one_tier("a", "b"), release_after_s=30)
        self.now = 0.0
        self.newest: dict[str, int] = {}

    @rule(
        target=streams,
        agent=st.sampled_from(["one", "two"]),
        epoch=st.integers(1, 4),
        names=st.sets(st.sampled_from(["a", "b"])),
    )
    def connect(self, agent, epoch, names):
        speaker, _ = self.registry.hello(hello(agent, epoch, *sorted(names)), self.now)
        return speaker

    @rule(speaker=streams, name=st.sampled_from(["a", "b"]))
    def speak(self, speaker, name):
        if speaker is None:
            return
        if self.registry.admit(speaker, InstanceId(name), 0, self.now) is None:
            assert self.registry.owner(InstanceId(name)) == speaker.hello.agent
            current = {each.hello.agent: each for each in self.registry.speakers()}
            assert current[speaker.hello.agent] is speaker

    @rule(speaker=streams, clean=st.booleans())
    def disconnect(self, speaker, clean):
        if speaker is not None:
            self.registry.closed(speaker, self.now, clean=clean)

    @rule(seconds=st.sampled_from([0.1, 10.0, 31.0]))
    def wait(self, seconds):
        self.now += seconds
        self.registry.expire(self.now)

    @invariant()
    def a_conflict_names_two_agents(self):
        for conflict in self.registry.conflicts():
            assert conflict.owner != conflict.claimant


TestOwnership = OwnershipMachine.TestCase
TestOwnership.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
