"""Stacks of a profile into a flame graph (SVG) and into a few words. Pure: text in, text out.

It has no owner; `flames.py` calls it. A stack is a tuple of frames, the outermost first; frames are as py-spy writes them, `function (file:line)`.
Weak spot: what is narrower than `LEAST_SHARE` or deeper than `DEPTH_MAX` is left out; a graph is for the eye, the counts are in `where_time_goes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from xml.sax.saxutils import escape, quoteattr

Stacks: TypeAlias = Mapping[tuple[str, ...], int]

WIDTH: Final = 1200
ROW: Final = 17
MARGIN: Final = 10
HEAD: Final = 48
CHARACTER: Final = 6.6
DEPTH_MAX: Final = 32
LEAST_SHARE: Final = 0.003
SIZE_MAX: Final = 140_000
TURN: Final = "Runner.turn "
"""Below it all stacks are alike: the interpreter's start and the loop."""
OWN_CODE: Final = ("appliance/", "services/")
PALETTE: Final = {"system call": "#e4674f", "C": "#c9bfae"}
PACKAGE_COLOURS: Final = ("#f2b04c", "#e8d25b", "#8fbf6b", "#6bb5a8", "#7aa6d8", "#a890d0", "#d68fb0", "#b5a36b", "#9ccad9", "#d9a18c")
PACKAGES: Final = ("acceptor", "protocol", "records", "shm", "ipc", "storage", "log_writer", "runtime", "ingest", "base")


def parse_stacks(text: str) -> Counter[tuple[str, ...]]:
    """py-spy's raw format: frames with semicolons between, a space, the number of samples."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in text.splitlines():
        frames, _, count = line.rpartition(" ")
        if frames:
            stacks[trim(tuple(frames.split(";")))] += int(count)
    return stacks


def trim(stack: tuple[str, ...]) -> tuple[str, ...]:
    start = next((index for index, frame in enumerate(stack) if frame.startswith(TURN)), 0)
    return stack[start:]


def kind_of(frame: str) -> str:
    """A package of ours, "system call" (a function of libc that is one, its time in the kernel included), or "C"."""
    name, _, place = frame.partition(" (")
    if place.startswith(OWN_CODE):
        return place.split("/")[1]
    if place.startswith("libc") and not name.startswith(("0x", "mem", "__mem", "malloc", "free", "realloc", "calloc", "_int_", "cfree", "str")):
        return "system call"
    return "C"


def where_time_goes(stacks: Stacks) -> list[tuple[str, float]]:
    """Shares of all samples, the largest first: a system call by its name, everything else by the package of ours that called it."""
    total = sum(stacks.values())
    shares: Counter[str] = Counter()
    for stack, count in stacks.items():
        shares[_charged_to(stack)] += count
    return [(name, count / total) for name, count in shares.most_common()] if total else []


def _charged_to(stack: tuple[str, ...]) -> str:
    if kind_of(stack[-1]) == "system call":
        return f"{stack[-1].partition(' (')[0]}()"
    return next((kind for frame in reversed(stack) if (kind := kind_of(frame)) not in PALETTE), "interpreter")


@dataclass
class _Node:
    count: int = 0
    children: dict[str, _Node] = field(default_factory=dict)


def _tree(stacks: Stacks) -> _Node:
    root = _Node()
    for stack, count in stacks.items():
        root.count += count
        node = root
        for frame in stack[:DEPTH_MAX]:
            node = node.children.setdefault(frame, _Node())
            node.count += count
    return root


def draw_flame_graph(title: str, subtitle: str, stacks: Stacks) -> str:
    """An SVG of less than `SIZE_MAX` bytes, the outermost frame on top; the more it would need, the more of the narrow frames are left out."""
    least, tree = LEAST_SHARE, _tree(stacks)
    while len(drawn := _draw(title, subtitle, tree, least)) > SIZE_MAX:
        least *= 1.5
    return drawn


def _draw(title: str, subtitle: str, tree: _Node, least_share: float) -> str:
    boxes = list(_boxes(tree, 0.0, 0, max(1.0, tree.count * least_share)))
    scale = (WIDTH - 2 * MARGIN) / max(1, tree.count)
    height = HEAD + ROW * (1 + max((depth for _, _, depth, _ in boxes), default=0)) + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fffdf8"/>',
        f'<text x="{MARGIN}" y="18" font-size="14">{escape(title)}</text>',
        f'<text x="{MARGIN}" y="36" fill="#555">{escape(subtitle)}</text>',
    ]
    for frame, start, depth, count in boxes:
        x, y, width = MARGIN + start * scale, HEAD + depth * ROW, count * scale
        words = f"{frame}: {100 * count / tree.count:.1f} %"
        lines.append(f"<g><title>{escape(words)}</title>")
        lines.append(f'<rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" height="{ROW - 1}" fill={_colour(frame)}/>')
        shown = int((width - 6) / CHARACTER)
        name = frame.partition(" (")[0]
        if shown >= 3:
            lines.append(f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(name if len(name) <= shown else name[: shown - 1] + "…")}</text>')
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _boxes(node: _Node, start: float, depth: int, least: float) -> Iterator[tuple[str, float, int, int]]:
    """(frame, first sample, depth, samples), siblings in the order of their names so that two graphs can be compared."""
    for frame, child in sorted(node.children.items()):
        if child.count >= least:
            yield frame, start, depth, child.count
            yield from _boxes(child, start, depth + 1, least)
        start += child.count


def _colour(frame: str) -> str:
    kind = kind_of(frame)
    colour = PALETTE.get(kind) or PACKAGE_COLOURS[PACKAGES.index(kind) if kind in PACKAGES else -1]
    return quoteattr(colour)
