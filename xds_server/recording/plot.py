"""A comparison as an SVG: shares of the tiers over time, as recorded above, with the other policy below."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from xds_server.recording.replay import Comparison, Curve, Run
from xds_server.store.moments import show_moment

WIDTH, HEIGHT, GAP = 860, 150, 46
LEFT, RIGHT, TOP = 60, 190, 64
COLORS = ("#3b82f6", "#f59e0b", "#10b981", "#a855f7", "#ef4444", "#14b8a6", "#f472b6", "#84cc16")
"""Told apart on white and on black; lines of one plot differ in dashes too."""
DASHES = ("", "7 3", "2 3", "9 3 2 3")
STYLE = """
text{font:12px system-ui,sans-serif;fill:#334155}.title{font-size:15px;font-weight:600}
.axis{stroke:#94a3b8;fill:none}.grid{stroke:#cbd5e1;stroke-dasharray:2 4}.paper{fill:#fff}
@media(prefers-color-scheme:dark){text{fill:#cbd5e1}.grid{stroke:#334155}.paper{fill:#0f172a}}
"""


def svg(comparison: Comparison, *, title: str, other: str) -> str:
    """Draw it.

    Args:
        comparison: What to draw.
        title: What was played.
        other: What the other policy is called.

    Returns:
        A whole SVG document that loads nothing from elsewhere.
    """
    models = sorted({model for model, _ in comparison.recorded.curves})
    plots = [
        (f"{model}: {name}", run, model)
        for model in models
        for name, run in (("as recorded", comparison.recorded), (other, comparison.other))
        if not (comparison.is_same_policy and run is comparison.other)
    ]
    height = TOP + len(plots) * (HEIGHT + GAP)
    width = LEFT + WIDTH + RIGHT
    started = show_moment(comparison.start_unix_s)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = escape(title, quote=True)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
        f'<text x="{LEFT}" y="42">from {started}, {comparison.span_s:.1f} s</text>',
    ]
    for number, (name, run, model) in enumerate(plots):
        parts += _plot(name, run, model, TOP + number * (HEIGHT + GAP), comparison.span_s)
    return "\n".join([*parts, "</svg>", ""])


def _plot(name: str, run: Run, model: str, top: float, span_s: float) -> Iterator[str]:
    floor = top + 18 + HEIGHT - 18
    yield f'<text x="{LEFT}" y="{top + 10}">{escape(name)}</text>'
    for share in (0.0, 0.5, 1.0):
        y = _y(share, floor)
        yield f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
    yield f'<line class="axis" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{floor}" y2="{floor}"/>'
    for part in range(5):
        x = LEFT + WIDTH * part / 4
        yield (
            f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{span_s * part / 4:.3g} s</text>'
        )
    curves = [(tier, curve) for (of, tier), curve in run.curves.items() if of == model]
    for number, (tier, curve) in enumerate(curves):
        color, dash = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
        stroke = f'stroke="{color}" stroke-width="2" stroke-dasharray="{dash}" fill="none"'
        yield f'<path d="{_path(curve, floor, span_s)}" {stroke}/>'
        x, y = LEFT + WIDTH + 14, top + 26 + number * 18
        yield f'<path d="M{x} {y - 4}h26" {stroke}/>'
        yield f'<text x="{x + 34}" y="{y}">{escape(tier)}, mean {curve.mean(span_s):.1%}</text>'


def _path(curve: Curve, floor: float, span_s: float) -> str:
    scale = WIDTH / span_s if span_s > 0 else 0.0
    steps = []
    for number, (at, weight) in enumerate(curve.weights):
        x, y = LEFT + at * scale, _y(weight, floor)
        steps.append(f"M{x:.1f} {y:.1f}" if number == 0 else f"H{x:.1f}V{y:.1f}")
    return "".join(steps) + f"H{LEFT + WIDTH}"


def _y(share: float, floor: float) -> float:
    return floor - share * (HEIGHT - 22)
