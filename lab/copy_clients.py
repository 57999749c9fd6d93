"""What a copier of another client than librdkafka asks of it (`foreign_copier.py`), by kafka-python and by aiokafka.

kafka-python is a member of the group, and its offsets join a transaction with its generation. aiokafka sends no generation with a transaction, so nothing but
its transactional id fences it: it is given its partitions, and looks where the group stands when its producer has its epoch. It looks by librdkafka: aiokafka
(0.14.0) reads the error of a partition but not that of a group, and takes COORDINATOR_LOAD_IN_PROGRESS for "nothing committed". Errors are the clients' own
(`errors`); a call that does not come back in CALL_SECONDS is `OSError`. Weak spot: kafka-python's ends of transactions have no time-out at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from lab.load import QUICK_RECONNECT

CALL_SECONDS = 20.0
TRANSACTION_TIMEOUT_MS = 10_000
TARGET_HEADERS = ("transaction", "from")


class Polled(NamedTuple):
    """A record of the source."""

    partition: int
    offset: int
    value: bytes


class CopyConfig(NamedTuple):
    """`transactional_id` is "" where nothing is sent in transactions; `partitions` are those of a copier that is in no group."""

    bootstrap: str
    source: str
    target: str
    group: str
    transactional_id: str
    partitions: tuple[int, ...]


class CopyClient(Protocol):
    """A consumer and a producer."""

    errors: tuple[type[Exception], ...]

    def open(self) -> None: ...

    def poll(self, seconds: float, count: int) -> list[Polled]: ...

    def new_assignment(self, polled: Sequence[Polled]) -> tuple[int, dict[int, int]] | None:
        """When it was asked for (ns of the machine's monotonic clock) and from which offsets it is read, once a change; `polled` was read under it."""

    def committed(self) -> dict[int, int]:
        """Where the group stands, of what is assigned."""

    def seek(self, positions: Mapping[int, int]) -> None: ...

    def begin(self) -> None: ...

    def send(self, polled: Sequence[Polled], transaction: str) -> None:
        """Until all are acknowledged."""

    def send_offsets(self, ends: Mapping[int, int]) -> None: ...

    def end(self, *, is_commit: bool) -> None: ...

    def commit_offsets(self, ends: Mapping[int, int]) -> None: ...

    def close(self) -> None: ...


def headers_of(transaction: str, offset: int) -> list[tuple[str, bytes]]:
    return list(zip(TARGET_HEADERS, (transaction.encode(), str(offset).encode()), strict=True))


def _transactional(config: CopyConfig) -> dict[str, Any]:
    return {"transactional_id": config.transactional_id, "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS} if config.transactional_id else {}


class KafkaPythonCopyClient:
    """A member of a group, by kafka-python 3."""

    def __init__(self, config: CopyConfig) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer
        from kafka.errors import KafkaError

        self.errors: tuple[type[Exception], ...] = (KafkaError, OSError)
        self._config = config
        quick = {"bootstrap_servers": config.bootstrap, "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 100, "retry_backoff_ms": 20}
        transactional = _transactional(config)
        self._producer = KafkaProducer(
            **quick, **transactional, acks="all", linger_ms=2, max_block_ms=int(CALL_SECONDS * 1000), request_timeout_ms=5_000, delivery_timeout_ms=10_000
        )
        self._consumer = KafkaConsumer(
            **quick,
            group_id=config.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=1_500,
            heartbeat_interval_ms=300,
            fetch_max_wait_ms=50,
            request_timeout_ms=10_000,
        )
        self._assigned_at = 0
        client = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                client._assigned_at = 0

            def on_partitions_assigned(self, assigned: Any) -> None:
                client._assigned_at = time.monotonic_ns()

        self._listener = Listener()

    def open(self) -> None:
        if self._config.transactional_id:
            self._producer.init_transactions()
        self._consumer.subscribe([self._config.source], listener=self._listener)

    def poll(self, seconds: float, count: int) -> list[Polled]:
        found = self._consumer.poll(timeout_ms=int(seconds * 1000), max_records=count)
        return [Polled(record.partition, record.offset, record.value) for records in found.values() for record in records]

    def new_assignment(self, polled: Sequence[Polled]) -> tuple[int, dict[int, int]] | None:
        asked_at, self._assigned_at = self._assigned_at, 0
        if not asked_at:
            return None
        first: dict[int, int] = {}
        for record in polled:
            first.setdefault(record.partition, record.offset)
        return asked_at, {each.partition: first[each.partition] if each.partition in first else self._position(each) for each in self._consumer.assignment()}

    def _position(self, partition: Any) -> int:
        position = self._consumer.position(partition, timeout_ms=int(CALL_SECONDS * 1000))
        if position is None:
            raise TimeoutError(f"no broker says where {partition} stands")
        return int(position)

    def committed(self) -> dict[int, int]:
        return {each.partition: self._consumer.committed(each, timeout_ms=int(CALL_SECONDS * 1000)) or 0 for each in self._consumer.assignment()}

    def seek(self, positions: Mapping[int, int]) -> None:
        for each in self._consumer.assignment():
            self._consumer.seek(each, positions[each.partition])

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, polled: Sequence[Polled], transaction: str) -> None:
        futures = [
            self._producer.send(self._config.target, record.value, partition=record.partition, headers=headers_of(transaction, record.offset))
            for record in polled
        ]
        for future in futures:
            future.get(CALL_SECONDS)

    def _offsets(self, ends: Mapping[int, int]) -> dict[Any, Any]:
        from kafka.structs import OffsetAndMetadata, TopicPartition

        return {TopicPartition(self._config.source, partition): OffsetAndMetadata(end, "", -1) for partition, end in ends.items()}

    def send_offsets(self, ends: Mapping[int, int]) -> None:
        self._producer.send_offsets_to_transaction(self._offsets(ends), self._consumer.group_metadata())

    def end(self, *, is_commit: bool) -> None:
        if is_commit:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()

    def commit_offsets(self, ends: Mapping[int, int]) -> None:
        self._consumer.commit(self._offsets(ends), timeout_ms=int(CALL_SECONDS * 1000))

    def close(self) -> None:
        self._consumer.close(autocommit=False)
        self._producer.close(timeout=5)


class AioKafkaCopyClient:
    """Partitions that it was given, by aiokafka. Its loop runs while a call does; nothing here needs it in between."""

    def __init__(self, config: CopyConfig) -> None:
        from aiokafka.errors import KafkaError
        from confluent_kafka import Consumer, KafkaException

        self.errors: tuple[type[Exception], ...] = (KafkaError, KafkaException, OSError)
        self._config = config
        self._asking = Consumer({"bootstrap.servers": config.bootstrap, "group.id": config.group, **QUICK_RECONNECT})
        self._loop = asyncio.new_event_loop()
        self._producer: Any = None
        self._consumer: Any = None
        self._assigned: tuple[int, dict[int, int]] | None = None

    def _run(self, call: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(call, CALL_SECONDS))

    def open(self) -> None:
        self._run(self._open())

    async def _open(self) -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

        quick: dict[str, Any] = {"bootstrap_servers": self._config.bootstrap, "retry_backoff_ms": 20, "metadata_max_age_ms": 1_000, "request_timeout_ms": 5_000}
        transactional = (
            {"transactional_id": self._config.transactional_id, "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS} if self._config.transactional_id else {}
        )
        self._producer = AIOKafkaProducer(**quick, **transactional, enable_idempotence=True, acks="all")
        self._consumer = AIOKafkaConsumer(
            **quick, group_id=self._config.group, enable_auto_commit=False, auto_offset_reset="earliest", isolation_level="read_committed", fetch_max_wait_ms=50
        )
        await self._producer.start()
        if self._config.transactional_id:
            await self._producer.begin_transaction()  # which waits for the epoch; nothing of an earlier incarnation is open then
            await self._producer.abort_transaction()
        self._consumer.assign([TopicPartition(self._config.source, number) for number in self._config.partitions])
        await self._consumer.start()
        asked_at = time.monotonic_ns()
        positions = self.committed()
        self._seek(positions)
        self._assigned = asked_at, positions

    def poll(self, seconds: float, count: int) -> list[Polled]:
        found = self._run(self._consumer.getmany(timeout_ms=int(seconds * 1000), max_records=count))
        return [Polled(record.partition, record.offset, record.value) for records in found.values() for record in records]

    def new_assignment(self, polled: Sequence[Polled]) -> tuple[int, dict[int, int]] | None:
        assigned, self._assigned = self._assigned, None
        return assigned

    def committed(self) -> dict[int, int]:
        from confluent_kafka import KafkaException, TopicPartition

        answer = self._asking.committed([TopicPartition(self._config.source, number) for number in self._config.partitions], CALL_SECONDS)
        if refused := next((each.error for each in answer if each.error), None):
            raise KafkaException(refused)
        return {each.partition: max(0, each.offset) for each in answer}

    def _seek(self, positions: Mapping[int, int]) -> None:
        for each in self._consumer.assignment():
            self._consumer.seek(each, positions[each.partition])

    def seek(self, positions: Mapping[int, int]) -> None:
        self._seek(positions)

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, polled: Sequence[Polled], transaction: str) -> None:
        self._run(self._send(polled, transaction))

    async def _send(self, polled: Sequence[Polled], transaction: str) -> None:
        sent = [
            await self._producer.send(self._config.target, record.value, partition=record.partition, headers=headers_of(transaction, record.offset))
            for record in polled
        ]
        await asyncio.gather(*sent)

    def _offsets(self, ends: Mapping[int, int]) -> dict[Any, int]:
        from aiokafka import TopicPartition

        return {TopicPartition(self._config.source, partition): end for partition, end in ends.items()}

    def send_offsets(self, ends: Mapping[int, int]) -> None:
        self._run(self._producer.send_offsets_to_transaction(self._offsets(ends), self._config.group))

    def end(self, *, is_commit: bool) -> None:
        self._run(self._producer.commit_transaction() if is_commit else self._producer.abort_transaction())

    def commit_offsets(self, ends: Mapping[int, int]) -> None:
        self._run(self._consumer.commit(self._offsets(ends)))

    def close(self) -> None:
        self._run(self._consumer.stop())
        self._run(self._producer.stop())
        self._asking.close()
        self._loop.close()
