"""One cell of the matrix: clients at work, a fault at a box that has a role, everything back, and the judgement.

All three kinds of producer and readers of each work at the same time, on topics of their own whose replicas are laid so that the victim has the role that is
asked for: it leads all their partitions (and is not the controller), follows all of them, or is the controller (and follows). What chance decides comes from
the cell's seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from lab.cluster import KAFKA_PORT, Cluster, ClusterBox
from lab.cluster_history import Finding, Seen, acknowledged_findings, reader_findings, transaction_findings
from lab.cluster_load import AllAcks, Reader, Transactions, read_all
from lab.machine import address_of
from lab.pause_probe import Pause, PauseProbe
from lab.replica_comparison import differences, replica_directories
from lab.running_box import eventually

LEADER, FOLLOWER, CONTROLLER = "leader", "follower", "controller"
ROLES = (LEADER, FOLLOWER, CONTROLLER)
PARTITIONS = 2
WARM_RECORDS = 50
AFTER_SECONDS, AFTER_SECONDS_BRIEFLY = 2.0, 1.0
BRIEF_SHARE = 0.5
TAKEN_SECONDS = 0.5
AGAIN_SECONDS = 20.0
"""A fault lasts until acks=all is taken again, no longer than this; a busy machine takes its time, so how long it took is in the result, and is not judged."""
IN_SYNC_SECONDS = 90.0
READ_SECONDS = 20.0

PROCESSES = ("zookeeper", "controller", "coordinator", "log-writer", "log-reader", "acceptor", "replica-fetcher")


class Fault(NamedTuple):
    """`apply(cluster, box, topic)` does it; `Cluster.mend` undoes it after `seconds`, or when acks=all is taken again if that is later."""

    name: str
    apply: Callable[[Cluster, ClusterBox, str], None]
    seconds: float = 5.0


class CellResult(NamedTuple):
    fault: str
    role: str
    seed: int
    victim: int
    pauses: list[Pause]
    findings: dict[str, list[str]]
    """Kind of producer → what is wrong; "cluster" for what belongs to no single kind."""
    counts: dict[str, int]
    errors: dict[str, dict[str, int]]

    @property
    def pause_seconds(self) -> float | None:
        """The longest of any partition; None if one took no acks=all any more."""
        seconds = [pause.seconds for pause in self.pauses]
        return None if None in seconds else max((each for each in seconds if each is not None), default=None)

    @property
    def is_good(self) -> bool:
        return self.pause_seconds is not None and not any(self.findings.values())

    def words(self) -> str:
        pause = "no acks=all again" if self.pause_seconds is None else f"pause {self.pause_seconds:.2f} s"
        found = "; ".join(f"{who}: {what[0]}" + (f" and {len(what) - 1} more" if len(what) > 1 else "") for who, what in self.findings.items() if what)
        verdict = found or ("good" if self.is_good else "nothing else")
        return f"{self.fault:<24} {self.role:<10} seed {self.seed} box {self.victim} {pause}, records {self.counts}; {verdict}"


def _kill_process(kind: str) -> Callable[[Cluster, ClusterBox, str], None]:
    def apply(_cluster: Cluster, box: ClusterBox, topic: str) -> None:
        name = kind
        if kind in ("log-writer", "log-reader"):
            name = f"{kind}@{disk_name(box, topic)}"
        elif kind == "acceptor":
            name = "acceptor@0"
        box.box.kill(name)

    return apply


def _disk_with(box: ClusterBox, topic: str) -> int:
    """Index of the disk that has the topic's first partition."""
    return next((index for index, disk in enumerate(box.disks) if (disk.seen_from_here / f"{topic}-0").is_dir()), 0)


def disk_name(box: ClusterBox, topic: str) -> str:
    """The disk that has the topic's first partition."""
    return box.box.box.disks[_disk_with(box, topic)].name


def _kill_box(_cluster: Cluster, box: ClusterBox, _topic: str) -> None:
    box.kill()


def _die_off_the_network(cluster: Cluster, box: ClusterBox, _topic: str) -> None:
    """As a box whose power goes: its peers hear nothing more, not even that its connections are closed."""
    cluster.network.cut(box.number)
    box.kill()


def _cut_off_its_peers(cluster: Cluster, box: ClusterBox, _topic: str) -> None:
    """Clients reach it still: a leader that would acknowledge alone does it now."""
    for other in cluster.boxes:
        if other != box.number:
            cluster.network.cut_pair(box.number, other)


