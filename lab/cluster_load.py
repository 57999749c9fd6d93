"""Clients of a cluster that keep their own ledgers (`cluster_history.py` judges them): producers with acks=all, plain, idempotent and transactional, and
readers that read along, alone and as members of a group.

All are librdkafka in threads of the test; started `inside` the clients' machine, they and their sockets belong there. Chance is a seed.
Weak spot: a record that librdkafka gives up (after `GIVE_UP_MS`) counts as refused, although it may be in the log.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from lab.cluster_history import ABORTED, ACKNOWLEDGED, COMMITTED, REFUSED, UNKNOWN, EndAnswer, Sent, TimedRead
from lab.load import QUICK_RECONNECT

GIVE_UP_MS = 60_000
STOP_SECONDS = 90.0
WORK_SECONDS = 10.0
PAUSE_SECONDS = 0.05
"""Without it, the clients of `Repeated` take all processors."""
IMPATIENT = {**QUICK_RECONNECT, "socket.connection.setup.timeout.ms": 1000, "topic.metadata.refresh.interval.ms": 2000}
PRODUCING = {"acks": "all", "linger.ms": 2, "message.timeout.ms": GIVE_UP_MS, "request.timeout.ms": 1500, "socket.timeout.ms": 2500, "batch.size": 8192}
"""A cut network reports nothing: a request without an answer is given up after a second or two, and tried at the leader of that time."""


COMMIT_REFUSED = (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS)
"""After these the offsets are surely not committed."""


class _Thread:
    """`run` until `stop`."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.died: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._stop.set()
        self._thread.join(STOP_SECONDS)
        assert not self._thread.is_alive(), f"{type(self).__name__} does not end"
        assert self.died is None, f"{type(self).__name__} died of {self.died!r}"

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.died = error

    def run(self) -> None:
        raise NotImplementedError


class AllAcks(_Thread):
    """acks=all, plain or idempotent: numbered records to each partition in turn."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, is_idempotent: bool, records_a_second: int = 200) -> None:
        super().__init__()
        self.topic, self.is_idempotent = topic, is_idempotent
        self.sent: list[Sent] = []
        self.acknowledged_at: dict[int, list[float]] = defaultdict(list)
        self.acknowledged: dict[int, list[tuple[float, int]]] = defaultdict(list)
        """Partition → (moment, offset)."""
        self.errors: dict[str, int] = defaultdict(int)
        self.broken: list[str] = []
        """What ended the producer before its time; an idempotent one has an answer that it cannot go on after."""
        self._partitions, self._burst = partitions, max(1, records_a_second // 50)
        retries = {} if is_idempotent else {"max.in.flight": 5}
        self._producer = Producer({"bootstrap.servers": bootstrap, **PRODUCING, **IMPATIENT, "enable.idempotence": is_idempotent, **retries})

    def run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                break
            value, partition = f"{self.topic}:{number}", number % self._partitions
            try:
                self._producer.produce(self.topic, value.encode(), partition=partition, on_delivery=self._on_delivery)
            except BufferError:
                self._producer.poll(0.1)
                self.sent.append(Sent(value, partition, REFUSED))
            except KafkaException as error:
                self.sent.append(Sent(value, partition, REFUSED))
                self.broken.append(str(error.args[0]))
                break
            if number % self._burst == 0:
                self._producer.poll(0)
                self._stop.wait(0.02)
        try:
            self._producer.flush(GIVE_UP_MS / 1000 + 5)
        except (KafkaException, SystemError) as error:  # the latter where the binding has lost what it wanted to say
            self.broken.append(f"flush: {error}")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        partition, value, offset = message.partition(), message.value(), message.offset()
        assert partition is not None and value is not None
        if error is not None:
            self.errors[error.name()] += 1
            self.sent.append(Sent(value.decode(), partition, REFUSED))
            return
        self.sent.append(Sent(value.decode(), partition, ACKNOWLEDGED, -1 if offset is None else offset))
        self.acknowledged_at[partition].append(time.monotonic())
        self.acknowledged[partition].append((time.monotonic(), -1 if offset is None else offset))


class Transactions(_Thread):
    """Transactions over all partitions, some given up on purpose; a producer that is broken is followed by another producer with its transactional id."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        super().__init__()
        self.topic = topic
        self.sent: list[Sent] = []
        self.fates: dict[int, str] = {}
        self.commit_asked_at: dict[int, float] = {}
        self.errors: dict[str, int] = defaultdict(int)
        self.broken: list[str] = []
        self._partitions, self._random = partitions, random.Random(seed)
        self._options = {
            "bootstrap.servers": bootstrap,
            **PRODUCING,
            **IMPATIENT,
            "transactional.id": topic,
            "transaction.timeout.ms": 10_000,
            "message.timeout.ms": 9_000,
        }
        self._numbers = itertools.count()

    def run(self) -> None:
        producer: Producer | None = None
        for transaction in itertools.count():
            if self._stop.is_set():
                break
            self.fates[transaction] = UNKNOWN
            try:
                producer = producer or self._new_life()
                if producer is None:
                    break
                self.fates[transaction] = self._one(producer, transaction)
            except KafkaException as error:
                self._note("transaction", error)
                producer = None  # its fate stays unknown; the next producer ends what this one left open
            self._stop.wait(0.03)

    def _new_life(self) -> Producer | None:
        while not self._stop.is_set():
            producer = Producer(self._options)
            try:
                producer.init_transactions(15)
                return producer
            except KafkaException as error:
                self._note("begin", error)
        return None

    def _one(self, producer: Producer, transaction: int) -> str:
        producer.begin_transaction()
        for _ in range(self._random.randint(1, 12)):
            value, partition = f"{self.topic}:{next(self._numbers)}", self._random.randrange(self._partitions)
            self.sent.append(Sent(value, partition, UNKNOWN, -1, transaction))
            producer.produce(self.topic, value.encode(), partition=partition)
        if self._random.random() < 0.2:
            return self._abort(producer)
        self.commit_asked_at[transaction] = time.monotonic()
        while True:
            try:
                producer.commit_transaction(15)
                return COMMITTED
            except KafkaException as error:
                self._note("commit", error)
                if error.args[0].txn_requires_abort():
                    return self._abort(producer)
                if not error.args[0].retriable():
                    raise

    def _abort(self, producer: Producer) -> str:
        while True:
            try:
                producer.abort_transaction(15)
                return ABORTED
            except KafkaException as error:
                self._note("abort", error)
                if not error.args[0].retriable():
                    raise

    def _note(self, doing: str, error: KafkaException) -> None:
        self.errors[f"{doing}: {error.args[0].name()}"] += 1


