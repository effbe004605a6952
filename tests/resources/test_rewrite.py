"""Who is told to rewrite bodies, and what exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.plans import a_model, a_plan, a_static_tier, a_tier, a_topology
from xds_server.core.model import MaxTokens
from xds_server.core.policy import Policy, RewritePolicy, Unreadable
from xds_server.resources import snapshot as served
from xds_server.resources.bodies import rewrite
from xds_server.resources.builder import SnapshotBuilder
from xds_server.resources.capability import Capability
from xds_server.resources.lua import program

LUA = b"envoy.filters.http.lua"
CHAINS = [Capability.COMPOSITE, Capability.AGGREGATE]


def chain(*tiers, **about):
    return replace(a_model(tiers=[*tiers, a_static_tier()]), **about)


def clusters_with_lua(model, capability):
    topology = a_topology(model)
    snapshot = SnapshotBuilder(topology, Policy(), capability).build(a_plan(topology))
    bodies = {
        name: resource.body for name, resource in snapshot.of_type(served.CLUSTER).resources.items()
    }
    # The first tier's own cluster is where requests go that may not fall back.
    return {name for name, body in bodies.items() if LUA in body or b"x-fleet-rewrite" in body}


OWN = a_tier("primary", "chat", [1])
OTHER = a_tier("fallback", "small", [2])
SHORT = replace(a_tier("fallback", "chat", [2]), max_tokens=MaxTokens())


@pytest.mark.parametrize("capability", CHAINS)
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param(chain(OWN), set(), id="nothing-to-rewrite"),
        pytest.param(chain(OWN, names=("chat",)), set(), id="one-name-that-is-served"),
        pytest.param(
            chain(OWN, OTHER), {"chat/primary/chain", "chat/fallback/chain"}, id="another-below"
        ),
        pytest.param(
            chain(replace(OTHER, name="primary"), replace(OWN, name="fallback")),
            {"chat/primary/chain", "chat/primary"},
            id="another-above",
        ),
        pytest.param(
            chain(OWN, SHORT), {"chat/primary/chain", "chat/fallback/chain"}, id="shortened-below"
        ),
        pytest.param(
            chain(OWN, names=("a", "chat")), {"chat/primary/chain", "chat/primary"}, id="two-names"
        ),
        pytest.param(
            chain(OWN, names=("chat",), is_default=True),
            {"chat/primary/chain", "chat/primary"},
            id="strangers-too",
        ),
    ],
)
def test_only_chains_that_rewrite_have_the_filters(model, expected, capability):
    assert clusters_with_lua(model, capability) == expected


def test_grpc_clients_get_no_filters():
    assert clusters_with_lua(chain(OTHER), Capability.GRPC) == set()


@pytest.mark.parametrize(
    ("tier", "policy", "expected"),
    [
        pytest.param(OWN, RewritePolicy(), "", id="nothing"),
        pytest.param(a_static_tier(), RewritePolicy(), "", id="static"),
        pytest.param(OTHER, RewritePolicy(), 'refuse - - - "small"', id="a-name"),
        pytest.param(
            OTHER,
            RewritePolicy(unreadable=Unreadable.FORWARD),
            'forward - - - "small"',
            id="a-name-forgiving",
        ),
        pytest.param(SHORT, RewritePolicy(), "refuse 0.5 16 -", id="a-limit"),
        pytest.param(
            replace(OTHER, max_tokens=MaxTokens(scale=1e-05, floor=1, when_absent=7)),
            RewritePolicy(),
            'refuse 1e-05 1 7 "small"',
            id="everything",
        ),
        pytest.param(
            replace(OTHER, serves='a "b"\\\n% ü🚀'),
            RewritePolicy(),
            r'refuse - - - "a \"b\"\\\n% \u00fc\ud83d\ude80"',
            id="a-name-that-no-header-could-carry",
        ),
    ],
)
def test_the_instruction_of_a_tier(tier, policy, expected):
    assert rewrite.instruction(chain(OWN), tier, policy) == expected


@pytest.mark.parametrize("capability", CHAINS)
def test_names_scales_and_policy_change_no_cluster(capability):
    def snapshot(serves, scale, unreadable):
        tier = replace(a_tier("primary", serves, [1]), max_tokens=MaxTokens(scale=scale))
        topology = a_topology(chain(tier))
        policy = Policy(rewrite=RewritePolicy(unreadable=unreadable))
        return SnapshotBuilder(topology, policy, capability).build(a_plan(topology))

    before = snapshot("a", 0.5, Unreadable.REFUSE)
    after = snapshot("b", 0.25, Unreadable.FORWARD)
    assert after.of_type(served.CLUSTER).version == before.of_type(served.CLUSTER).version
    assert after.of_type(served.ENDPOINT).version != before.of_type(served.ENDPOINT).version


def test_the_program_is_served_without_what_only_people_read():
    source = program("bodies/outline.lua", "bodies/rewrite.lua")
    lines = source.splitlines()
    assert "function envoy_on_request(handle)" in lines
    assert all(line == line.strip() and line for line in lines)
    assert not any(line.startswith("--") for line in lines)
    assert len(source) < 8000, "every chain carries it"
