"""All transactional ids of the state partitions that this box leads, and the one way in which what is known of them changes: through the log.

A step is appended first and becomes what is known when the append is done; refused, it never was. Owned by the transaction coordinator. Weak spot: of an
append that timed out nobody knows whether it is in the log; what is appended later stands behind it, and the last record of an id counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.state_log import LoadedRecord, StateLog, StateRecord, partition_of
from services.coordinator.transactions.transaction import NO_PRODUCER_EPOCH, Transaction, TransactionalId
from services.coordinator.transactions.transaction_records import decode_transaction, decode_transaction_key, encode_transaction, encode_transaction_key

OnDone = Callable[[ErrorCode], None]

_AS_COORDINATOR = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""What a refused append of state means to clients; anything else is UNKNOWN_SERVER_ERROR."""


class _Partition:
    """One partition of the state topic, loading or loaded."""

    __slots__ = ("by_name", "is_loaded")

    def __init__(self) -> None:
        self.by_name: dict[str, TransactionalId] = {}
        self.is_loaded = False


class TransactionalIds:
    """By partition and name."""

    def __init__(self, state_log: StateLog, partition_count: int, append_timeout_ms: int) -> None:
        self._log = state_log
        self._partition_count = partition_count
        self._append_timeout_ms = append_timeout_ms
        self._partitions: dict[int, _Partition] = {}

    # -- tenures

    def begin_load(self, partition: int) -> None:
        self._partitions[partition] = _Partition()

    def load(self, partition: int, records: Iterable[LoadedRecord]) -> int:
        """Take records in the order of the log; returns how many could not be read."""
        by_name, unreadable = self._partitions[partition].by_name, 0
        for record in records:
            try:
                name = decode_transaction_key(record.key) if record.is_commit is None else None
                if name is None:
                    continue
                if record.value is None:
                    by_name.pop(name, None)
                else:
                    by_name[name] = TransactionalId(name, decode_transaction(record.value))
            except ValueError:
                unreadable += 1
        return unreadable

    def finish_load(self, partition: int) -> Iterable[TransactionalId]:
        self._partitions[partition].is_loaded = True
        return self._partitions[partition].by_name.values()

    def unload(self, partition: int) -> None:
        self._partitions.pop(partition, None)

    @property
    def is_loading(self) -> bool:
        return any(not partition.is_loaded for partition in self._partitions.values())

    def partition_of(self, name: str) -> int:
        return partition_of(name, self._partition_count)

    # -- look-ups

    def find(self, name: str) -> TransactionalId | None:
        """`RequestRefused`: we are not its coordinator, or not yet."""
        return self._loaded(name).by_name.get(name)

    def add(self, name: str, first: Transaction) -> TransactionalId:
        """An id that nobody used before; in the log with its first step."""
        found = self._loaded(name).by_name[name] = TransactionalId(name, first)
        return found

    def _loaded(self, name: str) -> _Partition:
        partition = self._partitions.get(self.partition_of(name))
        if partition is None:
            raise RequestRefused(ErrorCode.NOT_COORDINATOR, f"transactional id {name} is coordinated elsewhere")
        if not partition.is_loaded:
            raise RequestRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"the state of transactional id {name} is being read")
        return partition

    def __iter__(self) -> Iterator[TransactionalId]:
        for partition in list(self._partitions.values()):
            if partition.is_loaded:
                yield from list(partition.by_name.values())

    def __len__(self) -> int:
        return sum(len(partition.by_name) for partition in self._partitions.values())

    def holds(self, transactional: TransactionalId) -> bool:
        """Whether this object is still what is known of its id (and not that of a tenure that has ended)."""
        partition = self._partitions.get(self.partition_of(transactional.name))
        return partition is not None and partition.by_name.get(transactional.name) is transactional

    # -- steps

    def step(self, transactional: TransactionalId, following: Transaction, on_done: OnDone) -> None:
        """Append `following`; when it is in the log it is what is known, and `on_done` hears NONE. Else it hears what to tell the client."""
        transactional.pending = following
        record = StateRecord(encode_transaction_key(transactional.name), encode_transaction(following))

        def on_appended(code: ErrorCode) -> None:
            if not self.holds(transactional):
                on_done(ErrorCode.NOT_COORDINATOR)
                return
            transactional.pending = None
            if code is ErrorCode.NONE:
                transactional.current = following
            on_done(code if code is ErrorCode.NONE else _AS_COORDINATOR.get(code, ErrorCode.UNKNOWN_SERVER_ERROR))

        self._log.append(self.partition_of(transactional.name), (record,), on_appended, timeout_ms=self._append_timeout_ms)

    def forget(self, transactional: TransactionalId, on_done: OnDone) -> None:
        """Append a tombstone; then nothing is known of the id."""
        partition = self._partitions[self.partition_of(transactional.name)]
        if transactional.current.producer_epoch == NO_PRODUCER_EPOCH:
            del partition.by_name[transactional.name]  # it never got into the log
            on_done(ErrorCode.NONE)
            return
        transactional.pending = transactional.current

        def on_appended(code: ErrorCode) -> None:
            transactional.pending = None
            if code is ErrorCode.NONE and self.holds(transactional):
                del partition.by_name[transactional.name]
            on_done(code)

        self._log.append(
            self.partition_of(transactional.name),
            (StateRecord(encode_transaction_key(transactional.name), None),),
            on_appended,
            timeout_ms=self._append_timeout_ms,
        )
