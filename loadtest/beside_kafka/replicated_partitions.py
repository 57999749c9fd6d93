"""2,000 partitions with three replicas on three boxes: made, memory of a box, a clean stop, a start, and the death of a box that leads a third of them.

One contender at a time, from empty directories. Pauses are those of the partitions that the victim leads, by `many_partitions.PartitionsProbe`: with
acks=all, by a client that requests the new leaders at once. Weak spot: the probe's own round trip is in each pause (its row says how long it is), and three
boxes start, stop and catch up on the cores of one machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from appliance.base.errors import ErrorCode, RequestRefused
from lab.running_box import eventually
from loadtest.beside_kafka.clusters import ZOOKEEPER, ClusterContender
from loadtest.beside_kafka.contenders import Contender
from loadtest.beside_kafka.lives import a_life
from loadtest.beside_kafka.many_partitions import PartitionsProbe, leaders_now
from loadtest.beside_kafka.replicated import BOXES, as_cluster, await_in_sync
from loadtest.beside_kafka.requests import NO_RETENTION
from loadtest.beside_kafka.rows import Cell, Part, Row, Tools, Turn, turn_of
from loadtest.machine import load_average
from loadtest.memory import MB, process_memory
from loadtest.observation import Observer
from loadtest.topics import make_topic

TOPIC = "spread"
VICTIM = BOXES
PATIENCE_SECONDS = 120.0
CONTROL_SECONDS = 2.0
PROBED_OF_A_STOP = 24
"""So many of the victim's partitions, spread over all of them, are asked while it stops, each by a client of its own: in one request each would wait for the
slowest of them, and the round trip of all would be longer than what is measured."""


class LeaderWatch(threading.Thread):
    """Polls until the victim leads nothing and every partition has a leader."""

    def __init__(self, address: tuple[str, int], victim: int) -> None:
        super().__init__(daemon=True)
        self._address, self._victim = address, victim
        self._is_over = threading.Event()
        self.done_at = 0.0

    def run(self) -> None:
        while not self._is_over.wait(0.02):
            try:
                led = set(leaders_now(self._address, TOPIC).by_partition.values())
            except OSError:
                continue
            if not led & {self._victim, -1}:
                self.done_at = time.monotonic()
                return

    def finish(self) -> float:
        self.join(PATIENCE_SECONDS)
        self._is_over.set()
        assert self.done_at, f"partitions have no other leader after {PATIENCE_SECONDS:g} s"
        return self.done_at


@dataclass(frozen=True)
class ManyReplicatedPartitions(Cell):
    partitions: int = 2000

    @property
    def name(self) -> str:
        return f"{self.partitions:,} partitions × {BOXES}"

    @property
    def rows(self) -> tuple[Row, ...]:
        names = (("created, all replicas in the ISR", "s"), ("memory (PSS) a box", "MB"), ("idle CPU of all three", "% of a core"),
                 ("a probe's round without a fault", "s"), ("clean stop of a box", "s"), ("clean stop: longest pause of a partition", "s"),
                 ("start of the stopped box, all replicas in the ISR", "s"), ("box killed: until all its partitions have a leader", "s"),
                 ("box killed: until all its partitions take acks=all", "s"), ("start of the killed box, all replicas in the ISR", "s"))  # fmt: skip
        return tuple(Row(f"{self.name}: {words}", unit) for words, unit in names)

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        cluster = as_cluster(contender)
        with a_life(cluster):
            started = time.monotonic()
            partitions = tools.scaled(self.partitions)
            self._make(cluster, partitions)
            await_in_sync(cluster, TOPIC)
            created = time.monotonic() - started
            with probing(cluster, range(partitions)) as probe:
                probe.await_news_of_all(PATIENCE_SECONDS)  # each log has its first segment's first record
            time.sleep(CONTROL_SECONDS)
            observer = Observer(cluster.pids())
            time.sleep(2 * CONTROL_SECONDS)
            idle = observer.finish()
            memory = self._memory_of_a_box(cluster)
            tools.say(f"{cluster.name}: created in {created:.1f} s, {memory:.0f} MB a box; clean stop")
            stop, stop_pause, control = self._stop(cluster)
            tools.say(f"{cluster.name}: stopped in {stop:.1f} s, longest pause {stop_pause:.2f} s; start")
            start = self._start(cluster)
            leading = self._give_back(cluster, partitions)
            tools.say(f"{cluster.name}: back after {start:.1f} s, leads {leading}; kill -9")
            elected, taken = self._kill(cluster)
            tools.say(f"{cluster.name}: leaders after {elected:.1f} s, acks=all after {taken:.1f} s; start")
            restart = self._start(cluster)
        values = (created, memory, 100 * sum(idle.box.values()) / idle.seconds, control, stop, stop_pause, start, elected, taken, restart)
        turn = turn_of(dict(zip((row.name for row in self.rows), values, strict=True)), idle)
        return turn._replace(details={"leaders of the victim when it was killed": float(leading), "load average": load_average()})

    def _make(self, cluster: ClusterContender, partitions: int) -> None:
        """The request may time out after some seconds; the creation goes on all the same."""
        try:
            make_topic(cluster, TOPIC, partitions, NO_RETENTION, BOXES)
        except RequestRefused as refused:
            if refused.code not in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE):
                raise
            eventually(lambda: self._are_led(cluster, partitions), f"{cluster.name}: {partitions} partitions are led", PATIENCE_SECONDS)

    def _are_led(self, cluster: ClusterContender, partitions: int) -> bool:
        try:
            known = leaders_now(cluster.kafka, TOPIC).by_partition
        except OSError:  # a box answers when the topic is there
            return False
        return len(known) == partitions and -1 not in known.values()

    def _memory_of_a_box(self, cluster: ClusterContender) -> float:
        """Without ZooKeeper."""
        return sum(process_memory(pid).total for name, pid in cluster.pids().items() if name != ZOOKEEPER) / MB / BOXES

    def _stop(self, cluster: ClusterContender) -> tuple[float, float, float]:
        """Seconds that it took, the longest pause, the longest one just before."""
        led = led_by_victim(cluster)
        chosen = led[:: max(1, len(led) // PROBED_OF_A_STOP)][:PROBED_OF_A_STOP]
        with ExitStack() as stack:
            probes = [stack.enter_context(probing(cluster, [partition])) for partition in chosen]
            for probe in probes:
                probe.await_news_of_all(PATIENCE_SECONDS)
                probe.begin()
            time.sleep(CONTROL_SECONDS)
            control = max(probe.longest() for probe in probes)
            for probe in probes:
                probe.begin()
            started = time.monotonic()
            cluster.members[VICTIM].stop()
            seconds = time.monotonic() - started
            for probe in probes:
                probe.await_news_of_all(PATIENCE_SECONDS)
            return seconds, max(probe.longest() for probe in probes), control

    def _start(self, cluster: ClusterContender) -> float:
        started = time.monotonic()
        cluster.members[VICTIM].start()
        await_in_sync(cluster, TOPIC)
        return time.monotonic() - started

    def _give_back(self, cluster: ClusterContender, partitions: int) -> int:
        """The victim leads what it should; how many that are. By ElectLeaders, as an operator would."""
        address = cluster.members[1].kafka
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

        def led() -> int:
            return sum(leader == VICTIM for leader in leaders_now(address, TOPIC).by_partition.values())

        def is_given_back() -> bool:
            try:
                admin.elect_leaders(ElectionType.PREFERRED, None).result(PATIENCE_SECONDS)
            except KafkaException:
                return False
            return led() >= partitions // BOXES * 0.9

        eventually(is_given_back, f"{cluster.name}: the box leads its share again", PATIENCE_SECONDS)
        return led()

    def _kill(self, cluster: ClusterContender) -> tuple[float, float]:
        """Until all that it led have another leader; until all of them have acknowledged."""
        with probing(cluster, led_by_victim(cluster)) as probe:
            probe.await_news_of_all(PATIENCE_SECONDS)
            watch = LeaderWatch(cluster.members[1].kafka, VICTIM)
            killed = probe.begin()
            cluster.members[VICTIM].kill()
            watch.start()
            elected = watch.finish() - killed
            probe.await_news_of_all(PATIENCE_SECONDS)
            return elected, probe.longest()


def led_by_victim(cluster: ClusterContender) -> list[int]:
    known = leaders_now(cluster.members[1].kafka, TOPIC).by_partition
    return sorted(partition for partition, leader in known.items() if leader == VICTIM)


@contextmanager
def probing(cluster: ClusterContender, partitions: Sequence[int]) -> Iterator[PartitionsProbe]:
    probe = PartitionsProbe([member.kafka for member in cluster.others_than(VICTIM)], TOPIC, partitions)
    try:
        yield probe
    finally:
        probe.stop()


class ReplicatedPartitionsPart(Part):
    name = "replicated_partitions"
    boxes = BOXES
    rounds = 1
    lives_are_shared = False
    title = (
        f"one topic with 2,000 partitions, replication factor {BOXES}, on three boxes on one machine; a box that leads a third of them stops, starts, is killed"
    )

    @property
    def cells(self) -> Sequence[Cell]:
        return [ManyReplicatedPartitions()]