class Reader(_Thread):
    """Reads every partition from its beginning, and goes on until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, isolation: str = "read_uncommitted", name: str = "reader") -> None:
        super().__init__()
        self.topic, self.isolation = topic, isolation
        self.seen: dict[int, list[tuple[int, str]]] = {partition: [] for partition in range(partitions)}
        self.reads: list[TimedRead] = []
        self.errors: dict[str, int] = defaultdict(int)
        options: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": name, "enable.auto.commit": False, "auto.offset.reset": "error"}
        reading = {"fetch.wait.max.ms": 100, "isolation.level": isolation, "enable.partition.eof": True, "socket.timeout.ms": 2500, "check.crcs": True}
        self._consumer = Consumer({**options, **reading, **IMPATIENT})
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
        self.ended_at: dict[int, int] = {}
        """Partition → the offset at which it last had nothing more."""

    def run(self) -> None:
        try:
            while not self._stop.is_set():
                for message in self._consumer.consume(500, 0.05):
                    self._take(message)
        finally:
            self._consumer.close()

    def _take(self, message: Message) -> None:
        error, partition, offset, value = message.error(), message.partition(), message.offset(), message.value()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            assert partition is not None and offset is not None
            self.ended_at[partition] = offset
        elif error is not None:
            self.errors[error.name()] += 1
        else:
            assert partition is not None and offset is not None and value is not None
            self.seen[partition].append((offset, value.decode()))
            self.reads.append(TimedRead(partition, value.decode(), time.monotonic()))


def read_all(bootstrap: str, wanted: Iterable[tuple[str, str]], partitions: int, seconds: float = 20.0) -> list[dict[int, list[tuple[int, str]]]]:
    """What is in each topic, as (topic, isolation level), from the beginning to the end, once no producer writes any more; all side by side."""
    readers = [Reader(bootstrap, topic, partitions, isolation, "final") for topic, isolation in wanted]
    for reader in readers:
        reader.start()
    deadline = time.monotonic() + seconds
    try:
        for reader in readers:
            while len(reader.ended_at) < partitions:
                assert time.monotonic() < deadline, f"{reader.topic} cannot be read to its end: {dict(reader.errors)}, ends {reader.ended_at}"
                time.sleep(0.02)
    finally:
        for reader in readers:
            reader.stop()
        for reader in readers:
            reader.join()
    return [reader.seen for reader in readers]


class GroupMember(_Thread):
    """A member of a group, which reads, then commits what it has read, and waits for the answer; `events` are those of `copy_history`. After a commit whose
    fate it does not know it comes again as another member, so that what is still on its way is refused."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__()
        self.topic = topic
        self.events: list[dict[str, Any]] = []
        self.errors: dict[str, int] = defaultdict(int)
        times = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 50, "socket.timeout.ms": 2500}
        self._options = {**IMPATIENT, **times, "bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self._gathered: dict[int, list[int]] = {}
        self._is_assigned = False

    @property
    def last_words(self) -> str:
        """What it did last, and how long ago."""
        last = self.events[-1]
        return f"{last['event']} {(time.monotonic_ns() - last['at']) / 1e9:.0f} s ago, {dict(self.errors)}"

    def _write(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, "at": time.monotonic_ns(), **fields})

    def run(self) -> None:
        while not self._stop.is_set():
            consumer = Consumer(self._options)
            try:
                self._write("start")
                self._is_assigned = False
                consumer.subscribe([self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
                while not self._stop.is_set():
                    self._poll(consumer)
                    if self._gathered:
                        self._commit(consumer)
            except KafkaException as error:
                self.errors[error.args[0].name()] += 1
            finally:
                consumer.close()

    def _poll(self, consumer: Consumer) -> None:
        """One message a call: a rebalance comes between two, and what was gathered before it is not committed."""
        self._gathered = {}
        until = time.monotonic() + 0.1
        while (left := until - time.monotonic()) > 0:
            message = consumer.poll(left)
            if message is not None and message.error() is not None:
                self.errors[str(message.error().name())] += 1  # type: ignore[union-attr]
            elif message is not None and self._is_assigned:
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                self._write("poll", offsets={partition: [offset]})
                self._gathered.setdefault(partition, []).append(offset)

    def _commit(self, consumer: Consumer) -> None:
        ends = {partition: offsets[-1] + 1 for partition, offsets in self._gathered.items()}
        self._write("commit", ends=ends)
        try:
            told = consumer.commit(offsets=[TopicPartition(self.topic, partition, end) for partition, end in ends.items()], asynchronous=False)
            for each in told or ():
                if each.error is not None:
                    raise KafkaException(each.error)
        except KafkaException as error:
            if error.args[0].code() not in COMMIT_REFUSED:
                raise
            self.errors[error.args[0].name()] += 1
        else:
            self._write("committed", ends=ends)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._gathered = {}
        while partitions and not self._stop.is_set():
            asked_at = time.monotonic_ns()
            try:
                told = consumer.committed(partitions, 5)
            except KafkaException as error:
                self.errors[error.args[0].name()] += 1
                continue
            if all(each.error is None for each in told):
                positions = {each.partition: max(0, each.offset) for each in told}
                consumer.assign([TopicPartition(self.topic, partition, offset) for partition, offset in positions.items()])
                self._write("assign", positions=positions, asked_at=asked_at)
                self._is_assigned = True
                return

    def _on_revoke(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._gathered, self._is_assigned = {}, False
        self._write("revoke")


class EndsWatcher(_Thread):
    """Asks for the ends of all partitions (ListOffsets), one request after the other."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__()
        self.topic, self._partitions = topic, partitions
        self.answers: list[EndAnswer] = []
        self.errors: dict[str, int] = defaultdict(int)
        self._consumer = Consumer({**IMPATIENT, "bootstrap.servers": bootstrap, "group.id": "ends", "socket.timeout.ms": 2500})

    def run(self) -> None:
        try:
            while not self._stop.wait(PAUSE_SECONDS):
                for partition in range(self._partitions):
                    asked_at = time.monotonic()
                    try:
                        bounds = self._consumer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=3)
                    except KafkaException as error:
                        self.errors[error.args[0].name()] += 1
                        continue
                    if bounds is not None:
                        self.answers.append(EndAnswer(partition, asked_at, bounds[1]))
        finally:
            self._consumer.close()


class Repeated(_Thread):
    """Calls `work` until `stop`, with a pause between two calls; `times` has when it succeeded."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.name = work.name
        self.times: list[float] = []
        self._call = work.call

    def run(self) -> None:
        while not self._stop.is_set():
            if self._call():
                self.times.append(time.monotonic())
            self._stop.wait(PAUSE_SECONDS)

    def longest_gap(self, began: float, ended: float) -> float:
        """Return the longest time without a success between two times."""
        times = [began, *(each for each in self.times if began < each < ended), ended]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


class Work(NamedTuple):
    """Something that a client does again and again: `call` returns whether it succeeded."""

    name: str
    call: Callable[[], bool]


def client_work(bootstrap: str, topic: str) -> list[Work]:
    """Return what clients do all day with one topic: produces, reads, commits of a group, transactions."""
    usual = {"bootstrap.servers": bootstrap, **IMPATIENT}
    produced = {acks: Producer({**usual, **PRODUCING, "acks": acks}) for acks in ("all", "1")}
    reader = Consumer({**usual, "group.id": "without", "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    tail = Consumer({**usual, "group.id": "tail", "enable.auto.commit": False})
    tail.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    transactional = Producer({**usual, **PRODUCING, "transactional.id": "without"})
    transactional.init_transactions(30)

    def produce(acks: str) -> bool:
        failed: list[Any] = []
        produced[acks].produce(topic, b"x", partition=0, on_delivery=lambda error, _message: failed.append(error))
        return not produced[acks].flush(WORK_SECONDS) and failed == [None]

    def read() -> bool:
        message = tail.poll(WORK_SECONDS)
        return message is not None and message.error() is None

    def commit() -> bool:
        message = reader.poll(WORK_SECONDS)
        if message is None or message.error():
            return False
        try:
            reader.commit(message=message, asynchronous=False)
        except KafkaException:
            return False
        return True

    def transact() -> bool:
        transactional.begin_transaction()
        transactional.produce(topic, b"t")
        transactional.commit_transaction(30)
        return True

    return [
        Work("acks=all", lambda: produce("all")),
        Work("acks=1", lambda: produce("1")),
        Work("read", read),
        Work("commit", commit),
        Work("transaction", transact),
    ]