def _expire(cluster: Cluster, box: ClusterBox, _topic: str) -> None:
    box.expire_session(cluster.zookeeper)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("clean stop", lambda _cluster, box, _topic: box.stop(), 3.0),
        Fault("kill -9 of the box", _kill_box),
        Fault("power off", _die_off_the_network),
        *(Fault(f"kill -9 of {kind}", _kill_process(kind), 3.0) for kind in PROCESSES),
        Fault("freeze", lambda _cluster, box, _topic: box.freeze(), 6.0),
        Fault("cut both ways", lambda cluster, box, _topic: cluster.network.cut(box.number), 6.0),
        Fault("cut off its peers", _cut_off_its_peers, 6.0),
        Fault("cut one way", lambda cluster, box, _topic: cluster.network.cut_outgoing(box.number), 6.0),
        Fault("slow network", lambda cluster, box, _topic: cluster.network.slow_down(box.number), 6.0),
        Fault("disk dead", lambda _cluster, box, topic: box.shut_disk_down(_disk_with(box, topic)), 7.0),
        Fault("disk hung", lambda _cluster, box, topic: box.disks[_disk_with(box, topic)].freeze(), 7.0),
        Fault("disk full", lambda _cluster, box, topic: box.disks[_disk_with(box, topic)].fill(), 7.0),
        Fault("log-writer suspended", lambda _cluster, box, topic: box.suspend(f"log-writer@{disk_name(box, topic)}"), 7.0),
        Fault("session expiry", _expire, 4.0),
    )
}


