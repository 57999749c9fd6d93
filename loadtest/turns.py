"""`python -m loadtest turns OTHER NAME…`: measure this checkout beside another one, in turns on the same machine.

A virtual machine changes from hour to hour by more than a change of the code does, so figures of two versions compare only
if both were measured alternately. Each round runs every benchmark once in each checkout, each with its own `.venv`, and the
order changes from round to round. Nothing is recorded. Weak spot: the page of results is parsed, so a benchmark that an
earlier version names otherwise is missing there.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.machine import ROOT

ROUNDS = 9
_ROW = re.compile(r"^\| ([^|]+?) \|[^|]*\| +([\d,.e+-]+) +\|", re.MULTILINE)
Figures = dict[str, list[float]]


class TurnFailed(Exception):
    """A benchmark printed no results; the text has its last lines."""


def main(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest turns", description="This checkout beside another one, in turns.")
    parser.add_argument("other", metavar="OTHER", type=Path, help="another checkout, with a .venv of its own (./install.sh test --setup)")
    parser.add_argument("names", nargs="+", metavar="NAME", help="benchmarks")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds; medians are compared (default {ROUNDS})")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="as for a single benchmark")
    options = parser.parse_args(arguments)
    extra = [word for setting in options.set for word in ("--set", setting)]
    checkouts = (ROOT, options.other.resolve())
    found: dict[tuple[Path, str], Figures] = {(tree, name): defaultdict(list) for tree in checkouts for name in options.names}
    try:
        for number in range(1, options.rounds + 1):
            for name in options.names:
                for tree in checkouts if number % 2 else reversed(checkouts):
                    say(f"[round {number}/{options.rounds}] {name} in {tree}")
                    for figure, value in run_once(tree, name, extra).items():
                        found[tree, name][figure].append(value)
    except TurnFailed as failed:
        say(str(failed))
        return 1
    for name in options.names:
        print("\n".join(comparison(name, found[checkouts[0], name], found[checkouts[1], name])), flush=True)
    return 0


def run_once(tree: Path, name: str, extra: Sequence[str]) -> dict[str, float]:
    """Run one benchmark in `tree`; return its figures. Raises `TurnFailed`."""
    command = [str(tree / ".venv/bin/python"), "-m", "loadtest", name, "--runs", "1", *extra]
    finished = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    figures = figures_of(finished.stdout)
    if not figures:
        raise TurnFailed(f"{name} in {tree} ended with {finished.returncode}:\n{finished.stderr[-2000:]}")
    return figures


def figures_of(page: str) -> dict[str, float]:
    """Return the median of each row of a table of results."""
    return {figure: float(value.replace(",", "")) for figure, value in _ROW.findall(page)}


def comparison(name: str, here: Figures, there: Figures) -> list[str]:
    """Return a table: medians with their ranges, and the ratio of this checkout's to the other's."""
    lines = [f"\n## {name}", "", "| figure | this | other | this to other |", "|---|---|---|---|"]
    for figure in (each for each in here if each in there):
        one, other = statistics.median(here[figure]), statistics.median(there[figure])
        ratio = f"{one / other:.3f}" if other else ""
        lines.append(f"| {figure} | {spread(here[figure])} | {spread(there[figure])} | {ratio} |")
    return lines


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.4g} ({min(values):,.4g} – {max(values):,.4g})"
