"""The matrix as a table of Markdown: a row for each fault and role, all its runs together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lab.cluster_cell import CellResult

KINDS = ("plain", "idempotent", "transactional")


def table(results: Sequence[CellResult], deaths: Sequence[str] = ()) -> str:
    """`deaths`: cells that came to no judgement."""
    lines = ["| fault | role | runs | " + " | ".join(KINDS) + " | pause, shortest to longest | seeds |", "|---|---|---|---|---|---|---|---|"]
    for fault, role in dict.fromkeys((result.fault, result.role) for result in results):
        runs = [result for result in results if (result.fault, result.role) == (fault, role)]
        lines.append(f"| {fault} | {role} | {len(runs)} | " + " | ".join(_verdict(runs, kind) for kind in KINDS) + f" | {_pauses(runs)} | {_seeds(runs)} |")
    lines += [f"* {result.fault}, {result.role}, seed {result.seed}: {result.words()}" for result in results if not result.is_good]
    lines += [f"* no judgement: {death.splitlines()[0]}" for death in deaths]
    return "\n".join(lines) + "\n"


def _verdict(runs: Sequence[CellResult], kind: str) -> str:
    records = sum(run.counts.get(kind, 0) for run in runs)
    wrong = sum(len(run.findings.get(kind, ())) for run in runs)
    return f"{records:,} records, {wrong} findings" if wrong else f"{records:,} records, good"


def _pauses(runs: Sequence[CellResult]) -> str:
    seconds = [run.pause_seconds for run in runs]
    known = sorted(each for each in seconds if each is not None)
    words = f"{known[0]:.2f} to {known[-1]:.2f} s" if known else "-"
    return words + (f", {seconds.count(None)} times none" if None in seconds else "")


def _seeds(runs: Sequence[CellResult]) -> str:
    return ", ".join(str(run.seed) for run in runs)
