"""Entries and load reports in; windows, counters and the brain's evidence out.

Everything is bounded by the topology: an endpoint, a cluster or a route that is not in it is counted and
forgotten, so that no proxy can make the control plane remember anything of its choosing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from xds_server.clock import Clock
from xds_server.core.evidence import FAILURES, Accrual, Outcome, Summary, Window, outcome
from xds_server.core.inputs import Evidence
from xds_server.core.model import ClassName, InstanceId, ModelName, TierName
from xds_server.core.requests import RequestWindow
from xds_server.evidence.entry import EndpointLoad, Entry, LoadReport
from xds_server.evidence.load_reports import LoadReports
from xds_server.evidence.places import Place, Places, TierPlace
from xds_server.fleet import Fleet
from xds_server.observability.metrics import Reading, Tally
from xds_server.resources.names import ANSWERED_ROUTES, GATE_ROUTE
from xds_server.resources.routing.request_classes import SHED

MAX_TEMPLATES = 64
"""Static templates that are told apart; more would be somebody's invention."""
OTHER = "other"
NONE = "none"
LIMITED = "limited"
"""A request that a limiter of the proxy refused: it reached no engine."""
OVERFLOW = "upstream_overflow"
"""Envoy's flag of an attempt for which a full tier had no room: nobody was asked, whoever it names."""
OFFER_GAP_S = 1.0
"""The brain hears of the same instance's failures at most this often."""
_TOLD_BY_ATTEMPTS = FAILURES | {Outcome.REJECTED}


