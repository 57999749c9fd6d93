"""Load a log's producers when it opens: the newest usable snapshot, and the batches behind it.

`LogLoader` and truncations use it. It also brings the transaction indexes in line. Weak spot: if no
snapshot is near, whole segments are read.
"""

from __future__ import annotations

from contextlib import suppress

from appliance.base.model import FILE_START, NO_OFFSET, Offset, Position
from appliance.records.control_batch import read_end_transaction_marker
from appliance.storage import file_io
from appliance.storage.indexes import OffsetIndex
from appliance.storage.producer_snapshots import ProducerSnapshots
from appliance.storage.producer_state import PRODUCER_EXPIRATION_MS, ProducerState
from appliance.storage.segment_files import INDEX_SUFFIX, LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_path
from appliance.storage.segment_scan import SegmentScan
from appliance.storage.transaction_index import AbortedTxn, first_doubtful, settle


def load_producers(
    directory: str,
    names: list[str],
    bases: list[Offset],
    end_offset: Offset,
    now_ms: int,
    first_producer_offset: Offset = NO_OFFSET,
    scanned_markers_from: Offset = NO_OFFSET,
    hole_at: Offset = NO_OFFSET,
    scanned_from: Offset = NO_OFFSET,
    expiration_ms: int = PRODUCER_EXPIRATION_MS,
) -> tuple[ProducerState, ProducerSnapshots]:
    """Load the producers of the log in `directory` up to `end_offset`, and bring its transaction
    indexes in line.

    The state is the newest usable snapshot plus the batches behind it. `first_producer_offset`: the
    first scanned batch with a producer id (-1: none), used if snapshots are lost. Transaction index
    entries from `scanned_markers_from` on (-1: none), and damaged ones, are rebuilt; the snapshot
    must then be older. It must also not be younger than `hole_at` (-1: none), behind which batches
    are missing. From `scanned_from` on (-1: nowhere) every batch was scanned: an index entry there
    without a batch is of a lost transaction. Times in ms. Raises OSError.
    """
    snapshots = ProducerSnapshots(directory, names)
    state = ProducerState()
    rebuilt_from = first_doubtful(directory, names, scanned_markers_from)
    had_producers = snapshots.latest is not None
    snapshot_offset = snapshots.load(state, min(offset for offset in (end_offset, rebuilt_from, hole_at) if offset >= 0))
    replay_from = first_producer_offset if snapshot_offset is None else snapshot_offset
    if snapshot_offset is None and (had_producers or rebuilt_from >= 0):  # those there are tell of more than the log holds now, or are broken
        replay_from = bases[0]
    # Before the batches behind the snapshot, as Kafka does: their producers wrote recently, however
    # old their records are, and may send them again.
    state.expire(now_ms, expiration_ms)
    aborted = _replay_producers(directory, bases, state, replay_from, snapshots) if replay_from >= 0 else []
    if aborted or any(name.endswith(TRANSACTION_INDEX_SUFFIX) for name in names):
        doubted = [offset for offset in (rebuilt_from, scanned_from) if offset >= 0]
        settle(directory, bases, end_offset, aborted, min(doubted, default=NO_OFFSET))
    if replay_from >= 0:
        if not len(state):
            snapshots.remove_all()
        elif snapshots.latest is None:
            snapshots.write(end_offset, state, ())
    snapshots.remove_rejected()
    return state, snapshots


def producers_at(directory: str, bases: list[Offset], base_offset: Offset, snapshots: ProducerSnapshots, is_indexed: bool = True) -> ProducerState:
    """Return the producers of all batches below one of the segments. Slow if no snapshot is near.
    `is_indexed`: False before the segments are recovered, when their indexes are not reliable."""
    state = ProducerState()
    snapshot_offset = snapshots.load_older(state, base_offset)
    older = [base for base in bases if base < base_offset]
    _replay_producers(directory, older, state, bases[0] if snapshot_offset is None else snapshot_offset, None, is_indexed)
    return state


def _replay_producers(
    directory: str, bases: list[Offset], state: ProducerState, from_offset: Offset, snapshots: ProducerSnapshots | None, is_indexed: bool = True
) -> list[AbortedTxn]:
    """Add the batches from `from_offset` on to `state`; return the aborted transactions that ended
    there. Segments without a snapshot get one in `snapshots`.
    """
    aborted: list[AbortedTxn] = []
    for number, base in enumerate(bases):
        if number + 1 < len(bases) and bases[number + 1] <= from_offset:
            continue
        if snapshots is not None and base > from_offset:
            with suppress(OSError):
                snapshots.fill_in(base, state)
        log_fd = file_io.open_path(segment_path(directory, base, LOG_SUFFIX), file_io.READ_ONLY)
        try:
            start = _position_at(directory, base, from_offset) if is_indexed else FILE_START
            for position, header in SegmentScan(log_fd, start, file_io.size_of(log_fd), verify=not is_indexed):
                if header.last_offset >= from_offset:
                    marker = None
                    if header.is_control and header.producer_id >= 0:
                        marker = read_end_transaction_marker(file_io.pread_all(log_fd, position, header.size_bytes))
                    aborted += state.replay(header, marker)
        finally:
            file_io.close(log_fd)
    return aborted


def _position_at(directory: str, base_offset: Offset, offset: Offset) -> Position:
    """Where to start reading for `offset`: the last index entry at or below it."""
    fd = file_io.open_path(segment_path(directory, base_offset, INDEX_SUFFIX), file_io.READ_ONLY)
    try:
        return OffsetIndex(fd, base_offset).lookup(offset).position
    finally:
        file_io.close(fd)
