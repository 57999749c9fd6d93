"""A transaction coordinator on fakes: a log that says when an append is done, partitions that get markers, producer ids from 1 on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.cluster.state_log import LoadedRecord, OnAppended, ProducerIdentity, StateRecord
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TransactionToExtend,
)
from services.coordinator.transactions.transaction import Marker, Transaction, TransactionSettings
from services.coordinator.transactions.transaction_coordinator import TransactionCoordinator

PARTITIONS = 4
WALL_MS = 1_700_000_000_000


class FakeStateLog:
    """Appends wait in `unanswered` until a test says how they went."""

    def __init__(self) -> None:
        self.records: dict[int, list[LoadedRecord]] = {partition: [] for partition in range(PARTITIONS)}
        self.unanswered: list[Callable[[ErrorCode], None]] = []
        self.refusal = ErrorCode.NONE

    def append(
        self, partition: int, records: Sequence[StateRecord], on_appended: OnAppended, *, producer: ProducerIdentity | None = None, timeout_ms: int = 5_000
    ) -> None:
        def answer(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                log = self.records[partition]
                log += (LoadedRecord(len(log), WALL_MS, record.key, record.value) for record in records)
            on_appended(code)

        self.unanswered.append(answer)

    def deliver(self, code: ErrorCode = ErrorCode.NONE) -> int:
        """Answer what waits, and what that brings about."""
        answered = 0
        while self.unanswered:
            self.unanswered.pop(0)(code)
            answered += 1
        return answered


class FakePartitions:
    """Where markers go. A partition in `refusing` answers with its code."""

    def __init__(self) -> None:
        self.written: list[Marker] = []
        self.refusing: dict[TopicPartition, ErrorCode] = {}
        self.waiting: list[tuple[Marker, Callable[[ErrorCode], None]]] = []

    def write(self, marker: Marker, on_written: Callable[[ErrorCode], None]) -> None:
        self.waiting.append((marker, on_written))

    def deliver(self) -> int:
        waiting, self.waiting = self.waiting, []
        for marker, on_written in waiting:
            code = self.refusing.get(marker.topic_partition, ErrorCode.NONE)
            if code is ErrorCode.NONE:
                self.written.append(marker)
            on_written(code)
        return len(waiting)


class FakeProducerIds:
    """1, 2, 3 …; none while `is_dry`."""

    def __init__(self) -> None:
        self.given = 0
        self.is_dry = False

    def next(self) -> int | None:
        if self.is_dry:
            return None
        self.given += 1
        return self.given


class CoordinatedProducers:
    """The coordinator and what a test does with it. A new incarnation reads the log that the last
    one left.
    """

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.log = FakeStateLog()
        self.partitions = FakePartitions()
        self.producer_ids = FakeProducerIds()
        self.missing: set[TopicPartition] = set()
        self.now_ms = WALL_MS
        self.start()

    def start(self) -> None:
        """Start an incarnation: it has what is in the log."""
        self.partitions.waiting.clear()
        self.log.unanswered.clear()
        self.coordinator = TransactionCoordinator(
            self.log,
            PARTITIONS,
            self.partitions,
            self.producer_ids,
            self.settings,
            lambda partition: partition not in self.missing,
            lambda _partition: 7,
            lambda _group: TopicPartition("__consumer_offsets", 3),
            lambda: self.now_ms,
        )
        for partition, records in self.log.records.items():
            self.coordinator.begin_load(partition)
            self.coordinator.load(partition, records)
            self.coordinator.finish_load(partition, self.now_ms)

    def settle(self) -> None:
        """Let everything happen that is on its way."""
        while self.log.deliver() + self.partitions.deliver():
            pass

    def pass_ms(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.coordinator.tick(self.now_ms)

    def current(self, name: str) -> Transaction:
        found = self.coordinator.ids.find(name)
        assert found is not None
        return found.current

    # -- requests; each gives its answer, or None while it waits

    def _ask(self, method: Callable[..., None], request: Any, version: int, settles: bool) -> Any:
        answers: list[Any] = []
        method(request, version, self.now_ms, answers.append)
        if settles:
            self.settle()
        assert len(answers) <= 1
        return answers[0] if answers else None

    def init(self, name: str | None, producer: tuple[int, int] = (-1, -1), version: int = 5, timeout_ms: int = 60_000, settles: bool = True) -> Any:
        answer = self._ask(self.coordinator.init_producer_id, InitProducerIdRequest(name, timeout_ms, *producer), version, settles)
        assert answer is None or isinstance(answer, InitProducerIdResponse)
        return None if answer is None else (answer.error_code, answer.producer_id, answer.producer_epoch)

    def begin(self, name: str) -> tuple[int, int]:
        """A producer that may go on: its id and epoch."""
        code, producer_id, producer_epoch = self.init(name)
        assert code == ErrorCode.NONE
        return producer_id, producer_epoch

    def add(self, name: str, producer: tuple[int, int], *partitions: int, version: int = 3, verify_only: bool = False, settles: bool = True) -> Any:
        wanted = TransactionToExtend(name, *producer, verify_only, (TopicPartitions("t", partitions),))
        answer = self._ask(self.coordinator.add_partitions, AddPartitionsToTxnRequest((wanted,)), version, settles)
        return None if answer is None else [each.error_code for each in answer.transactions[0].topics[0].partitions]

    def add_offsets(self, name: str, producer: tuple[int, int], version: int = 4) -> Any:
        return self._ask(self.coordinator.add_offsets, AddOffsetsToTxnRequest(name, *producer, "group"), version, True).error_code

    def end(self, name: str, producer: tuple[int, int], commit: bool = True, version: int = 4, settles: bool = True) -> Any:
        answer = self._ask(self.coordinator.end_transaction, EndTxnRequest(name, *producer, commit), version, settles)
        assert answer is None or isinstance(answer, EndTxnResponse)
        return None if answer is None else (answer.error_code, answer.producer_id, answer.producer_epoch)
