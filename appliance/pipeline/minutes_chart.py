"""Errors per minute as an SVG picture: a bar for each minute, split by host, from zero; minutes without a row are empty.

Pure: rows in, text out. A notebook shows it without further packages. Weak spot: beyond COLOURS hosts, those with the fewest
errors are drawn together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from xml.sax.saxutils import escape

WIDTH: Final = 860
HEIGHT: Final = 220
LEFT: Final = 48
TOP: Final = 40
BOTTOM: Final = 40
COLOURS: Final = ("#c0392b", "#3d78b2", "#d99a2b", "#5b8f4e", "#7d5ba6", "#4aa3a2", "#8c6d52")
REST: Final = "others"
_MINUTE: Final = timedelta(minutes=1)


class Picture(str):
    """The text of an SVG file; a notebook draws it."""

    def _repr_svg_(self) -> str:
        """IPython's protocol for rich display."""
        return str(self)


def draw_errors(rows: Iterable[Mapping[str, Any]], title: str = "errors per minute") -> Picture:
    """Draw `rows` with `minute` (a datetime), `host` and `errors`, as in the table `minutes` of `millrace stream`."""
    errors: dict[datetime, dict[str, int]] = defaultdict(dict)
    totals: dict[str, int] = defaultdict(int)
    for row in rows:
        errors[row["minute"]][row["host"]] = errors[row["minute"]].get(row["host"], 0) + int(row["errors"])
        totals[row["host"]] += int(row["errors"])
    if not errors:
        return _page([f'<text x="{LEFT}" y="{TOP}">{escape(title)}: no minutes yet</text>'])
    ranked = sorted(totals, key=lambda host: (-totals[host], host))
    shown = ranked if len(ranked) <= len(COLOURS) else ranked[: len(COLOURS) - 1]
    names = [*shown, REST] if len(shown) < len(ranked) else shown
    first, last = min(errors), max(errors)
    count = (last - first) // _MINUTE + 1
    top = max(sum(each.values()) for each in errors.values()) or 1
    lines = [f'<text x="{LEFT}" y="16" font-size="14">{escape(title)}</text>', *_legend(names), *_axis(top)]
    width = (WIDTH - LEFT - 10) / count
    for number in range(count):
        minute = first + number * _MINUTE
        lines += _bar(errors.get(minute, {}), shown, names, LEFT + number * width, width, top)
        if number % max(1, count // 10) == 0:
            lines.append(f'<text x="{LEFT + (number + 0.5) * width:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle" fill="#777777">{minute:%H:%M}</text>')
    return _page(lines)


def _bar(errors: Mapping[str, int], shown: list[str], names: list[str], x: float, width: float, top: int) -> list[str]:
    lines, y = [], float(TOP + HEIGHT)
    for name, colour in zip(names, COLOURS, strict=False):
        value = errors.get(name, 0) if name in shown else sum(count for host, count in errors.items() if host not in shown)
        if value:
            height = value / top * HEIGHT
            y -= height
            lines.append(f'<rect x="{x + width * 0.1:.1f}" y="{y:.1f}" width="{width * 0.8:.1f}" height="{height:.1f}" fill="{colour}"/>')
    return lines


def _axis(top: int) -> list[str]:
    lines = [f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - 10}" height="{HEIGHT}" fill="#f6f6f4"/>']
    for share in (0.0, 0.5, 1.0):
        y = TOP + HEIGHT * (1 - share)
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y}" y2="{y}" stroke="#d8d8d4"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end" fill="#777777">{share * top:,.4g}</text>')
    return lines


def _legend(names: list[str]) -> list[str]:
    lines, x = [], float(LEFT)
    for name, colour in zip(names, COLOURS, strict=False):
        lines.append(f'<rect x="{x}" y="22" width="10" height="10" fill="{colour}"/><text x="{x + 14}" y="31" fill="#777777">{escape(name)}</text>')
        x += 28 + 7 * len(name)
    return lines


def _page(lines: list[str]) -> Picture:
    size = f'width="{WIDTH}" height="{TOP + HEIGHT + BOTTOM}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {TOP + HEIGHT + BOTTOM}" font-family="sans-serif" font-size="11">'
    return Picture("\n".join([head, f'<rect {size} fill="#ffffff"/>', *lines, "</svg>", ""]))
