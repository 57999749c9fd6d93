"""A run's verdict as a table for people, a document for programs, and a line of progress. Pure."""

from __future__ import annotations

import json
from typing import Any

from loadtest.users.ledger import Totals
from loadtest.users.reconciliation import Row
from loadtest.users.verdict import Verdict

HEAD = ("FLOW", "GIVEN", "ARRIVED", "COUNTED", "MISSING", "SURPLUS", "")


def verdict_text(verdict: Verdict) -> str:
    lines = [""]
    reconciliation = verdict.reconciliation
    if reconciliation is not None:
        lines += [*_table([HEAD, *map(_cells, reconciliation.rows)]), ""]
        if not reconciliation.balances:
            lines.append(f"counts: DO NOT ADD UP ({reconciliation.lost:,} missing)")
        elif any(row.surplus for row in reconciliation.rows):
            lines.append("counts: nothing is missing; others wrote, too, so a surplus may hide something")
        else:
            lines.append("counts: all add up")
    else:
        lines.append("counts: could not be compared")
    lines += [f"trouble: {trouble}" for trouble in verdict.troubles]
    lines += [f"limit: {sentence}" for sentence in verdict.limits]
    code = verdict.exit_code
    lines.append("PASSED" if code == 0 else f"FAILED (exit code {code})")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    return (row.flow, f"{row.given:,}", f"{row.arrived:,}", f"{row.counted:,}", f"{row.missing:,}", f"{row.surplus:,}", row.note)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    lines = []
    for row in rows:
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))
        lines.append(f"{row[0].ljust(widths[0])}  {numbers}  {row[-1]}".rstrip())
    return lines


def verdict_document(verdict: Verdict) -> str:
    """JSON."""
    rows: list[dict[str, Any]] = [row._asdict() for row in verdict.reconciliation.rows] if verdict.reconciliation else []
    document = {"exit_code": verdict.exit_code, "rows": rows, "limits": verdict.limits, "troubles": verdict.troubles}
    return json.dumps(document, indent=2) + "\n"


def progress_line(seconds: float, users: int, now: Totals, before: Totals, interval: float) -> str:
    def part(word: str, after: int, earlier: int) -> str:
        return f"{word} {after:,} ({max(0, after - earlier) / interval:,.0f}/s)"

    parts = [part("acknowledged", now.acknowledged_count, before.acknowledged_count)] if now.attempted else []
    parts += [part("lines sent", now.lines_count, before.lines_count)] if now.lines_sent else []
    parts += [part("consumed", now.consumed_count, before.consumed_count)] if now.consumed else []
    return f"{seconds:4.0f} s  {users} users  " + (", ".join(parts) or "nothing yet")
