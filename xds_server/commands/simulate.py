"""`xds-server simulate CONFIG`: the fleet of a configuration under a load, in simulated time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, isfinite
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xds_server.commands.admin_client import BAD_USAGE, FAILED
from xds_server.commands.asking import Json, clean, console, fail, percent, print_json
from xds_server.config.config import Config
from xds_server.config.load import load_file
from xds_server.config.problems import ConfigError
from xds_server.core.model import Model
from xds_server.simulation.configured import ConfiguredFleet, NotSimulatedError, configured
from xds_server.simulation.control import Brain, StaticWeights
from xds_server.simulation.engine import EngineSpec
from xds_server.simulation.fleet import Tick, Trace, run

_WARM_S = 60.0
"""Left out of the figures, or a third of a short run: the fleet fills up and the brain learns."""
_MOST_REQUESTS = 5e6
"""More would not fit into memory."""
_ROWS = 12
"""Moments that the table of shares shows."""


def simulate(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration.", show_default=False)
    ],
    *,
    load: Annotated[
        float, typer.Option(help="Requests offered, in multiples of what the first tier completes.")
    ],
    seconds: Annotated[float, typer.Option(help="Simulated time, 10 to 86400.")] = 300.0,
    lag: Annotated[
        float, typer.Option(help="Age of telemetry when it reaches the control plane, seconds.")
    ] = 0.1,
    model: Annotated[
        str | None, typer.Option(help="Which model; not needed where there is one.")
    ] = None,
    slots: Annotated[
        int, typer.Option(help="Slots of instances whose capacity is not configured.")
    ] = 32,
    tokens_per_s: Annotated[
        float, typer.Option(help="Tokens per second of each request of every engine.")
    ] = 25.0,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal runs.")] = 1,
    as_json: Json = False,
) -> None:
    """Play CONFIG's fleet under a load, with its policy and with fixed weights, and compare."""
    _check(load=load, seconds=seconds, lag=lag, slots=slots, tokens_per_s=tokens_per_s)
    loaded = _load(config)
    chosen = _choose(loaded, model)
    policy = loaded.policy
    engine = EngineSpec(slots=slots, tokens_per_s=tokens_per_s)
    try:
        spec = configured(chosen, policy, load=load, duration_s=seconds, lag_s=lag, engine=engine)
    except NotSimulatedError as error:
        fail(str(error), FAILED)
    if spec.capacity * load * seconds > _MOST_REQUESTS:
        fail(f"that is more than {_MOST_REQUESTS:.0f} requests: choose fewer --seconds", BAD_USAGE)
    brain = Brain(topology=spec.topology(), policy=policy)
    ours = run(spec, brain, seed)
    capacities = tuple(tuple(float(each.slots) for each in tier) for tier in spec.tiers)
    fixed = run(spec, StaticWeights(slots=capacities), seed)
    start = min(_WARM_S, seconds / 3)
    found = {
        "model": chosen.name,
        "load": load,
        "offered_per_s": round(spec.capacity * load, 3),
        "capacity_per_s": round(spec.capacity, 3),
        "seconds": seconds,
        "lag_s": lag,
        "seed": seed,
        "measured_from_s": start,
        "policy": _figures(ours, start),
        "fixed_weights": _figures(fixed, start),
        "timeline": _timeline(spec, ours.ticks),
        "events": [
            {
                "at_s": round(at, 3),
                "name": event.name,
                "tier": event.tier,
                "instance": event.instance,
                "rule": event.reason.rule,
                "sentence": event.reason.text,
            }
            for at, event in brain.events
        ],
    }
    if as_json:
        print_json(found)
    else:
        _show(found, console())


def _check(*, load: float, seconds: float, lag: float, slots: int, tokens_per_s: float) -> None:
    for flag, value, least, most in (
        ("--load", load, 0.01, 100.0),
        ("--seconds", seconds, 10.0, 86400.0),
        ("--lag", lag, 0.0, 600.0),
        ("--slots", float(slots), 1.0, 100_000.0),
        ("--tokens-per-s", tokens_per_s, 0.1, 1e5),
    ):
        if not isfinite(value) or not least <= value <= most:
            fail(f"{flag}: {value:g}: expected a number from {least:g} to {most:g}", BAD_USAGE)


def _load(path: Path) -> Config:
    try:
        return load_file(path)
    except ConfigError as error:
        fail(str(error), BAD_USAGE)


