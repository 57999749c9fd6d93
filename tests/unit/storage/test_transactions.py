"""Transactions that a leader wrote: what the log remembers of them, what its transaction indexes say, and what a failure or a restart leaves of that."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from appliance.base.errors import DiskFull, StorageFailed
from appliance.records.batch import ATTRIBUTES_AT, CRC_AT, LEADER_EPOCH_AT, MAGIC_AT, TRANSACTIONAL_FLAG, read_batch_header
from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch
from appliance.records.crc32c import crc32c
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.producer_state import ProducerState
from appliance.storage.recovery import CLEAN, Recovery, SameBoot, Unclean
from appliance.storage.transaction_index import (
    AbortedTxn,
    decode_transaction_index,
    encode_transaction_index,
    read_transaction_index,
    transaction_index_problem,
)
from tests.unit.storage.storage_support import NOW_MS, SMALL, batch, failing_file_calls, open_log, stored_bytes

ONE, TWO = 1, 2


def transactional(producer_id: int, sequence: int) -> memoryview:
    raw = batch(b"x" * 50, producer=(producer_id, 0, sequence))
    raw[ATTRIBUTES_AT + 1] |= TRANSACTIONAL_FLAG
    raw[CRC_AT:ATTRIBUTES_AT] = crc32c(raw[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return raw


class Leader:
    """Writes transactions into a follower's log, as a leader would have sent them."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}

    def data(self, producer_id: int) -> memoryview:
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + 1
        return transactional(producer_id, sequence)

    def marker(self, producer_id: int, is_commit: bool) -> memoryview:
        return memoryview(build_end_transaction_batch(producer_id, 0, EndTransactionMarker(is_commit, 4), NOW_MS))

    def send(self, *raws: memoryview) -> int:
        """All in one append; the offset of the first."""
        first = self.log.log_end_offset
        for number, raw in enumerate(raws):
            raw[:8] = (first + number).to_bytes(8, "big")
            raw[LEADER_EPOCH_AT:MAGIC_AT] = bytes(4)
        self.log.append_as_follower(raws)
        return first


def aborted(log: Log) -> list[AbortedTxn]:
    return [entry for base in log.segment_base_offsets for entry in read_transaction_index(log.directory, base)]


def write_some(log: Log) -> list[AbortedTxn]:
    """Ten aborted transactions over several segments, committed ones among them; what the indexes must say."""
    leader, wanted = Leader(log), []
    for _ in range(10):
        one = leader.send(leader.data(ONE))
        two = leader.send(leader.data(TWO))
        end = leader.send(leader.marker(ONE, is_commit=False))
        wanted.append(AbortedTxn(ONE, one, end, two))
        leader.send(leader.marker(TWO, is_commit=True))
    assert len(log.segment_base_offsets) > 3
    return wanted


def test_an_open_transaction_holds_the_last_stable_offset_and_its_marker_lets_it_go(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    leader = Leader(log)
    assert log.last_stable_offset(0) == 0
    one = leader.send(leader.data(ONE))
    two = leader.send(leader.data(TWO))
    leader.send(leader.data(ONE))
    assert log.last_stable_offset(3) == one
    marker = leader.send(leader.marker(ONE, is_commit=True))
    assert log.last_stable_offset(3) == one  # its end is not replicated yet
    assert log.last_stable_offset(marker + 1) == two
    leader.send(leader.marker(TWO, is_commit=False))
    assert log.last_stable_offset(5) == 5 == log.log_end_offset
    entry = log.producers.entry(ONE)
    assert entry is not None and entry.coordinator_epoch == 4 and entry.transaction_first_offset == -1
    assert aborted(log) == [AbortedTxn(TWO, two, 4, 5)]
    log.close()


def test_the_last_stable_offset_is_not_below_the_log_start_where_an_open_transaction_began(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    leader = Leader(log)
    leader.send(leader.data(ONE))
    for _ in range(20):
        end = leader.send(leader.data(TWO)) + 1
    assert log.last_stable_offset(end) == 0
    removed = log.advance_log_start_offset(15)
    assert removed is not None
    removed.close()
    assert log.last_stable_offset(end) == 15
    leader.send(leader.marker(ONE, is_commit=False))
    assert log.last_stable_offset(end + 1) == 15  # the other one began below it, too
    leader.send(leader.marker(TWO, is_commit=True))
    assert log.last_stable_offset(end + 2) == end + 2
    log.close()


def test_a_marker_of_a_transaction_that_wrote_nothing_is_no_aborted_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    leader = Leader(log)
    leader.send(leader.marker(ONE, is_commit=False))
    assert aborted(log) == [] and log.last_stable_offset(1) == 1
    entry = log.producers.entry(ONE)
    assert entry is not None and entry.last_sequence == -1
    log.close()


def test_a_whole_transaction_in_one_append_is_known(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=200))
    leader = Leader(log)
    leader.send(leader.data(ONE), leader.data(TWO), leader.marker(TWO, False), leader.marker(ONE, False))
    assert aborted(log) == [AbortedTxn(TWO, 1, 2, 0), AbortedTxn(ONE, 0, 3, 4)]
    assert read_transaction_index(str(tmp_path), log.segment_base_offsets[0]) == []  # an entry lies where its marker does
    log.close()


@pytest.mark.parametrize("recovery", [CLEAN, Unclean(0), Unclean(17)])
def test_every_restart_knows_the_same_aborted_transactions(tmp_path: Path, recovery: Recovery) -> None:
    log = open_log(tmp_path)
    wanted = write_some(log)
    assert aborted(log) == wanted
    leader = Leader(log)
    leader.sequences = {ONE: 10}
    first = leader.send(leader.data(ONE))
    log.close()
    indexes = {name: content for name, content in stored_bytes(tmp_path).items() if name.endswith(".txnindex")}
    if recovery != CLEAN:
        for name in [name for name in indexes if int(name[:20]) >= 17]:
            (tmp_path / name).unlink()
    log = open_log(tmp_path, recovery=recovery)
    assert aborted(log) == wanted
    assert log.last_stable_offset(log.log_end_offset) == first
    log.close()
    assert {name: content for name, content in stored_bytes(tmp_path).items() if name.endswith(".txnindex")} == indexes


@pytest.mark.parametrize("lost", [34, 17])
def test_an_entry_that_a_killed_process_did_not_finish_is_added(tmp_path: Path, lost: int) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=100_000))
    leader = Leader(log)
    for _ in range(2):
        leader.send(leader.data(ONE))
        leader.send(leader.marker(ONE, is_commit=False))
    known = SameBoot(3, 0, 0)
    index = tmp_path / f"{0:020d}.txnindex"
    whole = index.read_bytes()
    log.abandon()
    index.write_bytes(whole[:-lost])
    log = open_log(tmp_path, LogConfig(segment_bytes=100_000), recovery=known)
    assert index.read_bytes() == whole
    log.close()


