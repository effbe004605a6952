"""What becomes of requests where there are several models, classes, and bodies that say something or nothing."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from tests.fakes.picking import a_desk
from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from xds_server.core.model import ClassName, ModelName, RequestClass
from xds_server.core.plan import ClassPlan, EndpointHealth, Plan, Reason
from xds_server.core.policy import Unreadable
from xds_server.istio.picker.decide import Desk, PickerOptions, Request, Sent
from xds_server.istio.picker.proto import Answer
from xds_server.observability.metrics import Tally

CHAT, CODE, REST = "127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003"


def a_named(name: str, port: int, *, names=(), is_default: bool = False, serves: str | None = None):
    tiers = (a_tier("primary", serves or name, [port], prefix=f"{name}-"), a_static_tier())
    return replace(a_model(name, tiers=tiers), names=tuple(names), is_default=is_default)


NAMED = (
    a_named("chat", 8001, names=["gpt-4o", "chat"], serves="llama"),
    a_named("code", 8002, names=["coder"], serves="coder"),
)
WITH_REST = (*NAMED, a_named("rest", 8003))


def request(path: str = "/v1/chat/completions", **headers: str) -> Request:
    return Request(authority="llm", path=path, headers=headers, subset=None)


def decide(desk: Desk, body: bytes | None, asked: Request | None = None) -> Sent | Answer:
    """Decide as the protocol does: without the body where it does not matter."""
    asked = asked or request()
    return desk.decide(asked, body if desk.needs_body(asked) else None)


@pytest.mark.parametrize(
    ("body", "endpoint", "becomes"),
    [
        ({"model": "gpt-4o"}, CHAT, {"model": "llama"}),
        ({"model": "chat"}, CHAT, {"model": "llama"}),
        ({"model": "coder"}, CODE, None),
        ({"model": "other"}, REST, None),
        ({}, REST, None),
    ],
    ids=["a name", "an alias", "its own name", "unknown", "none"],
)
def test_the_bodys_model_says_whose_request_it_is(body, endpoint, becomes):
    found = decide(a_desk(a_topology(*WITH_REST)), json.dumps(body).encode())
    assert isinstance(found, Sent)
    assert found.endpoints == (endpoint,)
    assert (None if found.body is None else json.loads(found.body)) == becomes


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model": "other"}', 404, "model_not_found"),
        (b'{"messages": []}', 400, None),
        (b"no json", 400, None),
        (b"", 400, None),
    ],
)
def test_where_nobody_takes_the_rest_a_stranger_is_told(body, status, code):
    desk = a_desk(a_topology(*NAMED))
    found = decide(desk, body)
    assert isinstance(found, Answer)
    assert found.status == status
    assert json.loads(found.body)["error"]["code"] == code
    assert desk.tally.count("fleet_picker_refusals_total", "", "no_model") == 1


def test_who_takes_the_rest_takes_what_cannot_be_read_as_well():
    found = decide(a_desk(a_topology(*WITH_REST)), b"no json")
    assert isinstance(found, Sent)
    assert (found.endpoints, found.body) == ((REST,), None)


@pytest.mark.parametrize(
    ("unreadable", "expected"), [(Unreadable.REFUSE, 400), (Unreadable.FORWARD, None)]
)
def test_unless_it_would_have_to_be_rewritten(unreadable, expected):
    models = (*NAMED, a_named("rest", 8003, serves="other"))
    found = decide(a_desk(a_topology(*models), unreadable=unreadable), b"no json")
    assert (found.status if isinstance(found, Answer) else None) == expected


def test_a_body_matters_only_where_it_has_a_say():
    assert a_desk(a_topology(*NAMED)).needs_body(request())
    assert a_desk(a_topology(a_named("chat", 8001, serves="llama"))).needs_body(request())
    assert not a_desk(a_topology(a_named("chat", 8001))).needs_body(request())
    assert not a_desk(a_topology(*NAMED)).needs_body(request("/elsewhere"))


def test_a_request_without_a_body_is_the_first_models():
    found = a_desk(a_topology(*NAMED)).decide(request("/v1/models"), None)
    assert isinstance(found, Sent)
    assert found.endpoints == (CHAT,)


def test_before_a_plan_nobody_is_there():
    topology = a_topology(*NAMED)
    desk = a_desk(topology)
    desk.heard(a_topology(a_named("new", 8009)), Plan(models=(), next_deadline=None))
    unheard = Desk(
        options=PickerOptions(),
        chance=random.random,
        tally=Tally(),
        unreadable=lambda: Unreadable.REFUSE,
    )
    for each in (desk, unheard):
        found = decide(each, b"{}")
        assert isinstance(found, Answer)
        assert found.status == 503


def test_only_the_models_that_are_served_are_picked_for():
    options = PickerOptions(models=(ModelName("code"),))
    desk = a_desk(a_topology(*NAMED), options=options)
    assert isinstance(decide(desk, b'{"model": "coder"}'), Sent)
    assert isinstance(decide(desk, b'{"model": "chat"}'), Answer)


def test_a_class_has_the_plans_shares_of_its_own():
    topology = replace(
        a_topology(a_named("chat", 8001)),
        classes=(
            RequestClass(name=ClassName("core"), header="x-priority", value="high"),
            RequestClass(name=ClassName("rest")),
        ),
    )
    plan = a_plan(topology)
    nominal = Reason(rule="nominal", text="nominal")
    plan.models[0].classes = tuple(
        ClassPlan(
            name=ClassName(name),
            demand_ratio=0.5,
            weights=(1000, 0),
            is_shed=False,
            is_rejected=name == "rest",
            reason=nominal,
        )
        for name in ("core", "rest")
    )
    desk = a_desk(topology)
    desk.heard(topology, Plan(models=plan.models, next_deadline=None))
    assert isinstance(decide(desk, b"{}", request(**{"x-priority": "high"})), Sent)
    found = decide(desk, b"{}", request())
    assert isinstance(found, Answer)
    assert found.status == 429
    assert json.loads(found.body)["error"]["code"] == "class_shed"
    assert found.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("told", "endpoints"),
    [
        (CODE, (CODE,)),
        ("127.0.0.1", (CHAT, CODE)),
        (f"{CODE}, {CHAT}", (CODE, CHAT)),
        ("10.9.9.9", None),
    ],
)
def test_the_conformance_suite_gets_what_it_says(told, endpoints):
    tiers = (a_tier("primary", "chat", [8001, 8002]), a_static_tier())
    topology = a_topology(a_model(tiers=tiers))
    desk = a_desk(
        topology,
        options=PickerOptions(obeys_conformance=True),
        health={"primary-1": EndpointHealth.DRAINING},
    )
    asked = request(**{"test-epp-endpoint-selection": told})
    found = decide(desk, None, asked)
    assert (found.endpoints if isinstance(found, Sent) else None) == endpoints
    found = decide(desk, None, replace(asked, subset=frozenset({CHAT})))
    kept = tuple(each for each in endpoints or () if each == CHAT)
    assert (found.endpoints if isinstance(found, Sent) else ()) == kept