def _choose(config: Config, name: str | None) -> Model:
    models = config.topology.models
    chosen = [each for each in models if name is None or each.name == name]
    if len(chosen) != 1:
        names = ", ".join(each.name for each in models)
        wrong = "--model is missing" if name is None else f"--model: there is no model {name!r}"
        fail(f"{wrong}; there is {names}", BAD_USAGE)
    return chosen[0]


def _figures(trace: Trace, start: float) -> dict[str, Any]:
    """Return what requests met that came after `start`. What no request tells is None."""
    requests = [each for each in trace.requests if each.arrived_at >= start]
    waits = sorted(
        (trace.spec.duration_s if each.started_at is None else each.started_at) - each.arrived_at
        for each in requests
    )
    tiers = len(trace.spec.tiers) + 1
    counts = [sum(each.tier == tier for each in requests) for tier in range(tiers)]
    window = [tick for tick in trace.ticks if tick.at >= start]
    span = window[-1].at - window[0].at
    return {
        "requests": len(requests),
        "served_ratio": [count / len(requests) if requests else None for count in counts],
        "wait_p50_s": _quantile(waits, 0.5),
        "wait_p99_s": _quantile(waits, 0.99),
        "busy_ratio": [
            _busy(trace, window[0], window[-1], tier, span) for tier in range(tiers - 1)
        ],
        "weight_changes": len(trace.decisions) - 1,
        "broken_streams": trace.broken,
    }


def _busy(trace: Trace, first: Tick, last: Tick, tier: int, span: float) -> float | None:
    slots = sum(each.slots for each in trace.spec.tiers[tier])
    if not slots:
        return None
    return (sum(last.busy_slot_s[tier]) - sum(first.busy_slot_s[tier])) / (slots * span)


def _quantile(values: Sequence[float], quantile: float) -> float | None:
    return round(values[max(0, ceil(quantile * len(values)) - 1)], 3) if values else None


def _timeline(spec: ConfiguredFleet, ticks: Sequence[Tick]) -> list[dict[str, Any]]:
    """Return the fleet once a second."""
    names = [str(tier.name) for tier in spec.model.tiers]
    rows: list[dict[str, Any]] = []
    for tick in ticks:
        if rows and tick.at < rows[-1]["at_s"] + 1.0:
            continue
        rows.append(
            {
                "at_s": round(tick.at, 3),
                "shares": dict(zip(names, tick.decision.shares, strict=True)),
                "levels": dict(zip(names, tick.decision.levels, strict=False)),
                "waiting": dict(zip(names, map(sum, tick.waiting), strict=False)),
                "running": dict(zip(names, map(sum, tick.running), strict=False)),
            }
        )
    return rows


def _show(found: Mapping[str, Any], out: Console) -> None:
    out.print(
        Text(
            f"{clean(found['model'])}: {found['offered_per_s']:.1f} requests/s offered to a first tier that "
            f"completes {found['capacity_per_s']:.1f}, for {found['seconds']:g} s, telemetry {found['lag_s']:g} s old."
        ),
        soft_wrap=True,
    )
    names = list(found["timeline"][0]["shares"])
    table = Table(title=f"From {found['measured_from_s']:g} s on", title_justify="left")
    for name in ("", "this policy", "fixed weights"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    both = (found["policy"], found["fixed_weights"])
    for index, name in enumerate(names):
        table.add_row(
            f"served by {clean(name)}", *(percent(each["served_ratio"][index]) for each in both)
        )
    for index, name in enumerate(names[:-1]):
        table.add_row(
            f"slots busy of {clean(name)}", *(percent(each["busy_ratio"][index]) for each in both)
        )
    for key, text in (
        ("wait_p50_s", "wait in queue, median"),
        ("wait_p99_s", "wait in queue, p99"),
    ):
        table.add_row(text, *("-" if each[key] is None else f"{each[key]:.2f} s" for each in both))
    table.add_row("changes of weights", *(str(each["weight_changes"]) for each in both))
    out.print(table)
    out.print(_shares(found["timeline"], names))


def _shares(timeline: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Table:
    table = Table(title="Over time, this policy", title_justify="left")
    table.add_column("at", justify="right", no_wrap=True)
    for name in names:
        table.add_column(clean(name), justify="right", no_wrap=True)
    table.add_column("waiting", justify="right", no_wrap=True)
    table.add_column("first tier", no_wrap=True)
    for row in timeline[:: max(1, ceil(len(timeline) / _ROWS))]:
        table.add_row(
            f"{row['at_s']:.0f} s",
            *(percent(row["shares"][name]) for name in names),
            str(sum(row["waiting"].values())),
            row["levels"][names[0]],
        )
    return table
