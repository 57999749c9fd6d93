"""Samples the partition table of one disk repeatedly; only changed rows are read.

Owned by the console. The table is mapped read-only; neither the disk nor its log-writer is
involved. The compact array of sequences shows in 60 µs which of 2,000 rows changed; numpy would
cost the process 12 MB. Weak: a torn row is shown as it was last read.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.base.layout import BoxLayout
from appliance.shm.disk_tables import attach_table, overdue_operation, table_names
from appliance.shm.mapping import WORD_BYTES, LayoutMismatch, is_held
from appliance.shm.partition_table import (
    DISK_STATE_NAMES,
    FENCE_WORD,
    PROBED_WORD,
    ROWS_USED_WORD,
    SEALED_BYTES_POSITION,
    SEQUENCES_POSITION,
    PartitionTableReader,
    Row,
    TornRow,
)

HUNG, DOWN = "hung", "down"
STATES = (*DISK_STATE_NAMES, HUNG, DOWN)


class SampledPartition(NamedTuple):
    """A row, and the size of its log in bytes."""

    row: Row
    size_bytes: int


class DiskSample(NamedTuple):
    """One disk at one moment. `probe_age_ns` is None before its first probe."""

    state: str
    is_fenced: bool = False
    probe_age_ns: int | None = None
    recovery_done_bytes: int = 0
    recovery_total_bytes: int = 0
    partitions: tuple[SampledPartition, ...] = ()


class DiskReader:
    """Samples one disk; `look` returns its present state."""

    def __init__(self, layout: BoxLayout, disk: str, deadline_ms: int) -> None:
        self._layout = layout
        self._disk = disk
        self._deadline_ns = deadline_ms * 1_000_000
        self._names: list[str] = []
        self._table: PartitionTableReader | None = None
        self._sequences: list[int] = []
        self._rows: list[Row | None] = []
        self._moved = True
        self._sealed: list[int] = []
        self._held: tuple[SampledPartition, ...] = ()

    def look(self, now_ns: int) -> DiskSample:
        """Return a sample of the disk at `now_ns` (monotonic); DOWN without a running log-writer."""
        table = self._attached()
        if table is None or not is_held(table.shared.name):
            return DiskSample(DOWN)
        words = table.words
        state = DISK_STATE_NAMES[table.disk_state] if table.disk_state < len(DISK_STATE_NAMES) else DOWN
        if overdue_operation(words, now_ns, self._deadline_ns):
            state = HUNG
        probed_ns = words[PROBED_WORD]
        done, total = table.recovery_progress
        self._read_rows(table)
        return DiskSample(state, bool(words[FENCE_WORD]), now_ns - probed_ns if probed_ns else None, done, total, self._partitions(words))

    def _partitions(self, words: memoryview) -> tuple[SampledPartition, ...]:
        """Return the partitions; the same tuple as before if nothing changed."""
        first = SEALED_BYTES_POSITION // WORD_BYTES
        sealed = words[first : first + len(self._rows)].tolist()
        if self._moved or sealed != self._sealed:
            self._moved, self._sealed = False, sealed
            self._held = tuple(SampledPartition(row, row.active_position + sealed[index]) for index, row in enumerate(self._rows) if row is not None)
        return self._held

    def _attached(self) -> PartitionTableReader | None:
        names = table_names(self._layout, self._disk)
        if names != self._names:
            self.close()
            try:
                self._table = attach_table(self._layout, self._disk)
            except LayoutMismatch:
                return None
            self._names = names
        return self._table

    def _read_rows(self, table: PartitionTableReader) -> None:
        first = SEQUENCES_POSITION // WORD_BYTES
        sequences = table.words[first : first + table.words[ROWS_USED_WORD]].tolist()
        known = self._sequences
        if sequences == known:
            return
        self._moved = True
        new = len(sequences) - len(known)
        known += [-1] * new
        self._rows += [None] * new
        for index, sequence in enumerate(sequences):
            if sequence != known[index]:
                try:
                    row = table.read(index)
                except TornRow:
                    continue
                self._rows[index] = row if row.row_generation else None
                known[index] = sequence

    def close(self) -> None:
        """Unmap the table and forget its rows."""
        if self._table is not None:
            self._table.close()
        self._table = None
        self._names = []
        self._sequences.clear()
        self._rows.clear()
        self._moved = True