class Cell:
    """Topics, clients, fault, judgement. To be run on the clients' machine, from the main thread. `is_brief`: half of the fault's time is enough."""

    def __init__(self, cluster: Cluster, fault: Fault, role: str, seed: int, number: int, is_brief: bool = False) -> None:
        self._cluster, self._fault, self._role, self._seed = cluster, fault, role, seed
        self._is_brief = is_brief
        self._random = random.Random(seed)
        self._topic_config: dict[str, str] = {}
        self._patience = 1.0
        """A machine without time for the clients needs a multiple of the usual waits."""
        self._finals: dict[tuple[str, str], Seen] = {}
        """(topic, isolation level) → what was in it at the end."""
        self._topics = {kind: f"{kind}-{number}" for kind in ("plain", "idempotent", "transactional", "probe")}

    def run(self) -> CellResult:
        victim = int(eventually(self._begun, "a controller makes the topics", 60))
        with ExitStack() as books:
            producers, readers = self._start_clients()
            for client in (*producers.values(), *readers):
                books.callback(client.stop)
            eventually(lambda: all(len(producer.sent) > WARM_RECORDS for producer in producers.values()), "all producers produce")
            box = self._cluster.boxes[victim]
            others = [(address_of(number), KAFKA_PORT) for number in self._cluster.boxes if number != victim]
            probe = PauseProbe(others, self._topics["probe"], range(PARTITIONS))
            books.callback(probe.stop)
            eventually(lambda: probe.has_answers, "the probes are acknowledged")
            fault_at = time.monotonic()
            self._fault.apply(self._cluster, box, self._topics["plain"])
            self._let_it_last(probe, fault_at)
            pauses = probe.pauses(fault_at, time.monotonic())
            self._cluster.mend()
            time.sleep(AFTER_SECONDS_BRIEFLY if self._is_brief else AFTER_SECONDS)
            probe.stop()
            findings = {"cluster": self._await_in_sync()}
            for client in producers.values():
                client.join()
            findings.update(self._judge(producers, readers))
            for kind, producer in producers.items():
                findings[kind] += [f"producer: {words}" for words in producer.broken]
        errors = {type(client).__name__ + " " + client.topic: dict(client.errors) for client in (*producers.values(), *readers) if client.errors}
        self._admin.delete_topics(list(self._topics.values()))
        counts = {kind: len(producer.sent) for kind, producer in producers.items()}
        return CellResult(self._fault.name, self._role, self._seed, victim, pauses, findings, counts, errors)

    def _let_it_last(self, probe: PauseProbe, fault_at: float) -> None:
        least = fault_at + self._fault.seconds * (BRIEF_SHARE if self._is_brief else 1)
        while (now := time.monotonic()) < fault_at + AGAIN_SECONDS:
            if now >= least and None not in [pause.seconds for pause in probe.pauses(now - TAKEN_SECONDS, now)]:
                return
            time.sleep(0.02)

    # -- roles of the boxes

    def _cast(self) -> tuple[int, list[list[int]]]:
        """The victim, and the replicas of each partition, the first leading."""
        controller = self._controller()
        numbers = sorted(self._cluster.boxes)
        victim = controller if self._role == CONTROLLER else self._random.choice([number for number in numbers if number != controller])
        others = [number for number in numbers if number != victim]
        if self._role == LEADER:
            return victim, [[victim, *self._random.sample(others, len(others))] for _ in range(PARTITIONS)]
        return victim, [
            [others[partition % len(others)], *self._shuffled([n for n in numbers if n != others[partition % len(others)]])] for partition in range(PARTITIONS)
        ]

    def _shuffled(self, numbers: list[int]) -> list[int]:
        return self._random.sample(numbers, len(numbers))

    def _controller(self) -> int:
        """As all boxes agree, all seen live by all: after a fault of the controller one may be late, after the ensemble's one may not be registered."""

        def agreed() -> int | None:
            told = [AdminClient({"bootstrap.servers": box.address, "log_level": 0}).list_topics(timeout=30) for box in self._cluster.boxes.values()]
            controllers = {int(metadata.controller_id) for metadata in told}
            are_live = all(set(metadata.brokers) == set(self._cluster.boxes) for metadata in told)
            return controllers.pop() if are_live and len(controllers) == 1 and controllers != {-1} else None

        return int(eventually(agreed, "all boxes know the controller, and each other", 20))

    def _begun(self) -> int | None:
        """The victim, with all topics made; None if since the parts were given the controller is another one, or a box is away."""
        victim, replicas = self._cast()
        # Not before all know the controller: librdkafka asks whom it heard of first, and does not ask again when that one says that it is not.
        self._admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0, "socket.timeout.ms": 20_000})
        config = {"min.insync.replicas": str(min(2, len(replicas[0]))), **self._topic_config}
        topics = [NewTopic(name, len(replicas), replica_assignment=replicas, config=config) for name in self._topics.values()]
        try:
            for made in self._admin.create_topics(topics, operation_timeout=20).values():
                made.result(30)
        except KafkaException as error:
            # A box whose session ended with what was before this cell is about to register again, or the ensemble elects.
            if error.args[0].code() not in (KafkaError.NOT_CONTROLLER, KafkaError.INVALID_REPLICA_ASSIGNMENT, KafkaError.REQUEST_TIMED_OUT):
                raise
            return None
        assert self._await_in_sync() == []
        return victim

    def _await_in_sync(self) -> list[str]:
        """What is missing after a while."""
        deadline = time.monotonic() + IN_SYNC_SECONDS * self._patience
        while True:
            missing = self._missing_replicas()
            if not missing or time.monotonic() >= deadline:
                return missing
            time.sleep(0.1)

    def _missing_replicas(self) -> list[str]:
        told = self._admin.list_topics(timeout=30).topics
        missing = []
        for name in self._topics.values():
            partitions = told[name].partitions if name in told else {}
            if len(partitions) < PARTITIONS:
                missing.append(f"{name} has {len(partitions)} partitions")
            missing += [
                f"{name}-{p.id}: leader {p.leader}, ISR {p.isrs} of {p.replicas}"
                for p in partitions.values()
                if set(p.isrs) != set(p.replicas) or p.leader not in p.replicas
            ]
        return missing

    # -- clients and their judge

    def _start_clients(self) -> tuple[dict[str, Any], list[Reader]]:
        where, topics = self._cluster.bootstrap, self._topics
        producers: dict[str, Any] = {
            "plain": AllAcks(where, topics["plain"], PARTITIONS, is_idempotent=False),
            "idempotent": AllAcks(where, topics["idempotent"], PARTITIONS, is_idempotent=True),
            "transactional": Transactions(where, topics["transactional"], PARTITIONS, self._seed),
        }
        readers = [Reader(where, topics[kind], PARTITIONS) for kind in producers]
        readers.append(Reader(where, topics["transactional"], PARTITIONS, "read_committed"))
        for client in (*producers.values(), *readers):
            client.start()
        return producers, readers

    def _judge(self, producers: dict[str, Any], readers: list[Reader]) -> dict[str, list[str]]:
        wanted = [(producer.topic, "read_uncommitted") for producer in producers.values()]
        wanted.append((self._topics["transactional"], "read_committed"))
        *finals, committed = told = read_all(self._cluster.bootstrap, wanted, PARTITIONS, READ_SECONDS * self._patience)
        self._finals = dict(zip(wanted, told, strict=True))
        found = {}
        for (kind, producer), final in zip(producers.items(), finals, strict=True):
            along = [reader for reader in readers if reader.topic == producer.topic]
            for reader in along:
                reader.join()
            findings = reader_findings([final, *(reader.seen for reader in along)])
            if kind == "transactional":
                findings += transaction_findings(producer.sent, producer.fates, committed)
            else:
                findings += acknowledged_findings(producer.sent, final, may_double=kind == "plain")
            words = [words_of(finding) for finding in findings]
            words += [f"reader: {name}" for reader in along for name in reader.errors if name == "_AUTO_OFFSET_RESET"]
            found[kind] = words + self._compare(producer.topic, final)
        return found

    def _compare(self, topic: str, final: dict[int, list[tuple[int, str]]]) -> list[str]:
        places = {number: [disk.seen_from_here for disk in box.disks] for number, box in self._cluster.boxes.items()}
        words = []
        for partition, records in final.items():
            below = records[-1][0] + 1 if records else 0
            words += differences(replica_directories(places, topic, partition), below)
        return words


def words_of(finding: Finding) -> str:
    """One line."""
    return f"{finding.kind}, partition {finding.partition}: {finding.what}"
