"""`python -m loadtest beside_kafka`: brings up the contenders, has them take turns at each load of the chosen parts, records and shows what came of it.

Owned by the person that runs it by hand. All JVMs end with the run, by their pids, and what they stored is removed. Weak spot: on a machine that others use
all the time it takes three times as long and records nothing (`others` of the turns).
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from appliance.base.errors import MillraceError
from lab import client_packages
from lab.certificates import Authority
from loadtest.benchmark import BenchmarkFailed, Say
from loadtest.beside_kafka import page
from loadtest.beside_kafka.clusters import kafka_cluster, millrace_cluster
from loadtest.beside_kafka.contenders import OURS, Appliance, Contender
from loadtest.beside_kafka.kafka_contender import KAFKA_3, KAFKA_4, QUARTER_HEAP, SHIPPED_HEAP, KafkaContender
from loadtest.beside_kafka.parts import PARTS
from loadtest.beside_kafka.rows import Cell, Findings, Part, Tools, Turn, order_of
from loadtest.generators.compiler import missing_for_librdkafka
from loadtest.generators.replayer import Replayer
from loadtest.librdkafka import LibrdkafkaClient
from loadtest.machine import describe_machine, load_average
from loadtest.observation import machine_times
from loadtest.results import LINES_FILE, read_lines

SHORT_SCALE = 0.1
OTHERS_MAX = 0.3
"""Cores; a turn with more in use by others is made again, and if none is better the load is not recorded. The kernel's own part was seen at 0.15."""
ATTEMPTS = 3
CALM, CALM_SECONDS = 0.2, 40.0
"""A turn waits for a machine with fewer cores in use than this, but not for ever: a JVM goes on compiling for half a minute after it was warmed up (seen)."""
LOOK_SECONDS = 0.5
KINDS = {"kafka3": ("Kafka 3.9", KAFKA_3, SHIPPED_HEAP), "kafka4": ("Kafka 4.3", KAFKA_4, SHIPPED_HEAP),
         "kafka3-quarter": ("Kafka 3.9, larger heap", KAFKA_3, QUARTER_HEAP), "kafka4-quarter": ("Kafka 4.3, larger heap", KAFKA_4, QUARTER_HEAP)}  # fmt: skip
"""Words of --beside, what the table calls them, and what they are."""
DEFAULT_KINDS = ("kafka3", "kafka4", "kafka4-quarter")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest beside_kafka", description="The appliance beside real Kafka brokers, in turns.")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part (may be given again)")
    parser.add_argument("--only", action="append", metavar="TEXT", help="only loads whose name has TEXT in it (may be given again)")
    parser.add_argument("--beside", action="append", choices=list(KINDS), help=f"only this Kafka (may be given again; default: {', '.join(DEFAULT_KINDS)})")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each contender at each load (default: as the part says; fewer are not recorded)")
    parser.add_argument("--short", action="store_true", help="small loads, one round, to see that it works; nothing is recorded")
    parser.add_argument("--list", action="store_true", help="show parts and loads")
    parser.add_argument("--page", action="store_true", help="only make the page and the picture anew from what is recorded")
    parser.add_argument("--scratch", metavar="DIR", help="where all of them keep their logs meanwhile; a real file system")
    return parser


