"""`python -m loadtest model`: what three boxes on a 10 GbE network with six disks each would do, and which part saturates first. Makes MODEL.md from records.

Linear: CPU-seconds per GB of values as measured on this machine (`beside_kafka --part replicated`, its details by kind of process), bytes per GB by counting
copies. Weak spots: two cores shared by all processes make CPU per GB larger than where each process has a core; loopback has no interrupts of a network card,
which makes it smaller; queues, which are not modelled here, come before what is full is full.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from loadtest.beside_kafka.contenders import OURS
from loadtest.beside_kafka.page import BENCHMARK
from loadtest.results import DIRECTORY, LINES_FILE, read_lines

PAGE = DIRECTORY / "MODEL.md"
LOADS = ("3 replicas, produce 1 KB, acks=all", "3 replicas, produce 100 B, acks=all")
CONSUME = "consume 1 KB, none: broker CPU"
APART = frozenset({"zookeeper", "kafka"})


@dataclass(frozen=True)
class Assumed:
    """A hypothetical cluster. Speeds in GB/s."""

    boxes: int = 3
    replicas: int = 3
    disks: int = 6
    cores: int = 16
    network: float = 1.25 * 0.94
    """10 Gbit/s each way, less headers of Ethernet, IP and TCP."""
    hard_disk: float = 0.15
    solid_disk: float = 0.5
    reads: float = 1.0
    """How often each record is consumed, at the tail."""


class Limit(NamedTuple):
    """What a part needs for a GB of values that the box leads, and how much of those a second it lets through."""

    part: str
    need: str
    gigabytes_a_second: float


def details_of(documents: Sequence[Mapping[str, Any]], load: str) -> dict[str, float]:
    """CPU-seconds per GB of values by kind of process, all boxes together: medians of the latest run that has them; empty if none has."""
    for document in reversed(documents):
        rounds = document.get("details", {}).get(OURS)
        if document["benchmark"] == BENCHMARK and rounds and load in document["rows"]:
            return {role: statistics.median(found.get(role, 0.0) for found in rounds) for role in rounds[0]}
    return {}


def consume_cpu(documents: Sequence[Mapping[str, Any]]) -> float:
    """CPU-seconds of a box per GB consumed; 0 if it was never measured."""
    known = [document["rows"][CONSUME][OURS] for document in documents if document["benchmark"] == BENCHMARK and OURS in document["rows"].get(CONSUME, {})]
    return statistics.median(known[-1]) if known else 0.0


def limits(cpu: Mapping[str, float], consume: float, given: Assumed) -> list[Limit]:
    """The tightest first. Leaders are spread evenly, so what all boxes need for a GB is what one needs for a GB that it leads."""
    copies, followers = given.replicas, given.replicas - 1
    acceptor, fetcher, writers = (cpu.get(role, 0.0) for role in ("acceptor", "replica-fetcher", "log-writer"))
    acceptor += given.reads * consume
    everything = sum(used for role, used in cpu.items() if role not in APART) + given.reads * consume
    out = followers + given.reads
    found = [
        Limit("network, in", f"{copies:g} GB: 1 from producers, {followers} from leaders", given.network / copies),
        Limit("network, out", f"{out:g} GB: {followers} to followers, {given.reads:g} to consumers", given.network / out),
        Limit(f"{given.disks} hard disks", f"{copies:g} GB written", given.disks * given.hard_disk / copies),
        Limit(f"{given.disks} solid-state disks", f"{copies:g} GB written", given.disks * given.solid_disk / copies),
        Limit("acceptor, one core", f"{acceptor:.2f} cpu-s", 1 / acceptor),
        Limit("two acceptors, two cores", f"{acceptor:.2f} cpu-s", 2 / acceptor),
        Limit("replica-fetcher, one core", f"{fetcher:.2f} cpu-s", 1 / fetcher),
        Limit(f"{given.disks} log-writers, a core each", f"{writers:.2f} cpu-s", given.disks / writers),
        Limit(f"all processes on {given.cores} cores", f"{everything:.2f} cpu-s", given.cores / everything),
    ]
    return sorted(found, key=lambda limit: limit.gigabytes_a_second)


def page(documents: Sequence[Mapping[str, Any]], given: Assumed | None = None) -> str:
    given = given or Assumed()
    consume = consume_cpu(documents)
    lines = [_head(given, consume)]
    for load in LOADS:
        if cpu := details_of(documents, load):
            lines += _section(load, limits(cpu, consume, given), cpu, given)
    return "\n".join(lines)


def _head(given: Assumed, consume: float) -> str:
    return f"""\
# What three boxes on 10 GbE with six disks each would do

Made by `python -m loadtest model` from recorded figures; do not edit. A model, nothing that was measured: a rate is the capacity of a part, divided by what
the part needs for a GB of values that its box leads. The smallest rate is the box's; times {given.boxes} it is the cluster's.

Assumed:

* {given.boxes} boxes, {given.replicas} replicas of everything, leaders spread evenly over boxes and partitions over disks; acks=all, no
  compression; each record is consumed {given.reads:g} times, at the tail, out of the page cache, from the leader.
* The network carries {given.network:.2f} GB/s each way (10 Gbit/s, 6 % of them headers). Nothing is read from disks; a hard disk writes
  {given.hard_disk * 1000:.0f} MB/s while it serves several partitions, a solid-state disk {given.solid_disk * 1000:.0f} MB/s.
* {given.cores} cores as fast as those of the machine that measured. CPU per GB is that of three boxes and their clients on its two cores, over loopback: too
  much, because caches are shared and cold and batches small; too little, because no network card interrupts any process. A consumer costs the acceptor
  {consume:.2f} cpu-s/GB (`{CONSUME}`).
* CPU grows in line with bytes; acceptor and replica-fetcher are one thread each, log-writers one for each disk.
"""


def _section(load: str, found: Sequence[Limit], cpu: Mapping[str, float], given: Assumed) -> list[str]:
    size = load.split("produce ")[1].split(",")[0]
    shares = ", ".join(f"{role} {used:.2f}" for role, used in sorted(cpu.items(), key=lambda item: -item[1]) if used >= 0.01)
    rows = ["| part of a box | needs for a GB that it leads | MB/s that a box leads | MB/s of the cluster |", "|---|---|---|---|"]
    for limit in found:
        rate = limit.gigabytes_a_second * 1000
        rows.append(f"| {limit.part} | {limit.need} | {rate:,.0f} | {rate * given.boxes:,.0f} |")
    rates = [f"{limit.part}, at {limit.gigabytes_a_second * 1000:,.0f} MB/s a box" for limit in found]
    words = f"First to saturate: **{rates[0]}**; then {rates[1]}; then {rates[2]}."
    return [f"## Records of {size}", "", words, "", *rows, "", f"Measured, in CPU-seconds per GB of values, all three boxes: {shares}.", ""]


def main(arguments: Sequence[str], say: Callable[[str], None]) -> int:
    argparse.ArgumentParser(prog="python -m loadtest model", description="Write MODEL.md from what is recorded.").parse_args(arguments)
    PAGE.write_text(page(read_lines(LINES_FILE)))
    say(f"written: {PAGE}")
    return 0
