"""Keeps what was measured: one JSON line per outcome in `results.jsonl`, and `RESULTS.md`, which is made anew from all of those lines.

Owned by the person that runs the harness by hand; both files are kept in the repository. Only three runs or more (of some benchmarks one) with the official
parameters are recorded. Weak spot: figures of different machines stand in one history; each entry names its machine.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.benchmark import Benchmark, Figure, Run
from loadtest.harness import Outcome
from loadtest.machine import Machine
from loadtest.observation import role_of

DIRECTORY = Path(__file__).parent
LINES_FILE = DIRECTORY / "results.jsonl"
PAGE_FILE = DIRECTORY / "RESULTS.md"
PICTURES = DIRECTORY / "pictures"
HISTORY_LENGTH = 8

_HEAD = """\
# Results

Made by `python -m loadtest`; do not edit. What each figure means, and the traps, are in [README.md](README.md). Medians of the runs; all
runs are in `results.jsonl`. CPU seconds are user and system time of whole processes, load generators apart. [BESIDE_KAFKA.md](BESIDE_KAFKA.md) has the
appliance beside Apache Kafka 3.9 and 4.3, in one table with ratios.
"""


class Spread(NamedTuple):
    """A figure over several runs."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


def outcome_document(outcome: Outcome, machine: Machine, now: datetime | None = None) -> dict[str, Any]:
    """An outcome with at least one run, as it is kept."""
    runs = outcome.runs
    return {
        "benchmark": outcome.benchmark.name,
        "date": (now or datetime.now(UTC)).isoformat(timespec="seconds"),
        "machine": machine._asdict(),
        "load_before": outcome.load_before,
        "parameters": dataclasses.asdict(outcome.benchmark),
        "failures": outcome.failures,
        "median": {figure.name: Spread.of([run.figures[figure.name] for run in runs])._asdict() for figure in outcome.benchmark.figures},
        "cpu_seconds": _cpu_by_role(runs),
        "seconds": statistics.median(run.observation.seconds for run in runs),
        "limit": typical_run(outcome).observation.what_limits(),
        "notes": typical_run(outcome).notes,
        "runs": [{"figures": run.figures, "observation": run.observation._asdict()} for run in runs],
    }


def typical_run(outcome: Outcome) -> Run:
    """The run whose first figure is in the middle."""
    first = outcome.benchmark.figures[0].name
    ordered = sorted(outcome.runs, key=lambda run: run.figures[first])
    return ordered[(len(ordered) - 1) // 2]


def _cpu_by_role(runs: Sequence[Run]) -> dict[str, float]:
    """Median CPU seconds of a run by kind of process; generators together."""
    roles = dict.fromkeys(role_of(name) for run in runs for name in run.observation.box)
    by_role = {role: statistics.median(run.observation.role(role) for run in runs) for role in roles}
    by_role["generators"] = statistics.median(sum(run.observation.generators.values()) for run in runs)
    by_role["others"] = statistics.median(run.observation.others for run in runs)
    return {role: round(used, 3) for role, used in by_role.items()}


def record(document: Mapping[str, Any], benchmarks: Sequence[Benchmark]) -> None:
    """Append the line, make the page anew, and the benchmark's picture if it has one."""
    with open(LINES_FILE, "a") as file:
        file.write(json.dumps(document, ensure_ascii=False) + "\n")
    PAGE_FILE.write_text(results_page(read_lines(LINES_FILE), benchmarks))
    for benchmark in benchmarks:
        if benchmark.name == document["benchmark"] and (picture := benchmark.picture(document)) is not None:
            PICTURES.mkdir(exist_ok=True)
            (PICTURES / f"{benchmark.name}.svg").write_text(picture)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


def results_page(documents: Sequence[Mapping[str, Any]], benchmarks: Sequence[Benchmark]) -> str:
    """One section per benchmark that was ever recorded: the latest outcome as a table, earlier ones as a line each."""
    sections = [_HEAD]
    for benchmark in benchmarks:
        own = [document for document in documents if document["benchmark"] == benchmark.name]
        if own:
            sections.append(_section(benchmark, own[-1], own[-1 - HISTORY_LENGTH : -1]))
    return "\n".join(sections)


def _section(benchmark: Benchmark, latest: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"## {benchmark.name}", "", benchmark.title, "", *outcome_table(benchmark, latest), ""]
    cpu = ", ".join(f"{role} {used:.2f}" for role, used in latest["cpu_seconds"].items() if used >= 0.005)
    lines += [f"* CPU seconds of a run of {latest['seconds']:.1f} s: {cpu}", f"* limit: {latest['limit']}"]
    lines += [f"* {note}" for note in latest["notes"]]
    lines += [f"* {len(latest['failures'])} of {len(latest['failures']) + len(latest['runs'])} runs failed"] if latest["failures"] else []
    parameters = ", ".join(f"{name}={value}" for name, value in latest["parameters"].items())
    lines += [f"* {len(latest['runs'])} runs, {latest['date']}, load average before {latest['load_before']:.2f}; {parameters}"]
    lines += [f"* {Machine(**latest['machine'])}", ""]
    if benchmark.picture(latest) is not None:
        lines += [f"![{benchmark.title}]({PICTURES.name}/{benchmark.name}.svg)", ""]
    if earlier:
        lines += ["Earlier:", ""]
        lines += [f"* {_history_line(benchmark, document)}" for document in reversed(earlier)] + [""]
    return "\n".join(lines)


def outcome_table(benchmark: Benchmark, document: Mapping[str, Any]) -> list[str]:
    """Rows of Markdown."""
    rows = ["| figure | target | median | lowest – highest | met |", "|---|---|---|---|---|"]
    for figure in benchmark.figures:
        if figure.name not in document["median"]:
            continue  # added since
        spread = Spread(**document["median"][figure.name])
        met = {True: "yes", False: "**no**", None: ""}[figure.is_met(spread.median)]
        rows.append(f"| {figure.name} ({figure.unit}) | {figure.target} | {_number(spread.median)} | {_number(spread.low)} – {_number(spread.high)} | {met} |")
    return rows


def _history_line(benchmark: Benchmark, document: Mapping[str, Any]) -> str:
    medians = ", ".join(_history_figure(figure, document) for figure in benchmark.figures if figure.target and figure.name in document["median"])
    return f"{document['date'][:10]} ({document['machine']['version']}): {medians}"


def _history_figure(figure: Figure, document: Mapping[str, Any]) -> str:
    return f"{figure.name} {_number(document['median'][figure.name]['median'])} {figure.unit}"


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
