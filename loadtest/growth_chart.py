"""Curves of a growth benchmark as a picture (SVG), a panel for each measure, each from zero up: what is flat looks flat. Pure: numbers in, text out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from xml.sax.saxutils import escape

WIDTH: Final = 270
HEIGHT: Final = 150
LEFT: Final = 52
TOP: Final = 34
BOTTOM: Final = 34
COLUMNS: Final = 4
HEADROOM: Final = 1.25


class Curve(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...


Steps = Mapping[float, Mapping[str, float]]
"""Values of a step by the names of their curves."""


def steps_of(document: Mapping[str, Any], curves: Sequence[Curve]) -> Steps:
    """From the figures "curve @ step" of an outcome's runs, their medians."""
    runs = [run["figures"] for run in document["runs"]]
    steps = sorted({float(name.partition(" @ ")[2]) for figures in runs for name in figures if " @ " in name})
    return {step: {curve.name: statistics.median(figures[f"{curve.name} @ {step:g}"] for figures in runs) for curve in curves} for step in steps}


def draw_growth(curves: Sequence[Curve], steps: Steps, axis: str) -> str:
    rows = -(-len(curves) // COLUMNS)
    width, height = COLUMNS * (WIDTH + LEFT) + 10, rows * (HEIGHT + TOP + BOTTOM)
    size = f'width="{width}" height="{height}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
             f'<rect {size} fill="#ffffff"/>']  # fmt: skip
    for number, curve in enumerate(curves):
        x, y = number % COLUMNS * (WIDTH + LEFT) + LEFT, number // COLUMNS * (HEIGHT + TOP + BOTTOM) + TOP
        lines += _panel(curve, {step: values[curve.name] for step, values in steps.items()}, axis, x, y)
    return "\n".join([*lines, "</svg>", ""])


def _panel(curve: Curve, values: Mapping[float, float], axis: str, x: float, y: float) -> list[str]:
    top, far = max(values.values()) * HEADROOM or 1.0, max(values) or 1.0
    points = [(x + step / far * (WIDTH - 10), y + HEIGHT - value / top * HEIGHT) for step, value in values.items()]
    lines = [f'<text x="{x}" y="{y - 12}" font-size="13">{escape(curve.name)} <tspan fill="#777777">({escape(curve.unit)})</tspan></text>',
             f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="#f6f6f4"/>']  # fmt: skip
    for share in (0.0, 0.5, 1.0):
        height = y + HEIGHT - share * HEIGHT
        lines.append(f'<line x1="{x}" x2="{x + WIDTH}" y1="{height}" y2="{height}" stroke="#d8d8d4"/>')
        lines.append(f'<text x="{x - 5}" y="{height + 4}" text-anchor="end" fill="#777777">{share * top:,.4g}</text>')
    path = " ".join(f"{at:.1f},{height:.1f}" for at, height in points)
    lines.append(f'<polyline points="{path}" fill="none" stroke="#3d78b2" stroke-width="2"/>')
    for (at, height), (step, value) in zip(points, values.items(), strict=True):
        lines.append(f'<circle cx="{at:.1f}" cy="{height:.1f}" r="3" fill="#3d78b2"><title>{step:g} {escape(axis)}: {value:,.4g}</title></circle>')
    shown = [step for step in values if step in (min(values), max(values)) or step >= far / 5]
    for step in shown:
        lines.append(f'<text x="{x + step / far * (WIDTH - 10):.1f}" y="{y + HEIGHT + 14}" text-anchor="middle" fill="#777777">{step:g}</text>')
    lines.append(f'<text x="{x + WIDTH / 2}" y="{y + HEIGHT + 27}" text-anchor="middle" fill="#777777">{escape(axis)}</text>')
    return lines
