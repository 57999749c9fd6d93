"""One copy under deaths: a box, a full source topic, two copiers, and a killer that kills processes by chance until the copy is done.

Everything by chance comes from the seed. The verdict is `copy_history.findings` over the copiers' histories, what the group said of its offsets all the while
(`group_watcher.py`), and what two read_committed consumers saw: one that read along, one that came after.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.runtime.spawning import die_with_parent
from lab.copier import EXIT_FATAL, OFFSETS_SECONDS
from lab.copy_history import CopiedRecord, Event, Finding, findings
from lab.group_watcher import GroupWatcher
from lab.load import QUICK_RECONNECT
from lab.running_box import ROOT, RunningBox, environment, eventually

PARTITIONS = 4
SOURCE, TARGET, GROUP = "copied-from", "copied-to", "copiers"
SETTINGS = {"group.min.session.timeout.ms": 1_000, "group.initial.rebalance.delay.ms": 0}
"""Of the box: members that are killed are soon missed, and those that come are not kept waiting."""
COPIERS = ("copier-0", "copier-1")
STUCK_SECONDS = OFFSETS_SECONDS + 5


class CopyPlan(NamedTuple):
    mode: str
    records: int
    batch: int
    deaths: int
    pause_seconds: tuple[float, float]
    """Between two deaths: from, to."""
    seconds: float
    """When it is given up."""
    client: str = "librdkafka"
    """Of the copiers: it, "kafka-python" or "aiokafka"."""


class CopyOutcome(NamedTuple):
    found: list[Finding]
    killed: list[str]
    transactions: int
    seconds: float


class CopiedThrough(Protocol):
    """A box, or several, through which records are copied, and what is killed there."""

    @property
    def directory(self) -> Path: ...

    @property
    def bootstrap(self) -> str: ...

    @property
    def messages(self) -> str: ...

    @property
    def replicas(self) -> int: ...

    @property
    def victims(self) -> tuple[str, ...]: ...

    def hurt(self, victim: str) -> bool:
        """Whether it was there to be killed."""


class OneBox:
    """Whose processes die, one after the other."""

    replicas = 1
    victims = ("acceptor@0", "coordinator", "log-writer@d0", "log-writer@d1")

    def __init__(self, box: RunningBox) -> None:
        self._box = box
        self.directory, self.bootstrap = box.directory, box.bootstrap

    @property
    def messages(self) -> str:
        return self._box.messages

    def hurt(self, victim: str) -> bool:
        if not self._box.status()[victim]["pid"]:
            return False
        self._box.kill(victim)
        return True


class _CopierProcess:
    """A copier and its restarts."""

    def __init__(self, box: CopiedThrough, name: str, plan: CopyPlan, chance: random.Random) -> None:
        self._chance = chance
        self.history = box.directory / f"{name}.history"
        self._messages = open(box.directory / f"{name}.messages", "ab")
        self._config: dict[str, object] = {"bootstrap": box.bootstrap, "source": SOURCE, "target": TARGET, "group": GROUP, "name": name, "mode": plan.mode}
        number = COPIERS.index(name)
        self._config |= {"history": str(self.history), "batch": plan.batch, "client": plan.client, "partitions": [*range(number, PARTITIONS, len(COPIERS))]}
        self._module = "lab.copier" if plan.client == "librdkafka" else "lab.foreign_copier"
        self._process = self._start()
        self._is_forgiven = plan.client == "librdkafka"
        self._written_bytes, self._written_at = 0, time.monotonic()
        self.stuck = 0
        """How often librdkafka had not sent the offsets of a transaction long after its own time-out."""

    def _start(self) -> subprocess.Popen[bytes]:
        config = json.dumps(self._config | {"seed": self._chance.randrange(1 << 30)})
        return subprocess.Popen(
            [sys.executable, "-m", self._module, config],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stderr=self._messages,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()
        self._written_at = time.monotonic()

    def _is_stuck(self) -> bool:
        """librdkafka's send_offsets_to_transaction never comes back, whatever its time-out, once the broker of the group coordinator that it remembers is gone
        from the metadata (tests/README.md). Users of such a program kill it then. No other silence is forgiven."""
        written = self.history.stat().st_size if self.history.exists() else 0
        if written != self._written_bytes:
            self._written_bytes, self._written_at = written, time.monotonic()
        if not self._is_forgiven or time.monotonic() - self._written_at < STUCK_SECONDS:
            return False
        events = self.events()
        return bool(events) and events[-1]["event"] == "offsets"

    def tend(self) -> None:
        """Its producer may be over, after which a client is expected to begin anew; anything else is no answer."""
        code = self._process.poll()
        if code is not None:
            assert code == EXIT_FATAL, f"a copier ended with {code}\n{Path(self._messages.name).read_text()}"
            self._process = self._start()
        elif self._is_stuck():
            self.stuck += 1
            self.kill()

    def ask_to_end(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """A copier that was asked to end has a minute."""
        try:
            eventually(lambda: self._process.poll() is not None or self._is_stuck(), "a copier ends", 60)
            self.stuck += self._process.poll() is None
        finally:
            self._process.kill()
            self._process.wait()
            self._messages.close()

    def events(self) -> list[Event]:
        return [json.loads(line) for line in self.history.read_text().splitlines()]


def run_copy(box: CopiedThrough, plan: CopyPlan, seed: int) -> CopyOutcome:
    """Fill the source, copy it under deaths, wait until the group stands at its end, and judge."""
    chance = random.Random(seed)
    ends = _fill(box.bootstrap, plan.records, box.replicas)
    along = CommittedReader(box.bootstrap)
    started = time.monotonic()
    copiers = {name: _CopierProcess(box, name, plan, random.Random(seed + number)) for number, name in enumerate(COPIERS)}
    everybody = (*box.victims, *COPIERS)
    victims = [everybody[index % len(everybody)] for index in range(plan.deaths)]
    chance.shuffle(victims)
    observer = Consumer({"bootstrap.servers": box.bootstrap, "group.id": GROUP, **QUICK_RECONNECT})
    watcher = GroupWatcher(box.bootstrap, GROUP, SOURCE, PARTITIONS)
    due, killed = [*victims], list[str]()
    next_death = started + chance.uniform(*plan.pause_seconds)
    committed: dict[int, int] = {}
    try:
        while due or committed != ends:
            assert time.monotonic() - started < plan.seconds, f"the copy is at {committed} of {ends} after {plan.seconds:g} s; {killed}\n{box.messages[-4000:]}"
            along.read(0.05)
            for copier in copiers.values():
                copier.tend()
            if due and time.monotonic() >= next_death:
                victim = due.pop()
                if victim in copiers:
                    copiers[victim].kill()
                    killed.append(victim)
                elif box.hurt(victim):
                    killed.append(victim)
                next_death = time.monotonic() + chance.uniform(*plan.pause_seconds)
            elif not due:
                committed = _committed(observer)
        seconds = time.monotonic() - started
    finally:
        watcher.close()
        for copier in copiers.values():
            copier.ask_to_end()
        for copier in copiers.values():
            copier.end()
    histories: list[list[Event]] = [copier.events() for copier in copiers.values()]
    after = CommittedReader(box.bootstrap)
    after.read_to_end()
    along.read_to_end()
    assert along.copied == after.copied, "the reader along the way and the reader afterwards see the same"
    if stuck := sum(copier.stuck for copier in copiers.values()):
        print(f"{stuck} times send_offsets_to_transaction did not come back {STUCK_SECONDS - OFFSETS_SECONDS:g} s after its time-out; its copier was killed")
    transactions = sum(event["event"] == "committed" for history in histories for event in history)
    histories.append([*watcher.events])
    # Partitions return to their preferred leaders meanwhile, so that a coordinator may refuse once. An answer without an offset is judged as it is.
    committed = eventually(lambda: _committed(observer), "a coordinator answers where the group stands")
    observer.close()
    print(f"{len(watcher.events)} times the group said where it stands")
    assert watcher.events, "no answer said where the group stands"
    return CopyOutcome(findings(ends, after.copied, histories, committed), killed, transactions, seconds)


def _fill(bootstrap: str, records: int, replicas: int) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(SOURCE, PARTITIONS, replicas), NewTopic(TARGET, PARTITIONS, replicas)]).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "queue.buffering.max.messages": records + 1, **QUICK_RECONNECT})
    failures: list[object] = []
    for number in range(records):
        value = f"record {number} {'x' * (number % 97)}".encode()
        producer.produce(SOURCE, value, partition=number % PARTITIONS, on_delivery=lambda error, _message: failures.append(error) if error else None)
    producer.flush(60)
    assert failures == []
    return {partition: len(range(partition, records, PARTITIONS)) for partition in range(PARTITIONS)}


def _committed(observer: Consumer) -> dict[int, int]:
    """Where the group stands, by partition (negative without a commit); {} while no broker can say."""
    try:
        answer = observer.committed([TopicPartition(SOURCE, partition) for partition in range(PARTITIONS)], 10)
    except KafkaException as refused:
        print(f"no answer about the group: {refused}")
        return {}
    return {} if any(each.error for each in answer) else {each.partition: each.offset for each in answer}


def _known(number: int | None) -> int:
    assert number is not None
    return number


class CommittedReader:
    """Reads the target from its beginning, read_committed, without a group."""

    def __init__(self, bootstrap: str) -> None:
        self.copied: dict[int, list[CopiedRecord]] = {partition: [] for partition in range(PARTITIONS)}
        config = {"bootstrap.servers": bootstrap, "group.id": "judges", "enable.auto.commit": False, "auto.offset.reset": "error", **QUICK_RECONNECT}
        self._consumer = Consumer({**config, "isolation.level": "read_committed", "fetch.wait.max.ms": 50, "enable.partition.eof": True})
        self._consumer.assign([TopicPartition(TARGET, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        self._bootstrap = bootstrap
        self._offsets = dict.fromkeys(range(PARTITIONS), -1)
        self._ends = dict.fromkeys(range(PARTITIONS), 0)

    def read(self, seconds: float) -> None:
        """What has come."""
        for message in self._consumer.consume(5_000, seconds):
            partition, offset = message.partition(), message.offset()
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    self._ends[_known(partition)] = _known(offset)
                continue
            partition, offset = _known(partition), _known(offset)
            assert offset > self._offsets[partition], f"partition {partition}: offset {offset} came after {self._offsets[partition]}"
            self._offsets[partition] = offset
            headers = dict(message.headers() or [])
            transaction = headers["transaction"]
            assert isinstance(transaction, bytes)
            self.copied[partition].append(CopiedRecord(int(headers["from"] or b""), transaction.decode()))

    def read_to_end(self) -> None:
        """Until the last stable offset is the end of the log, and that is read: no transaction may stay open."""
        probe = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "judges", "isolation.level": "read_uncommitted", **QUICK_RECONNECT})
        ends = {number: eventually(partial(_bounds, probe, number), f"the end of partition {number} is known", 30)[1] for number in range(PARTITIONS)}
        probe.close()

        def is_at_end() -> bool:
            self.read(0.1)
            return all(self._ends[number] >= ends[number] for number in range(PARTITIONS))

        eventually(is_at_end, f"the target is read to its end: {self._ends} of {ends}")
        self._consumer.close()


def _bounds(probe: Consumer, partition: int) -> tuple[int, int] | None:
    """First and end offset; None while the partition's log-writer is on its way back from the last death; librdkafka leaves it to its user to ask again."""
    try:
        return probe.get_watermark_offsets(TopicPartition(TARGET, partition), timeout=10)
    except KafkaException as failure:
        if failure.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
            raise
        return None
