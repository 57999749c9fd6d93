"""`python -m loadtest flames [NAME…]`: runs each benchmark once with a profiler at acceptor (or ingest) and log-writers, and draws what it saw.

Graphs go to `loadtest/flames/`, a table of where the time goes into its README.md, between two marks; what people make of it stands below and is
theirs. Weak spot: figures of a profiled run are not the benchmark's figures; only shares are kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from appliance.base.compiled import PURE_VARIABLE
from loadtest.benchmark import Benchmark, BenchmarkFailed, Say
from loadtest.benchmarks import BENCHMARKS
from loadtest.flame_graph import draw_flame_graph, where_time_goes
from loadtest.harness import run_once
from loadtest.observation import accompanied
from loadtest.sampler import RATE, Profile, Sampler, find_py_spy

DIRECTORY = Path(__file__).parent / "flames"
PAGE_FILE = DIRECTORY / "README.md"
BEGIN, END = "<!-- table -->", "<!-- /table -->"
TABLE_HEAD = ["| load | process | cores | samples | running | where its time goes |", "|---|---|---|---|---|---|"]
SAMPLES_MIN = 40
"""Fewer say nothing, and no graph is drawn of them."""
SHARES_SHOWN, SHARE_MIN = 9, 0.025
KAFKA_ROLES, SYSLOG_ROLES = ("acceptor", "log-writer"), ("ingest", "log-writer")
LOADS: dict[str, dict[str, Any]] = {
    "produce_librdkafka": {"records": 5_000_000},
    "produce_small_records": {"records": 16_000_000},
    "replay_small": {},
    "connections": {},
    "latency": {"seconds": 30.0},
    "consume": {"records": 4_000_000},
    "fetch_large": {},
    "syslog_tcp": {},
    "syslog_tls": {},
    "relp": {},
    "syslog_udp": {},
    "fairness": {},
    "hostile": {"seconds": 15.0},
}
"""What is looked at, with other parameters where the official run is too short for a few hundred samples."""


def main(arguments: Sequence[str], say: Say) -> int:
    options = build_parser().parse_args(arguments)
    if unknown := [name for name in options.names if name not in LOADS]:
        build_parser().error(f"no load {', '.join(unknown)}; there are {', '.join(LOADS)}")
    program = find_py_spy()
    if program is None:
        say("py-spy is not there: .venv/bin/python -m pip install -e '.[test,bench]'")
        return 1
    os.environ[PURE_VARIABLE] = "1"  # compiled modules show no functions
    failed = False
    with tempfile.TemporaryDirectory(prefix="millrace-flames-", dir=options.scratch) as scratch:
        for name in options.names or LOADS:
            benchmark = dataclasses.replace(BENCHMARKS[name], **(BENCHMARKS[name].short if options.short else LOADS[name]))
            try:
                profiles = profile_benchmark(benchmark, program, Path(scratch), say)
            except (BenchmarkFailed, AssertionError, OSError) as error:
                say(f"[{name}] FAILED: {error}")
                failed = True
                continue
            rows = [keep_profile(name, profile, Path(options.to)) for profile in profiles]
            for row in rows:
                say(row)
            if Path(options.to) == DIRECTORY:
                PAGE_FILE.write_text(put_rows(PAGE_FILE.read_text(), name, rows))
    return 1 if failed else 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest flames", description="Flame graphs of acceptor, ingest and log-writers under each load.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"loads (default: all): {', '.join(LOADS)}")
    parser.add_argument("--short", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--to", default=str(DIRECTORY), metavar="DIR", help="where graphs are put (default: loadtest/flames, whose table is renewed too)")
    parser.add_argument("--scratch", metavar="DIR", help="where boxes keep their logs meanwhile")
    return parser


def profile_benchmark(benchmark: Benchmark, program: str, scratch: Path, say: Say) -> list[Profile]:
    roles = SYSLOG_ROLES if benchmark.name.startswith(("syslog", "relp")) else KAFKA_ROLES
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        sampler = Sampler(program, roles, Path(directory))
        try:
            with accompanied(sampler):
                run_once(benchmark, scratch, lambda words: say(f"[{benchmark.name}] {words}"))
        finally:
            sampler.close()
    return sampler.profiles


def keep_profile(name: str, profile: Profile, directory: Path) -> str:
    """Draws it and returns its row of the table."""
    load = f"{name}, {profile.label}" if profile.label else name
    cores = f"{profile.cores:.2f}"
    if profile.samples < SAMPLES_MIN:
        return f"| {load} | {profile.role} | {cores} | {profile.samples} | {profile.running} | next to nothing to do; no graph |"
    file = "-".join(re.sub(r"\W+", "_", word) for word in (name, profile.label, profile.role) if word) + ".svg"
    directory.mkdir(parents=True, exist_ok=True)
    subtitle = f"{profile.samples} samples at {RATE} a second while it was runnable ({cores} cores used); red: system calls, kernel included; grey: C"
    (directory / file).write_text(draw_flame_graph(f"{profile.role} under {load}", subtitle, profile.stacks))
    shares = [f"{where} {100 * share:.0f} %" for where, share in where_time_goes(profile.stacks)[:SHARES_SHOWN] if share >= SHARE_MIN]
    return f"| {load} | [{profile.role}]({file}) | {cores} | {profile.samples} | {profile.running} | {', '.join(shares)} |"


def put_rows(page: str, name: str, rows: Sequence[str]) -> str:
    """The page with the rows of this load in the place of those it had. Raises ValueError if the page has no marks."""
    before, begin, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE_FILE} has no {BEGIN} … {END}")
    kept = [line for line in table.strip().splitlines()[len(TABLE_HEAD) :] if load_of(line) != name]
    ordered = sorted([*kept, *rows], key=lambda row: list(LOADS).index(load_of(row)))
    return "\n".join([before + BEGIN, *TABLE_HEAD, *ordered, END + after])


def load_of(row: str) -> str:
    return row.split("|")[1].partition(",")[0].strip()
