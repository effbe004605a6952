"""From a plan to the weights of a mesh."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.config.load import load_file
from xds_server.core.model import ClassName, ModelName, TierName
from xds_server.core.plan import ClassPlan, Level, ModelPlan, Reason, TierPlan
from xds_server.istio.mesh import Mesh, MeshModel, MeshTier, mesh_of
from xds_server.istio.weights import TOTAL, Action, fold, weigh

REASON = Reason(rule="r", text="t")
NAMES = ("primary", "fallback", "static")


def tier_plan(name: str, weight: int) -> TierPlan:
    return TierPlan(
        name=TierName(name), level=Level.HEALTHY, pressure=None, share=weight / 1000, weight=weight,
        spill=0.0, demand=None, capacity=None, reason=REASON,
    )  # fmt: skip


def plan(*weights: int, classes: tuple[ClassPlan, ...] = ()) -> ModelPlan:
    tiers = tuple(tier_plan(name, each) for name, each in zip(NAMES, weights, strict=True))
    return ModelPlan(name=ModelName("chat"), tiers=tiers, classes=classes)


def model(*hosts: str) -> MeshModel:
    return MeshModel(
        model=ModelName("chat"), host="llm.ai.svc", namespace="ai", name="chat",
        tiers=tuple(MeshTier(name=TierName(each), host=f"{each}.ai.svc") for each in hosts),
    )  # fmt: skip


def class_plan(name: str, *weights: int, shed: bool = False, rejected: bool = False) -> ClassPlan:
    return ClassPlan(
        name=ClassName(name), demand_ratio=0.5, weights=weights, is_shed=shed,
        is_rejected=rejected, reason=REASON,
    )  # fmt: skip


def numbers(route) -> dict[str, int]:
    return {tier.name: weight for tier, weight in route.weights}


@pytest.mark.parametrize(
    ("weights", "hosts", "expected"),
    [
        pytest.param((900, 100, 0), NAMES, (90, 10, 0), id="as-planned"),
        pytest.param((999, 1, 0), NAMES, (99, 1, 0), id="the-smallest-share-is-not-lost"),
        pytest.param((334, 333, 333), NAMES, (34, 33, 33), id="largest-remainder"),
        pytest.param((0, 0, 1000), NAMES, (0, 0, 100), id="static-has-a-host"),
        pytest.param((600, 300, 100), NAMES[:2], (60, 40), id="static-has-none-before-keeps-it"),
        pytest.param((900, 0, 100), NAMES[:2], (100, 0), id="an-empty-tier-keeps-nothing"),
    ],
)
def test_weights_of_a_route_are_the_plans_in_hundredths(weights, hosts, expected):
    (route,) = weigh(plan(*weights), model(*hosts)).routes
    assert (route.of, route.action) == (None, Action.FORWARD)
    assert numbers(route) == dict(zip(hosts, expected, strict=True))


def test_when_no_tier_with_a_host_gets_anything_the_route_answers():
    (route,) = weigh(plan(0, 0, 1000), model("primary", "fallback")).routes
    assert (route.action, route.weights) == (Action.ANSWER, ())


def test_every_class_has_a_route_of_its_own():
    classes = (
        class_plan("gold", 1000, 0, 0),
        class_plan("bronze", 200, 300, 500),
        class_plan("batch", 0, 0, 1000, shed=True),
        class_plan("spam", 1000, 0, 0, shed=True, rejected=True),
    )
    routes = weigh(plan(500, 500, 0, classes=classes), model(*NAMES)).routes
    assert [each.of for each in routes] == ["gold", "bronze", "batch", "spam"]
    assert [each.action for each in routes] == [Action.FORWARD] * 3 + [Action.REJECT]
    assert numbers(routes[1]) == {"primary": 20, "fallback": 30, "static": 50}
    assert numbers(routes[2]) == {"primary": 0, "fallback": 0, "static": 100}


def test_a_shed_class_is_answered_where_static_has_no_host():
    classes = (class_plan("batch", 500, 500, 0, shed=True),)
    (route,) = weigh(plan(500, 500, 0, classes=classes), model("primary", "fallback")).routes
    assert route.action is Action.ANSWER


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=6))
def test_folding_loses_no_share_unless_nobody_can_take_it(parts):
    weights, has_host = [each for each, _ in parts], [each for _, each in parts]
    folded = fold(weights, has_host)
    assert all(not weight or has for weight, has in zip(folded, has_host, strict=True))
    first = next((i for i, (w, has) in enumerate(parts) if w and has), len(parts))
    lost = sum(weight for weight, has in parts[:first] if not has)
    assert sum(folded) == (sum(weights) - lost if first < len(parts) else 0)


@given(
    st.lists(st.integers(0, 1000), min_size=3, max_size=3),
    st.sets(st.sampled_from(NAMES), min_size=1),
)
def test_weights_of_a_route_that_forwards_always_add_up(weights, hosts):
    (route,) = weigh(plan(*weights), model(*[each for each in NAMES if each in hosts])).routes
    total = sum(weight for _, weight in route.weights)
    assert total == (TOTAL if route.action is Action.FORWARD else 0)


def test_the_mesh_follows_the_file():
    config = load_file(Path(__file__).parent / "mesh.yaml")
    mesh = mesh_of(config.istio, config.topology)
    chat = mesh.model(ModelName("chat"))
    assert chat is not None
    assert (chat.host, chat.namespace, chat.name) == (
        "llm.ai.svc.cluster.local",
        "ai",
        "gpu-xds-chat",
    )
    assert [each.name for each in chat.tiers] == list(NAMES)
    assert chat.tier(TierName("primary")) == MeshTier(
        name=TierName("primary"), host="vllm-70b.ai.svc.cluster.local", port=8000
    )
    assert chat.tier(TierName("other")) is None
    assert mesh.model(ModelName("other")) is None


def test_without_a_section_the_mesh_is_empty():
    config = load_file(Path(__file__).parents[1] / "config/design.yaml")
    assert mesh_of(config.istio, config.topology) == Mesh()