class Intake:
    """What all proxies said, joined. Used on one event loop."""

    def __init__(
        self,
        *,
        fleet: Callable[[], Fleet],
        offer: Callable[[Evidence], None],
        clock: Clock,
        tally: Tally,
    ) -> None:
        """Join into `offer`, by the topology and policy of `fleet` as they are at each message."""
        self._fleet = fleet
        self._offer = offer
        self._clock = clock
        self._tally = tally
        self._places = Places(fleet().topology)
        self._policy = fleet().policy
        self._accruals: dict[InstanceId, Accrual] = {}
        self._tiers: dict[tuple[ModelName, TierName], Window] = {}
        self._offered_at: dict[InstanceId, float] = {}
        self._requests: dict[tuple[ModelName, str], RequestWindow] = {}
        self._classes: dict[ModelName, Counter[ClassName]] = {}
        """Requests since the last `take_classes`."""
        self._templates: set[str] = set()
        self._is_stale = False
        self._in_progress: dict[object, dict[InstanceId, int]] = {}
        self.reports: LoadReports | None = None
        """Told what engines report of themselves (ORCA)."""

    # What arrives.

    def take_logs(self, entries: Iterable[Entry], *, is_stale: bool = False) -> None:
        """Take the entries of one message in; what is stale is counted, but is no evidence."""
        self._follow()
        now = self._clock()
        self._is_stale = is_stale
        for entry in entries:
            if entry.is_request:
                self._request(entry, now)
            else:
                self._attempt(entry, now)

    def take_load(self, source: object, report: LoadReport) -> None:
        """Take a load report of one stream in; `source` stands for the stream until `forget`."""
        self._follow()
        for name in report.clusters:
            if name not in self._places.tiers:
                self._refuse("unknown_cluster")
        running: dict[InstanceId, int] = {}
        self._in_progress[source] = running
        reports, now = self.reports, self._clock()
        if reports is not None:
            reports.forget(source)  # An endpoint that is not in the report has nothing in progress.
        for each in report.endpoints:
            place = self._places.instances.get(each.address)
            if place is None:
                self._refuse("unknown_endpoint")
                continue
            self._load(place, each)
            running[place.instance] = running.get(place.instance, 0) + each.in_progress
            if reports is not None:
                reports.take(source, place, each, now)

    def forget(self, source: object) -> None:
        """Forget what a stream that ended said is in progress."""
        self._in_progress.pop(source, None)
        if self.reports is not None:
            self.reports.forget(source)

    def _load(self, place: Place, load: EndpointLoad) -> None:
        for kind, count in (
            ("issued", load.issued),
            ("succeeded", load.succeeded),
            ("failed", load.failed),
        ):
            if count:
                name = "fleet_load_reported_attempts_total"
                self._tally.add(name, place.model, place.tier, kind, by=count)

    def _request(self, entry: Entry, now: float) -> None:
        key = self._places.routes.get(entry.route)
        ended = outcome(entry.status, entry.flags)
        if key is None:
            if entry.route and entry.route not in ANSWERED_ROUTES:
                self._refuse("unknown_route")
            else:  # Asked for nothing that any model has, and told so by the proxy.
                self._tally.add("fleet_requests_total", "", "", NONE, ended)
            return
        model, request_class = key
        is_told = ended in _TOLD_BY_ATTEMPTS
        if entry.errored and ended is Outcome.OK:
            ended = Outcome.BROKEN  # The router does not see what is in a stream.
        tier = self._places.answered_by(model, cluster=entry.cluster, served=entry.served)
        is_refused = entry.status == 429 and not entry.attempts
        refusal = SHED if entry.reason == SHED else LIMITED
        self._tally.add(
            "fleet_requests_total",
            *(model, request_class, NONE if tier is None or is_refused else tier.tier),
            refusal if is_refused else ended,
        )
        if request_class:
            self._classes.setdefault(model, Counter())[ClassName(request_class)] += 1
        if not is_refused:
            self._answered(entry, tier, now, key=key)
        if not is_told:
            self._last_attempt(entry, ended, tier, now)

    def _window(self, key: tuple[ModelName, str]) -> RequestWindow:
        window = self._requests.get(key)
        if window is None:
            window = self._requests[key] = RequestWindow(self._policy.evidence.ratio_window_s)
        return window

    def _answered(
        self, entry: Entry, tier: TierPlace | None, now: float, *, key: tuple[ModelName, str]
    ) -> None:
        template = None
        if tier is not None and tier.is_static:
            template = self._template(entry.template)
            self._tally.add("fleet_static_answers_total", *key, template)
        degraded = tier is not None and tier.position > 0
        self._window(key).add(now, degraded=degraded, template=template, tokens=entry.tokens)

    def _last_attempt(
        self, entry: Entry, ended: Outcome, tier: TierPlace | None, now: float
    ) -> None:
        """Count the attempt that a request's entry speaks for; a failed one has an entry of its own."""
        if entry.address is None or OVERFLOW in entry.flags:
            return
        if not entry.via_upstream and ended is not Outcome.ABORTED:
            return
        if tier is not None and tier.is_static:
            return  # The last net answered; the address is that of the failure before.
        place = self._places.instances.get(entry.address)
        if place is None:
            self._refuse("unknown_endpoint")
            return
        self._take(place, entry, ended, now)

    def _take(self, place: Place, entry: Entry, ended: Outcome, now: float) -> None:
        is_whole = ended is Outcome.OK
        self._count(
            place, entry, ended, now,
            latency_s=entry.latency_s if is_whole else None,
            first_byte_s=entry.first_byte_s if is_whole else None,
        )  # fmt: skip

    def _attempt(self, entry: Entry, now: float) -> None:
        if entry.address is None or OVERFLOW in entry.flags:
            return  # Nobody was asked, or the static tier.
        place = self._places.instances.get(entry.address)
        if place is None:
            self._refuse("unknown_endpoint")
            return
        ended = outcome(entry.status, entry.flags)
        if ended in _TOLD_BY_ATTEMPTS:
            self._count(place, entry, ended, now)
        elif entry.route == GATE_ROUTE:  # The request's own entry names no endpoint behind a gate.
            self._take(place, entry, ended, now)

    def _count(
        self,
        place: Place,
        entry: Entry,
        ended: Outcome,
        now: float,
        *,
        latency_s: float | None = None,
        first_byte_s: float | None = None,
    ) -> None:
        self._tally.add("fleet_attempts_total", place.model, place.tier, place.instance, ended)
        key = self._places.asked_by(place.model, entry)
        if key is not None:
            self._window(key).attempt(now)
        if self._is_stale:
            return
        window = self._tiers.get((place.model, place.tier))
        if window is None:
            window = Window(self._policy.evidence.window_s)
            self._tiers[place.model, place.tier] = window
        window.add(now, ended, latency_s=latency_s, first_byte_s=first_byte_s)
        accrual = self._accruals.get(place.instance)
        if accrual is None:
            accrual = self._accruals[place.instance] = Accrual(
                self._policy.evidence, consecutive=self._policy.failures.consecutive
            )
        verdict = accrual.add(now, ended, latency_s=latency_s, first_byte_s=first_byte_s)
        if verdict is None or now < self._offered_at.get(place.instance, now):
            return
        self._offered_at[place.instance] = now + OFFER_GAP_S
        self._tally.add("fleet_evidence_verdicts_total", verdict.cause)
        self._offer(
            Evidence(
                instance=place.instance,
                observed_at=now,
                cause=verdict.cause,
                detail=verdict.detail,
            )
        )

    # What follows.

    def vouch(self, instances: Iterable[InstanceId], *, since: float) -> None:
        """Tell the brain which of these instances answered well since then, and nothing else.

        Args:
            instances: Those that it waits to hear good of: a healthy one's success is no news.
            since: Monotonic seconds.
        """
        now = self._clock()
        for name in instances:
            accrual = self._accruals.get(name)
            if accrual is not None and accrual.last_ok >= since > accrual.last_failure:
                self._offer(Evidence(instance=name, observed_at=now, cause=""))

    def take_classes(self) -> dict[ModelName, Counter[ClassName]]:
        """Hand over the requests of each model and class since the last call."""
        taken, self._classes = self._classes, {}
        return taken

    def instance(self, instance: InstanceId) -> Summary | None:
        """Return what the window holds of an endpoint; None when it was never heard of."""
        accrual = self._accruals.get(instance)
        return None if accrual is None else accrual.window.summary(self._clock())

    def tiers(self) -> dict[tuple[ModelName, TierName], Summary]:
        """Return what the window holds of each tier whose endpoints were heard of."""
        now = self._clock()
        return {key: window.summary(now) for key, window in self._tiers.items()}

    def in_progress(self) -> dict[InstanceId, int]:
        """Return the requests that proxies have running at each endpoint, as they last reported."""
        total: dict[InstanceId, int] = {}
        for running in self._in_progress.values():
            for name, count in running.items():
                total[name] = total.get(name, 0) + count
        return total

    def readings(self) -> Iterator[Reading]:
        """Yield the gauges."""
        now = self._clock()
        if self.reports is not None:
            yield from self.reports.readings(now)
        for (model, request_class), window in self._requests.items():
            ratios = window.ratios(now)
            labels = (model, request_class)
            if ratios.degraded is not None:
                yield "fleet_degraded_request_ratio", labels, ratios.degraded
            if ratios.amplification is not None:
                yield "fleet_retry_amplification_ratio", labels, ratios.amplification
            if limit := self._places.token_limits.get(model):
                yield "fleet_token_admission_load", labels, ratios.tokens_per_second / limit
            for template, share in ratios.static.items():
                yield "fleet_static_answer_ratio", (*labels, template), share
        for (model, tier_name), summary in self.tiers().items():
            tier_labels = (str(model), str(tier_name))
            if summary.attempts:
                ratio = summary.failures / summary.attempts
                yield "fleet_attempt_failure_ratio", tier_labels, ratio
            for name, times in (
                ("fleet_attempt_latency_seconds", summary.latency),
                ("fleet_first_byte_seconds", summary.first_byte),
            ):
                for quantile, value in zip(("0.5", "0.95", "0.99"), times, strict=True):
                    if value is not None:
                        yield name, (*tier_labels, quantile), value
        running = self.in_progress()
        for place in self._places.instances.values():
            if place.instance in running:
                labels3 = (place.model, place.tier, place.instance)
                yield "fleet_requests_in_progress", labels3, float(running[place.instance])

    def _template(self, name: str) -> str:
        """Return the label of a template, or `other` beyond the first `MAX_TEMPLATES`."""
        if name in self._templates:
            return name
        if len(self._templates) >= MAX_TEMPLATES or len(name) > 64:
            return OTHER
        self._templates.add(name)
        return name

    def _follow(self) -> None:
        """Follow the topology and the policy; endpoints that left are forgotten."""
        fleet = self._fleet()
        if fleet.policy is not self._policy:
            if fleet.policy != self._policy:
                self._accruals.clear()
                self._tiers.clear()
                self._requests.clear()
            self._policy = fleet.policy
        if fleet.topology is not self._places.topology:
            self._places = Places(fleet.topology)
            names = {place.instance for place in self._places.instances.values()}
            keys = set(self._places.routes.values())
            tiers = {(place.model, place.tier) for place in self._places.tiers.values()}
            self._tiers = {k: v for k, v in self._tiers.items() if k in tiers}
            self._accruals = {k: v for k, v in self._accruals.items() if k in names}
            self._offered_at = {k: v for k, v in self._offered_at.items() if k in names}
            self._requests = {k: v for k, v in self._requests.items() if k in keys}
            if self.reports is not None:
                self.reports.keep(frozenset(names))

    def _refuse(self, reason: str) -> None:
        self._tally.add("fleet_evidence_refused_total", reason)
