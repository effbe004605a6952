"""What is said: the same trouble once, counted, with a row of the history."""

from __future__ import annotations

import pytest

from xds_server.core.model import ModelName, Topology
from xds_server.istio.kubernetes.change import Change, Refusal
from xds_server.istio.kubernetes.errors import Cause, KubernetesError
from xds_server.istio.kubernetes.objects import Owned, ref_of
from xds_server.istio.kubernetes.report import Reporter
from xds_server.istio.mesh import MeshModel
from xds_server.istio.publications import Publications
from xds_server.istio.weights import ModelWeights
from xds_server.observability.history import History
from xds_server.observability.metrics import Tally
from xds_server.store.row import Kind

REF = ref_of("virtualservices", "ai", "llm", version="v1")
TITLE = str(REF)
MODEL = MeshModel(model=ModelName("chat"), host="llm.ai", namespace="ai", name="llm")
WEIGHTS = ModelWeights(model=MODEL, routes=())
WANTED = Owned(ref=REF, model="chat", spec={}, owner="o", summary="a=100", weights=WEIGHTS)


class Told:
    def __init__(self):
        self.rows, self.told, self.tally = [], [], Tally()
        history = History(self.rows.append, topology=lambda: Topology(models=()))
        published = Publications()
        published.subscribe(self.told.append)
        self.reporter = Reporter(self.tally, history, published)

    @property
    def names(self):
        assert {each.kind for each in self.rows} <= {Kind.MESH}
        return [each.name for each in self.rows]

    def gauges(self):
        return {(name, *labels): value for name, labels, value in self.reporter.readings()}


@pytest.fixture
def told():
    return Told()


def error(cause, verb="update"):
    return KubernetesError(cause, verb=verb, ref=REF, said="403 x is forbidden: User y cannot z")


def test_a_write_is_counted_and_tells_who_checks_whether_it_arrives(told):
    change = Change(verb="update", body={}, adds=False)
    told.reporter.written(WANTED, change, took_s=0.02)
    told.reporter.written(WANTED, change, took_s=None)
    assert told.tally.count("fleet_kubernetes_writes_total", "VirtualService", "update") == 2
    assert sum(told.tally.histograms["fleet_kubernetes_write_seconds"][:-1]) == 1
    assert told.told == [WEIGHTS, WEIGHTS]
    assert told.rows[0].text == "VirtualService ai/llm: a=100."
    assert told.rows[0].model == "chat"


def test_the_same_trouble_is_told_once_until_it_was_over(told):
    refusal = Refusal(reason="not_ours", text="It is theirs.")
    for _ in range(3):
        told.reporter.refused(TITLE, refusal)
        told.reporter.failed(error(Cause.FORBIDDEN), TITLE)
        told.reporter.lease_trouble(error(Cause.UNREACHABLE))
        told.reporter.doubted(["Nobody delegates."])
        told.reporter.unusable("Nobody is there.")
    assert sorted(told.names) == [
        "istio_lease_failed",
        "istio_object_doubted",
        "istio_object_failed",
        "istio_object_refused",
        "istio_server_unusable",
    ]
    assert told.tally.count("fleet_kubernetes_failures_total", "forbidden") == 3
    assert told.tally.count("fleet_kubernetes_refusals_total", "not_ours") == 1
    assert told.gauges()["fleet_kubernetes_in_sync", TITLE] == 0
    told.reporter.settled(TITLE)
    told.reporter.usable()
    told.reporter.lease_trouble(None)
    assert told.gauges()["fleet_kubernetes_in_sync", TITLE] == 1
    told.reporter.refused(TITLE, refusal)
    told.reporter.failed(error(Cause.FORBIDDEN), TITLE)
    told.reporter.lease_trouble(error(Cause.UNREACHABLE))
    told.reporter.unusable("Nobody is there.")
    assert len(told.names) == 9


def test_a_conflict_is_no_failure_and_a_watch_that_fails_says_nothing_of_the_object(told):
    told.reporter.settled(TITLE)
    told.reporter.failed(error(Cause.CONFLICT), TITLE)
    told.reporter.failed(error(Cause.FORBIDDEN, "watch"), TITLE)
    assert told.tally.count("fleet_kubernetes_conflicts_total", "VirtualService") == 1
    assert told.gauges()["fleet_kubernetes_in_sync", TITLE] == 1


@pytest.mark.parametrize(
    ("by", "is_fight", "said"),
    [
        (
            "helm",
            False,
            "helm changed what we wrote in VirtualService ai/llm: it is written again.",
        ),
        ("argocd", True, "argocd takes back what we write in VirtualService ai/llm"),
        ("", False, "somebody changed"),
    ],
)
def test_who_takes_a_write_back_is_named(told, by, is_fight, said):
    told.reporter.taken_back(WANTED, by, gap_s=4.0, is_fight=is_fight)
    assert said in told.rows[0].text
    assert is_fight == ("kubernetes.md#gitops" in told.rows[0].text)
    assert told.tally.count("fleet_kubernetes_reverts_total", "VirtualService") == 1


def test_who_does_not_lead_says_nothing_of_objects(told):
    told.reporter.leadership(True, "the lease is ours")
    told.reporter.settled(TITLE)
    assert told.gauges() == {
        ("fleet_kubernetes_leader",): 1.0,
        ("fleet_kubernetes_in_sync", TITLE): 1.0,
    }
    told.reporter.forgotten(TITLE)
    told.reporter.left(REF)
    told.reporter.leadership(False, "somebody took it")
    assert told.gauges() == {("fleet_kubernetes_leader",): 0.0}
    assert told.names == [
        "istio_leadership_gained",
        "istio_object_left",
        "istio_leadership_lost",
    ]
    assert "kubectl delete -n ai virtualservices.networking.istio.io llm" in told.rows[1].text


def test_a_doubt_is_told_once_and_again_when_it_is_back(told):
    for texts in (["a"], ["a", "b"], ["b"], ["b", "a"]):
        told.reporter.doubted(texts)
    assert [each for each in told.names if each == "istio_object_doubted"] == [
        "istio_object_doubted"
    ] * 3
