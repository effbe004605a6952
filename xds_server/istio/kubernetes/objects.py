"""The objects that are ours alone, as they shall be: VirtualServices, DestinationRules, ServiceEntries. Pure.

What is in them is decided where the config source decides it (`mcp/build.py`), so that both ways tell a mesh
the same; here it becomes documents in the form of Istio's CRDs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict

from xds_server.core.model import ModelName, Topology
from xds_server.core.plan import ModelPlan
from xds_server.core.policy import Policy
from xds_server.istio.kubernetes.errors import Ref
from xds_server.istio.mcp.build import drafts
from xds_server.istio.mcp.catalog import Draft, Key
from xds_server.istio.mcp.judge import judge
from xds_server.istio.mcp.kinds import Kind
from xds_server.istio.mcp.proto import encode_body
from xds_server.istio.mesh import Mesh, MeshTier
from xds_server.istio.weights import Action, ModelWeights, RouteWeights, weigh

Document = dict[str, Any]

GROUP = "networking.istio.io"
MANAGED_BY = "app.kubernetes.io/managed-by"
"""Label of every object of ours; its value is `OURS`."""
OURS = "gpu-xds"
MODEL = "gpu-xds/model"
"""Label: which model it is for, where it is for one."""
OWNER = "gpu-xds/owner"
"""Annotation: which installation writes it, by the namespace and name of its lease."""
SERVICES = "virtualservices"
WEIGHT_TOTAL = 100
"""Endpoint weights of a ServiceEntry are written in hundredths of the largest: a coarser grid means fewer writes."""
_KINDS = {
    SERVICES: Kind.VIRTUAL_SERVICE,
    "destinationrules": Kind.DESTINATION_RULE,
    "serviceentries": Kind.SERVICE_ENTRY,
}
_PLURALS = {kind: plural for plural, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """An object that we make and nobody else writes."""

    ref: Ref
    model: str
    """Empty where several models share it."""
    spec: Document
    owner: str
    summary: str
    """What is in it, for a person: `primary=90 fallback=10`."""
    weights: ModelWeights | None = field(default=None, compare=False)
    """What a VirtualService tells the mesh."""
    fault: str = ""
    """Why Istio would refuse or misread it, and what mends that: it is held back. The cluster's own validation may be
    off, and it does not see what objects are next to each other."""
    body: bytes = field(default=b"", compare=False, repr=False)
    """What `spec` was made of: equal bytes, equal spec."""

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts that it is about: that its routes go to, or that it describes."""
        spec = self.spec
        places = {
            each["destination"]["host"]
            for route in spec.get("http") or ()
            for each in route.get("route") or ()
        }
        if self.ref.plural == SERVICES:
            return frozenset(places)
        return frozenset([spec["host"]] if "host" in spec else spec["hosts"])

    def document(self, live: Document | None = None) -> Document:
        """Return it as it is sent: over a live one, whose metadata stays."""
        metadata = dict((live or {}).get("metadata") or {})
        # The server keeps these itself; sent back they would only be noise.
        metadata.pop("managedFields", None)
        metadata |= {"name": self.ref.name, "namespace": self.ref.namespace}
        labels = {MANAGED_BY: OURS, **({MODEL: self.model} if self.model else {})}
        others = {key: each for key, each in (metadata.get("labels") or {}).items() if key != MODEL}
        metadata["labels"] = {**others, **labels}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), OWNER: self.owner}
        return {
            "apiVersion": f"{self.ref.group}/{self.ref.version}",
            "kind": self.ref.kind,
            "metadata": metadata,
            "spec": self.spec,
        }


def ref_of(plural: str, namespace: str, name: str, *, version: str) -> Ref:
    """Name an object of Istio's."""
    return Ref(
        group=GROUP,
        version=version,
        plural=plural,
        kind=_KINDS[plural].value,
        namespace=namespace,
        name=name,
    )


def owned_objects(
    mesh: Mesh,
    plans: Sequence[ModelPlan],
    topology: Topology,
    policy: Policy,
    *,
    version: str,
    owner: str,
    before: Iterable[Owned] = (),
) -> list[Owned]:
    """Return every object that is ours, in the order in which they are to be written.

    Args:
        mesh: The models to make objects for.
        plans: The newest plan; a model without one gets nothing yet.
        topology: Where instances are.
        policy: When the mesh shall eject an endpoint of ours.
        version: Of Istio's API, as the server prefers it.
        owner: Value of the annotation `OWNER`.
        before: What was returned for the plan before. Most objects are as they were then, and to make and judge a
            document costs four times as much as to see that.
    """
    by_model = {each.name: each for each in plans}
    weights = {
        each.model: weigh(by_model[each.model], each)
        for each in mesh.models
        if each.model in by_model
    }
    made = drafts(
        weights=list(weights.values()),
        plans={str(name): plan for name, plan in by_model.items()},
        topology=topology,
        policy=policy,
    )
    bodies = {each.key: encode_body(each.message) for each in made}
    known = {
        (_KINDS[each.ref.plural], f"{each.ref.namespace}/{each.ref.name}"): each for each in before
    }
    same = {key: each for key, each in known.items() if each.body == bodies.get(key)}
    faults: dict[Key, str] = {}
    for each in judge(made, {key for key, one in same.items() if not one.fault}):
        faults.setdefault(each.key, each.text)
    found = []
    for draft in made:
        spec = same[draft.key].spec if draft.key in same else spec_of(draft)
        told = None
        if draft.kind is Kind.VIRTUAL_SERVICE:
            told = weights.get(ModelName(draft.model))
        found.append(
            Owned(
                ref=ref_of(_PLURALS[draft.kind], draft.namespace, draft.name, version=version),
                model=draft.model,
                spec=spec,
                owner=owner,
                summary=_contents(spec) if told is None else summaries(told),
                weights=told,
                fault=faults.get(draft.key, ""),
                body=bodies[draft.key],
            )
        )
    return found


def spec_of(draft: Draft) -> Document:
    """Return the `spec` of an object, as its CRD has it."""
    spec: Document = MessageToDict(draft.message)
    for route in spec.get("http") or ():
        for each in route.get("route") or ():
            # A zero that nobody sees is easily taken for something forgotten.
            each.setdefault("weight", 0)
    endpoints = spec.get("endpoints") or ()
    most = max((each.get("weight", 1) for each in endpoints), default=1)
    for each in endpoints:
        each["weight"] = max(1, round(WEIGHT_TOTAL * each.get("weight", 1) / most))
    return spec


def summaries(weights: ModelWeights) -> str:
    """Write what becomes of a model's requests on one line."""
    return "; ".join(summary(each) for each in weights.routes)


def _contents(spec: Document) -> str:
    if "hosts" in spec:
        count = len(spec.get("endpoints") or ())
        return f"{spec['hosts'][0]}: {count} endpoint{'' if count == 1 else 's'}"
    names = [each["name"] for each in spec.get("subsets") or ()]
    return f"{spec['host']}: {', '.join(names)}" if names else str(spec["host"])


def destination(tier: MeshTier) -> Document:
    """Return where a tier is, as a route names it."""
    made: Document = {"host": tier.host}
    if tier.subset is not None:
        made["subset"] = tier.subset
    if tier.port is not None:
        made["port"] = {"number": tier.port}
    return made


def summary(route: RouteWeights) -> str:
    """Write what becomes of a route's requests on one line."""
    head = f"{route.of}: " if route.of is not None else ""
    if route.action is not Action.FORWARD:
        return head + route.action.value
    return head + " ".join(f"{tier.name}={weight}" for tier, weight in route.weights)
