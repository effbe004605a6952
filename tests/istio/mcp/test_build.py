"""Plans as objects of Istio."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.json_format import MessageToDict

from xds_server.config.config import Config
from xds_server.config.load import load_text
from xds_server.core.model import InstanceId, ModelName, TierName
from xds_server.core.plan import (
    ClassPlan,
    EndpointHealth,
    FaultState,
    Freshness,
    InstancePlan,
    Level,
    ModelPlan,
    Reason,
    TierPlan,
)
from xds_server.istio.mcp.build import drafts
from xds_server.istio.mcp.judge import judge
from xds_server.istio.mcp.kinds import Kind
from xds_server.istio.mesh import mesh_of
from xds_server.istio.weights import weigh

TEXT = (Path(__file__).parents[1] / "mesh.yaml").read_text()
REASON = Reason(rule="r", text="t")
CLASSES = """
classes:
  - {name: gold, match: {header: x-tier, value: gold}}
  - {name: rest}
  - {name: batch, match: {header: x-batch, prefix: /v1/batch}}
"""


def config(tiers: dict[str, Any] | None = None, classes: str = "", **model: Any) -> Config:
    document = yaml.safe_load(TEXT)
    section = document["istio"]["models"][0]
    section.update(model)
    for name, each in (tiers or {}).items():
        if each is None:
            del section["tiers"][name]
        else:
            section["tiers"][name] = each
    return load_text(yaml.safe_dump(document, sort_keys=False) + classes)


def plan(
    config: Config,
    weights=(900, 100, 0),
    classes: tuple[ClassPlan, ...] = (),
    **health: EndpointHealth,
) -> ModelPlan:
    (model,) = config.topology.models
    return ModelPlan(
        name=ModelName("chat"),
        classes=classes,
        tiers=tuple(
            TierPlan(
                name=tier.name, level=Level.HEALTHY, pressure=None, share=weight / 1000, weight=weight,
                spill=0.0, demand=None, capacity=None, reason=REASON,
                instances=tuple(
                    InstancePlan(
                        id=each.id, state=FaultState.HEALTHY, freshness=Freshness.FRESH, ceiling=1.0,
                        weight=100 * (index + 1), pressure=None, basis=REASON,
                        health=health.get(each.id.replace("-", "_"), EndpointHealth.HEALTHY),
                    )
                    for index, each in enumerate(tier.instances)
                ),
            )
            for tier, weight in zip(model.tiers, weights, strict=True)
        ),
    )  # fmt: skip


def class_plan(name: str, *weights: int, shed: bool = False, rejected: bool = False) -> ClassPlan:
    return ClassPlan(
        name=name,
        demand_ratio=0.3,
        weights=weights,
        is_shed=shed,
        is_rejected=rejected,
        reason=REASON,
    )


def built(config: Config, plan: ModelPlan) -> dict[str, dict[str, Any]]:
    mesh = mesh_of(config.istio, config.topology)
    made = drafts(
        weights=[weigh(plan, each) for each in mesh.models],
        plans={plan.name: plan},
        topology=config.topology,
        policy=config.policy,
    )
    assert judge(made) == []
    return {
        each.title: MessageToDict(each.message, preserving_proto_field_name=True) for each in made
    }


def to(name: str, weight: int, port: int = 8000, **more: str) -> dict[str, Any]:
    destination = {"host": f"{name}.ai.svc.cluster.local", **more, "port": {"number": port}}
    return {"destination": destination} | ({"weight": weight} if weight else {})


def test_a_model_is_a_virtual_service_with_a_destination_per_tier():
    it = config()
    assert built(it, plan(it)) == {
        "VirtualService ai/gpu-xds-chat": {
            "hosts": ["llm.ai.svc.cluster.local"],
            "gateways": ["mesh"],
            "http": [
                {
                    "name": "gpu-xds-chat",
                    "route": [to("vllm-70b", 90), to("vllm-8b", 10), to("busy", 0, 8080)],
                }
            ],
        }
    }


def test_who_is_delegated_to_has_no_hosts_and_no_gateways():
    it = config(delegate=True)
    (service,) = built(it, plan(it)).values()
    assert list(service) == ["http"]


def test_a_static_tier_without_a_host_is_the_answer_once_nothing_else_is_left():
    it = config({"static": None})
    (service,) = built(it, plan(it, (0, 0, 1000))).values()
    (route,) = service["http"]
    assert "route" not in route
    assert route["direct_response"]["status"] == 200
    assert '"content":"Busy."' in route["direct_response"]["body"]["string"]
    assert route["headers"]["response"]["set"] == {"content-type": "application/json"}


def test_classes_are_routes_of_their_own_and_the_rest_comes_last():
    it = config(classes=CLASSES)
    classes = (
        class_plan("gold", 1000, 0, 0),
        class_plan("rest", 500, 500, 0),
        class_plan("batch", 0, 0, 0, shed=True, rejected=True),
    )
    (service,) = built(it, plan(it, classes=classes)).values()
    gold, batch, rest = service["http"]
    assert gold["match"] == [{"headers": {"x-tier": {"exact": "gold"}}}]
    assert batch["match"] == [{"uri": {"prefix": "/v1/batch"}, "headers": {"x-batch": {}}}]
    assert batch["direct_response"]["status"] == 429
    assert batch["headers"]["response"]["set"]["retry-after"] == "1"
    assert "match" not in rest
    assert [each["name"] for each in service["http"]] == [
        "gpu-xds-chat-gold", "gpu-xds-chat-batch", "gpu-xds-chat-rest",
    ]  # fmt: skip


OURS = {"host": "vllm-70b.ai.svc.cluster.local", "port": 8000, "endpoints": "instances"}


def test_endpoints_of_ours_are_a_service_entry_with_their_weights_and_a_rule():
    it = config({"primary": OURS})
    made = built(it, plan(it))
    assert made["ServiceEntry ai/gpu-xds-vllm-70b.ai.svc.cluster.local"] == {
        "hosts": ["vllm-70b.ai.svc.cluster.local"],
        "ports": [{"number": 8000, "protocol": "HTTP", "name": "http"}],
        "location": "MESH_INTERNAL",
        "resolution": "STATIC",
        "endpoints": [
            {"address": "10.0.0.1", "ports": {"http": 8001}, "weight": 100},
            {"address": "10.0.0.2", "ports": {"http": 8001}, "weight": 200},
        ],
    }
    assert made["DestinationRule ai/gpu-xds-vllm-70b.ai.svc.cluster.local"] == {
        "host": "vllm-70b.ai.svc.cluster.local",
        "traffic_policy": {
            "outlier_detection": {"consecutive_5xx_errors": 3, "max_ejection_percent": 100},
            "load_balancer": {"locality_lb_setting": {"enabled": False}},
        },
    }


@pytest.mark.parametrize("health", [EndpointHealth.DRAINING, EndpointHealth.UNHEALTHY])
def test_an_endpoint_that_may_take_nothing_is_left_out(health):
    it = config({"primary": OURS})
    made = built(it, plan(it, a100_0=health))
    endpoints = made["ServiceEntry ai/gpu-xds-vllm-70b.ai.svc.cluster.local"]["endpoints"]
    assert [each["address"] for each in endpoints] == ["10.0.0.2"], "weight 0 would become 1"


def test_tiers_that_share_a_host_share_its_objects_by_subset():
    shared = OURS | {"host": "llm-pods.ai.svc.cluster.local"}
    it = config(
        {
            "primary": shared | {"subset": "big", "labels": {"model": "70b"}},
            "fallback": shared | {"subset": "small", "labels": {"model": "8b"}, "port": 9000},
        }
    )
    made = built(it, plan(it))
    entry = made["ServiceEntry ai/gpu-xds-llm-pods.ai.svc.cluster.local"]
    assert [(each["number"], each["name"]) for each in entry["ports"]] == [
        (8000, "http"),
        (9000, "http-9000"),
    ]
    assert [each["labels"]["model"] for each in entry["endpoints"]] == ["70b", "70b", "8b"]
    rule = made["DestinationRule ai/gpu-xds-llm-pods.ai.svc.cluster.local"]
    assert rule["subsets"] == [
        {"name": "big", "labels": {"model": "70b"}},
        {"name": "small", "labels": {"model": "8b"}},
    ]
    (route,) = made["VirtualService ai/gpu-xds-chat"]["http"]
    assert route["route"][:2] == [
        to("llm-pods", 90, subset="big"),
        to("llm-pods", 10, 9000, subset="small"),
    ]


def test_labels_make_a_rule_for_a_service_of_the_mesh_that_says_nothing_but_the_subset():
    it = config({"primary": {"host": "a.ai.svc", "subset": "v1", "labels": {"version": "v1"}}})
    made = built(it, plan(it))
    assert made["DestinationRule ai/gpu-xds-a.ai.svc"] == {
        "host": "a.ai.svc",
        "subsets": [{"name": "v1", "labels": {"version": "v1"}}],
    }


def test_an_instance_that_the_topology_has_not_is_no_endpoint():
    it = config({"primary": OURS})
    other = plan(it)
    (first, *more) = other.tiers
    gone = InstancePlan(
        id=InstanceId("gone"), state=FaultState.HEALTHY, freshness=Freshness.FRESH, ceiling=1.0, weight=1,
        pressure=None, basis=REASON, health=EndpointHealth.HEALTHY,
    )  # fmt: skip
    tier = TierPlan(
        name=TierName("primary"), level=first.level, pressure=None, share=0.9, weight=900, spill=0.0,
        demand=None, capacity=None, reason=REASON, instances=(gone,),
    )  # fmt: skip
    made = built(it, ModelPlan(name=other.name, tiers=(tier, *more)))
    assert "endpoints" not in made["ServiceEntry ai/gpu-xds-vllm-70b.ai.svc.cluster.local"]


def test_kinds_are_in_the_order_in_which_they_are_to_arrive():
    assert list(Kind) == [Kind.SERVICE_ENTRY, Kind.DESTINATION_RULE, Kind.VIRTUAL_SERVICE]


def test_an_instance_that_may_take_requests_has_a_weight_of_one_at_least():
    it = config(tiers={"primary": OURS})
    made = plan(it)
    primary, *others = made.tiers
    first, *rest = primary.instances
    tiers = (replace(primary, instances=(replace(first, weight=0), *rest)), *others)
    entry = built(it, replace(made, tiers=tiers))[
        "ServiceEntry ai/gpu-xds-vllm-70b.ai.svc.cluster.local"
    ]
    assert [each["weight"] for each in entry["endpoints"]] == [1, 200]
