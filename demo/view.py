"""The live picture of the play, and its plain form for logs and pipes."""

from __future__ import annotations

import asyncio

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.outcome import Verdict
from demo.play import FALLBACK, PARTS, PRIMARY, STATIC
from demo.report import percentile
from demo.scene import RECENT_S, Scene
from demo.watch import InstanceView, SampleView, TierView

LEVEL_STYLES = {"healthy": "green", "degraded": "yellow", "critical": "red"}
STATE_STYLES = {
    "healthy": "green",
    "warming": "cyan",
    "recovering": "cyan",
    "draining": "yellow",
    "down": "bold red",
    "quarantined": "bold red",
}
TIER_STYLES = {PRIMARY: "green", FALLBACK: "yellow", STATIC: "magenta"}
REFRESH_S = 0.25
PLAIN_S = 1.0
BAR_CELLS = 20
CLIENT_CELLS = 50


async def show(scene: Scene, console: Console) -> None:
    """Show the scene until cancelled: redrawn on a terminal, otherwise a line per second."""
    if not console.is_terminal:
        await _print_lines(scene, console)
        return
    with Live(picture(scene), console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(picture(scene), refresh=True)
            await asyncio.sleep(REFRESH_S)


async def _print_lines(scene: Scene, console: Console) -> None:
    try:
        while True:
            flush(scene, console)
            console.print(plain_line(scene), markup=False, highlight=False, soft_wrap=True)
            await asyncio.sleep(PLAIN_S)
    finally:
        flush(scene, console)


def flush(scene: Scene, console: Console) -> None:
    """Print the timeline's lines that were not printed yet."""
    while scene.unread:
        console.print(scene.unread.popleft(), markup=False, highlight=False, soft_wrap=True)


def plain_line(scene: Scene) -> str:
    """Return the picture in one line."""
    tiers = ", ".join(_plain_tier(each, scene) for each in scene.watch.tiers) or "no plan yet"
    rate = scene.act.rate if scene.act is not None else 0
    return (
        f"{scene.elapsed_s:5.1f} s  [{rate:g} req/s] {tiers}; "
        f"{len(scene.outcomes)} answers, {scene.count(Verdict.FAILED)} failed, "
        f"{scene.count(Verdict.CUT)} cut"
    )


def _plain_tier(tier: TierView, scene: Scene) -> str:
    inside = " ".join(_plain_instance(each, scene) for each in tier.instances)
    return f"{tier.name} {tier.share:.0%} {tier.level}" + (f" ({inside})" if inside else "")


def _plain_instance(instance: InstanceView, scene: Scene) -> str:
    sample = scene.watch.samples.get(instance.name)
    kv_ratio, waiting = (sample.kv_ratio, sample.waiting) if sample else (None, None)
    return f"{instance.name} {instance.state} kv {_ratio(kv_ratio)} queue {_count(waiting)}"


def picture(scene: Scene) -> Group:
    """Return the whole picture for a terminal; it fits into 24 lines."""
    return Group(
        _heading(scene),
        _tier_table(scene),
        Text(),
        _instance_table(scene),
        Text(),
        *_clients(scene),
        Text(),
        *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in scene.lines),
    )


def _heading(scene: Scene) -> Text:
    act = scene.act
    if act is None:
        return Text(f"{scene.elapsed_s:5.1f} s")
    text = Text(f"{scene.elapsed_s:5.1f} s  ", no_wrap=True, overflow="ellipsis")
    text.append(act.name.upper(), style="bold reverse")
    text.append(f"  {act.rate:g} requests/s  ")
    text.append(act.says, style="italic")
    return text


def _tier_table(scene: Scene) -> Table:
    table = Table(expand=True, box=None, pad_edge=False, header_style="bold underline")
    for name in ("tier", "level", "wanted share", "pressure"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for tier in scene.watch.tiers:
        table.add_row(
            Text(tier.name, style=TIER_STYLES.get(tier.name, "")),
            Text(tier.level, style=LEVEL_STYLES.get(tier.level, "")),
            _bar(tier.share, TIER_STYLES.get(tier.name, "")),
            _ratio(tier.pressure),
            Text(tier.reason),
        )
    return table


def _instance_table(scene: Scene) -> Table:
    table = Table(expand=True, box=None, pad_edge=False, header_style="bold underline")
    for name in ("instance", "state", "ceiling", "weight"):
        table.add_column(name, no_wrap=True)
    for name in ("engine", "KV cache", "running", "waiting", "VRAM"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    planned = {each.name: each for tier in scene.watch.tiers for each in tier.instances}
    for part in PARTS:
        table.add_row(
            part.name,
            *_instance_cells(planned.get(part.name)),
            *_sample_cells(scene.watch.samples.get(part.name)),
            Text(planned[part.name].reason if part.name in planned else ""),
        )
    return table


def _instance_cells(plan: InstanceView | None) -> tuple[Text, str, str]:
    if plan is None:
        return Text("?"), "", ""
    weight = "-" if plan.health != "healthy" or plan.weight is None else str(plan.weight)
    return (
        Text(plan.state, style=STATE_STYLES.get(plan.state, "")),
        _ratio(plan.ceiling),
        weight,
    )


def _sample_cells(sample: SampleView | None) -> tuple[Text, str, str, str, str]:
    if sample is None:
        return Text("?"), "-", "-", "-", "-"
    return (
        Text(sample.state, style="green" if sample.state == "up" else "bold red"),
        _ratio(sample.kv_ratio),
        _count(sample.running),
        _count(sample.waiting),
        _ratio(sample.vram_ratio),
    )


def _clients(scene: Scene) -> tuple[Text, Text]:
    recent = scene.recent()
    shares = scene.shares(recent)
    bar = Text(f"clients, last {RECENT_S:g} s  ", style="bold")
    for tier in (PRIMARY, FALLBACK, STATIC):
        bar.append("█" * round(shares.get(tier, 0.0) * CLIENT_CELLS), style=TIER_STYLES[tier])
    failed, cut = scene.count(Verdict.FAILED), scene.count(Verdict.CUT)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"failed {failed}  ", style="bold red" if failed else "bold green")
    text.append(f"cut {cut}  ", style="yellow" if cut else "")
    for tier in (PRIMARY, FALLBACK, STATIC):
        text.append(f"{tier} {shares.get(tier, 0.0):.0%}  ", style=TIER_STYLES[tier])
    text.append(f"answers {len(scene.outcomes)}  ")
    waits = [each.wait_s for each in recent if each.wait_s is not None]
    if waits:
        text.append(f"first byte p50 {percentile(waits, 0.5) * 1000:.0f} ms")
    return bar, text


def _bar(ratio: float | None, style: str, *, cells: int = BAR_CELLS) -> Text:
    if ratio is None:
        return Text("-")
    full = round(min(1.0, max(0.0, ratio)) * cells)
    text = Text("█" * full, style=style)
    text.append("░" * (cells - full), style="dim")
    text.append(f" {ratio:.0%}")
    return text


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"
