"""Flush rounds for topics with `flush.messages`, `flush.ms`, or acknowledgement after the flush.

A round takes every partition that is due, syncs their batches in a thread beside the duty cycle,
and wakes it at the end. Batches that are appended meanwhile belong to the next round. There is one
round at a time and no queue: the more is appended, the more each sync covers. Recovery points stay;
`FlushRounds` moves them, which also syncs indexes and lets no producer wait. Only `_run` runs in
the thread. A failed sync is raised once and never retried. Weak spot: a hung disk keeps the thread
and all acknowledgements that wait for it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from appliance.base.clock import Clock
from appliance.base.errors import OutOfDescriptors, OutOfThreads, StorageFailed
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters
from appliance.storage import file_io
from appliance.storage.log_durability import BatchFlush, DuplicatedFiles, is_for_file_system
from services.log_writer.replicas.replica import FLUSH_BEFORE_ACKNOWLEDGEMENT, Replica
from services.log_writer.replicas.replicas_of_disk import Replicas

_NEVER = 1 << 63
Round = list[tuple[Replica, BatchFlush, int]]
"""With how often the log had been cut when it began: what stands where it was cut is not what was
synced."""


class BatchFlushes:
    """At most one round under way.

    `is_active` is the loop's cheap question whether there is anything to do here.
    """

    def __init__(self, path: str, partitions: Replicas, clock: Clock, poller: Poller, counters: Counters, synced_bytes: Callable[[], int]) -> None:
        """`synced_bytes`: the value of `log_writer.bytes` up to which the box's own rounds have
        synced everything.
        """
        self._path = path
        self._partitions = partitions
        self._clock = clock
        self._poller = poller
        self.is_active = False
        self._wanted: dict[Replica, None] = {}
        self._due: dict[Replica, int] = {}
        self._next_due_ns = _NEVER
        self.under_way: Round | None = None
        self.is_done = False
        self._is_given_up = False
        self.failure: Exception | None = None
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: BackgroundThread | None = None
        self._bell = -1
        self._directory_fd = -1
        self._started_ns = 0
        self._appended = counters.counter("log_writer.bytes")
        self._synced_bytes = synced_bytes
        self._known_synced = self._appended.value
        """What of `_appended` was synced: the rest, apart from what is wanted, is what `syncfs`
        would write out besides."""
        self._bytes_wanted = 0
        self._rounds = counters.counter("flush.batch_rounds")
        self._round_us = counters.histogram("flush.batch_round_us")
        self._file_system_rounds = counters.counter("flush.batch_rounds_by_syncfs")

    def open(self) -> None:
        """Open the directory, before the first append: syncfs reports the failed writes since then."""
        self._directory_fd = file_io.open_directory(self._path)

    def want(self, replica: Replica, size_bytes: int) -> None:
        """After an append of `size_bytes` to a partition with a flush policy: now, or when its time
        has come.
        """
        self.is_active = True
        self._bytes_wanted += size_bytes
        if replica.flush_policy == FLUSH_BEFORE_ACKNOWLEDGEMENT:
            self._wanted[replica] = None
            return
        config = replica.log.config
        if replica.log.log_end_offset - replica.log.durable_offset >= config.flush_messages:
            self._wanted[replica] = None
        elif config.flush_ms < 1 << 53 and replica not in self._due:
            self._due[replica] = due_ns = self._clock.monotonic_ns() + config.flush_ms * 1_000_000
            self._next_due_ns = min(self._next_due_ns, due_ns)

    def park_ms(self, most_ms: int) -> int:
        """How long the loop may wait; the end of a round wakes it."""
        if self._next_due_ns == _NEVER or self.under_way is not None:
            return most_ms
        return max(0, min(most_ms, (self._next_due_ns - self._clock.monotonic_ns()) // 1_000_000 + 1))

    def take_finished(self) -> Round:
        """Return the round that was synced. Raises StorageFailed once if the sync failed."""
        if not self.is_done:
            return []
        finished, self.under_way = self.under_way or [], None
        self.is_done = False
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        self._rounds.add()
        self._round_us.record(self._clock.monotonic_ns() - self._started_ns)
        return finished

    def start_round(self) -> list[Replica]:
        """If none is under way: sync what is wanted or due.

        Returns partitions that wanted it and have nothing to sync. Raises StorageFailed.
        """
        if self.under_way is not None:
            return []
        if self._due:
            self._take_due()
        wanted, self._wanted = self._wanted, {}
        starting: Round = []
        durable = []
        for replica in wanted:
            flush = None if self._partitions.by_row.get(replica.row) is not replica else replica.log.plan_batch_flush()
            if flush is None:
                durable.append(replica)
            else:
                starting.append((replica, flush, replica.log.truncations))
        if starting:
            try:
                self._start(starting)
            except OutOfDescriptors:
                self._wanted = wanted | self._wanted
                raise
        self.is_active = bool(starting or self._due)
        return durable

    def _take_due(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_due_ns:
            for replica in [replica for replica, due_ns in self._due.items() if due_ns <= now_ns]:
                del self._due[replica]
                self._wanted[replica] = None
            self._next_due_ns = min(self._due.values(), default=_NEVER)

    def _start(self, starting: Round) -> None:
        """Raises StorageFailed, and nothing is under way."""
        if self._thread is None:
            self._begin_thread()
        self._started_ns = self._clock.monotonic_ns()
        flushes = [flush for _, flush, _ in starting]
        files = sum(len(flush.files) + bool(flush.directory) for flush in flushes)
        self._known_synced = max(self._known_synced, self._synced_bytes())
        others = self._appended.value - self._known_synced - self._bytes_wanted
        takes_all = is_for_file_system(files, others) or files > self._partitions.descriptors.for_flush_round
        duplicates = None if takes_all else self._duplicate(flushes)
        self.under_way = starting
        if duplicates is None:
            self._known_synced = self._appended.value
            self._file_system_rounds.add()
        else:
            self._known_synced += self._bytes_wanted
        self._bytes_wanted = 0
        self._work.put(duplicates.sync if duplicates is not None else self._sync_file_system)

    def _begin_thread(self) -> None:
        thread = BackgroundThread(self._run, "batch-flush")
        try:
            thread.start()
        except ThreadRefused as refusal:
            raise OutOfThreads(f"could not flush {self._path}: {refusal}") from refusal
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._bell, select.EPOLLIN, self._drain)
        self._thread = thread

    def _duplicate(self, flushes: Sequence[BatchFlush]) -> DuplicatedFiles | None:
        """None: there is no descriptor left, and `syncfs` needs none.

        Whatever else fails is no matter of descriptors: these partitions are here.
        """
        try:
            return DuplicatedFiles(flushes)
        except OSError as error:
            failure = file_io.storage_failure(f"flush {self._path}", error)
            if isinstance(failure, OutOfDescriptors):
                return None
            raise failure from error

    def _drain(self, _events: int) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            pass
        if self._is_given_up and self.is_done:
            self.close()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except OSError as error:
                self.failure = file_io.storage_failure(f"flush {self._path}", error)
                if isinstance(error, file_io.SyncFailed):  # at once: no later sync reports it, and we may die before the next turn
                    self._partitions.table.set_suspect()
            except Exception as failure:  # handed to the loop, which knows what it means
                self.failure = failure
            self.is_done = True
            os.eventfd_write(self._bell, 1)

    def _sync_file_system(self) -> None:
        file_io.sync_file_system(self._directory_fd)

    def give_up(self) -> None:
        """The directory goes offline: nothing is wanted any more; a round that is under way ends
        when the disk lets it, and its files are closed then.
        """
        self._is_given_up = True
        self._wanted.clear()
        self._due.clear()
        self._next_due_ns = _NEVER
        self.is_active = False
        if self.under_way is None or self.is_done:
            self.close()

    @property
    def is_under_way(self) -> bool:
        """Whether the thread syncs."""
        return self.under_way is not None and not self.is_done

    def close(self) -> None:
        """Wait for a round that is under way.

        Raises StorageFailed, unless the directory is offline, if it failed or does not end: no
        later sync would report its failure.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            self._work.put(None)
            thread.join(timeout=10)
            if not thread.is_alive():
                self._poller.unregister(self._bell)
                os.close(self._bell)
        if self._directory_fd >= 0:
            file_io.close_all((self._directory_fd,))
            self._directory_fd = -1
        failure, self.failure = self.failure, None
        if self._is_given_up:
            return
        if failure is not None:
            raise failure
        if thread is not None and thread.is_alive():
            raise StorageFailed(f"a flush of {self._path} does not end")
