from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.plans import a_model, a_model_plan, a_plan, a_static_tier, a_tier, a_topology
from xds_server.core.model import ClassName, ModelName
from xds_server.core.plan import ClassPlan, EndpointHealth, Plan, Reason
from xds_server.istio.picker.pick import Pick, Picker, Refusal
from xds_server.istio.picker.tables import ModelTable, Tables

CHAT = ModelName("chat")


def table(split=None, *, tiers=None, **numbers) -> ModelTable:
    topology = a_topology(a_model(tiers=tiers))
    tables = Tables()
    tables.take(topology, a_plan(topology, split, **numbers))
    return tables.by_model[CHAT]


def a_picker(seed: int = 1, *, most_endpoints: int = 1) -> Picker:
    return Picker(chance=random.Random(seed).random, most_endpoints=most_endpoints)


def pick(picker: Picker, of: ModelTable, **asked) -> Pick | Refusal:
    return picker.pick(of, **{"request_class": None, "subset": None, **asked})


def tier_of(ports: list[int], *, serves: str = "big", name: str = "primary"):
    return a_tier(name, serves, ports)


@settings(max_examples=25, deadline=None)
@given(
    weights=st.lists(st.integers(1, 1500), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_shares_converge_to_the_weights_while_requests_end_at_once(weights, seed):
    ports = [8000 + index for index in range(len(weights))]
    named = {f"primary-{index}": weight for index, weight in enumerate(weights)}
    of = table(tiers=(tier_of(ports), a_static_tier()), weights=named)
    picker, rounds = a_picker(seed), 4000
    counts = Counter(pick(picker, of).endpoints[0] for _ in range(rounds))
    for port, weight in zip(ports, weights, strict=True):
        share = weight / sum(weights)
        tolerance = 5 * (share * (1 - share) / rounds) ** 0.5 + 1e-9
        assert counts[f"127.0.0.1:{port}"] / rounds == pytest.approx(share, abs=tolerance)


@settings(max_examples=15, deadline=None)
@given(weights=st.lists(st.integers(100, 1500), min_size=2, max_size=5), seed=st.integers(0, 2**31))
def test_shares_converge_to_the_weights_with_many_requests_under_way(weights, seed):
    ports = [8000 + index for index in range(len(weights))]
    named = {f"primary-{index}": weight for index, weight in enumerate(weights)}
    of = table(tiers=(tier_of(ports), a_static_tier()), weights=named)
    picker, chance = a_picker(seed), random.Random(seed)
    under_way: list[str] = []
    counts: Counter[str] = Counter()
    for _ in range(6000):
        if len(under_way) == 200:
            picker.ended(under_way.pop(chance.randrange(200)))
        endpoint = pick(picker, of).endpoints[0]
        picker.began(endpoint)
        under_way.append(endpoint)
        counts[endpoint] += 1
    for port, weight in zip(ports, weights, strict=True):
        share = weight / sum(weights)
        assert counts[f"127.0.0.1:{port}"] / 6000 == pytest.approx(share, abs=0.03)


def test_who_is_slow_gets_fewer_and_never_nothing():
    of = table(tiers=(tier_of([8001, 8002]), a_static_tier()))
    picker = a_picker()
    slow: list[str] = []
    counts: Counter[str] = Counter()
    for _ in range(4000):
        endpoint = pick(picker, of).endpoints[0]
        counts[endpoint] += 1
        if endpoint.endswith("8001"):
            picker.began(endpoint)
            slow.append(endpoint)
            if len(slow) > 20:
                picker.ended(slow.pop())
    assert 0.2 < counts["127.0.0.1:8001"] / 4000 < 0.3  # twice drawn of two


def test_a_request_moves_only_where_it_would_still_be_better():
    of = table(
        tiers=(tier_of([8001, 8002]), a_static_tier()),
        weights={"primary-0": 3000, "primary-1": 1000},
    )
    draws = iter([0.0, 0.0, 0.99] * 2)  # the tier, the heavy one, the light one
    picker = Picker(chance=lambda: next(draws), most_endpoints=1)
    for _ in range(3):
        picker.began("127.0.0.1:8001")
    assert pick(picker, of).endpoints == ("127.0.0.1:8001",)  # 3/3000 is no worse than 1/1000
    picker.began("127.0.0.1:8001")
    assert pick(picker, of).endpoints == ("127.0.0.1:8002",)


HEALTHS = st.sampled_from(list(EndpointHealth))


@settings(max_examples=60, deadline=None)
@given(
    healths=st.lists(HEALTHS, min_size=1, max_size=5),
    weights=st.lists(st.integers(0, 1500), min_size=5, max_size=5),
    split=st.sampled_from([(1000, 0, 0), (0, 1000, 0), (400, 300, 300), (500, 500, 0)]),
    most=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_who_may_take_nothing_is_never_picked(healths, weights, split, most, seed):
    ports = [8000 + index for index in range(len(healths))]
    named = {f"primary-{index}": each for index, each in enumerate(healths)}
    of = table(
        split,
        tiers=(tier_of(ports), tier_of([9000], name="fallback"), a_static_tier()),
        weights={f"primary-{index}": weights[index] for index in range(len(ports))},
        health=named,
    )
    allowed = {
        f"127.0.0.1:{port}"
        for port, each in zip(ports, healths, strict=True)
        if each is EndpointHealth.HEALTHY
    } | {"127.0.0.1:9000"}
    picker = a_picker(seed, most_endpoints=most)
    for _ in range(30):
        found = pick(picker, of)
        if isinstance(found, Pick):
            assert set(found.endpoints) <= allowed
            assert len(found.endpoints) == len(set(found.endpoints)) <= most
        else:
            assert found is Refusal.SHED


def test_a_ceiling_of_zero_is_never_picked_whatever_health_says():
    topology = a_topology(a_model(tiers=(tier_of([8001, 8002]), a_static_tier())))
    plan = a_plan(topology)
    off = plan.models[0].tiers[0].instances[0]
    off.ceiling = 0.0
    tables = Tables()
    tables.take(topology, plan)
    picker = a_picker()
    of = tables.by_model[CHAT]
    assert {pick(picker, of).endpoints[0] for _ in range(100)} == {"127.0.0.1:8002"}


@pytest.mark.parametrize(
    ("split", "share"),
    [((1000, 0, 0), 0.0), ((700, 300, 0), 0.3), ((0, 1000, 0), 1.0)],
    ids=["all primary", "30 % spill", "all fallback"],
)
def test_tiers_get_their_weights(split, share):
    of, picker = table(split), a_picker()
    rounds = 4000
    fallback = sum(pick(picker, of).tier.name == "fallback" for _ in range(rounds))
    assert fallback / rounds == pytest.approx(share, abs=0.03)


def test_what_the_plan_gives_to_the_static_tier_is_shed():
    of, picker = table((500, 300, 200)), a_picker()
    found = [pick(picker, of) for _ in range(4000)]
    assert found.count(Refusal.SHED) / 4000 == pytest.approx(0.2, abs=0.03)


def test_a_tier_without_room_passes_requests_on_down_the_chain():
    down = {f"chat-primary-{index}": EndpointHealth.UNHEALTHY for index in range(2)}
    of = table((1000, 0, 0), health=down)
    assert pick(a_picker(), of).tier.name == "fallback"


def test_nothing_ready_is_not_shedding_whatever_the_plan_gives_to_whom():
    names = ("chat-primary-0", "chat-primary-1", "chat-fallback-0")
    for split in ((1000, 0, 0), (0, 0, 1000)):
        of = table(split, health=dict.fromkeys(names, EndpointHealth.DRAINING))
        assert pick(a_picker(), of) is Refusal.NOT_READY


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        (frozenset({"127.0.0.1:8002"}), {"127.0.0.1:8002"}),
        (frozenset({"127.0.0.1:8003"}), {"127.0.0.1:8003"}),
        (frozenset({"10.9.9.9:1"}), Refusal.NOT_READY),
        (frozenset(), Refusal.NOT_READY),
    ],
    ids=["one of the tier", "only the fallback's", "nobody we know", "empty"],
)
def test_the_gateways_subset_is_kept(subset, expected):
    of, picker = table(), a_picker(most_endpoints=3)
    found = [pick(picker, of, subset=subset) for _ in range(50)]
    if isinstance(expected, Refusal):
        assert set(found) == {expected}
    else:
        assert {endpoint for each in found for endpoint in each.endpoints} == expected


def test_the_list_names_each_endpoint_once_and_all_there_are():
    of = table(
        tiers=(tier_of([8001, 8002, 8003]), a_static_tier()),
        weights={"primary-0": 1_000_000, "primary-1": 1, "primary-2": 1},
    )
    picker = a_picker(most_endpoints=3)
    for _ in range(50):
        endpoints = pick(picker, of).endpoints
        assert set(endpoints) == {f"127.0.0.1:{port}" for port in (8001, 8002, 8003)}


def test_a_retry_goes_to_another_tier_only_where_the_body_is_the_same():
    def listed(serves: str) -> set[str]:
        tiers = (tier_of([8001]), tier_of([8003], serves=serves, name="fallback"), a_static_tier())
        return set(pick(a_picker(most_endpoints=3), table(tiers=tiers)).endpoints)

    assert listed("big") == {"127.0.0.1:8001", "127.0.0.1:8003"}
    assert listed("small") == {"127.0.0.1:8001"}


@pytest.mark.parametrize(
    ("is_rejected", "weights", "expected"),
    [
        (False, (0, 1000, 0), "fallback"),
        (False, (0, 0, 1000), Refusal.SHED),
        (True, (1000, 0, 0), Refusal.CLASS_SHED),
    ],
    ids=["its own weights", "its static answer", "rejected"],
)
def test_a_class_has_its_own_shares(is_rejected, weights, expected):
    topology = a_topology()
    planned = a_model_plan(topology.models[0])
    planned.classes = (
        ClassPlan(
            name=ClassName("low"),
            demand_ratio=0.5,
            weights=weights,
            is_shed=False,
            is_rejected=is_rejected,
            reason=Reason(rule="nominal", text="nominal"),
        ),
    )
    tables = Tables()
    tables.take(topology, Plan(models=(planned,), next_deadline=None))
    of, picker = tables.by_model[CHAT], a_picker()
    found = pick(picker, of, request_class=ClassName("low"))
    assert (found if isinstance(found, Refusal) else found.tier.name) == expected
    assert pick(picker, of).tier.name == "primary"


def test_what_ended_is_not_counted_and_leaves_nothing_behind():
    picker = a_picker()
    for _ in range(2):
        picker.began("a")
    picker.ended("a")
    assert picker.in_flight == {"a": 1}
    picker.ended("a")
    assert picker.in_flight == {}


def test_a_model_whose_plan_is_the_same_keeps_its_table():
    topology = a_topology(a_model("chat"), a_model("code"))
    plan = a_plan(topology)
    tables = Tables()
    tables.take(topology, plan)
    before = dict(tables.by_model)
    again = Plan(
        models=(plan.models[0], a_model_plan(topology.models[1], (0, 1000, 0))), next_deadline=None
    )
    tables.take(topology, again)
    assert tables.by_model[ModelName("chat")] is before[ModelName("chat")]
    assert tables.by_model[ModelName("code")] is not before[ModelName("code")]


def test_a_model_that_left_the_configuration_is_not_picked_for():
    both = a_topology(a_model("chat"), a_model("code"))
    tables = Tables()
    tables.take(both, a_plan(both))
    one = a_topology(a_model("chat"))
    tables.take(one, a_plan(both))
    assert set(tables.by_model) == {"chat"}