def main(arguments: Sequence[str], say: Say) -> int:
    options = build_parser().parse_args(arguments)
    if options.list:
        print("\n".join(f"{part.name}\n" + "\n".join(f"    {cell.name}" for cell in part.cells) for part in PARTS.values()))
        return 0
    if options.page:
        page.write(read_lines(LINES_FILE))
        return 0
    kinds = options.beside or list(DEFAULT_KINDS)
    if problem := missing(kinds):
        say(f"beside_kafka: {problem}")
        return 1
    if load_average() > OTHERS_MAX:
        say(f"warning: load average {load_average():.2f}; what is measured while others use more than {OTHERS_MAX:g} cores is not recorded")
    started, failed = time.monotonic(), False
    with tempfile.TemporaryDirectory(prefix="millrace-beside-", dir=options.scratch) as scratch:
        for part in (PARTS[name] for name in options.part or PARTS):
            cells = [cell for cell in part.cells if not options.only or any(text in cell.name for text in options.only)]
            rounds = options.rounds or (1 if options.short else part.rounds)
            if cells:
                failed |= not run_part(part, cells, kinds, rounds, Path(scratch), SHORT_SCALE if options.short else 1.0, say)
    say(f"done in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def missing(kinds: Sequence[str]) -> str | None:
    """Why it cannot run; fetches Kafka's jars if they are not there."""
    if shutil.which("java") is None:
        return "Kafka needs a Java runtime (17 or newer)"
    try:
        if any(kind.startswith("kafka4") for kind in kinds):
            client_packages.install_kafka4()
        if any(kind.startswith("kafka3") for kind in kinds) and client_packages.missing_kafka():
            client_packages.install_kafka()
    except (OSError, RuntimeError) as error:
        return f"Kafka's jars could not be fetched from Maven Central: {error}"
    return missing_for_librdkafka()


def run_part(part: Part, cells: Sequence[Cell], kinds: Sequence[str], rounds: int, scratch: Path, scale: float, say: Say) -> bool:
    """Whether all turns gave figures; prints the table. Each load is recorded when all its turns are done, if everything is as it should be."""
    directory = Path(tempfile.mkdtemp(prefix=f"{part.name}-", dir=scratch))
    tools = Tools(directory, LibrdkafkaClient(directory), Replayer(directory), scale, say)
    contenders = contenders_of(part, directory, kinds)
    if part.has_tls:
        authority = Authority(directory)
        for contender in contenders:
            contender.offer_tls(authority)
    machine, documents = describe_machine(scratch), list[dict[str, Any]]()
    try:
        with all_alive(contenders if part.lives_are_shared else []):
            for contender in contenders if part.lives_are_shared else []:
                say(f"[{part.name}] warms up {contender.name}")
                part.warm_up(contender, tools)
            for cell in cells:
                document = {**run_cell(part, cell, contenders, rounds, tools), "machine": machine._asdict()}
                maybe_record(document, part, scale, say)
                documents.append(document)
    except (BenchmarkFailed, MillraceError, AssertionError, OSError) as error:
        said = "\n".join(f"{contender.name} said:\n{contender.last_messages()}" for contender in contenders)
        say(f"[{part.name}] FAILED: {type(error).__name__}: {error}\n{said}")
        return False
    finally:
        for contender in contenders:
            contender.remove()
        shutil.rmtree(directory, ignore_errors=True)
        if documents:
            print("\n".join(["", *page.table(page.lines_of(documents, [part])), ""]), flush=True)
    return True


def contenders_of(part: Part, directory: Path, kinds: Sequence[str]) -> list[Contender]:
    """Ours first."""
    if part.boxes == 1:
        return [Appliance(directory / "millrace"), *(KafkaContender(KINDS[kind][0], directory / kind, *KINDS[kind][1:]) for kind in kinds)]
    chosen = [(kind, KINDS[kind]) for kind in kinds if KINDS[kind][1].has_zookeeper]
    theirs = (kafka_cluster(name, directory / kind, part.boxes, release, heap) for kind, (name, release, heap) in chosen)
    return [millrace_cluster(directory / "millrace", part.boxes), *theirs]


def run_cell(part: Part, cell: Cell, contenders: Sequence[Contender], rounds: int, tools: Tools) -> dict[str, Any]:
    """All turns at one load, as they are kept."""
    findings, others, load_before = Findings(), list[float](), load_average()
    for number in range(rounds):
        for contender in order_of(contenders, number):
            turn = quiet_turn(partial(calm_turn, part, cell, contender, tools), ATTEMPTS if tools.scale == 1 else 1, tools.say, OTHERS_MAX + part.idle_cores)
            findings.add(contender.name, turn)
            others.append(turn.others)
            figures = ", ".join(f"{page.number(turn.values[row.name])} {row.unit}" for row in cell.rows)
            tools.say(f"[{part.name} {number + 1}/{rounds}] {cell.name}: {contender.name} {figures} (others {turn.others:.2f} cores)")
    return {"benchmark": page.BENCHMARK, "part": part.name, "date": datetime.now(UTC).isoformat(timespec="seconds"), "load_before": load_before,
            "others": max(others), "rounds": rounds, "contenders": {contender.name: contender.settings for contender in contenders},
            "rows": findings.values, **({"details": findings.details} if findings.details else {})}  # fmt: skip


def calm_turn(part: Part, cell: Cell, contender: Contender, tools: Tools) -> Turn:
    await_calm(CALM_SECONDS if tools.scale == 1 else 0.0, CALM + part.idle_cores)
    return cell.measure(contender, tools)


def await_calm(seconds_max: float, cores: float = CALM) -> None:
    """Until next to nothing uses a core."""
    deadline = time.monotonic() + seconds_max
    busy = float("inf")
    while busy > cores * LOOK_SECONDS and time.monotonic() < deadline:
        before = machine_times().busy
        time.sleep(LOOK_SECONDS)
        busy = machine_times().busy - before


def quiet_turn(take_turn: Callable[[], Turn], attempts: int, say: Say, others_max: float = OTHERS_MAX) -> Turn:
    """The first turn that others left alone, or the last of all attempts."""
    for number in range(1, attempts + 1):
        turn = take_turn()
        if turn.others <= others_max:
            break
        say(f"others used {turn.others:.2f} cores in attempt {number} of {attempts}")
    return turn


@contextmanager
def all_alive(contenders: Sequence[Contender]) -> Iterator[None]:
    """Started one after the other, stopped in order; what they stored stays until they are removed."""
    for contender in contenders:
        contender.start()
    yield
    for contender in contenders:
        contender.stop()


def maybe_record(document: dict[str, Any], part: Part, scale: float, say: Say) -> None:
    if scale < 1 or document["rounds"] < part.rounds:
        say(f"[{part.name}] not recorded: recorded are runs of full size with {part.rounds} rounds")
    elif document["others"] > OTHERS_MAX + part.idle_cores:
        say(f"[{part.name}] not recorded: others used up to {document['others']:.2f} cores meanwhile")
    else:
        with open(LINES_FILE, "a") as file:
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
        page.write(read_lines(LINES_FILE))
        say(f"[{part.name}] recorded in {page.PAGE.name}: {', '.join(document['rows'])}")


assert OURS not in {name for name, _, _ in KINDS.values()}
