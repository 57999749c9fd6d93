"""A process that copies records from one topic to another, and writes a history of all it has seen and done: `python -m lab.copier CONFIG`.

CONFIG is JSON: `bootstrap`, `source`, `target`, `group`, `name`, `mode`, `history` (a file), `batch`, `seed`. Partition p of the source goes to partition p
of the target. Between the steps of a copy it pauses by chance, so that deaths come between them. A line of the history is written before the next thing is
done, so that a process that is killed has said what it had begun. SIGTERM ends it; an error after which librdkafka wants a new producer ends it with exit
code 3.

Modes: `exactly-once` sends the offsets with the transaction; `at-least-once` commits them after the records are acknowledged; `at-most-once` commits them
before the records are sent.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from lab.load import QUICK_RECONNECT

CALL_SECONDS = 30.0
GATHER_SECONDS = 0.1
PAUSE_SECONDS = 0.06
EXIT_FATAL = 3
TRANSACTION_TIMEOUT_MS = 10_000
OFFSETS_SECONDS = TRANSACTION_TIMEOUT_MS / 1000
"""For the offsets of a transaction; after that it is over anyway."""


class History:
    """Lines of JSON: an event, its moment (the machine's monotonic clock, in ns) and what belongs to it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, **fields: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, "at": time.monotonic_ns(), "pid": os.getpid(), **fields}) + "\n").encode())


class Copier:
    """One run of the program."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._source, self._target, self._batch = config["source"], config["target"], config["batch"]
        self._mode: str = config["mode"]
        self._history = History(config["history"])
        self._tag = f"{config['name']}-{os.getpid()}"
        self._count = 0
        self._positions: dict[int, int] = {}
        """By partition: up to where the assignment has been copied for good."""
        self._chance = random.Random(config["seed"])
        self._gathered: list[Message] = []
        """Polled under the assignment of now, and not copied yet."""
        self._is_revoked = False
        self.is_stopping = False
        shared = {"bootstrap.servers": config["bootstrap"], **QUICK_RECONNECT}
        self._producer = Producer({**shared, "enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 60_000, **self._transactional(config["name"])})
        self._consumer = Consumer(
            {
                **shared,
                "group.id": config["group"],
                "client.id": config["name"],
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 1_500,
                "heartbeat.interval.ms": 300,
                "fetch.wait.max.ms": 50,
            }
        )

    def _transactional(self, name: str) -> dict[str, str | int]:
        if self._mode != "exactly-once":
            return {}
        return {"transactional.id": f"{name}-transactions", "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "message.timeout.ms": TRANSACTION_TIMEOUT_MS}

    def run(self) -> None:
        self._history.write("start", mode=self._mode)
        if self._mode == "exactly-once":
            self._patiently(lambda: self._producer.init_transactions(CALL_SECONDS))
        self._consumer.subscribe([self._source], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        while not self.is_stopping:
            self._pause()
            self._is_revoked = False
            polled = self._poll()
            if polled:
                getattr(self, f"_copy_{self._mode.replace('-', '_')}")(polled)
        self._consumer.close()
        self._history.write("end")

    def _poll(self) -> list[Message]:
        """One message a call: a rebalance comes between two, and what was gathered before it is void."""
        self._gathered = []
        until = time.monotonic() + GATHER_SECONDS
        while len(self._gathered) < self._batch and (left := until - time.monotonic()) > 0:
            message = self._consumer.poll(left)
            if message is not None and message.error() is None:
                self._gathered.append(message)
        messages = self._gathered
        offsets: dict[int, list[int]] = {}
        for message in messages:
            offsets.setdefault(_number(message.partition()), []).append(_number(message.offset()))
        if offsets:
            self._history.write("poll", offsets=offsets)
        return messages

    # -- assignments

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        asked_at = time.monotonic_ns()
        self._positions = {}
        if partitions:
            found = self._patiently(lambda: consumer.committed(partitions, CALL_SECONDS))
            for each in found:
                each.offset = max(0, each.offset)
            self._positions = {each.partition: each.offset for each in found}
            consumer.assign(found)
        self._history.write("assign", positions=self._positions, asked_at=asked_at)

    def _on_revoke(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._is_revoked = True
        self._gathered = []
        self._positions = {}
        self._history.write("revoke")

    def _rewind(self) -> None:
        """Read again what was given up."""
        self._history.write("rewind", positions=self._positions)
        for partition, offset in self._positions.items():
            self._consumer.seek(TopicPartition(self._source, partition, offset))

    def _ends(self, polled: list[Message]) -> dict[int, int]:
        return {_number(message.partition()): _number(message.offset()) + 1 for message in polled}

    def _topic_partitions(self, ends: dict[int, int]) -> list[TopicPartition]:
        return [TopicPartition(self._source, partition, offset) for partition, offset in ends.items()]

    # -- copies

    def _pause(self) -> None:
        time.sleep(self._chance.uniform(0.0, PAUSE_SECONDS))

    def _send(self, polled: list[Message], transaction: str) -> None:
        failures: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        for message in polled:
            headers: list[tuple[str, str | bytes | None]] = [("transaction", transaction.encode()), ("from", str(message.offset()).encode())]
            self._producer.produce(self._target, message.value(), partition=_number(message.partition()), headers=headers, on_delivery=on_delivery)
        self._producer.flush(CALL_SECONDS * 2)
        if failures:
            raise KafkaException(failures[0])
        self._pause()

    def _copy_exactly_once(self, polled: list[Message]) -> None:
        self._count += 1
        transaction, ends = f"{self._tag}-{self._count}", self._ends(polled)
        self._history.write("begin", transaction=transaction, ends=ends)
        try:
            self._producer.begin_transaction()
            self._send(polled, transaction)
            metadata = self._consumer.consumer_group_metadata()
            self._patiently(lambda: self._send_offsets(ends, metadata))
            self._pause()
            self._history.write("commit", transaction=transaction, ends=ends)
            self._patiently(lambda: self._producer.commit_transaction(CALL_SECONDS))
        except KafkaException as problem:
            error = problem.args[0]
            self._history.write("problem", transaction=transaction, text=str(error))
            if error.fatal():
                raise
            self._patiently(lambda: self._producer.abort_transaction(CALL_SECONDS))
            self._history.write("aborted", transaction=transaction)
            self._rewind()
            return
        self._history.write("committed", transaction=transaction, ends=ends)
        self._positions.update(ends)

    def _send_offsets(self, ends: dict[int, int], metadata: Any) -> None:
        self._history.write("offsets", ends=ends)
        self._producer.send_offsets_to_transaction(self._topic_partitions(ends), metadata, OFFSETS_SECONDS)

    def _copy_at_least_once(self, polled: list[Message]) -> None:
        self._count += 1
        self._send(polled, f"{self._tag}-{self._count}")
        self._commit(self._ends(polled))

    def _copy_at_most_once(self, polled: list[Message]) -> None:
        self._count += 1
        if self._commit(self._ends(polled)):
            self._send(polled, f"{self._tag}-{self._count}")

    def _commit(self, ends: dict[int, int]) -> bool:
        """Whether the offsets are known to be committed; if not, the records are read again."""
        self._history.write("commit", transaction="", ends=ends)
        try:
            answered = self._consumer.commit(offsets=self._topic_partitions(ends), asynchronous=False)
            refused = next((each.error for each in answered or [] if each.error), None)
        except KafkaException as problem:
            refused = problem.args[0]
        if refused is not None:
            self._history.write("problem", transaction="", text=str(refused))
            if not self._is_revoked:
                found = self._patiently(lambda: self._consumer.committed(self._consumer.assignment(), CALL_SECONDS))
                self._positions = {each.partition: max(0, each.offset) for each in found}
                self._rewind()
            return False
        self._history.write("committed", transaction="", ends=ends)
        self._positions.update(ends)
        return True

    def _patiently(self, call: Any) -> Any:
        """librdkafka's calls may be made again after an error that it calls retriable."""
        while True:
            try:
                return call()
            except KafkaException as problem:
                error = problem.args[0]
                if self.is_stopping or not (error.retriable() or error.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)) or error.fatal():
                    raise
                self._history.write("again", text=str(error))


def _number(value: int | None) -> int:
    assert value is not None
    return value


def main() -> int:
    copier = Copier(json.loads(sys.argv[1]))

    def on_signal(_number: int, _frame: object) -> None:
        copier.is_stopping = True

    signal.signal(signal.SIGTERM, on_signal)
    try:
        copier.run()
    except KafkaException as problem:
        print(f"{sys.argv[1]}: {problem}", file=sys.stderr)
        return EXIT_FATAL
    return 0


if __name__ == "__main__":
    sys.exit(main())
