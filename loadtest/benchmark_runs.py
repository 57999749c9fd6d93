"""`python -m loadtest [NAME…]`: which benchmarks, how often, where; shows progress and records the outcome. Runs only by hand, never in the test suite."""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.benchmark import Benchmark
from loadtest.benchmarks import BENCHMARKS
from loadtest.harness import Outcome, run_benchmark
from loadtest.machine import Machine, describe_machine, load_average
from loadtest.results import PAGE_FILE, outcome_document, outcome_table, record

RUNS = 5
QUIET_LOAD = 0.5
EXIT_FAILED = 1
EXIT_TARGET_MISSED = 3
EPILOG = """\
`python -m loadtest flames [NAME…]` draws flame graphs instead (flames --help).
`python -m loadtest users [MIX]` lets users of locust work with a box, and compares counts (users --help).
`python -m loadtest beside_kafka` measures the appliance beside real Kafka brokers instead (beside_kafka --help).
`python -m loadtest turns OTHER NAME…` measures this checkout beside another one, in turns (turns --help).
`python -m loadtest model` makes MODEL.md anew: what a larger cluster would do, from what is recorded.
exit codes: 0 every target met, 1 a run failed (lines lost, error replies, a process died), 2 wrong usage, 3 a target missed.
A full run (three runs or more, one of growth_…, no --short, no --set) of a benchmark is recorded in loadtest/RESULTS.md and loadtest/results.jsonl."""


def main(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    options = build_parser().parse_args(arguments)
    if options.list:
        list_benchmarks()
        return 0
    chosen, is_as_official = choose_benchmarks(options)
    started = time.monotonic()
    worst = 0
    with tempfile.TemporaryDirectory(prefix="millrace-loadtest-", dir=options.scratch) as scratch:
        machine = describe_machine(Path(scratch))
        say(f"{machine}; load average {load_average():.2f}")
        for warning in warnings(machine):
            say(f"warning: {warning}")
        for benchmark in chosen:
            if missing := benchmark.missing():
                say(f"[{benchmark.name}] left out: {missing}")
                worst = worst or EXIT_FAILED
                continue
            outcome = run_benchmark(benchmark, options.runs, Path(scratch), say)
            if outcome.runs:
                document = outcome_document(outcome, machine)
                print("\n".join(["", f"## {benchmark.name}", "", *outcome_table(benchmark, document), "", f"limit: {document['limit']}", ""]), flush=True)
                if is_as_official and options.runs >= benchmark.runs_to_record and not outcome.failures:
                    record(document, list(BENCHMARKS.values()))
                    say(f"recorded in {os.path.relpath(PAGE_FILE)}")
            worst = max_severity(worst, outcome)
    say(f"done in {time.monotonic() - started:.0f} s")
    return worst


def warnings(machine: Machine) -> list[str]:
    """What makes figures of this machine, now, worse than they are."""
    found = []
    if load_average() > QUIET_LOAD:
        found.append(f"others use this machine (load average above {QUIET_LOAD:g}): their share is shown with each run, and CPU per request grows with it")
    if machine.file_system == "tmpfs":
        found.append("the scratch directory is a tmpfs, no real file system: give another one with --scratch")
    return found


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest", description="Benchmarks of the whole appliance.", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="show the benchmarks with their figures, targets and parameters")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"runs of each benchmark; the median counts (default {RUNS})")
    parser.add_argument("--short", action="store_true", help="small sizes, to see that all works; nothing is recorded")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change a parameter (see --list); nothing is recorded")
    parser.add_argument("--scratch", metavar="DIR", help="where boxes keep their logs meanwhile; a real file system (default: the temporary directory)")
    return parser


def list_benchmarks() -> None:
    for benchmark in BENCHMARKS.values():
        print(f"{benchmark.name}\n    {benchmark.title}")
        for figure in benchmark.figures:
            print(f"    {figure.name:34} {figure.target:>10} {figure.unit}")
        print("    parameters: " + ", ".join(f"{name}={value}" for name, value in dataclasses.asdict(benchmark).items()))


def choose_benchmarks(options: argparse.Namespace) -> tuple[list[Benchmark], bool]:
    """The benchmarks with their parameters, and whether those are the official ones. Wrong words end with exit code 2."""
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        build_parser().error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if options.runs < 1:
        build_parser().error("--runs must be at least 1")
    chosen = [BENCHMARKS[name] for name in options.names or BENCHMARKS]
    if options.short:
        chosen = [dataclasses.replace(benchmark, **benchmark.short) for benchmark in chosen]
    for setting in options.set:
        chosen = [change_parameter(benchmark, setting) for benchmark in chosen]
    return chosen, not options.short and not options.set


def change_parameter(benchmark: Benchmark, setting: str) -> Benchmark:
    name, equals, text = setting.partition("=")
    parameters = dataclasses.asdict(benchmark)
    if not equals or name not in parameters:
        build_parser().error(f"--set {setting}: {benchmark.name} has {', '.join(parameters)}")
    try:
        return dataclasses.replace(benchmark, **{name: type(parameters[name])(text)})
    except ValueError:
        build_parser().error(f"--set {setting}: {name} is a number, like {parameters[name]}")


def max_severity(worst: int, outcome: Outcome) -> int:
    if outcome.failures or worst == EXIT_FAILED:
        return EXIT_FAILED
    document = {figure.name: sorted(run.figures[figure.name] for run in outcome.runs) for figure in outcome.benchmark.figures}
    missed = any(figure.is_met(document[figure.name][len(outcome.runs) // 2]) is False for figure in outcome.benchmark.figures)
    return EXIT_TARGET_MISSED if missed else worst
