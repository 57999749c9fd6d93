"""Boxes under a steady load for hours, and a judge of what must stay flat:

`python -m lab.soak --minutes 30 [--boxes 1|3] [--rate 400] [--out FILE]` (root; lab/cluster.py). FILE, `.venv/log/soak-BOXES.jsonl` without --out, gets a
line for each sample; a later run adds to it, and all runs are judged together. Exit code 1 if something grows.

The load: acks=all with and without idempotence, transactions, readers, a group; short retention, and the compaction of state topics. Every ten minutes a box
of several is stopped and started, every three minutes one process is killed. Sampled: PSS of all processes of a box together (they share pages, so that the
PSS of one rises when another ends), descriptors and CPU of each, blocks in /dev/shm, the time between two acknowledgements of one record after the other.
Each incarnation of a process is judged by itself: its floor (the least of each of six windows, so that what comes and goes does not count) must not rise
from window to window by more than a limit an hour. Weak spot: a growth that starts after the last window, and one below the limits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from appliance.shm.mapping import list_names
from lab.cluster import KAFKA_PORT, Cluster, running_cluster
from lab.cluster_load import AllAcks, GroupMember, Reader, Transactions
from lab.machine import address_of
from lab.pause_probe import BETWEEN_SECONDS, PauseProbe
from lab.running_box import ROOT, eventually, proportional_kib

PARTITIONS = 2
SAMPLE_SECONDS = 5.0
WARM_SECONDS = 120.0
JUDGED_SECONDS = 300.0
"""A shorter incarnation of a process shows no trend."""
WINDOWS = 6
RISING_PAIRS = 13
"""Of the 15 pairs of windows, those whose later floor is higher (Mann-Kendall, p below 0.01)."""
STOP_EVERY_SECONDS, KILL_EVERY_SECONDS = 600.0, 180.0
KILLED = ("acceptor", "coordinator", "log-reader", "replica-fetcher", "controller")
LIMITS = {"pss_kib": (0.10, 4096.0), "descriptors": (0.0, 6.0), "shm_kib": (0.0, 1024.0), "cpu": (0.5, 0.02), "latency_ms": (0.5, 5.0)}
"""Measure → what it may grow in an hour: a share of its median, or so much, whichever is more."""


class Sample(NamedTuple):
    """`incarnation` names what is judged by itself: a process of one box in one run, by its pid."""

    incarnation: str
    measure: str
    at: float
    value: float


def growth(samples: Sequence[tuple[float, float]]) -> float:
    """Return by how much the floor of (seconds, value) rises in an hour (Theil-Sen); 0.0 if it does not rise steadily."""
    first, last = samples[0][0], samples[-1][0]
    width = (last - first) / WINDOWS
    windows: dict[int, list[float]] = defaultdict(list)
    for at, value in samples:
        windows[min(int((at - first) / width), WINDOWS - 1)].append(value)
    floors = [(first + (index + 0.5) * width, min(values)) for index, values in sorted(windows.items())]
    pairs = list(combinations(floors, 2))
    if len(floors) < WINDOWS or sum(late[1] > early[1] for early, late in pairs) < RISING_PAIRS:
        return 0.0
    return statistics.median((late[1] - early[1]) / (late[0] - early[0]) for early, late in pairs) * 3600


def findings(samples: Iterable[Sample]) -> list[str]:
    """What grows in an incarnation that is long enough."""
    incarnations: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for incarnation, measure, at, value in samples:
        incarnations[incarnation, measure].append((at, value))
    found = []
    for (incarnation, measure), values in incarnations.items():
        values = [each for each in values if each[0] >= values[0][0] + WARM_SECONDS]
        if not values or values[-1][0] - values[0][0] < JUDGED_SECONDS:
            continue
        share, least = LIMITS[measure]
        hourly, typical = growth(values), statistics.median(value for _, value in values)
        if hourly > max(share * typical, least):
            found.append(f"{incarnation}: {measure} grows by {hourly:.4g} an hour, of {typical:.4g}")
    return found


class Sampler:
    """Reads /proc; what ends meanwhile is left out."""

    def __init__(self, cluster: Cluster, probe: PauseProbe, run: int) -> None:
        self._cluster, self._probe, self._run = cluster, probe, run
        self._cpu: dict[int, tuple[float, float]] = {}
        self._acknowledged = 0

    def samples(self) -> list[Sample]:
        found, now = [], time.monotonic()
        for number, box in self._cluster.boxes.items():
            if box.running is None:
                continue
            memory = 0.0
            for name, pid in box.box.pids().items():
                incarnation = f"run {self._run} box {number} {name} pid {pid}"
                try:
                    values = self._of(pid, now)
                    memory += proportional_kib(pid)
                except OSError:
                    continue
                found += [Sample(incarnation, measure, now, value) for measure, value in values.items()]
            layout = box.box.layout
            blocks = 0
            for name in list_names(layout.shared_memory_prefix):
                try:
                    blocks += os.stat(f"/dev/shm/{name}").st_blocks
                except OSError:
                    continue
            everything = f"run {self._run} box {number} supervisor pid {box.box.process.pid} and all others"
            found += [Sample(everything, "pss_kib", now, memory), Sample(everything, "shm_kib", now, blocks / 2)]
        acknowledged = self._probe.probes[0].acknowledged_at[self._acknowledged :]
        self._acknowledged += len(acknowledged)
        if len(acknowledged) > 10:
            between = [later - earlier - BETWEEN_SECONDS for earlier, later in pairwise(acknowledged)]
            found.append(Sample(f"run {self._run} probe", "latency_ms", now, statistics.median(between) * 1000))
        return found

    def _of(self, pid: int, now: float) -> dict[str, float]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        values = {"descriptors": float(len(os.listdir(f"/proc/{pid}/fd")))}
        if pid in self._cpu:
            at, before = self._cpu[pid]
            values["cpu"] = (seconds - before) / (now - at)
        self._cpu[pid] = now, seconds
        return values


def read_samples(file: Path) -> list[Sample]:
    return [Sample(*row) for line in (file.read_text().splitlines() if file.exists() else []) for row in json.loads(line)]


def run_load(boxes: int, minutes: float, out: Path, rate: int) -> list[str]:
    """Return what went wrong while it ran."""
    out.parent.mkdir(parents=True, exist_ok=True)
    before = out.read_text().splitlines() if out.exists() else []
    run = len({row[0].split()[1] for line in before for row in json.loads(line)[:1]})
    chance, problems = random.Random(run), list[str]()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-") as directory,
        running_cluster(Path(directory), boxes=boxes) as cluster,
        cluster.clients(),
        ExitStack() as books,
    ):
        topics = _make_topics(cluster, boxes)
        where = cluster.bootstrap
        clients: list[Any] = [
            AllAcks(where, topics["retention"], PARTITIONS, is_idempotent=False, records_a_second=rate),
            AllAcks(where, topics["idempotent"], PARTITIONS, is_idempotent=True, records_a_second=rate),
            Transactions(where, topics["transactional"], PARTITIONS, run),
            Reader(where, topics["transactional"], PARTITIONS, "read_committed"),
            GroupMember(where, topics["idempotent"], "soak"),
            GroupMember(where, topics["idempotent"], "soak"),
        ]
        for client in clients:
            client.start()
            books.callback(client.stop)
        probe = PauseProbe([(address_of(number), KAFKA_PORT) for number in cluster.boxes], topics["probe"], [0])
        books.callback(probe.stop)
        sampler, began = Sampler(cluster, probe, run), time.monotonic()
        stop_at, kill_at = began + STOP_EVERY_SECONDS, began + KILL_EVERY_SECONDS
        while (now := time.monotonic()) < began + minutes * 60:
            with open(out, "a") as file:
                file.write(json.dumps(sampler.samples()) + "\n")
            if boxes > 1 and now >= stop_at:
                cluster.boxes[chance.choice(sorted(cluster.boxes))].stop()
                cluster.mend()
                stop_at = now + STOP_EVERY_SECONDS
            if now >= kill_at:
                running = cluster.boxes[chance.choice(sorted(cluster.boxes))].box
                name = chance.choice([name for name in running.pids() if name.partition("@")[0] in KILLED])
                running.await_restart(name, running.kill(name))
                kill_at = now + KILL_EVERY_SECONDS
            time.sleep(SAMPLE_SECONDS)
        for client in clients:
            client.join()
            problems += [f"{type(client).__name__}: {words}" for words in getattr(client, "broken", ())]
        (out.with_suffix(".messages")).write_text("\n".join(box.messages for box in cluster.boxes.values()))
    return problems


def _make_topics(cluster: Cluster, boxes: int) -> dict[str, str]:
    small = {"internal.segment.bytes": "262144", "segment.ms": "30000"}
    configs = {
        "retention": {**small, "retention.ms": "60000"},
        "idempotent": {**small, "retention.bytes": "4194304"},
        "transactional": {**small, "retention.ms": "600000"},
        "probe": {**small, "retention.ms": "60000"},
    }
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for name, config in configs.items():
        wanted = NewTopic(name, PARTITIONS, boxes, config={**config, "min.insync.replicas": str(min(2, boxes))})
        eventually(lambda wanted=wanted: admin.create_topics([wanted])[wanted.topic].result(30) is None, f"{name} is created")  # type: ignore[misc]
    return {name: name for name in configs}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.soak")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--boxes", type=int, default=3)
    parser.add_argument("--rate", type=int, default=400)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    out = options.out or ROOT / f".venv/log/soak-{options.boxes}.jsonl"
    problems = run_load(options.boxes, options.minutes, out, options.rate)
    samples = read_samples(out)
    found = problems + findings(samples)
    print("\n".join(found) or f"{len(samples)} samples of {len({sample.incarnation for sample in samples})} incarnations: nothing grows")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
