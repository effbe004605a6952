"""What values of the file mean together: order, uniqueness, completeness.

The checks read the raw document and skip whatever has the wrong shape (that is reported by
`schema.py`), so that one wrong key hides no other problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from xds_server.config.addresses import parse_address
from xds_server.config.answer_checks import check_answer
from xds_server.config.answer_checks import doubts as answer_doubts
from xds_server.config.class_checks import check_classes
from xds_server.config.class_checks import doubts as class_doubts
from xds_server.config.istio_checks import check_istio
from xds_server.config.istio_checks import doubts as istio_doubts
from xds_server.config.limit_checks import check_limits
from xds_server.config.limit_checks import doubts as limit_doubts
from xds_server.config.problems import MISSING, Problem, join
from xds_server.config.tier_checks import check_tiers
from xds_server.core.policy import Policy


def check(raw: dict[str, Any]) -> Iterator[Problem]:
    """Yield every problem between values that are each well-formed."""
    yield from _check_models(raw)
    yield from check_classes(raw.get("classes"), raw.get("models"))
    for path, answer in _answers(raw):
        yield from check_answer(path, answer, _class_names(raw))
    yield from check_limits(raw)
    yield from check_istio(raw)
    policy = raw.get("policy")
    yield from _check_policy(policy if isinstance(policy, dict) else {})


def doubts(raw: dict[str, Any]) -> Iterator[Problem]:
    """Yield what works and is hardly meant in a document without problems."""
    for path, answer in _answers(raw):
        yield from answer_doubts(path, answer)
    yield from limit_doubts(raw)
    yield from class_doubts(raw)
    yield from istio_doubts(raw)


def _answers(raw: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, model in _mappings(raw.get("models"), "models"):
        for where, tier in _mappings(model.get("tiers"), join(path, "tiers")):
            if tier.get("answer") is not None:
                yield join(where, "answer"), tier["answer"]


def _class_names(raw: dict[str, Any]) -> frozenset[str]:
    names = (each.get("name") for _, each in _mappings(raw.get("classes"), "classes"))
    return frozenset(name for name in names if isinstance(name, str))


def _check_models(raw: dict[str, Any]) -> Iterator[Problem]:
    models = _Seen("a name that no other model has")
    matches = _Seen(
        "a domain and prefix that no other model has, or match.models to tell them apart by"
    )
    names = _Seen("a name that no other model of this domain and prefix has")
    instances = _Seen("a name that no other instance of the fleet has")
    addresses = _Seen("an address that no other instance of the fleet has")
    for path, model in _mappings(raw.get("models"), "models"):
        yield from models.claim(join(path, "name"), model.get("name"))
        match = model.get("match")
        match = match if isinstance(match, dict) else {}
        domains = _Seen("a domain that the model has once, in capitals or not")
        for number, text in enumerate(_list(match.get("domains", ["*"]))):
            domain = str(text).lower()
            at = join(join(join(path, "match"), "domains"), number)
            yield from domains.claim(at, domain, shown=text)
            where = join(join(path, "match"), "prefix")
            prefix = match.get("prefix", "/v1/")
            listed = match.get("models")
            if not listed or match.get("default") is True:
                yield from matches.claim(where, (domain, str(prefix)), shown=prefix)
            for index, name in enumerate(_list(listed)):
                at = join(join(join(path, "match"), "models"), index)
                key = (domain, str(prefix), str(name))
                yield from names.claim(at, key, shown=name)
        tiers = _Seen("a name that no other tier of this model has")
        for tier_path, tier in _mappings(model.get("tiers"), join(path, "tiers")):
            yield from tiers.claim(join(tier_path, "name"), tier.get("name"))
            listed = tier.get("instances")
            for where, each in _mappings(listed, join(tier_path, "instances")):
                yield from instances.claim(join(where, "name"), each.get("name"))
                address = each.get("address")
                yield from addresses.claim(join(where, "address"), _normal(address), shown=address)
        yield from _check_chain(path, model)
        yield from check_tiers(path, model, _section(raw, "policy"))


def _check_chain(path: str, model: dict[str, Any]) -> Iterator[Problem]:
    tiers = list(_mappings(model.get("tiers"), join(path, "tiers")))
    for index, (where, tier) in enumerate(tiers):
        is_static = tier.get("answer") is not None
        listed = tier.get("instances")
        last = index == len(tiers) - 1
        if is_static and listed is not None:
            yield Problem.of(
                join(where, "instances"), listed, "no instances: a tier with an answer is static"
            )
        elif is_static and not last:
            yield Problem.of(
                join(where, "answer"), tier["answer"], "only the last tier of a model is static"
            )
        elif not is_static and listed is None:
            yield Problem.of(
                join(where, "instances"),
                MISSING,
                "a list of instances, {discover: agents}, or (on the last tier) an answer",
            )
        elif listed == []:
            yield Problem.of(join(where, "instances"), listed, "at least one instance")
        if is_static and tier.get("max_tokens") is not None:
            yield Problem.of(
                join(where, "max_tokens"),
                tier["max_tokens"],
                "no max_tokens: a tier with an answer generates nothing",
            )
    if not tiers:
        return
    last_path, last_tier = tiers[-1]
    if last_tier.get("answer") is None and last_tier.get("instances") is not None:
        yield Problem.of(
            last_path,
            last_tier.get("name", MISSING),
            "the last tier is static: add one with an answer after it",
        )
    elif len(tiers) == 1 and last_tier.get("answer") is not None:
        yield Problem.of(
            join(path, "tiers"),
            [last_tier.get("name")],
            "at least one tier with instances before the static one",
        )


def _check_policy(raw: dict[str, Any]) -> Iterator[Problem]:
    default = Policy()
    kv = _section(raw, "kv")
    high, critical = (
        _number(kv, "high", default.kv.high),
        _number(kv, "critical", default.kv.critical),
    )
    if high is not None and critical is not None and high >= critical:
        path = "policy.kv.high" if "high" in kv else "policy.kv.critical"
        value, expected = (
            (high, f"below policy.kv.critical ({critical:g})")
            if "high" in kv
            else (critical, f"above policy.kv.high ({high:g})")
        )
        yield Problem.of(path, value, expected)
    margin = _number(kv, "margin", default.kv.margin)
    if margin is not None and high is not None and margin >= high > 0:
        yield Problem.of("policy.kv.margin", margin, f"below policy.kv.high ({high:g})")
    yield from _check_recovery(_section(raw, "recovery"), default)
    yield from _check_telemetry(_section(raw, "telemetry"), default)
    yield from _check_evidence(_section(raw, "evidence"), default)
    weights = _section(raw, "weights")
    low = _number(weights, "correction_min", default.weights.correction_min)
    top = _number(weights, "correction_max", default.weights.correction_max)
    if low is not None and low > 1:
        yield Problem.of("policy.weights.correction_min", low, "at most 1")
    if top is not None and top < 1:
        yield Problem.of("policy.weights.correction_max", top, "at least 1")


def _check_recovery(raw: dict[str, Any], default: Policy) -> Iterator[Problem]:
    stages = raw.get("stages")
    if isinstance(stages, list) and all(_is_number(each) for each in stages):
        rising = all(low < high for low, high in itertools.pairwise(stages))
        if not stages or stages[0] <= 0 or not rising or stages[-1] != 1:
            yield Problem.of(
                "policy.recovery.stages",
                stages,
                "ceilings above 0 that rise and end with 1.0, like [0.1, 0.3, 1.0]",
            )
    hold = _number(raw, "hold_s", default.recovery.hold_s)
    most = _number(raw, "hold_max_s", default.recovery.hold_max_s)
    if hold is not None and most is not None and hold > most:
        path, value, expected = (
            ("policy.recovery.hold_max_s", most, f"at least policy.recovery.hold_s ({hold:g})")
            if "hold_max_s" in raw
            else ("policy.recovery.hold_s", hold, f"at most policy.recovery.hold_max_s ({most:g})")
        )
        yield Problem.of(path, value, expected)


def _check_telemetry(raw: dict[str, Any], default: Policy) -> Iterator[Problem]:
    interval = _number(raw, "interval_s", default.telemetry.interval_s)
    intervals = _number(raw, "stale_intervals", default.telemetry.stale_intervals)
    blind = _number(raw, "blind_after_s", default.telemetry.blind_after_s)
    if interval is None or intervals is None or blind is None:
        return
    if blind <= interval * intervals:
        yield Problem.of(
            "policy.telemetry.blind_after_s",
            blind,
            f"above interval_s x stale_intervals ({interval * intervals:g})",
        )


def _check_evidence(raw: dict[str, Any], default: Policy) -> Iterator[Problem]:
    flush = _number(raw, "flush_s", default.evidence.flush_s)
    window = _number(raw, "window_s", default.evidence.window_s)
    if flush is not None and window is not None and window <= flush:
        path, value, expected = (
            ("policy.evidence.window_s", window, f"above policy.evidence.flush_s ({flush:g})")
            if "window_s" in raw
            else ("policy.evidence.flush_s", flush, f"below policy.evidence.window_s ({window:g})")
        )
        yield Problem.of(path, value, expected)


class _Seen:
    """Values that may occur once; remembers where each was seen first."""

    def __init__(self, expected: str) -> None:
        self._expected = expected
        self._where: dict[Any, str] = {}
        self._told: set[str] = set()

    def claim(self, path: str, key: Any, *, shown: Any = None) -> Iterator[Problem]:
        if not isinstance(key, str | tuple):
            return
        first = self._where.setdefault(key, path)
        if first != path and path not in self._told:
            self._told.add(path)
            value = key if shown is None else shown
            yield Problem.of(path, value, f"{self._expected} (see {first})")


def _mappings(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for index, each in enumerate(_list(value)):
        if isinstance(each, dict):
            yield join(path, index), each


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _section(raw: dict[str, Any], name: str) -> dict[str, Any]:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def _number(raw: dict[str, Any], name: str, default: float) -> float | None:
    value = raw.get(name, default)
    return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _normal(address: Any) -> tuple[str, int] | None:
    try:
        return parse_address(address)
    except (ValueError, AttributeError):
        return None
