"""`python -m tests.fuzz TARGET…` (none: all; `ingest`: those of ingest): mutates inputs under coverage with atheris until a time or a number of inputs is
reached, or one is a finding.

All targets are imported, and instrumented, once; each is fuzzed in a process of its own that is forked from this one, `--workers` at a time, and a line of
JSON is printed for each that has ended. The seeds are written to a corpus directory first; `--corpus DIR` keeps it and what was found worth keeping. A
finding leaves its input in `--findings DIR` as `TARGET/crash-…` (`timeout-…`, `oom-…`); the exit code is 1 then, and 2 where a target did not come to its end.
`TARGET --input FILE` runs one again. With `--idle` it all happens in time that no other process wants. Memory is bounded by libFuzzer's watch on the whole
process. Weak spot: native code (kio, cramjam, protobuf) is run, but not seen by coverage.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from io import StringIO
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, NamedTuple, NoReturn

MEMORY_MIB = 600
"""Of the whole process, atheris and the corpus included; inputs have a few KiB."""
SECONDS_AN_INPUT = 10
INSTRUMENTED = ["appliance.protocol", "appliance.records", "appliance.security", "appliance.senders", "services.ingest", "services.coordinator"]
_EXECUTED = re.compile(rb"number_of_executed_units: (\d+)")
_LOG_SHOWN_BYTES = 4000


class Campaign(NamedTuple):
    """How each target is fuzzed."""

    runs: int
    seconds: int
    seed: int
    seconds_an_input: int
    corpus: Path
    findings: Path
    ends_at: float = math.inf
    """By `time.monotonic()`; a target that begins later gets one second."""


class Ended(NamedTuple):
    """What came of one target. `findings`: inputs by their files' names, in hex."""

    target: str
    inputs: int
    seconds: float
    """Of a processor."""
    seed: int
    code: int
    findings: dict[str, str]
    log: str


def fuzz(names: Sequence[str], targets: Any, campaign: Campaign, workers: int) -> int:
    """Print a line for each target; the exit code."""
    waiting, running = list(reversed(names)), dict[int, tuple[str, set[Path]]]()
    code = 0
    while waiting or running:
        while waiting and len(running) < workers:
            name = waiting.pop()
            known = set((campaign.findings / name).glob("*"))
            pid = os.fork()
            if not pid:
                _fuzz_one(name, targets[name], campaign)
            running[pid] = (name, known)
        pid, status, usage = os.wait3(0)
        name, known = running.pop(pid)
        ended = _look_at(name, campaign, known, usage.ru_utime + usage.ru_stime, os.waitstatus_to_exitcode(status))
        print(json.dumps(ended._asdict()), flush=True)
        code = max(code, 1 if ended.findings else 2 if ended.code else 0)
    return code


def _fuzz_one(name: str, target: Any, campaign: Campaign) -> NoReturn:
    import atheris

    seconds = max(1, min(campaign.seconds or sys.maxsize, campaign.ends_at - time.monotonic()))
    findings, corpus = campaign.findings / name, campaign.corpus / name
    for directory in (findings, corpus):
        directory.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    log = os.open(findings / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    arguments = [
        sys.argv[0],
        f"-seed={campaign.seed}",
        f"-max_total_time={int(seconds) if seconds < sys.maxsize else 0}",
        f"-runs={campaign.runs or -1}",
        f"-max_len={target.length_max}",
        f"-timeout={campaign.seconds_an_input}",
        f"-report_slow_units={campaign.seconds_an_input}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
        "-verbosity=0",
        str(corpus),
    ]
    atheris.Setup(arguments, target.run)
    atheris.Fuzz()  # leaves by SystemExit where it finds something, and writes that when the process ends
    os._exit(0)


def _look_at(name: str, campaign: Campaign, known: set[Path], seconds: float, code: int) -> Ended:
    directory = campaign.findings / name
    log = (directory / "log").read_bytes()
    executed = _EXECUTED.search(log)
    findings = {path.name: path.read_bytes().hex() for path in directory.iterdir() if path.name != "log" and path not in known}
    shown = log[-_LOG_SHOWN_BYTES:].decode("utf-8", "replace") if findings or code else ""
    return Ended(name, int(executed[1]) if executed else 0, round(seconds, 1), campaign.seed, code, findings, shown)


@contextmanager
def _directory_of_all() -> Iterator[str]:
    """Removed by the process that made it, not by those that were forked from it and leave with a finding while others are at work there."""
    owner, directory = os.getpid(), tempfile.mkdtemp(prefix="millrace-fuzz-")
    try:
        yield directory
    finally:
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzzes targets under coverage.")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--runs", type=int, default=0, help="how many inputs each (default: as many as --seconds allows)")
    parser.add_argument("--seconds", type=int, help="for how long each (default: 10, or no limit with --runs)")
    parser.add_argument("--seconds-in-all", type=float, default=math.inf, help="for how long all of them together (default: no limit)")
    parser.add_argument("--seed", type=int, help="libFuzzer's seed; the same one gives the same inputs (default: by chance)")
    parser.add_argument("--idle", action="store_true", help="yield to every other process")
    parser.add_argument("--workers", type=int, default=1, help="targets at a time")
    parser.add_argument("--seconds-an-input", type=int, default=SECONDS_AN_INPUT, help="by the clock: more where the process may be stopped meanwhile")
    parser.add_argument("--corpus", type=Path, help="a directory that keeps what was worth keeping, by target")
    parser.add_argument("--findings", type=Path, help="where inputs that are findings go, by target")
    parser.add_argument("--input", type=Path, help="run this one input of one target, and nothing else")
    options = parser.parse_args()

    try:
        import atheris
    except ImportError:  # it has no wheel for this Python
        print(json.dumps({"skipped": "atheris is not installed"}))
        return 0

    from appliance import senders
    from services.ingest import protocols, records, replay

    if options.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    with redirect_stderr(StringIO()), atheris.instrument_imports(include=INSTRUMENTED):  # it names every module
        for package in (protocols, records, replay, senders):
            for module in walk_packages(package.__path__, f"{package.__name__}."):
                import_module(module.name)  # a box imports them when they are needed
        from tests.fuzz.targets import INGEST_TARGETS, TARGETS
    names = list(INGEST_TARGETS) if options.targets == ["ingest"] else options.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target {unknown[0]}; there are {', '.join(TARGETS)}")
    if options.input is not None:
        TARGETS[names[0]].run(options.input.read_bytes())
        return 0
    with _directory_of_all() as directory:
        tempfile.tempdir = directory  # what targets put there goes with it, however they end
        seconds = options.seconds or (0 if options.runs else 10)
        places = (options.corpus or Path(directory, "corpus"), options.findings or Path(directory, "findings"))
        seed = int.from_bytes(os.urandom(3), "big") + 1 if options.seed is None else options.seed
        campaign = Campaign(options.runs, seconds, seed, options.seconds_an_input, *places, time.monotonic() + options.seconds_in_all)
        return fuzz(names, TARGETS, campaign, options.workers)


if __name__ == "__main__":
    sys.exit(main())
