"""Whether a sidecar is told what we want, and the words for it if not."""

from __future__ import annotations

import pytest

from xds_server.core.model import ClassName, ModelName, TierName
from xds_server.istio.mesh import MeshModel, MeshTier
from xds_server.istio.probe.seen import SeenRoute, describe, difference
from xds_server.istio.weights import Action, ModelWeights, RouteWeights

BIG = MeshTier(name=TierName("primary"), host="vllm-70b.ai.svc", subset="v1", port=8000)
SMALL = MeshTier(name=TierName("fallback"), host="vllm-8b.ai.svc")
MODEL = MeshModel(
    model=ModelName("chat"), host="llm.ai.svc", namespace="ai", name="chat", tiers=(BIG, SMALL)
)
TO_BIG, TO_SMALL = "outbound|8000|v1|vllm-70b.ai.svc", "outbound|8080||vllm-8b.ai.svc"


def forward(big: int, small: int, of: str | None = None) -> RouteWeights:
    return RouteWeights(
        of=None if of is None else ClassName(of),
        action=Action.FORWARD,
        weights=((BIG, big), (SMALL, small)),
    )


def wanted(*routes: RouteWeights) -> ModelWeights:
    return ModelWeights(model=MODEL, routes=routes or (forward(90, 10),))


def route(name: str = "chat", **clusters: int) -> SeenRoute:
    names = {"big": TO_BIG, "small": TO_SMALL, "other": "outbound|80||web.shop.svc"}
    return SeenRoute(
        name=name, clusters=tuple((names.get(each, each), n) for each, n in clusters.items())
    )


@pytest.mark.parametrize(
    ("routes", "seen"),
    [
        pytest.param((forward(90, 10),), (route(big=90, small=10),), id="as wanted"),
        pytest.param((forward(90, 10),), (route(big=9, small=1),), id="the same ratio"),
        pytest.param((forward(90, 10),), (route(small=10, big=90),), id="in another order"),
        pytest.param((forward(100, 0),), (route(big=1),), id="all to one"),
        pytest.param((forward(100, 0),), (route(big=100, small=0),), id="a zero that is written"),
        pytest.param((forward(0, 100),), (route(small=1),), id="all to the other"),
        pytest.param((forward(50, 50),), (route(), route(big=1, small=1)), id="a later route"),
        pytest.param(
            (RouteWeights(of=None, action=Action.ANSWER),),
            (SeenRoute(name="chat", status=200),),
            id="the static answer",
        ),
        pytest.param(
            (RouteWeights(of=None, action=Action.REJECT),),
            (SeenRoute(name="chat", status=429),),
            id="a 429",
        ),
        pytest.param(
            (forward(100, 0, "core"), forward(0, 100, "batch")),
            (route("batch", small=1), route("core", big=1)),
            id="classes",
        ),
    ],
)
def test_weights_that_arrived_are_known_by_where_they_lead(routes, seen):
    assert difference(wanted(*routes), seen) is None


@pytest.mark.parametrize(
    ("routes", "seen", "said"),
    [
        pytest.param((), None, "no HTTP routes for llm.ai.svc", id="no such host"),
        pytest.param((), (), "(none) lead elsewhere", id="no route"),
        pytest.param(
            (), (route(big=50, small=50),),
            f"wanted primary=90% fallback=10%, sidecars have {TO_BIG}=50% {TO_SMALL}=50%",
            id="other weights",
        ),
        pytest.param((), (route(big=1),), f"sidecars have {TO_BIG}=100%", id="all to one"),
        pytest.param(
            (), (route(big=80, small=10, other=10),), "sidecars have", id="a third destination"
        ),
        pytest.param((), (route("theirs", other=1),), "another VirtualService", id="not ours"),
        pytest.param((), (route("x", PassthroughCluster=1),), "another", id="not istiod's"),
        pytest.param(
            (), (SeenRoute(name="r", status=200),), "another VirtualService", id="an answer"
        ),
        pytest.param(
            (RouteWeights(of=None, action=Action.ANSWER),), (route(big=1),),
            "wanted the static answer", id="no answer",
        ),
        pytest.param(
            (RouteWeights(of=ClassName("batch"), action=Action.REJECT),),
            (SeenRoute(name="r", status=200),), "(class batch): wanted a 429", id="no 429",
        ),
        pytest.param(
            (forward(100, 0, "core"), forward(0, 100, "batch")), (route("core", big=1),),
            "(class batch): wanted primary=0% fallback=100%", id="one class of two",
        ),
    ],
)  # fmt: skip
def test_what_differs_is_said_with_host_numbers_and_cause(routes, seen, said):
    found = difference(wanted(*routes), seen)
    assert found is not None
    assert said in found
    assert "llm.ai.svc" in found


def test_a_route_with_our_name_counts_and_no_other_then():
    routes = (forward(100, 0, "core"), forward(0, 100, "batch"))
    names = ("chat-core", "root-chat-batch")
    assert difference(wanted(*routes), (route(names[0], big=1), route(names[1], small=1))) is None
    swapped = difference(wanted(*routes), (route(names[0], small=1), route(names[1], big=1)))
    assert swapped is not None
    assert (
        f"(class core): wanted primary=100% fallback=0%, sidecars have {TO_SMALL}=100%" in swapped
    )


@pytest.mark.parametrize(
    "cluster",
    [
        "outbound|8001|v1|vllm-70b.ai.svc",
        "outbound|8000||vllm-70b.ai.svc",
        "outbound|8000|v1|vllm-70b.other.svc",
        "inbound|8000|v1|vllm-70b.ai.svc",
    ],
)
def test_another_port_subset_or_host_is_another_place(cluster):
    seen = (SeenRoute(name="chat", clusters=((cluster, 1),)),)
    assert difference(wanted(forward(100, 0)), seen)


def test_people_read_tiers():
    assert describe(forward(90, 10)) == "primary=90% fallback=10%"
