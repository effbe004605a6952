"""What is said of writing to the Kubernetes API: metrics, log, history. The same trouble is told once."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from xds_server import logs
from xds_server.istio.kubernetes.change import Change, Refusal, Wanted, title_of
from xds_server.istio.kubernetes.errors import Cause, KubernetesError, Ref
from xds_server.istio.publications import Publications
from xds_server.observability.history import History
from xds_server.observability.metrics import Reading, Tally

_VERBS = ("", " get", " create", " update", " patch")
"""What of an object is over once it is as it shall be; that it cannot be watched is not."""
RECIPE = "docs/istio/kubernetes.md#gitops says how to make it leave weights alone"


class Reporter:
    """Tells everybody who looks."""

    def __init__(self, tally: Tally, history: History, published: Publications) -> None:
        self.is_leader = False
        self._tally = tally
        self._history = history
        self._published = published
        self._log = logs.get("istio-kubernetes")
        self._troubles: dict[str, str] = {}
        self._in_sync: dict[str, bool] = {}
        self._doubts: frozenset[str] = frozenset()

    # Leadership.

    def leadership(self, leads: bool, why: str) -> None:
        """Note that we write from now on, or no more."""
        self.is_leader = leads
        name = logs.ISTIO_LEADERSHIP_GAINED if leads else logs.ISTIO_LEADERSHIP_LOST
        self._tally.add("fleet_kubernetes_leadership_changes_total", "gained" if leads else "lost")
        self._log.info(name, why=why)
        self._history.mesh(name, f"{why[:1].upper()}{why[1:]}.")
        if not leads:
            # Who does not write does not know.
            self._in_sync.clear()

    def lease_trouble(self, error: KubernetesError | None) -> None:
        """Note what keeps us from the lease."""
        if error is None:
            self._troubles.pop("lease", None)
            return
        self._tally.add("fleet_kubernetes_failures_total", error.cause.value)
        if self._is_new("lease", str(error)):
            self._log.warning(logs.ISTIO_LEASE_FAILED, cause=error.cause.value, error=str(error))
            self._history.mesh(logs.ISTIO_LEASE_FAILED, str(error), cause=error.cause.value)

    def unusable(self, text: str) -> None:
        """Note that there is no server to write to, or it has no Istio."""
        if self._is_new("server", text):
            self._log.error(logs.ISTIO_SERVER_UNUSABLE, error=text)
            self._history.mesh(logs.ISTIO_SERVER_UNUSABLE, text)

    def usable(self) -> None:
        """Note that there is one."""
        self._troubles.pop("server", None)

    # Objects; see `keeper.Report`.

    def written(self, wanted: Wanted, change: Change, *, took_s: float | None) -> None:
        """Note a write."""
        ref = wanted.ref
        if wanted.weights is not None:
            self._published.tell(wanted.weights)
        self._tally.add("fleet_kubernetes_writes_total", ref.kind, change.verb)
        if took_s is not None:
            self._tally.observe("fleet_kubernetes_write_seconds", took_s)
        self._log.info(
            logs.ISTIO_OBJECT_WRITTEN, object=str(ref), verb=change.verb, content=wanted.summary
        )
        if wanted.weights is not None or change.verb == "create":
            # Endpoint weights move all day long; the history is for what moves traffic between tiers.
            self._history.mesh(
                logs.ISTIO_OBJECT_WRITTEN,
                f"{ref}: {wanted.summary}.",
                model=wanted.model,
                object=str(ref),
                verb=change.verb,
            )

    def settled(self, title: str) -> None:
        """Note that an object is as it shall be."""
        self._in_sync[title] = True
        for verb in _VERBS:
            self._troubles.pop(f"{title}{verb}", None)

    def refused(self, title: str, refusal: Refusal) -> None:
        """Note that an object may not be written."""
        self._in_sync[title] = False
        if self._is_new(title, refusal.text):
            self._tally.add("fleet_kubernetes_refusals_total", refusal.reason)
            self._log.error(
                logs.ISTIO_OBJECT_REFUSED, object=title, rule=refusal.reason, reason=refusal.text
            )
            self._history.mesh(
                logs.ISTIO_OBJECT_REFUSED, refusal.text, object=title, reason=refusal.reason
            )

    def failed(self, error: KubernetesError, title: str) -> None:
        """Note that a request failed."""
        cause = error.cause.value
        if error.cause is Cause.CONFLICT:
            # Nothing is lost: it is read again and written again.
            kind = "" if error.ref is None else error.ref.kind
            self._tally.add("fleet_kubernetes_conflicts_total", kind)
            self._log.info(logs.ISTIO_OBJECT_FAILED, object=title, cause=cause, error=str(error))
            return
        self._tally.add("fleet_kubernetes_failures_total", cause)
        if error.verb != "watch":
            self._in_sync[title] = False
        if self._is_new(f"{title} {error.verb}", str(error)):
            self._log.error(logs.ISTIO_OBJECT_FAILED, object=title, cause=cause, error=str(error))
            self._history.mesh(logs.ISTIO_OBJECT_FAILED, str(error), object=title, cause=cause)

    def taken_back(self, wanted: Wanted, by: str, *, gap_s: float, is_fight: bool) -> None:
        """Note that somebody undid our last write."""
        ref = wanted.ref
        self._in_sync[title_of(wanted)] = False
        self._tally.add("fleet_kubernetes_reverts_total", ref.kind)
        who = by or "somebody"
        text = f"{who} changed what we wrote in {ref}: it is written again."
        if is_fight:
            text = f"{who} takes back what we write in {ref}: it is written again every {gap_s:g} s at most. {RECIPE}."
        self._log.warning(logs.ISTIO_OBJECT_TAKEN_BACK, object=str(ref), by=by, text=text)
        self._history.mesh(
            logs.ISTIO_OBJECT_TAKEN_BACK, text, model=wanted.model, object=str(ref), by=by
        )

    def forgotten(self, title: str) -> None:
        """Note that an object is not kept any more."""
        self._in_sync.pop(title, None)

    def left(self, ref: Ref) -> None:
        """Note that an object of ours is not wanted any more; nobody but a person deletes it."""
        text = (
            f"{ref} is not in the configuration any more and is not written again. Once no VirtualService "
            f"delegates to it: kubectl delete -n {ref.namespace} {ref.plural}.{ref.group} {ref.name}"
        )
        self._log.info(logs.ISTIO_OBJECT_LEFT, object=str(ref), text=text)
        self._history.mesh(logs.ISTIO_OBJECT_LEFT, text, object=str(ref))

    def doubted(self, texts: Collection[str]) -> None:
        """Note what in the mesh hardly anybody means now; what is still so is not told again."""
        for text in texts:
            if text not in self._doubts:
                self._log.warning(logs.ISTIO_OBJECT_DOUBTED, text=text)
                self._history.mesh(logs.ISTIO_OBJECT_DOUBTED, text)
        self._doubts = frozenset(texts)

    def readings(self) -> Iterator[Reading]:
        """Yield the gauges."""
        yield "fleet_kubernetes_leader", (), float(self.is_leader)
        for name, is_so in self._in_sync.items():
            yield "fleet_kubernetes_in_sync", (name,), float(is_so)

    def _is_new(self, key: str, text: str) -> bool:
        if self._troubles.get(key) == text:
            return False
        self._troubles[key] = text
        return True
