"""What becomes of one request: the model it asks for, its class, an endpoint, and its body; or the answer it gets.

The heart of the picker without its protocol. Holds the plan as it was heard last, and what is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from xds_server.core.model import Model, ModelName, Topology
from xds_server.core.plan import Plan
from xds_server.core.policy import Unreadable
from xds_server.istio.picker import answers
from xds_server.istio.picker.asked import Asked, chosen, is_completion
from xds_server.istio.picker.body import AS_IT_IS, Body, UnreadableError
from xds_server.istio.picker.pick import Pick, Picker, Refusal
from xds_server.istio.picker.proto import Answer
from xds_server.istio.picker.tables import ModelTable, Tables, TierTable
from xds_server.observability.metrics import Tally

MOST_HELD_BYTES = 512 * 2**20
"""Of all bodies together: clients that send slowly must not fill the memory of who decides for the fleet."""
CONFORMANCE_SELECTION = "test-epp-endpoint-selection"
"""The conformance suite's request header that says what shall be picked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerOptions:
    """What an operator may choose."""

    models: tuple[ModelName, ...] = ()
    """Models whose requests are picked for; none = all."""
    retries: int = 2
    """Endpoints besides the picked one that the gateway may try."""
    max_body_bytes: int = 8 * 2**20
    """Larger bodies that must be read are answered with 413. The same as proxies of ours take."""
    retry_after_s: int = 1
    """When a client may come back that was shed."""
    obeys_conformance: bool = False
    """Whether the request header of the conformance suite is obeyed: any client could choose its endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The head of a request."""

    authority: str
    path: str
    headers: Mapping[str, str]
    subset: Collection[str] | None
    """The only endpoints that the gateway allows; None = all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request that goes to an engine."""

    table: ModelTable
    tier: TierTable
    start: int
    """The tier that the plan gave the request to."""
    endpoints: tuple[str, ...]
    body: bytes | None
    """What the engine shall read; None = what the client sent."""


class Desk:
    """Decides about requests."""

    def __init__(
        self,
        *,
        options: PickerOptions,
        chance: Callable[[], float],
        tally: Tally,
        unreadable: Callable[[], Unreadable],
    ) -> None:
        """Decide.

        Args:
            options: What the operator chose.
            chance: Returns numbers in [0, 1).
            tally: Counts what became of requests.
            unreadable: What becomes of bodies that cannot be read, as the policy is now.
        """
        self.options = options
        self.picker = Picker(chance=chance, most_endpoints=options.retries + 1)
        self.tally = tally
        self.held_bytes = 0
        """Of bodies that are held until their end."""
        self._unreadable = unreadable
        self._tables = Tables()
        self._asked: Asked | None = None

    def heard(self, topology: Topology, plan: Plan) -> None:
        """Pick by another plan from now on."""
        if self._tables.topology is not topology:
            self._asked = Asked(topology, self.options.models)
        self._tables.take(topology, plan)

    def needs_body(self, request: Request) -> bool:
        """Whether the body has a say in where a request goes, or has to be rewritten for it."""
        candidates = self._candidates(request)
        if not candidates:
            return False
        if not candidates[0].takes_any:
            return True
        table = self._tables.by_model.get(candidates[0].name)
        return table is not None and table.reads_bodies

    def decide(self, request: Request, raw: bytes | None) -> Sent | Answer:
        """Decide about a request.

        Args:
            request: Its head.
            raw: Its body; None = it has none, or `needs_body` says that it does not matter.
        """
        if self._asked is None:
            return self._refused(None, Refusal.NOT_READY, answers.NOT_READY)
        candidates = self._candidates(request)
        if not candidates:
            return self._refused(None, "no_model", answers.no_route(request.path))
        body = None if raw is None else _read(raw)
        if body is None and raw is not None and self._refuses_unreadable(candidates):
            return self._refused(None, "unreadable", answers.UNREADABLE)
        named = None if body is None else body.model
        # Without a body every model of the domain and prefix is as good as another: a list of models, say.
        model = candidates[0] if raw is None else chosen(candidates, named)
        if model is None:
            if named is None:
                return self._refused(None, "no_model", answers.UNNAMED)
            return self._refused(None, "no_model", answers.unknown_model(named))
        table = self._tables.by_model.get(model.name)
        if table is None:
            return self._refused(model, Refusal.NOT_READY, answers.NOT_READY)
        pick = self._pick(table, request)
        if isinstance(pick, Refusal):
            return self._refused(model, pick, answers.refusal(pick, self.options.retry_after_s))
        try:
            rewritten = None if body is None else _rewritten(body, pick, request)
        except UnreadableError:
            if self._unreadable() is Unreadable.REFUSE:
                return self._refused(model, "unreadable", answers.UNREADABLE)
            rewritten = None
        self.tally.add("fleet_picker_picks_total", model.name, pick.tier.name)
        return Sent(
            table=table,
            tier=pick.tier,
            start=pick.start,
            endpoints=pick.endpoints,
            body=rewritten,
        )

    def _candidates(self, request: Request) -> tuple[Model, ...]:
        if self._asked is None:
            return ()
        return self._asked.candidates(authority=request.authority, path=request.path)

    def _refuses_unreadable(self, candidates: tuple[Model, ...]) -> bool:
        """Whether a body that is no JSON object can go nowhere: nobody takes it, or who does rewrites it."""
        last = candidates[-1]
        if not last.takes_any:
            return False  # It names no model, which is answered better.
        table = self._tables.by_model.get(last.name)
        rewrites = table is not None and table.reads_bodies
        return rewrites and self._unreadable() is Unreadable.REFUSE

    def _pick(self, table: ModelTable, request: Request) -> Pick | Refusal:
        if self.options.obeys_conformance and CONFORMANCE_SELECTION in request.headers:
            return _as_told(table, request)
        request_class = None
        if table.classes:
            assert self._asked is not None
            request_class = self._asked.request_class(headers=request.headers, path=request.path)
        return self.picker.pick(table, request_class=request_class, subset=request.subset)

    def _refused(self, model: Model | None, reason: str, answer: Answer) -> Answer:
        self.tally.add("fleet_picker_refusals_total", model.name if model else "", str(reason))
        return answer


def _read(raw: bytes) -> Body | None:
    try:
        return Body(raw)
    except UnreadableError:
        return None


def _rewritten(body: Body, pick: Pick, request: Request) -> bytes | None:
    if pick.tier.rewrite == AS_IT_IS:
        return None
    return body.rewritten(pick.tier.rewrite, completes=is_completion(request.path))


def _as_told(table: ModelTable, request: Request) -> Pick | Refusal:
    """Pick what the conformance suite says: `ip` or `ip:port`, one or more, in order."""
    wanted = []
    for text in (each.strip() for each in request.headers[CONFORMANCE_SELECTION].split(",")):
        wanted += [
            each
            for each in table.tier_of
            if (each == text or each.rpartition(":")[0].strip("[]") == text)
            and (request.subset is None or each in request.subset)
        ]
    if not wanted:
        return Refusal.NOT_READY
    tier = table.tiers[table.tier_of[wanted[0]]]
    return Pick(tier=tier, start=tier.index, endpoints=tuple(dict.fromkeys(wanted)))
