"""Rounds of two faults at a time on three boxes, with histories of every client operation and their judge, until a time is up:

`python -m lab.campaign SEED --minutes 30 [--overload 30] [--out FILE]` (root; lab/cluster.py). FILE, `.venv/log/campaign-SEED-OVERLOAD.jsonl` without
--out, gets a line for each round; a later run with the same seed goes on behind the last one. `--rounds 7,9` repeats rounds. The seed decides faults, boxes
and moments, not the interleaving. Exit code 1 if a round found something or came to no judgement.

A round has the clients of a cell of the matrix (`cluster_cell.py`), two members of a group that commit, a watch of the group's offsets, and one of end
offsets. `--overload N`: N processes for each processor that never rest. Weak spots: all clients are librdkafka; ZooKeeper's JVM sees no shifted clock; two
faults may leave no replica that may lead, so how long acks=all was not taken is reported, and only what follows the repair is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from appliance.runtime.spawning import die_with_parent
from lab.cluster import KAFKA_PORT, READY_SECONDS, Cluster, ClusterBox, running_cluster
from lab.cluster_cell import FAULTS, PARTITIONS, PROCESSES, ROLES, WARM_RECORDS, Cell, Fault, disk_name, words_of
from lab.cluster_history import end_findings, group_findings, premature_findings, skipped_findings
from lab.cluster_load import EndsWatcher, GroupMember
from lab.group_watcher import GroupWatcher
from lab.machine import address_of
from lab.pause_probe import PauseProbe
from lab.running_box import ROOT, eventually

FAULT_SECONDS = 4.0, 12.0
GAP_SECONDS = 0.0, 3.0
AGAIN_SECONDS = 60.0
READ_ON_SECONDS = 60.0
OVERLOADED_PATIENCE = 6.0
HOUR_MS = 3_600_000
SEGMENT_BYTES = 16_384
"""A round writes several segments of each partition."""


def _suspend(kind: str) -> Callable[[Cluster, ClusterBox, str], None]:
    def apply(_cluster: Cluster, box: ClusterBox, topic: str) -> None:
        box.suspend(
            {"acceptor": "acceptor@0", "log-writer": f"log-writer@{disk_name(box, topic)}", "log-reader": f"log-reader@{disk_name(box, topic)}"}.get(kind, kind)
        )

    return apply


def _suspend_two_members(cluster: Cluster, box: ClusterBox, _topic: str) -> None:
    for number in (box.number, box.number % len(cluster.boxes) + 1):
        if cluster.boxes[number].running is not None:
            cluster.boxes[number].suspend("zookeeper")


def _remove_a_segment(place: int) -> Callable[[Cluster, ClusterBox, str], None]:
    """Of every partition of the topics with the same name behind their kind, while the box is stopped."""

    def apply(_cluster: Cluster, box: ClusterBox, topic: str) -> None:
        def logs() -> list[list[Path]]:
            places = [path for disk in box.disks for path in disk.seen_from_here.glob(f"*-{topic.rpartition('-')[2]}-?")]
            files = [sorted(path.glob("*.log")) for path in places]
            return [each for each in files if len(each) > place + 1]

        eventually(logs, f"a partition has a closed segment {place}", 60)
        box.stop()
        for files in logs():
            files[place].unlink()

    return apply


def _cut_from_the_next(cluster: Cluster, box: ClusterBox, _topic: str) -> None:
    cluster.network.cut_one_way(box.number, box.number % len(cluster.boxes) + 1)


MORE_FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        *(Fault(f"{kind} suspended", _suspend(kind)) for kind in PROCESSES if kind != "log-writer"),
        Fault("two ZooKeeper members suspended", _suspend_two_members),
        Fault("flapping network", lambda cluster, box, _topic: cluster.network.flap(box.number, 0.7)),
        Fault("one-way cut of a pair", _cut_from_the_next),
        *(Fault(f"clock {hours:+d} h", lambda _cluster, box, _topic, ms=hours * HOUR_MS: box.shift_clock(ms)) for hours in (-48, 2, 960)),  # type: ignore[misc]
        Fault("first segment removed", _remove_a_segment(0)),
        Fault("middle segment removed", _remove_a_segment(1)),
    )
}
EVERY: dict[str, Fault] = FAULTS | MORE_FAULTS
WHOLE = {"clean stop", "kill -9 of the box", "power off", "freeze", "first segment removed", "middle segment removed"}
"""Faults of a whole box, beside which nothing else can befall it."""


class Round(Cell):
    """`seed` and `number` decide."""

    def __init__(self, cluster: Cluster, seed: int, number: int, overload: int = 0) -> None:
        chance = random.Random(f"{seed}/{number}")
        names = chance.sample(sorted(EVERY), 2)
        self.faults = [EVERY[name] for name in names]
        super().__init__(cluster, self.faults[0], chance.choice(ROLES), chance.randrange(1 << 30), number)
        self._chance = chance
        self._is_same_box = chance.random() < 0.3 and not WHOLE.intersection(names)
        self._topic_config = {"internal.segment.bytes": str(SEGMENT_BYTES)}
        self._patience = OVERLOADED_PATIENCE if overload else 1.0
        self.notes: dict[str, Any] = {"seed": seed, "round": number, "overload": overload, "role": self._role, "faults": names}

    def judge(self) -> dict[str, Any]:
        """Run it; return the line of the results."""
        victim = int(eventually(self._begun, "a controller makes the topics", 60 * self._patience))
        other = victim if self._is_same_box else self._chance.choice([number for number in self._cluster.boxes if number != victim])
        boxes = [self._cluster.boxes[victim], self._cluster.boxes[other]]
        self.notes |= {"boxes": [victim, other], "load": round(os.getloadavg()[0])}
        with ExitStack() as books:
            producers, readers = self._start_clients()
            where, topic = self._cluster.bootstrap, self._topics["idempotent"]
            members, ends = [GroupMember(where, topic, f"group-{topic}") for _ in range(2)], EndsWatcher(where, topic, PARTITIONS)
            for client in (*members, ends):
                client.start()
            watcher = GroupWatcher(where, f"group-{topic}", topic, PARTITIONS)
            books.callback(watcher.close)
            for client in (*producers.values(), *readers, *members, ends):
                books.callback(client.stop)
            eventually(lambda: all(len(producer.sent) > WARM_RECORDS for producer in producers.values()), "all producers produce", 90 * self._patience)
            well_first = sorted(self._cluster.boxes, key=lambda number: number in (victim, other))
            probe = PauseProbe([(address_of(number), KAFKA_PORT) for number in well_first], self._topics["probe"], range(PARTITIONS))
            books.callback(probe.stop)
            eventually(lambda: probe.has_answers, "the probes are acknowledged", 90 * self._patience)
            findings = {"cluster": [*self._hurt_and_mend(boxes, probe), *self._await_in_sync()]}
            settled_at = time.monotonic()
            time.sleep(self._chance.uniform(0.5, 2.0))
            probe.stop()
            for producer in producers.values():
                producer.join()
            ends.join()
            findings |= self._judge(producers, readers)
            for kind, producer in producers.items():
                findings[kind] += [f"producer: {words}" for words in producer.broken]
            findings |= self._judge_more(producers, readers, members, watcher, ends, settled_at)
        clients = (*producers.values(), *readers, *members, ends)
        errors: dict[str, dict[str, int]] = {type(client).__name__: dict(client.errors) for client in clients if client.errors}
        self._admin.delete_topics(list(self._topics.values()))
        counts = {kind: len(producer.sent) for kind, producer in producers.items()}
        counts |= {"group": sum(len(member.events) for member in members), "watch": len(watcher.events), "ends": len(ends.answers)}
        return self.notes | {"counts": counts, "errors": errors, "findings": {who: what for who, what in findings.items() if what}}

    def _hurt_and_mend(self, boxes: Sequence[ClusterBox], probe: PauseProbe) -> list[str]:
        """Return what is wrong. The notes get seconds without acks=all: the longest pause, and from the beginning of the repair."""
        hurt_at = time.monotonic()
        not_applied: list[str] = []
        for fault, box in zip(self.faults, boxes, strict=True):
            try:
                fault.apply(self._cluster, box, self._topics["idempotent"])
            except Exception as error:  # what the first has done may leave nothing for the second
                not_applied.append(f"{fault.name}: {type(error).__name__}: {str(error)[:200]}")
            time.sleep(self._chance.uniform(*GAP_SECONDS))
        time.sleep(self._chance.uniform(*FAULT_SECONDS))
        mending_at = time.monotonic()
        self._cluster.mend(READY_SECONDS * self._patience)
        mended_at = time.monotonic()

        def taken() -> bool:
            return None not in [pause.seconds for pause in probe.pauses(mended_at, time.monotonic())]

        problems = []
        try:
            eventually(taken, "every partition takes acks=all", AGAIN_SECONDS * self._patience)
        except AssertionError as error:
            problems.append(str(error))
        now = time.monotonic()
        seconds = [pause.seconds for pause in probe.pauses(hurt_at, now)]
        first = [min((at for at in each.acknowledged_at if at > mending_at), default=None) for each in probe.probes]
        self.notes |= {
            "hurt_seconds": round(mending_at - hurt_at, 2),
            "mend_seconds": round(mended_at - mending_at, 2),
            "pause": None if None in seconds else round(max(each or 0.0 for each in seconds), 2),
            "again": None if None in first else round(max(each or 0.0 for each in first) - mending_at, 2),
            "not_applied": not_applied,
        }
        return problems + ([f"no fault was applied: {not_applied}"] if len(not_applied) == len(self.faults) else [])

    def _judge_more(
        self, producers: dict[str, Any], readers: Sequence[Any], members: Sequence[GroupMember], watcher: GroupWatcher, ends: EndsWatcher, settled_at: float
    ) -> dict[str, list[str]]:
        found = []
        for reader in readers:
            isolation = reader.isolation
            found += skipped_findings(self._finals[reader.topic, isolation], reader.seen)
            if isolation == "read_committed":
                transactions = producers["transactional"]
                found += premature_findings(transactions.sent, transactions.fates, transactions.commit_asked_at, reader.reads)
        idempotent = producers["idempotent"]
        final = self._finals[idempotent.topic, "read_uncommitted"]
        lasts = {partition: records[-1][0] for partition, records in final.items() if records}
        missing = [f"the group does not read on: {words}" for words in self._await_read(members, lasts)]
        for member in members:
            member.join()
        watcher.close()
        found += group_findings(final, [*(member.events for member in members), watcher.events])
        found += end_findings(idempotent.acknowledged, ends.answers, settled_at)
        return {"histories": [*map(words_of, found), *missing]}

    def _await_read(self, members: Sequence[GroupMember], lasts: dict[int, int]) -> list[str]:
        def unread() -> list[str]:
            read: dict[int, int] = defaultdict(lambda: -1)
            for member in members:
                for event in list(member.events):
                    for partition, offsets in event.get("offsets", {}).items():
                        read[partition] = max(read[partition], *offsets)
            return [f"partition {partition} is read up to {read[partition]} of {last}" for partition, last in lasts.items() if read[partition] < last]

        deadline = time.monotonic() + READ_ON_SECONDS * self._patience
        while (left := unread()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return [f"{words}; {'; '.join(member.last_words for member in members)}" for words in left]


@contextmanager
def overloaded(times: int) -> Iterator[None]:
    """`times` processes for each processor that never rest."""
    spinning = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], preexec_fn=partial(die_with_parent, os.getpid()))
        for _ in range(times * (os.cpu_count() or 1))
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
        for process in spinning:
            process.wait()


def read_results(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def summary(results: Sequence[dict[str, Any]]) -> str:
    """For tests/RESULTS.md."""
    judged = [each for each in results if "death" not in each]
    pauses, again = (sorted(each[name] for each in judged if each[name] is not None) for name in ("pause", "again"))
    lines = [f"{len(results)} rounds, {len(results) - len(judged)} without a judgement, {sum(bool(each['findings']) for each in judged)} with findings"]
    for name, seconds in (("longest pause of acks=all", pauses), ("acks=all after the repair began", again)):
        if seconds:
            lines.append(f"{name}: median {median(seconds):.2f} s, 95 % {seconds[int(0.95 * (len(seconds) - 1))]:.2f} s, longest {seconds[-1]:.2f} s")
    applied, named = set[str](), set[str]()
    for each in judged:
        named.update(each["faults"])
        applied.update(name for name in each["faults"] if not any(words.startswith(f"{name}:") for words in each["not_applied"]))
    lines.append(f"{sum(not each['not_applied'] for each in judged)} rounds had both faults; never applied: {', '.join(sorted(named - applied)) or 'none'}")
    for each in results:
        if each.get("findings") or "death" in each:
            lines.append(f"round {each['round']}: {' + '.join(each['faults'])}: {each.get('death') or each['findings']}")
    return "\n".join(lines)


def run_rounds(seed: int, minutes: float, out: Path, overload: int = 0, wanted: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Return the results of this run. Boxes are started anew after a round without a judgement."""
    deadline = time.monotonic() + minutes * 60
    out.parent.mkdir(parents=True, exist_ok=True)
    first = max((each["round"] for each in read_results(out)), default=-1) + 1
    numbers = list(wanted or range(first, first + 10_000))[::-1]
    results: list[dict[str, Any]] = []
    while numbers and time.monotonic() < deadline:
        try:
            with (
                tempfile.TemporaryDirectory(prefix="millrace-") as directory,
                running_cluster(Path(directory), shifts_clocks=True) as cluster,
                cluster.clients(),
                overloaded(overload),
            ):
                while numbers and time.monotonic() < deadline:
                    results.append(_run_round(cluster, Round(cluster, seed, numbers.pop(), overload), out))
                    if "death" in results[-1]:
                        break
        except AssertionError as error:
            print(f"the boxes did not start, or did not end: {str(error)[:200]}", flush=True)
            results.append({"round": -1, "faults": [], "death": str(error)[:200]})
    return results


def _run_round(cluster: Cluster, each: Round, out: Path) -> dict[str, Any]:
    try:
        result = each.judge()
    except Exception as error:  # whatever ended it, the next round shall come
        result = each.notes | {"death": f"{type(error).__name__}: {error}"[:2000]}
    if result.get("findings") or "death" in result:
        out.with_suffix(f".{each.notes['round']}.messages").write_text(cluster.last_words())
    with open(out, "a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result), flush=True)
    return result


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.campaign")
    parser.add_argument("seed", type=int)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--overload", type=int, default=0)
    parser.add_argument("--rounds", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    out = options.out or ROOT / f".venv/log/campaign-{options.seed}-{options.overload}.jsonl"
    results = run_rounds(options.seed, options.minutes, out, options.overload, [int(number) for number in options.rounds.split(",") if number])
    print(summary(read_results(out)))
    return int(any(result.get("findings") or "death" in result for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