def test_truncation_opens_a_transaction_again(tmp_path: Path) -> None:
    """Also where no producer snapshot is old enough: then the log is read from its start."""
    log = open_log(tmp_path)
    wanted = write_some(log)
    log.flush()
    for entry in reversed(wanted):
        log.truncate_to(entry.last_offset)
        assert aborted(log) == [other for other in wanted if other.last_offset < entry.last_offset]
        assert log.last_stable_offset(log.log_end_offset) == entry.first_offset
    log.close()


def test_a_failed_append_leaves_no_aborted_transaction_behind(tmp_path: Path) -> None:
    """Each file call of the append fails once, with a full disk; the next append is as if nothing had been."""
    log = open_log(tmp_path, SMALL)
    leader = Leader(log)
    number = 0
    while True:
        number += 1
        first = leader.send(leader.data(ONE))
        before = aborted(log)
        with failing_file_calls(number, error=errno.ENOSPC) as faults:
            try:
                leader.send(leader.marker(ONE, is_commit=False))
            except (DiskFull, StorageFailed):
                assert aborted(log) == before
                assert log.failed is None
                end = leader.send(leader.marker(ONE, is_commit=False))
                assert aborted(log) == [*before, AbortedTxn(ONE, first, end, end + 1)]
        if not faults.failed:
            break
    assert number > 4
    log.close()


def test_a_flush_round_covers_the_transaction_indexes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    leader = Leader(log)
    leader.send(leader.data(ONE), leader.marker(ONE, False))
    path = f"{tmp_path}/{0:020d}.txnindex"
    flush = log.flush_files()
    assert flush is not None and path in flush.paths and flush.pinned is not None and os.path.samefile(flush.pinned.path, tmp_path)
    log.take_back(flush)
    flush = log.flush_files()
    assert flush is not None and path in flush.paths
    flush.sync()
    leader.send(leader.data(ONE))
    flush = log.flush_files()
    assert flush is not None and path not in flush.paths
    flush.release()
    log.abandon()


def test_an_open_transaction_survives_in_the_snapshot() -> None:
    state = ProducerState()
    state.replay(read_batch_header(transactional(ONE, 0)))
    again = ProducerState()
    again.decode(state.encode())
    assert again.last_stable_offset(9) == 0 and again.is_undecided


def test_the_bytes_of_an_entry() -> None:
    entry = AbortedTxn(1, 2, 3, 4)
    content = encode_transaction_index([entry])
    assert content == bytes(2) + b"".join(number.to_bytes(8, "big") for number in (1, 2, 3, 4))
    assert decode_transaction_index(content) == [entry]
    assert transaction_index_problem(content, 3) is None
    assert transaction_index_problem(content, 4) == "an entry has last offset 3, the segment begins at 4"
    assert transaction_index_problem(content + content, 0) == "last offsets do not ascend"
    assert transaction_index_problem(content[:-1], 0) == "a transaction index of 33 bytes ends inside an entry"
    assert transaction_index_problem(b"\0\1" + content[2:], 0) == "a transaction index entry has version 1"
