"""Several replicas of a partition, real log-writers stepped by hand: high watermarks and where they are, in-sync sets, fail-over, truncation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.descriptors import BEHIND_REFUSED_FLAG, COMMITTED_FLAG, COORDINATOR_FLAG, DescriptorKind, ReplicaAppend, Truncation
from appliance.records.batch import RECORDS_AT
from appliance.shm.partition_table import ROLE_FOLLOWER, ROLE_LEADER
from lab.raw_transactions import transactional_batch
from lab.running_box import eventually
from tests.support.replicas import BROKER_EPOCH, LAG_MS, SteppedReplica, batch, check_watermark, fetch, replicas
from tests.unit.storage.storage_support import batch as stored_batch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_waiting_for_the_disk")]

SMALL_SEGMENTS = {"segment.bytes": "400"}


def _roles(brokers: list[SteppedReplica], leader: int, leader_epoch: int, isr: list[int] | None = None, partition_epoch: int = 0) -> None:
    numbers = [each.broker_id for each in brokers]
    isr = numbers if isr is None else isr
    for each in brokers:
        if each.broker_id == leader:
            assert each.lead(leader_epoch, isr, numbers, partition_epoch) == 0
        else:
            assert each.follow(leader, leader_epoch, isr, numbers) == 0


def _appended(leader: SteppedReplica, *batches: bytes) -> None:
    for each in batches:
        leader.produce(each)
    before = leader.log_end
    leader.turn(1)
    assert leader.log_end > before


def _catch_up(follower: SteppedReplica, leader: SteppedReplica) -> None:
    while fetch(follower, leader) != "told":
        pass


def test_the_high_watermark_is_where_every_replica_in_sync_is(tmp_path: Path) -> None:
    with replicas(tmp_path, 3) as (one, two, three):
        _roles([one, two, three], leader=1, leader_epoch=1)
        _appended(one, batch(2), batch(3))
        assert (one.row.high_watermark, one.row.log_end_offset, one.row.isr_size) == (0, 5, 3)
        assert [each.flags for each in one.produced] == [0, 0], "appended, and not committed"
        _catch_up(two, one)
        assert one.row.high_watermark == 0, "one of three is behind"
        _catch_up(three, one)
        assert one.row.high_watermark == 5
        assert (two.row.high_watermark, two.row.role) == (0, ROLE_FOLLOWER), "it has not heard of it yet"
        fetch(two, one)
        assert two.row.high_watermark == 5
        assert one.content == two.content == three.content
        for each in (one, two, three):
            check_watermark(each)


def test_what_is_on_its_way_to_a_leader_is_taken_under_a_larger_epoch_of_its_own_and_not_after_a_break(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        _roles([one, two], leader=1, leader_epoch=2)
        one.produce(batch(), leader_epoch=1)
        one.turn(1)
        assert [(each.error_code, each.leader_epoch) for each in one.produced] == [(0, 2)]
        _roles([one, two], leader=2, leader_epoch=3)
        _roles([one, two], leader=1, leader_epoch=4)
        for epoch in (2, 3, 5):
            one.produce(batch(), leader_epoch=epoch)
        one.turn(1)
        assert [each.error_code for each in one.produced][1:] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
        assert one.log_end == 1


@pytest.mark.parametrize("config", [{}, SMALL_SEGMENTS], ids=["one segment", "rolls"])
def test_the_high_watermark_has_its_place_at_every_batch_boundary(tmp_path: Path, config: dict[str, str]) -> None:
    """The leader appends several batches in one write; followers come one batch at a time, and not at the same pace."""
    with replicas(tmp_path, 3, config) as (one, two, three):
        _roles([one, two, three], leader=1, leader_epoch=1)
        for size in range(1, 5):
            _appended(one, *[batch(size, b"x" * 40) for _ in range(4)])
        expected = [last + 1 for _, last, _, _, _ in one.batches()]
        seen = []
        while three.log_end < one.log_end:
            fetch(two, one, max_bytes=1)
            fetch(two, one, max_bytes=1)
            fetch(three, one, max_bytes=1)
            fetch(three, one, appends=False)
            seen.append(one.row.high_watermark)
            for each in (one, two, three):
                check_watermark(each)
        assert seen == expected
        _catch_up(two, one)
        for each in (one, two):
            assert each.row.high_watermark == one.log_end
            check_watermark(each)


def test_acks_all_needs_enough_replicas_in_sync(tmp_path: Path) -> None:
    with replicas(tmp_path, 3, {"min.insync.replicas": "2"}) as (one, two, three):
        _roles([one, two, three], leader=1, leader_epoch=1, isr=[1])
        one.produce(batch(), acks_all=True)
        one.produce(batch())
        one.turn(1)
        assert [each.error_code for each in one.produced] == [ErrorCode.NOT_ENOUGH_REPLICAS, 0]
        assert one.row.high_watermark == 0, "it stands still below min.insync.replicas"
        _catch_up(two, one)
        one.turn(1)
        (wish,) = one.wishes
        assert (wish["isr"], wish["broker_epochs"], wish["leader_epoch"], wish["partition_epoch"]) == ([1, 2], {"2": BROKER_EPOCH + 2}, 1, 0)
        assert one.isr(1, [1, 2], 1, wish["change"]) == 0
        assert (one.row.isr_size, one.row.high_watermark) == (2, 1)
        one.produce(batch(), acks_all=True)
        one.turn(1)
        assert one.produced[-1].error_code == 0


def test_a_lagging_follower_is_proposed_for_removal_and_the_larger_isr_counts_until_it_is_written(tmp_path: Path) -> None:
    with replicas(tmp_path, 3) as (one, two, three):
        _roles([one, two, three], leader=1, leader_epoch=1)
        _appended(one, batch())
        for _ in range(LAG_MS // 1000 * 2):
            one.writer.clock.advance_ms(1000)
            fetch(two, one)
            one.turn(1)
        (wish,) = one.wishes[:1]
        assert wish["isr"] == [1, 2] and wish["broker_epochs"] == {}
        assert one.row.high_watermark == 0
        assert one.isr(1, [1, 2, 3], 0, wish["change"]) == 0, "refused"
        assert one.row.high_watermark == 0
        one.wishes.clear()
        for _ in range(LAG_MS // 1000):
            one.writer.clock.advance_ms(1000)
            fetch(two, one)
            one.turn(1)
        wish = one.wishes[-1]
        assert one.isr(1, [1, 2], 1, wish["change"]) == 0
        assert (one.row.high_watermark, one.row.isr_size) == (1, 2)
        check_watermark(one)
        assert one.isr(0, [1, 2], 2) == ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("lag_ms", [500, 2_000, 4_000])
def test_a_lagging_follower_is_proposed_for_removal_however_short_the_limit_is(tmp_path: Path, lag_ms: int) -> None:
    with replicas(tmp_path, 2, lag_ms=lag_ms) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        _appended(one, batch())
        for _ in range(2 * lag_ms // 50):
            one.writer.clock.advance_ms(50)
            one.turn(1)
        assert [wish["isr"] for wish in one.wishes[:1]] == [[1]]


def test_an_isr_proposal_waits_for_the_controller_and_is_sent_to_its_next_incarnation(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1, isr=[1])
        one.controller.close()
        one.controller.source.close()
        one.turn()
        _catch_up(two, one)
        one.turn()
        assert one.wishes == []
        one.controller = one.writer.source("controller")
        one.controller.on_isr_changes = lambda _disk, wishes: one.wishes.extend(wishes)
        one.turn()
        assert [wish["isr"] for wish in one.wishes] == [[1, 2]]


def test_progress_of_another_epoch_row_or_replica_moves_nothing(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        _appended(one, batch())
        one.progress(7, 1)
        one.progress(2, 5)
        two.progress(1, 0)
        one.hosted.leader_epoch = 2  # what the acceptor saw is older than what is
        one.progress(2, 1)
        assert one.row.high_watermark == 1
        one.hosted.progress = None
        assert one.writer.counters.counter("log_writer.progress_dropped").value == 2
        assert two.writer.counters.counter("log_writer.progress_dropped").value == 1


def test_a_follower_takes_over_and_goes_on_with_what_it_knew_to_be_committed(tmp_path: Path) -> None:
    with replicas(tmp_path, 3) as (one, two, three):
        everybody = [one, two, three]
        _roles(everybody, leader=1, leader_epoch=1)
        _appended(one, batch(2))
        _catch_up(two, one)
        _catch_up(three, one)
        fetch(two, one)
        _appended(one, batch(3))
        fetch(two, one)
        assert (two.row.high_watermark, two.log_end) == (2, 5)
        check_watermark(two)
        one.die()
        _roles([two, three], leader=2, leader_epoch=2, isr=[2, 3], partition_epoch=1)
        assert (two.row.role, two.row.high_watermark, two.row.leader_epoch) == (ROLE_LEADER, 2, 2)
        check_watermark(two)
        _appended(two, batch(1, b"new"))
        _catch_up(three, two)
        assert two.row.high_watermark == two.log_end == 6
        check_watermark(two)
        one.start()
        assert one.follow(2, 2, [2, 3], [1, 2, 3]) == 0
        _catch_up(one, two)
        fetch(three, two)
        assert one.content == two.content == three.content
        one.turn(1)


def test_what_an_old_leader_had_alone_is_cut_by_leader_epoch(tmp_path: Path) -> None:
    with replicas(tmp_path, 2, SMALL_SEGMENTS) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        for _ in range(6):
            _appended(one, batch(2, b"y" * 50))
        _catch_up(two, one)
        fetch(two, one)
        for _ in range(5):
            _appended(one, batch(3, b"alone" * 10))
        committed = one.row.high_watermark
        assert committed == 12 and one.log_end == 27
        _roles([one, two], leader=2, leader_epoch=2, partition_epoch=1)
        assert (one.row.role, one.row.high_watermark) == (ROLE_FOLLOWER, committed)
        check_watermark(one)
        for _ in range(3):
            _appended(two, batch(3, b"other"))
        assert fetch(one, two) == "truncated"
        assert (one.log_end, one.row.high_watermark) == (12, 12)
        check_watermark(one)
        for _ in range(3):
            fetch(one, two, max_bytes=1)
            check_watermark(one)
        assert (one.row.high_watermark, one.log_end) == (18, 21), "where a batch ended before it was cut another one may end elsewhere"
        _catch_up(one, two)
        fetch(one, two)
        assert one.content == two.content
        assert one.writer.counters.counter("log_writer.truncations").value == 1
        assert one.writer.counters.counter("log_writer.truncated_below_high_watermark").value == 0
        assert "CRITICAL" not in one.writer.said.upper()


def test_a_leader_that_wrote_nothing_under_its_epoch_does_not_keep_it(tmp_path: Path) -> None:
    """Its epoch began at the log end and brought no batch; the next leader never heard of it."""
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        _appended(one, batch())
        _catch_up(two, one)
        assert one.lead(2, [1, 2], [1, 2], 1) == 0
        assert one.hosted.log.leader_epochs.latest == 2
        _roles([one, two], leader=2, leader_epoch=3, partition_epoch=2)
        assert fetch(one, two) == "truncated"
        assert (one.log_end, one.hosted.log.leader_epochs.latest) == (1, 1)
        _appended(two, batch())
        _catch_up(one, two)
        assert one.content == two.content and one.hosted.log.leader_epochs.latest == 3


def test_an_unclean_election_cuts_below_the_high_watermark_and_says_so(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1, isr=[1])
        _appended(one, batch(2))
        fetch(two, one, max_bytes=1)
        _appended(one, batch(2))
        one.isr(1, [1], 1)
        for _ in range(3):
            one.writer.clock.advance_ms(2000)
            one.turn(1)
        assert one.row.high_watermark == 4, "the other one is not in sync"
        _roles([one, two], leader=2, leader_epoch=2, isr=[2], partition_epoch=1)
        _appended(two, batch(1, b"unclean"))
        assert fetch(one, two) == "truncated"
        assert (one.log_end, one.row.high_watermark) == (2, 2)
        check_watermark(one)
        assert one.writer.counters.counter("log_writer.truncated_below_high_watermark").value == 1
        assert "below its high watermark 4" in one.writer.said
        _catch_up(one, two)
        assert one.content == two.content


def test_a_follower_whose_leader_has_nothing_older_begins_anew(tmp_path: Path) -> None:
    with replicas(tmp_path, 2, SMALL_SEGMENTS) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1, isr=[1])
        _appended(one, batch(2))
        ((_, _, first, _, _),) = one.batches()
        assert two.append(first, ReplicaAppend(2, 0)).error_code == 0
        for _ in range(6):
            _appended(one, batch(2, b"z" * 60))
        assert one.writer.agent.retention.delete_records(one.hosted, one.log_end, None) == 0
        one.writer.agent.retention.forget(lambda context: context is None)
        assert fetch(two, one) == "truncated"
        row = two.row
        assert (row.log_start_offset, row.high_watermark, row.log_end_offset) == (one.log_end,) * 3
        check_watermark(two)
        _appended(one, batch())
        _catch_up(two, one)
        assert two.log_end == one.log_end


def test_followers_begin_where_their_leader_begins_and_not_above_their_high_watermark(tmp_path: Path) -> None:
    with replicas(tmp_path, 2, SMALL_SEGMENTS) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        for _ in range(4):
            _appended(one, batch(2, b"w" * 60))
            _catch_up(two, one)
        fetch(two, one)
        assert two.row.high_watermark == 8
        _appended(one, batch(2))
        content = one.content[-len(batch(2)) :]
        two.append(content, ReplicaAppend(8, 6))
        assert (two.row.log_start_offset, two.row.high_watermark) == (6, 8)
        check_watermark(two)
        two.append(b"", ReplicaAppend(9, 10))
        assert (two.row.log_start_offset, two.row.high_watermark) == (8, 8), "9 is inside of a batch"
        check_watermark(two)


def _broken(content: bytes, how: str) -> bytes:
    damaged = bytearray(content)
    if how == "checksum":
        damaged[RECORDS_AT + 3] ^= 1
    elif how == "torn":
        del damaged[-1]
    elif how == "magic":
        damaged[16] = 1
    elif how == "epoch":
        damaged[12:16] = (9).to_bytes(4, "big")
    return bytes(damaged)


@pytest.mark.parametrize("how", ["checksum", "torn", "magic", "epoch"])
def test_a_batch_that_is_not_whole_or_right_is_refused_and_nothing_of_its_call_stays(tmp_path: Path, how: str) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        _appended(one, batch(2), batch(2))
        (_, _, first, _, _), (_, _, second, _, _) = one.batches()
        answer = two.append(first + _broken(second, how), ReplicaAppend(4, 0))
        assert (answer.error_code, answer.log_end_offset, answer.base_offset) == (ErrorCode.CORRUPT_MESSAGE, 0, -1)
        assert (two.row.log_end_offset, two.row.high_watermark, two.content) == (0, 0, b"")
        assert two.append(first + second, ReplicaAppend(4, 0)).log_end_offset == 4
        assert two.content == one.content


def test_what_does_not_continue_the_log_or_is_of_another_epoch_is_refused(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        _appended(one, batch(2), batch(2))
        (_, _, first, _, _), (_, _, second, _, _) = one.batches()
        assert two.append(first, ReplicaAppend(0, 0)).error_code == 0
        again = two.append(first, ReplicaAppend(0, 0))
        assert (again.error_code, again.log_end_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)
        assert two.append(second, ReplicaAppend(0, 0), leader_epoch=0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert one.append(second, ReplicaAppend(0, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "it leads"
        told = two.truncate(Truncation.TELL, -1)
        assert (told.error_code, told.log_end_offset, told.log_start_offset, told.leader_epoch) == (0, 2, 0, 1)


def test_roles_are_taken_once_and_never_under_an_older_epoch(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=1, leader_epoch=3)
        assert two.follow(1, 3, [1, 2], [1, 2]) == 0
        assert two.follow(1, 2, [1, 2], [1, 2]) == ErrorCode.FENCED_LEADER_EPOCH
        assert two.lead(2, [1, 2], [1, 2]) == ErrorCode.FENCED_LEADER_EPOCH
        assert one.follow(2, 3, [1, 2], [1, 2]) == ErrorCode.FENCED_LEADER_EPOCH, "an epoch has one leader"
        _appended(one, batch())
        _catch_up(two, one)
        assert one.lead(3, [1, 2], [1, 2]) == 0, "again"
        assert one.row.high_watermark == 1, "and what the followers have is not forgotten"
        assert one.follow(-1, 3, [1], [1, 2]) == 0, "no replica leads"


def test_a_sole_replica_gets_followers_and_loses_them_again_under_one_epoch(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        assert one.lead(1, [1], [1]) == 0
        _appended(one, batch(2))
        assert (one.row.high_watermark, one.produced[0].flags) == (2, COMMITTED_FLAG)
        assert one.lead(1, [1], [1, 2], 1) == 0
        assert two.follow(1, 1, [1], [1, 2]) == 0
        _appended(one, batch(1))
        assert one.row.high_watermark == 3, "a replica out of sync does not count"
        _catch_up(two, one)
        one.turn(1)
        assert one.isr(1, [1, 2], 2, one.wishes[-1]["change"]) == 0
        _appended(one, batch(1))
        assert one.row.high_watermark == 3
        check_watermark(one)
        assert one.lead(1, [1], [1], 3) == 0
        assert one.row.high_watermark == 4


@pytest.mark.parametrize("ends", ["die", "stop"])
def test_a_log_writer_that_begins_anew_knows_where_the_high_watermark_was(tmp_path: Path, ends: str) -> None:
    with replicas(tmp_path, 2, SMALL_SEGMENTS) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        for _ in range(5):
            _appended(one, batch(2, b"v" * 60), batch(1))
        while two.log_end < 8:
            fetch(two, one, max_bytes=1)
        fetch(two, one, appends=False)
        before = one.row.high_watermark
        assert 0 < before < one.log_end
        if ends == "die":
            one.die()
        else:
            one.stop()
        one.start()
        assert one.lead(1 if ends == "die" else 2, [1, 2], [1, 2], 1) == 0
        assert one.row.high_watermark == before
        check_watermark(one)


def test_with_policy_ack_a_replicas_word_is_what_is_durable(tmp_path: Path) -> None:
    with replicas(tmp_path, 2, {"flush.messages": "1"}) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        one.produce(batch(2))
        one.turn(1)
        _until(lambda: bool(one.produced), one)
        assert [(each.error_code, each.flags) for each in one.produced] == [(0, 0)]
        assert one.row.high_watermark == 0
        assert fetch(two, one) == "appended", "and it was answered after its flush"
        assert two.hosted.log.durable_offset == two.log_end == 2
        fetch(two, one)
        assert one.row.high_watermark == 2
        for each in (one, two):
            check_watermark(each)


def test_what_a_follower_has_learned_of_producers_serves_it_as_leader(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        batches = [_of_producer(5, 0, sequence) for sequence in range(3)]
        _appended(one, *batches)
        _catch_up(two, one)
        _roles([one, two], leader=2, leader_epoch=2, partition_epoch=1)
        for each in (batches[1], _of_producer(5, 0, 9), _of_producer(5, 0, 3)):
            two.produce(each)
        two.turn(1)
        answers = [(each.error_code, each.base_offset) for each in two.produced]
        assert answers == [(0, 1), (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1), (0, 3)], "a duplicate gets its first answer, a gap is refused"


def test_an_open_transaction_holds_the_last_stable_offset_of_every_replica(tmp_path: Path) -> None:
    with replicas(tmp_path, 3) as (one, two, three):
        _roles([one, two, three], leader=1, leader_epoch=1)
        one.produce(batch(2))
        one.produce(transactional_batch(7, 0, 0, b"a"), flags=COORDINATOR_FLAG)
        one.produce(batch(1))
        one.turn(1)

        def settled() -> list[tuple[int, int]]:
            for each in (two, three, two, three):
                while fetch(each, one) != "told":
                    pass
            return [(each.row.high_watermark, each.row.last_stable_offset) for each in (one, two, three)]

        assert settled() == [(4, 2)] * 3
        one.mark(7, 0, is_commit=False)
        assert (one.row.high_watermark, one.row.last_stable_offset) == (4, 2), "decided, and not replicated"
        _roles([one, two, three], leader=2, leader_epoch=2, isr=[1, 2, 3], partition_epoch=1)
        assert (two.row.high_watermark, two.row.last_stable_offset) == (4, 2)
        assert fetch(one, two) == "truncated", "the marker was the old leader's alone"
        assert (one.row.log_end_offset, one.row.last_stable_offset) == (4, 2), "and the transaction is open again"
        two.mark(7, 0, is_commit=True)
        for each in (one, three, one, three):
            while fetch(each, two) != "told":
                pass
        assert [(each.row.high_watermark, each.row.last_stable_offset) for each in (one, two, three)] == [(5, 5)] * 3
        assert one.content == two.content == three.content


def _of_producer(producer_id: int, producer_epoch: int, sequence: int) -> bytes:
    return bytes(stored_batch(b"value", producer=(producer_id, producer_epoch, sequence)))


def _until(condition: Callable[[], bool], *replicas_: SteppedReplica) -> None:
    eventually(lambda: all(each.writer.turn() >= 0 for each in replicas_) and condition(), "it comes true")


def test_a_deletion_is_answered_when_all_live_replicas_start_there(tmp_path: Path) -> None:
    with replicas(tmp_path, 3) as (one, two, three):
        _roles([one, two, three], leader=1, leader_epoch=1)
        _appended(one, batch(), batch(), batch())
        for each in (two, three):
            _catch_up(each, one)
            fetch(each, one)
        one.delete_records(2, timeout_ms=5_000)
        assert one.row.log_start_offset == 2 and not one.deleted, "the leader's part is done"
        fetch(two, one)
        fetch(two, one)
        assert two.row.log_start_offset == 2 and not one.deleted
        assert one.command(DescriptorKind.LIVE_BROKERS, brokers=[1, 2, 3]) == 0
        one.turn(1)
        assert not one.deleted
        fetch(three, one)
        fetch(three, one)
        assert one.deleted == [(0, 2)]


def test_a_deletion_waits_for_no_box_that_is_gone_and_no_longer_than_its_client(tmp_path: Path) -> None:
    with replicas(tmp_path, 3) as (one, two, three):
        _roles([one, two, three], leader=1, leader_epoch=1)
        _appended(one, batch(), batch(), batch())
        for each in (two, three):
            _catch_up(each, one)
        one.delete_records(2, timeout_ms=1_000)
        one.writer.clock.advance_ms(999)
        one.turn(1)
        assert not one.deleted
        one.writer.clock.advance_ms(1)
        one.turn(1)
        assert one.deleted == [(ErrorCode.REQUEST_TIMED_OUT, 0)] and one.row.log_start_offset == 2
        one.delete_records(-1, timeout_ms=1_000)
        for _ in range(2):
            fetch(two, one)
        assert one.row.log_start_offset == 3 and len(one.deleted) == 1
        assert one.command(DescriptorKind.LIVE_BROKERS, brokers=[1, 2]) == 0
        one.turn(1)
        assert one.deleted[1:] == [(0, 3)]


def test_a_deletion_ends_with_the_leadership_that_took_it(tmp_path: Path) -> None:
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=1, leader_epoch=1)
        _appended(one, batch(), batch())
        _catch_up(two, one)
        one.delete_records(1, timeout_ms=5_000)
        _roles([one, two], leader=2, leader_epoch=2)
        one.turn(1)
        assert one.deleted == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_a_batch_behind_a_refused_one_is_taken_only_if_the_log_has_what_was_before_it(tmp_path: Path) -> None:
    """The refused one was sent to another leader and is in the log; or it was not, and the later one must wait, whether the log knows the producer or not."""
    with replicas(tmp_path, 2) as (one, two):
        _roles([one, two], leader=2, leader_epoch=1)

        def behind(replica: SteppedReplica, sequence: int, producer_epoch: int = 0) -> int:
            replica.produce(stored_batch(b"v", producer=(7, producer_epoch, sequence)), flags=BEHIND_REFUSED_FLAG)
            replica.turn(1)
            return replica.produced[-1].error_code

        assert behind(two, 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER, "the producer is unknown"
        for sequence in range(3):
            two.produce(stored_batch(b"v", producer=(7, 0, sequence)))
        two.turn(1)
        assert behind(two, 4) == ErrorCode.NOT_LEADER_OR_FOLLOWER and behind(two, 3) == 0
        _catch_up(one, two)
        _roles([one, two], leader=1, leader_epoch=2)
        before = one.log_end
        assert behind(one, 5) == behind(one, 4, producer_epoch=1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        for sequence in (4, 5):  # in one turn
            one.produce(stored_batch(b"v", producer=(7, 0, sequence)), flags=BEHIND_REFUSED_FLAG)
        one.turn(1)
        assert [each.error_code for each in one.produced[-2:]] == [0, 0] and one.log_end == before + 2
        assert behind(one, 4) == 0 and one.log_end == before + 2, "a duplicate gets its first answer"
