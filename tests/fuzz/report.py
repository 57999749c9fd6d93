"""`python -m tests.fuzz.report FILE`: what a campaign has printed, as a table; the exit code says whether all targets came to their end without a finding.

`--pid N` waits until that process has ended. What it said beside that is looked for in `FILE` with the suffix `.err`.
Weak spot: a campaign that was killed differs from one that ended only by the targets that are missing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.targets import INGEST_TARGETS, TARGETS

LOOK_SECONDS = 0.5
ERRORS_SHOWN = 3000


def report(lines: Sequence[dict[str, Any]], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """The table, and what is wrong."""
    shown, problems = [], []
    if any("skipped" in line for line in lines):
        return [], [str(line["skipped"]) for line in lines]
    for line in sorted(lines, key=lambda line: str(line["target"])):
        shown.append(f"{line['target']:24} {line['inputs']:>10,} inputs {line['seconds']:>8.1f} s")
        for name, data in line["findings"].items():
            problems.append(f"{line['target']} (seed {line['seed']}): {name} {data}\n{line['log']}")
        if line["code"] and not line["findings"]:
            problems.append(f"{line['target']} ended with {line['code']}\n{line['log']}")
        elif not line["inputs"] and not line["findings"]:
            problems.append(f"{line['target']} had no input")
    missing = sorted(set(wanted) - {str(line["target"]) for line in lines})
    if missing:
        problems.append(f"not fuzzed: {', '.join(missing)}")
    inputs, seconds = (sum(line[name] for line in lines) for name in ("inputs", "seconds"))
    shown.append(f"{len(lines)} targets, {inputs:,} inputs in {seconds:.0f} s of a processor: {len(problems) or 'no'} findings")
    return shown, problems


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.report", description="Shows what a campaign found.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--pid", type=int, help="wait for its end")
    parser.add_argument("--all", action="store_true", help="all targets should be there, not those of ingest alone")
    options = parser.parse_args()
    while options.pid is not None and _is_running(options.pid):
        time.sleep(LOOK_SECONDS)
    lines = [json.loads(line) for line in options.file.read_text().splitlines()]
    shown, problems = report(lines, list(TARGETS if options.all else INGEST_TARGETS))
    errors = options.file.with_suffix(".err")
    if problems and errors.is_file():
        problems.append(errors.read_text(errors="replace")[-ERRORS_SHOWN:])
    print("\n".join([*shown, *problems]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
