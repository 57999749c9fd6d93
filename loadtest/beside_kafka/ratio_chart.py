"""Ratios of all rows as a picture (SVG): a point for each Kafka, right of the middle where ours is ahead, logarithmic. Pure: numbers in, text out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

LABELS: Final = 470
WIDTH: Final = 520
LINE: Final = 17
TOP: Final = 56
MARKS: Final = (0.1, 0.25, 0.5, 1, 2, 4, 10)
COLORS: Final = ("#3d78b2", "#c8693a", "#7a9cc0", "#dda98a")

Ratios = Sequence[tuple[str, Mapping[str, float]]]
"""Rows in order: what they are called, and a ratio for each contender."""


def place_of(ratio: float) -> float:
    """0 at the left edge, 1 at the right one; what is further out stands at the edge."""
    low, high = math.log(MARKS[0]), math.log(MARKS[-1])
    return min(1.0, max(0.0, (math.log(max(ratio, 1e-9)) - low) / (high - low))) if math.isfinite(ratio) else 1.0


def draw_ratios(rows: Ratios) -> str:
    names = sorted({name for _, ratios in rows for name in ratios})
    width, height = LABELS + WIDTH + 20, TOP + LINE * len(rows) + 20
    size = f'width="{width}" height="{height}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
             f'<rect {size} fill="#ffffff"/>', '<text x="8" y="18" font-size="13">How many times as good as Kafka: right of 1 is ahead</text>']  # fmt: skip
    for number, name in enumerate(names):
        x = LABELS + number * WIDTH / max(1, len(names))
        lines += [f'<circle cx="{x:.0f}" cy="14" r="4" fill="{COLORS[number % len(COLORS)]}"/>', f'<text x="{x + 8:.0f}" y="18">{escape(name)}</text>']
    for mark in MARKS:
        x = LABELS + place_of(mark) * WIDTH
        colour = "#555555" if mark == 1 else "#d8d8d4"
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 16}" stroke="{colour}"/>')
        lines.append(f'<text x="{x:.1f}" y="{TOP - 14}" text-anchor="middle" fill="#777777">{mark:g}</text>')
    for place, (row, ratios) in enumerate(rows):
        y = TOP + LINE * place + LINE / 2
        lines.append(f'<text x="{LABELS - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(row)}</text>')
        for name, ratio in ratios.items():
            x, colour = LABELS + place_of(ratio) * WIDTH, COLORS[names.index(name) % len(COLORS)]
            shown = f"<title>{escape(row)}, {escape(name)}: ×{ratio:.2f}</title>"
            lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">{shown}</circle>')
    return "\n".join([*lines, "</svg>", ""])
