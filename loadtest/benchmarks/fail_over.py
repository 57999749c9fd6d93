"""How long partitions take no acks=all when their leader's box is killed or cut off, stops in order, or has a disk that dies or hangs.

Three boxes in stock settings on machines of their own (namespaces, `lab/cluster.py`), each with its ZooKeeper member. Each fault befalls a topic of its own
whose partitions the victim leads; boxes take turns, so that the controller and the leader of the ensemble are among them as chance has it. Each fault hits
a whole cluster: all processes serve, all members are in the ensemble, all replicas in sync. A probe sends a small record every 20 ms, after an error a
fresh request to the leader that a living box names; a pause is the longest time between two acknowledgements of a partition, of the slowest one. Weak
spots: three boxes, three JVMs and the probes share the machine's cores; a request that a cut swallows is given up after 0.3 s, which is in the figure.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.base.setting_rows import SETTING_ROWS
from lab.cluster import KAFKA_PORT, SETTINGS, Cluster, ClusterBox
from lab.machine import address_of, why_not
from lab.pause_probe import PauseProbe
from lab.running_box import RunningBox, eventually
from loadtest.benchmark import Benchmark, BenchmarkFailed, Figure, Run, Say
from loadtest.machine import load_average
from loadtest.observation import Observer

STOCK = {name: SETTING_ROWS[name].default for name in SETTINGS}
"""What the tests' clusters have otherwise."""
TIMES = ("zookeeper.session.timeout.ms", "zookeeper.tick.ms", "zookeeper.sync.limit", "log.disk.deadline.ms")
SESSIONS_LOST = "controller.zookeeper_sessions_lost"
AGAIN_SECONDS = 30.0
ASKED_TIMES = 5
IN_SYNC_SECONDS = 60.0
AFTER_SECONDS = 0.3
"""The probe goes on so long after the partitions are back, lest they go away again."""
Fault = Callable[[Cluster, ClusterBox, str], None]


def _kill(_cluster: Cluster, box: ClusterBox, _topic: str) -> None:
    box.kill()


def _cut(cluster: Cluster, box: ClusterBox, _topic: str) -> None:
    cluster.network.cut(box.number)


def _stop(_cluster: Cluster, box: ClusterBox, _topic: str) -> None:
    box.stop()


def _disk_with(box: ClusterBox, topic: str) -> int:
    return next(index for index, disk in enumerate(box.disks) if (disk.seen_from_here / f"{topic}-0").is_dir())


def _end_disk(_cluster: Cluster, box: ClusterBox, topic: str) -> None:
    box.shut_disk_down(_disk_with(box, topic))


def _hang_disk(_cluster: Cluster, box: ClusterBox, topic: str) -> None:
    box.disks[_disk_with(box, topic)].freeze()


