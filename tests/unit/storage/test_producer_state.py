"""Duplicates, gaps and fencing of idempotent producers; what survives a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.base.model import Offset, ProducerId
from appliance.records.batch import TRANSACTIONAL_FLAG
from appliance.records.crc32c import crc32c
from appliance.storage.append_plan import RefusedBatch
from appliance.storage.log import Log
from appliance.storage.log_config import LogConfig
from appliance.storage.producer_state import KEPT_SHARE, PRODUCERS_MAX, BrokenSnapshot, ProducerState, advance_sequence
from appliance.storage.recovery import CLEAN, Recovery, SameBoot, Unclean
from appliance.storage.verification import GUARDS_MAX, Verifications
from tests.unit.storage.storage_support import NAME, NOW_MS, SMALL, TOPIC_ID, batch, open_log, stored_bytes

GAP = RefusedBatch(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
FENCED = RefusedBatch(ErrorCode.INVALID_PRODUCER_EPOCH)


def send(log: Log, sequence: int, count: int = 1, producer_epoch: int = 0, producer_id: int = 7) -> tuple[int, ...]:
    raw = batch(*[b"%d" % (sequence + each) for each in range(count)], producer=(producer_id, producer_epoch, sequence))
    (result,) = log.append_as_leader([raw], 0, NOW_MS)
    return result


def test_a_retry_of_one_of_the_last_five_batches_gets_its_first_answer_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    answers = [send(log, 2 * number, 2) for number in range(6)]
    assert answers == [(2 * number, 2 * number + 1, -1) for number in range(6)]
    assert [send(log, 2 * number, 2) for number in range(1, 6)] == answers[1:]
    assert send(log, 0, 2) == GAP
    assert log.log_end_offset == 12
    log.close()


def test_a_gap_and_an_old_epoch_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert send(log, 5) == (0, 0, -1)  # an unknown producer may start anywhere
    assert send(log, 7) == GAP
    assert send(log, 6, producer_epoch=1) == GAP  # a new epoch starts at 0
    assert send(log, 0, producer_epoch=1) == (1, 1, -1)
    assert send(log, 6) == FENCED
    log.close()


def test_duplicates_within_one_call_are_seen(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    raws = [batch(b"x", producer=(7, 0, sequence)) for sequence in (0, 1, 0, 3)]
    assert log.append_as_leader(raws, 0, NOW_MS) == [(0, 0, -1), (1, 1, -1), (0, 0, -1), GAP]
    assert log.log_end_offset == 2
    log.close()


def test_a_duplicate_returns_the_append_time_of_its_original(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    for now_ms in (NOW_MS, NOW_MS + 50):
        assert log.append_as_leader([batch(b"x", timestamp_ms=1, producer=(7, 0, 0))], 0, now_ms) == [(0, 0, NOW_MS)]
    log.close()


def test_sequences_wrap(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert send(log, 2**31 - 2, 4) == (0, 3, -1)
    assert send(log, 2) == (4, 4, -1)
    assert advance_sequence(2**31 - 1, 1) == 0 and advance_sequence(0, -1) == 2**31 - 1
    log.close()


def test_a_log_without_producers_writes_no_snapshot(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader([batch(b"x" * 100) for _ in range(20)], 0, NOW_MS)
    log.close()
    assert not [name for name in stored_bytes(tmp_path) if name.endswith(".snapshot")]


@pytest.mark.parametrize("end", ["closed", "killed", "power cut", "snapshots lost"])
@pytest.mark.parametrize("segment_bytes", [300, 100_000])
def test_producers_survive_every_kind_of_end(tmp_path: Path, end: str, segment_bytes: int) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100)
    log = open_log(tmp_path, config)
    log.append_as_leader([batch(b"plain")], 0, NOW_MS)
    for sequence in range(10):
        send(log, sequence)
        send(log, sequence, producer_id=8)
    recovery: Recovery = CLEAN
    if end == "closed":
        log.close()
    else:
        recovery = SameBoot(log.log_end_offset, log.active_base_offset, log.active_position) if end == "killed" else Unclean(0)
        log.abandon()
    if end == "snapshots lost":
        for path in tmp_path.glob("*.snapshot"):
            path.unlink()
    log = open_log(tmp_path, config, recovery)
    assert send(log, 9) == (19, 19, -1)
    assert send(log, 11, producer_id=8) == GAP
    assert send(log, 10) == (21, 21, -1)
    log.close()


def test_a_broken_snapshot_is_passed_over(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0)
    log.close()
    snapshot = max(tmp_path.glob("*.snapshot"))
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    log = open_log(tmp_path, recovery=Unclean(0))
    assert send(log, 0) == (0, 0, -1)
    log.close()


def test_truncation_forgets_what_producers_wrote_behind_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(8):
        send(log, sequence)
    log.truncate_to(3)
    assert send(log, 5) == GAP
    assert send(log, 3) == (3, 3, -1)
    log.close()


def test_after_a_truncation_behind_a_snapshot_a_retry_of_any_of_the_last_five_batches_is_still_known(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(6):
        send(log, sequence)
    log.write_last_entries()  # a snapshot, which has only the last batch of each producer
    for sequence in range(6, 8):
        send(log, sequence)
    log.truncate_to(7)
    assert [send(log, sequence) for sequence in (3, 6)] == [(3, 3, -1), (6, 6, -1)]
    assert send(log, 7) == (7, 7, -1)
    assert send(log, 2) == GAP
    log.close()


def test_a_snapshot_has_kafkas_bytes() -> None:
    state = ProducerState()
    staging = state.stage()
    assert staging.admit(7, 2, 10, 100, 104, 1234) is None
    state.apply(staging)
    content = state.encode()
    entry = bytes.fromhex("000000000000000700020000000e00000000000000680000000400000000000004d2ffffffffffffffffffffffff")
    assert content == b"\x00\x01" + crc32c(b"\x00\x00\x00\x01" + entry).to_bytes(4, "big") + b"\x00\x00\x00\x01" + entry
    again = ProducerState()
    again.decode(content)
    assert again.entry(7) == state.entry(7) and again.encode() == content
    for position in range(len(content)):
        broken = bytearray(content)
        broken[position] ^= 1
        with pytest.raises(BrokenSnapshot):
            again.decode(bytes(broken))


def test_producers_that_are_silent_for_a_day_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    raw = batch(b"old", timestamp_ms=NOW_MS - 86_400_001, producer=(7, 0, 0))
    log.append_as_leader([raw, batch(b"young", producer=(8, 0, 0))], 0, NOW_MS)
    log.close()
    log = open_log(tmp_path)
    assert len(log.producers) == 1 and log.producers.entry(8) is not None
    log.close()


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_producer_of_old_records_is_known_after_a_death_that_no_snapshot_saw(tmp_path: Path, is_closed: bool) -> None:
    """It wrote a moment ago, whatever the timestamps of its records are, and sends its last batch
    again; only producers of a snapshot are old.
    """
    log = open_log(tmp_path, producer_expiration_ms=1_000)
    answer = send(log, 0)
    recovery: Recovery = CLEAN
    if is_closed:
        log.close()
    else:
        recovery = SameBoot(log.log_end_offset, log.active_base_offset, log.active_position)
        log.abandon()
    log = Log.open(str(tmp_path), NAME, TOPIC_ID, SMALL, ManualClock(NOW_MS + 10_000), recovery, producer_expiration_ms=1_000)
    assert (send(log, 0) == answer) == (not is_closed) and log.log_end_offset == 1 + is_closed
    log.close()


def remembering(count: int, first_offset: int = 0) -> ProducerState:
    state = ProducerState()
    for number in range(count):
        staging = state.stage()
        staging.replay_batch(ProducerId(number), 0, 0, Offset(first_offset + number), Offset(first_offset + number), NOW_MS, 0, None)
        state.apply(staging)
    return state


def test_of_too_many_producers_those_that_wrote_longest_ago_are_forgotten() -> None:
    state = remembering(PRODUCERS_MAX)
    staging = state.stage()
    staging.replay_batch(ProducerId(0), 0, 1, Offset(PRODUCERS_MAX), Offset(PRODUCERS_MAX), NOW_MS, 0, None)
    staging.replay_batch(ProducerId(1), 0, 1, Offset(PRODUCERS_MAX + 1), Offset(PRODUCERS_MAX + 1), NOW_MS, TRANSACTIONAL_FLAG, None)
    state.apply(staging)
    assert len(state) == PRODUCERS_MAX
    staging = state.stage()
    staging.replay_batch(ProducerId(-2 % 2**63), 0, 0, Offset(PRODUCERS_MAX + 2), Offset(PRODUCERS_MAX + 2), NOW_MS, 0, None)
    state.apply(staging)
    assert len(state) == PRODUCERS_MAX * KEPT_SHARE
    assert state.entry(ProducerId(0)) is not None and state.entry(ProducerId(2)) is None and state.entry(ProducerId(PRODUCERS_MAX - 1)) is not None
    state.keep_newest(0)
    assert [producer_id for producer_id, _ in state.snapshot()] == [1] and state.is_undecided, "an open transaction stays"


def test_guards_of_made_up_producers_end_at_a_bound() -> None:
    verifications = Verifications()
    guards = [verifications.begin(ProducerId(number), 0, NOW_MS) for number in range(GUARDS_MAX + 1)]
    assert len(verifications) == GUARDS_MAX
    assert not verifications.is_good(ProducerId(0), 0, guards[0]) and verifications.is_good(ProducerId(GUARDS_MAX), 0, guards[-1])
