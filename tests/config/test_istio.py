"""The `istio` section: what is refused, what is doubted, what a reload says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from xds_server.config.difference import differences
from xds_server.config.istio_checks import object_name
from xds_server.config.load import load_text
from xds_server.config.problems import ConfigError

TEXT = (Path(__file__).parents[1] / "istio/mesh.yaml").read_text()


def document() -> dict:
    return yaml.safe_load(TEXT)


def dump(raw: dict) -> str:
    return yaml.safe_dump(raw, sort_keys=False)


def problems(raw: dict) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_text(dump(raw))
    return {each.path: each.expected for each in caught.value.problems}


def doubts(raw: dict) -> dict[str, str]:
    return {each.path: each.expected for each in load_text(dump(raw)).doubts}


def changed(path: str, value) -> dict:
    """The document with one value set (or, with None, taken out)."""
    raw = document()
    node, parts = raw["istio"], path.split(".")
    for part in parts[:-1]:
        node = node[int(part)] if part.isdigit() else node.setdefault(part, {})
    if value is None:
        del node[parts[-1]]
    else:
        node[parts[-1]] = value
    return raw


PRIMARY = "models.0.tiers.primary"


@pytest.mark.parametrize(
    ("path", "value", "where", "expected"),
    [
        ("models", [], "istio.models", "at least one entry"),
        ("models.0.model", "other", "istio.models[0].model", "one of the models: chat"),
        ("models.0.host", "llm", "istio.models[0].host", "a full host name"),
        ("models.0.host", "*.ai.svc", "istio.models[0].host", "a full host name"),
        ("models.0.namespace", "A_b", "istio.models[0].namespace", "a name of Kubernetes"),
        ("models.0.name", "Chat", "istio.models[0].name", "the name of a Kubernetes object"),
        ("models.0.gateways", ["a/b/c"], "istio.models[0].gateways[0]", "mesh, or the namespace"),
        ("models.0.tiers.other", {"host": "x.y"}, "istio.models[0].tiers.other", "one of the model's"),
        (PRIMARY, None, "istio.models[0].tiers.primary", "required"),
        (PRIMARY, {"host": "vllm-8b.ai.svc.cluster.local", "port": 8000},
         "istio.models[0].tiers.fallback.host", "another host, subset or port"),
        (f"{PRIMARY}.labels", {"v": "1"}, "istio.models[0].tiers.primary.labels", "a subset that"),
        (PRIMARY, {"host": "a.ai", "endpoints": "instances"},
         "istio.models[0].tiers.primary.port", "required: the port"),
        (PRIMARY, {"host": "a.ai", "port": 1, "subset": "v", "endpoints": "instances"},
         "istio.models[0].tiers.primary.labels", "the labels of the subset"),
        ("models.0.tiers.static.endpoints", "instances",
         "istio.models[0].tiers.static.endpoints", "mesh: a static tier has no instances"),
        (f"{PRIMARY}", {"host": "a.ai", "subset": "v", "labels": {"v": "a b"}},
         "istio.models[0].tiers.primary.labels.v", "a label's value"),
        (f"{PRIMARY}", {"host": "a.ai", "subset": "v", "labels": {"v": "a\n"}},
         "istio.models[0].tiers.primary.labels.v", "a label's value"),
        (f"{PRIMARY}", {"host": "a.ai", "subset": "v", "labels": {"v": "x" * 64}},
         "istio.models[0].tiers.primary.labels.v", "at most 63"),
        (f"{PRIMARY}", {"host": "a.ai", "subset": "v", "labels": {"größe": "8b"}},
         "istio.models[0].tiers.primary.labels.größe", "a label's name"),
        (PRIMARY, {"host": ".".join(["a" * 60] * 4) + ".aa", "subset": "v", "labels": {"v": "1"}},
         "istio.models[0].tiers.primary.host", "at most 245 characters"),
        ("probe", {"istiod": "i:15010", "labels": {"-": "1"}}, "istio.probe.labels.-", "a label's name"),
        ("config_source.key_file", "k.pem", "istio.config_source.certificate_file", "required"),
        ("config_source.changes_per_second", 5, "istio.config_source.changes_per_second", "at most 4"),
        ("config_source.client_ca", "ca.pem", "istio.config_source.client_ca", "no such key"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_where_it_is_written(path, value, where, expected):
    found = problems(changed(path, value))
    assert where in found
    assert expected in found[where]


def test_a_host_is_one_models_only_and_a_name_too():
    raw = document()
    raw["models"].append(raw["models"][0] | {"name": "chat2", "match": {"prefix": "/v2/"}})
    raw["models"][1]["tiers"] = [
        raw["models"][0]["tiers"][0] | {"instances": [{"name": "x", "address": "10.0.0.9:1"}]},
        raw["models"][0]["tiers"][2],
    ]
    tiers = {"primary": {"host": "other.ai.svc"}}
    more = raw["istio"]["models"][0] | {"model": "chat2", "name": "gpu-xds-chat", "tiers": tiers}
    raw["istio"]["models"].append(more)
    found = problems(raw)
    assert "a host that no other model has" in found["istio.models[1].host"]
    assert "a name that no other object" in found["istio.models[1].name"]


def test_instances_behind_a_host_are_one_models_and_a_static_host_may_be_several():
    raw = document()
    raw["models"].append(raw["models"][0] | {"name": "chat2", "match": {"prefix": "/v2/"}})
    raw["models"][1]["tiers"] = [
        raw["models"][0]["tiers"][0] | {"instances": [{"name": "x", "address": "10.0.0.9:1"}]},
        raw["models"][0]["tiers"][2],
    ]
    first = raw["istio"]["models"][0]
    tiers = {each: dict(first["tiers"][each]) for each in ("primary", "static")}
    raw["istio"]["models"].append({**first, "model": "chat2", "host": "b.ai.svc", "tiers": tiers})
    found = problems(raw)
    assert list(found) == ["istio.models[1].tiers.primary.host"]
    assert "than istio.models[0].tiers.primary" in found["istio.models[1].tiers.primary.host"]
    tiers["primary"]["port"] = 8001
    load_text(dump(raw))


def test_a_model_is_listed_once():
    raw = document()
    raw["istio"]["models"].append(raw["istio"]["models"][0])
    assert "a model that is not listed yet" in problems(raw)["istio.models[1].model"]


def test_gateways_are_those_of_who_delegates():
    raw = changed("models.0.delegate", True)
    raw["istio"]["models"][0]["gateways"] = ["mesh"]
    assert "no gateways" in problems(raw)["istio.models[0].gateways"]


SHARED = {"host": "llm.ai.svc", "port": 8000, "endpoints": "instances"}


@pytest.mark.parametrize(
    ("fallback", "where", "expected"),
    [
        (SHARED | {"endpoints": "mesh", "subset": "b"}, "endpoints", "instances, as for the same host"),
        (SHARED | {"port": 8001}, "subset", "a subset with labels"),
        (SHARED | {"port": 1, "subset": "a", "labels": {"v": "2"}}, "labels", "the same labels"),
    ],
)  # fmt: skip
def test_tiers_that_share_a_host_agree_about_it(fallback, where, expected):
    raw = document()
    tiers = raw["istio"]["models"][0]["tiers"]
    tiers["primary"] = SHARED | (
        {"subset": "a", "labels": {"v": "1"}} if "labels" in fallback else {}
    )
    tiers["fallback"] = fallback
    assert expected in problems(raw)[f"istio.models[0].tiers.fallback.{where}"]


@pytest.mark.parametrize("first", ["primary", "fallback"])
def test_a_subset_without_labels_is_none_of_a_rule_that_is_ours(first):
    raw = document()
    tiers = raw["istio"]["models"][0]["tiers"]
    other = "fallback" if first == "primary" else "primary"
    tiers[first] = {"host": "one.ai.svc", "subset": "a", "labels": {"v": "1"}}
    tiers[other] = {"host": "one.ai.svc", "subset": "b"}
    found = problems(raw)[f"istio.models[0].tiers.{other}.labels"]
    assert "the labels of subset b: the DestinationRule of one.ai.svc is ours" in found
    assert f"istio.models[0].tiers.{first}" in found


@pytest.mark.parametrize(
    ("host", "is_doubted"),
    [("vllm.ai.svc.cluster.local", False), ("vllm.web.svc", True), ("vllm.example.com", False)],
)
def test_a_rule_in_another_namespace_than_its_host_is_doubted(host, is_doubted):
    tier = {"host": host, "subset": "v", "labels": {"v": "1"}}
    found = doubts(changed(PRIMARY, tier)).get("istio.models[0].tiers.primary.labels", "")
    assert ("clients in namespace ai only" in found) == is_doubted
    tier |= {"port": 8000, "endpoints": "instances"}
    assert "istio.models[0].tiers.primary.labels" not in doubts(changed(PRIMARY, tier))


def test_a_subset_of_somebody_elses_is_doubted_with_its_host():
    found = doubts(changed(f"{PRIMARY}.subset", "v1"))
    assert (
        "a DestinationRule of vllm-70b.ai.svc.cluster.local"
        in found["istio.models[0].tiers.primary.subset"]
    )


def test_a_static_tier_without_a_host_is_doubted():
    found = doubts(changed("models.0.tiers.static", None))
    assert "load is not shed" in found["istio.models[0].tiers.static"]


@pytest.mark.parametrize(
    ("listen", "is_doubted"), [("127.0.0.1:1", False), ("[::1]:1", False), ("0.0.0.0:1", True)]
)
def test_an_open_config_source_is_doubted(listen, is_doubted):
    found = doubts(changed("config_source", {"listen": listen}))
    assert ("istio.config_source.listen" in found) == is_doubted


def test_two_ways_that_write_for_the_same_hosts_are_doubted():
    raw = changed("config_source", {})
    assert "istio" not in doubts(raw)
    raw["istio"]["kubernetes"] = {}
    assert "the mesh obeys the older one" in doubts(raw)["istio"]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("chat", "gpu-xds-chat"),
        ("Llama_3.1", "gpu-xds-llama-3.1"),
        ("a..b", "gpu-xds-a-.b"),
        ("a.-b", "gpu-xds-a--b"),
    ],
)
def test_objects_are_named_as_kubernetes_takes_it(model, name):
    assert object_name(model) == name


def test_a_reload_says_what_of_the_section_changed():
    before, after = load_text(TEXT), load_text(dump(changed("models.0.namespace", "ml")))
    assert differences(before, after) == ['istio.models.chat.namespace: "ai" -> "ml"']
    assert before.at_start == after.at_start
    assert before.at_start != load_text(dump(changed("config_source", {}))).at_start