FAULTS: dict[str, tuple[Fault, int]] = {
    "killed": (_kill, 2), "cut off": (_cut, 2), "clean stop": (_stop, 2), "dead disk": (_end_disk, 1), "hung disk": (_hang_disk, 1)
}  # fmt: skip
"""What is done, and how many partitions the topic has; one where it must be known which disk they are on."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many of all do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


class Expiries:
    """Sessions that ended although nothing had befallen their box: what its controller process counts while another box suffers."""

    def __init__(self) -> None:
        self.false = 0

    def during(self, cluster: Cluster, victim: int) -> Callable[[], None]:
        """To be called at the end of the fault."""
        before = {number: self._lost(box) for number, box in cluster.boxes.items() if number != victim}

        def finish() -> None:
            self.false += sum(max(0, self._lost(cluster.boxes[number]) - lost) for number, lost in before.items())

        return finish

    def _lost(self, box: ClusterBox) -> int:
        return box.box.counters("controller").values.get(SESSIONS_LOST, 0)


class Bench:
    """A cluster, and one fault after the other."""

    def __init__(self, cluster: Cluster, say: Say) -> None:
        self._cluster, self._say = cluster, say
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self._victims: Iterator[int] = itertools.cycle(sorted(cluster.boxes))
        self._numbers = itertools.count(1)
        self.expiries = Expiries()
        self.loads: list[float] = []

    def suffer(self, name: str) -> float:
        """Seconds of the longest pause. All is as it was afterwards."""
        victim, number = next(self._victims), next(self._numbers)
        topic = f"suffers{number}"
        fault, partitions = FAULTS[name]
        self._make_topic(topic, victim, partitions)
        controller = self._tree().controller_id
        living = [(address_of(other), KAFKA_PORT) for other in self._cluster.boxes if other != victim]
        probe = PauseProbe(living, topic, range(partitions))
        finish = self.expiries.during(self._cluster, victim)
        self.loads.append(load_average())
        try:
            eventually(lambda: probe.has_answers, "the probes are acknowledged")
            at = time.monotonic()
            fault(self._cluster, self._cluster.boxes[victim], topic)
            seconds = self._await_again(probe, at)
        finally:
            probe.stop()
            finish()
        role = ", the controller's" if controller == victim else ""
        self._say(f"{number}: {name}, box {victim}{role}: {seconds:.2f} s (load average {self.loads[-1]:.1f})")
        self._cluster.mend()
        self._await_in_sync(topic)
        with suppress(KafkaException):  # a topic more does no harm
            self._admin.delete_topics([topic])[topic].result(5)
        return seconds

    def _await_again(self, probe: PauseProbe, at: float) -> float:
        """Acknowledged by every partition after it was not, or for longer than a disk may be silent unnoticed."""
        quiet_at = at + AFTER_SECONDS
        while True:
            now = time.monotonic()
            pauses = [pause.seconds for pause in probe.pauses(at, now)]
            known = [seconds for seconds in pauses if seconds is not None]
            recent = [pause.seconds for pause in probe.pauses(now - AFTER_SECONDS, now)] if now > quiet_at else [None]
            if len(known) == len(pauses) and all(seconds is not None and seconds < AFTER_SECONDS for seconds in recent) and now > at + self._shortest(known):
                return max(known)
            if now > at + AGAIN_SECONDS:
                raise BenchmarkFailed(f"no acks=all again {AGAIN_SECONDS:g} s after the fault: {probe.pauses(at, now)}\n{self._cluster.last_words()}")
            time.sleep(0.02)

    def _shortest(self, known: Sequence[float]) -> float:
        """A cut or a hung disk is not felt at once; a look that comes too early sees nothing."""
        return 1.0 if max(known) > 2 * AFTER_SECONDS else 4.0

    def _make_topic(self, topic: str, victim: int, partitions: int) -> None:
        others = [number for number in self._cluster.boxes if number != victim]
        replicas = [[victim, *others[index % 2 :], *others[: index % 2]] for index in range(partitions)]
        new = NewTopic(topic, partitions, replica_assignment=replicas, config={"min.insync.replicas": "2"})

        def is_made() -> bool:
            """librdkafka asks whom it knew as the controller, which may have been the last victim."""
            with suppress(KafkaException):
                self._admin.create_topics([new], operation_timeout=20)[topic].result(30)
            return topic in self._tree().topics

        eventually(is_made, f"{topic} is made", IN_SYNC_SECONDS)
        self._await_in_sync(topic)

    def _await_in_sync(self, topic: str) -> None:
        def is_whole() -> bool:
            found = self._tree().topics.get(topic)
            known = found.partitions.values() if found is not None else ()
            return bool(known) and all(set(partition.isrs) == set(partition.replicas) and partition.leader in partition.replicas for partition in known)

        eventually(is_whole, f"all replicas of {topic} are in the ISR", IN_SYNC_SECONDS)

    def _tree(self) -> Any:
        """As any box reports it; one that was cut off a moment ago may not answer."""
        for _ in range(ASKED_TIMES - 1):
            with suppress(KafkaException):
                return self._admin.list_topics(timeout=5)
        return self._admin.list_topics(timeout=5)


@dataclass(frozen=True)
class FailOver(Benchmark):
    name: ClassVar[str] = "fail_over"
    title: ClassVar[str] = "Pauses of acks=all when a box is killed, cut off or stopped, or a disk dies or hangs; three boxes in namespaces, stock settings."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("killed or cut off, p95", "s", at_most=3),
        Figure("killed or cut off, p50", "s"),
        Figure("killed or cut off, longest", "s"),
        Figure("killed, p50", "s"),
        Figure("killed, longest", "s"),
        Figure("cut off, p50", "s"),
        Figure("cut off, longest", "s"),
        Figure("clean stop, longest", "s", at_most=0.5),
        Figure("dead disk, longest", "s", at_most=5),
        Figure("hung disk, longest", "s", at_most=5),
        Figure("false expiries", "", at_most=0),
        Figure("load average", ""),
    )
    short: ClassVar[dict[str, Any]] = {"faults": 2, "stops": 1, "disk_faults": 1}
    runs_to_record: ClassVar[int] = 1

    faults: int = 20
    """Half of them kills, half cuts."""
    stops: int = 3
    disk_faults: int = 2

    def missing(self) -> str | None:
        return why_not() or None

    def run(self, box: RunningBox, say: Say) -> Run:
        observer = Observer({})  # every process of the cluster dies on the way
        with tempfile.TemporaryDirectory(prefix="fail-over-", dir=box.directory) as scratch:
            cluster = Cluster(Path(scratch), settings=STOCK)
            try:
                cluster.start()
                with cluster.clients():
                    bench = Bench(cluster, say)
                    pauses = {name: self._suffer(bench, name) for name in FAULTS}
                left = cluster.stop()
            finally:
                cluster.end()
        deaths = pauses["killed"] + pauses["cut off"]
        figures = {
            "killed or cut off, p95": percentile(deaths, 0.95),
            "killed or cut off, p50": percentile(deaths, 0.5),
            "killed or cut off, longest": max(deaths),
            **{f"{name}, p50": percentile(pauses[name], 0.5) for name in ("killed", "cut off")},
            **{f"{name}, longest": max(values) for name, values in pauses.items()},
            "false expiries": bench.expiries.false,
            "load average": statistics.mean(bench.loads),
        }
        settings = ", ".join(f"{name} {SETTING_ROWS[name].default}" for name in TIMES)
        each = [f"{name}: {', '.join(f'{pause:.2f}' for pause in values)} s, one after the other" for name, values in pauses.items()]
        unclean = [f"boxes left behind at their clean end: {', '.join(left)}"] if left else []
        return Run(figures, observer.finish(), [f"stock settings: {settings}", *each, *unclean])

    def _suffer(self, bench: Bench, name: str) -> list[float]:
        times = {"killed": (self.faults + 1) // 2, "cut off": (self.faults + 1) // 2, "clean stop": self.stops}.get(name, self.disk_faults)
        return [bench.suffer(name) for _ in range(times)]
