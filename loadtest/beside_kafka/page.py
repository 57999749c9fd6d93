"""BESIDE_KAFKA.md, made anew from all recorded lines: one table, the picture, what is behind and why, how it was measured.

A row shows the latest run that had it, for each Kafka the latest one that had both; a ratio never compares figures of two runs. Weak spot: after a
run of some contenders only, values of one line may be of different hours; the dates below the table say so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.beside_kafka.behind import reason_for
from loadtest.beside_kafka.contenders import OURS
from loadtest.beside_kafka.parts import PARTS, rows_of
from loadtest.beside_kafka.ratio_chart import draw_ratios
from loadtest.beside_kafka.rows import Part, Row, ratio_of, verdict
from loadtest.machine import Machine
from loadtest.results import DIRECTORY, PICTURES

BENCHMARK = "beside_kafka"
PAGE = DIRECTORY / "BESIDE_KAFKA.md"
PICTURE = PICTURES / f"{BENCHMARK}.svg"

_HEAD = f"""\
# Beside a real Kafka

Made by `python -m loadtest {BENCHMARK}`; do not edit. What it does, and its weak spots, are in [README.md](README.md#beside-a-real-kafka). All rounds are
in `results.jsonl`. Values are medians of the rounds of one run in which all contenders took turns. **×** says how many times as good Millrace is as that
Kafka in that row, whichever way the row counts: above 1 is ahead, below 1 behind. The last column has the least of them; within 5 % it is called even.
"""


class Compared(NamedTuple):
    """One cell of the table."""

    value: float
    ratio: float


class Line(NamedTuple):
    """One row with what is known of it."""

    part: Part
    row: Row
    ours: float
    theirs: Mapping[str, Compared]

    @property
    def worst(self) -> float:
        return min(compared.ratio for compared in self.theirs.values())


def lines_of(documents: Iterable[Mapping[str, Any]], parts: Iterable[Part]) -> list[Line]:
    """Rows that were ever measured with another contender beside us, in the order of the parts."""
    known = [document for document in documents if document["benchmark"] == BENCHMARK]
    found = []
    for part in parts:
        for row in rows_of(part):
            ours, theirs = None, {}
            for document in known:
                values = document["rows"].get(row.name, {})
                if document["part"] != part.name or OURS not in values:
                    continue
                ours = statistics.median(values[OURS])
                for name in values.keys() - {OURS}:
                    value = statistics.median(values[name])
                    theirs[name] = Compared(value, ratio_of(row, ours, value))
            if ours is not None and theirs:
                found.append(Line(part, row, ours, theirs))
    return found


def table(lines: Sequence[Line]) -> list[str]:
    """Markdown."""
    names = sorted({name for line in lines for name in line.theirs})
    rows = [f"| row | {OURS} | {' | '.join(names)} | × at least |", "|---|---|" + "---|" * (len(names) + 1)]
    part = None
    for line in lines:
        if line.part is not part:
            part = line.part
            rows.append(f"| **{part.name}**: {part.title} |" + " |" * (len(names) + 2))
        theirs = (f"{number(line.theirs[name].value)} (×{line.theirs[name].ratio:.2f})" if name in line.theirs else "" for name in names)
        judged = {"behind": "**behind**"}.get(verdict(line.worst), verdict(line.worst))
        rows.append(f"| {line.row.name} ({line.row.unit}) | {number(line.ours)} | {' | '.join(theirs)} | {line.worst:.2f} {judged} |")
    return rows


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    lines = lines_of(documents, PARTS.values())
    judged = [verdict(line.worst) for line in lines]
    unmeasured = [f"`{part.name}`: {row.name}" for part in PARTS.values() for row in rows_of(part) if row not in {line.row for line in lines}]
    counts = {word: judged.count(word) for word in ("ahead", "even", "behind")}
    text = [_HEAD, f"{counts['ahead']} rows are ahead of every Kafka that they were measured with, {counts['even']} even, {counts['behind']} behind.", ""]
    text += [*table(lines), "", f"![ratios]({PICTURES.name}/{PICTURE.name})", ""] if lines else []
    text += ["## Rows that are behind", ""] + (_behind(lines) or ["None."]) + [""]
    text += ["## Rows that are not measured yet", "", *(f"* {words}" for words in unmeasured), ""] if unmeasured else []
    text += ["## How it was measured", "", *_how(documents), ""]
    return "\n".join(text)


def _behind(lines: Sequence[Line]) -> list[str]:
    """One entry for each reason, with its rows."""
    by_reason: dict[str, list[str]] = {}
    for line in lines:
        if verdict(line.worst) == "behind":
            by_reason.setdefault(reason_for(line.part.name, line.row.name), []).append(f"{line.row.name} (×{line.worst:.2f})")
    return [f"* {'; '.join(names)}: {reason}" for reason, names in by_reason.items()]


def _how(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which contenders took part, on which machine, and when: a line for each part, version and company."""
    known = [document for document in documents if document["benchmark"] == BENCHMARK]
    contenders: dict[str, str] = {}
    runs: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for document in known:
        contenders.update(document["contenders"])
        runs.setdefault((document["part"], document["machine"]["version"], ", ".join(document["contenders"])), []).append(document)
    said = [f"{name}: {words}" for name, words in contenders.items()] + [str(Machine(**document["machine"])) for document in known[-1:]]
    for (part, version, who), alike in runs.items():
        rows = len({name for document in alike for name in document["rows"]})
        others = max(document["others"] for document in alike)
        when = f"{alike[0]['date'][:16]} to {alike[-1]['date'][:16]}"
        said.append(f"{part}, {when}: {who}; {rows} rows, {alike[-1]['rounds']} rounds; others used {others:.2f} cores at most; Millrace {version}")
    return [f"* {words}" for words in said]


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write(documents: Sequence[Mapping[str, Any]], page_file: Path = PAGE, picture_file: Path = PICTURE) -> None:
    page_file.write_text(page(documents))
    picture_file.parent.mkdir(exist_ok=True)
    lines = lines_of(documents, PARTS.values())
    picture_file.write_text(draw_ratios([(f"{line.row.name} ({line.row.unit})", {name: found.ratio for name, found in line.theirs.items()}) for line in lines]))
