"""The high watermark of a led partition, and what its leader wants the ISR to be."""

from __future__ import annotations

import pytest

from appliance.base.invariants import InvariantViolation
from services.log_writer.replicas.replication_state import ISR_PROPOSAL_PAUSE_NS, PROPOSAL_REPEAT_NS, UNKNOWN, IsrProposal, ReplicationState

SECOND = 1_000_000_000
LAG = 30 * SECOND
EPOCH, PARTITION_EPOCH = 7, 40


class Led:
    """A partition that broker 1 leads from offset 100 on, with a clock that the test moves."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), min_insync: int = 2, replicas: tuple[int, ...] = (1, 2, 3), high_watermark: int = 90) -> None:
        self.now = 1_000 * SECOND
        self.progress = ReplicationState(1, LAG, min_insync)
        self.progress.on_become_leader(EPOCH, isr, replicas, PARTITION_EPOCH, 0, 100, high_watermark, self.now)

    def fetch(self, replica: int, offset: int, broker_epoch: int = 5, received: int | None = None, log_start: int = 0) -> bool:
        return self.progress.on_progress(replica, offset, self.now if received is None else received, broker_epoch, log_start)

    def append(self, log_end_offset: int) -> bool:
        return self.progress.on_append(log_end_offset, self.now)

    def advance(self, seconds: float, tick: float = 0.5) -> None:
        """Time passes, with ticks."""
        end = self.now + int(seconds * SECOND)
        while self.now < end:
            self.now = min(end, self.now + int(tick * SECOND))
            self.progress.tick(self.now)

    def proposal(self) -> IsrProposal | None:
        return self.progress.take_proposal(self.now)

    def commit(self, isr: tuple[int, ...], number: int = -1) -> bool:
        return self.progress.on_isr(isr, self.progress.partition_epoch + 1, self.now, number)

    @property
    def high_watermark(self) -> int:
        return self.progress.high_watermark


def test_the_high_watermark_waits_for_every_member_of_the_isr() -> None:
    led = Led()
    assert not led.fetch(2, 100)
    assert led.fetch(3, 95) and led.high_watermark == 95
    led.append(110)
    led.fetch(2, 110)
    assert led.high_watermark == 95
    led.fetch(3, 105)
    assert led.high_watermark == 105


def test_a_new_leader_knows_nothing_of_its_followers_and_keeps_its_own_high_watermark() -> None:
    led = Led()
    assert led.high_watermark == 90
    assert [follower.log_end_offset for follower in led.progress.followers] == [UNKNOWN, UNKNOWN]
    led.fetch(2, 100)
    led.fetch(3, 100)
    led.progress.on_become_leader(EPOCH + 1, (1, 2, 3), (1, 2, 3), PARTITION_EPOCH + 1, 0, 100, 100, led.now)
    led.append(120)
    led.fetch(2, 120)
    assert led.high_watermark == 100


def test_the_same_leader_epoch_again_keeps_what_is_known() -> None:
    led = Led()
    led.fetch(2, 100)
    led.fetch(3, 100)
    led.progress.on_become_leader(EPOCH, (1, 2, 3), (1, 2, 3, 4), PARTITION_EPOCH + 1, 0, 100, 100, led.now)
    assert [follower.log_end_offset for follower in led.progress.followers] == [100, 100, UNKNOWN]


def test_a_leader_epoch_does_not_go_back() -> None:
    led = Led()
    with pytest.raises(InvariantViolation):
        led.progress.on_become_leader(EPOCH - 1, (1,), (1, 2), PARTITION_EPOCH, 0, 100, 90, led.now)


def test_the_high_watermark_never_goes_back_when_a_follower_does() -> None:
    led = Led(isr=(1, 2))
    led.fetch(2, 100)
    assert led.high_watermark == 100
    led.fetch(2, 40)
    assert led.high_watermark == 100


def test_the_high_watermark_stands_still_below_min_insync_replicas() -> None:
    led = Led(isr=(1, 2))
    led.fetch(2, 100)
    led.commit((1,))
    led.append(150)
    assert led.high_watermark == 100 and not led.progress.has_enough_replicas
    assert led.fetch(2, 150, received=led.now + 1)  # it wants to be in again, and counts from that moment on
    led.now += 2
    assert led.high_watermark == 100
    led.commit((1, 2))
    assert led.high_watermark == 150 and led.progress.has_enough_replicas


def test_no_more_replicas_are_needed_than_there_are() -> None:
    led = Led(isr=(1,), min_insync=3, replicas=(1, 2))
    led.append(110)
    assert led.high_watermark == 90
    led = Led(isr=(1, 2), min_insync=3, replicas=(1, 2))
    led.fetch(2, 100)
    assert led.high_watermark == 100


def test_alone_in_the_isr_an_append_moves_the_high_watermark_at_once() -> None:
    led = Led(isr=(1,), min_insync=1)
    assert led.append(101) and led.high_watermark == 101


def test_a_follower_is_dropped_from_the_isr_after_the_lag_time_and_not_before() -> None:
    led = Led()
    led.append(200)
    led.fetch(2, 100)
    led.fetch(3, 200)
    led.advance(25)
    assert led.proposal() is None
    for _ in range(40):
        led.advance(0.5)
        led.fetch(3, 200)
    proposal = led.proposal()
    assert proposal is not None and proposal.isr == (1, 3) and proposal.broker_epochs == {}
    assert (proposal.leader_epoch, proposal.partition_epoch) == (EPOCH, PARTITION_EPOCH)
    assert led.high_watermark == 100
    led.commit((1, 3), proposal.number)
    assert led.high_watermark == 200


def test_the_isr_does_not_shrink_before_it_is_written() -> None:
    led = Led(min_insync=1)
    led.append(200)
    led.fetch(2, 200)
    led.advance(46)
    assert led.progress.maximal_isr == {1, 2, 3}
    assert led.proposal() is not None and led.high_watermark == 90


def test_a_follower_that_had_everything_before_an_append_had_caught_up_until_then() -> None:
    led = Led(isr=(1, 2))
    led.fetch(2, 100)
    led.advance(600)  # it sleeps in its session: no news, no progress
    led.append(200)
    led.advance(20)
    assert led.proposal() is None


def test_a_follower_that_reads_what_there_was_at_its_last_fetch_keeps_up() -> None:
    led = Led(isr=(1, 2))
    led.fetch(2, 100)
    end = 100
    for _ in range(200):  # never at the log's end, always at where that was a second ago
        led.append(end + 50)
        led.advance(1)
        led.fetch(2, end)
        end += 50
    assert led.proposal() is None


def test_a_leader_that_was_suspended_removes_no_follower_until_its_next_check() -> None:
    led = Led(isr=(1, 2))
    led.append(200)
    led.now += 100 * SECOND
    assert not led.progress.tick(led.now)
    led.fetch(2, 200)
    led.advance(20)
    assert led.proposal() is None


def test_a_follower_at_the_high_watermark_joins_the_isr_with_its_broker_epoch() -> None:
    led = Led(isr=(1, 2))
    led.fetch(2, 100)
    assert led.high_watermark == 100
    led.append(110)
    assert not led.fetch(3, 99)
    assert led.fetch(3, 100, broker_epoch=77)
    proposal = led.proposal()
    assert proposal is not None and proposal.isr == (1, 2, 3) and proposal.broker_epochs == {3: 77}
    assert led.proposal() is None


def test_a_follower_below_the_start_of_the_leader_epoch_does_not_join_the_isr() -> None:
    led = Led(isr=(1, 2), high_watermark=50)
    led.fetch(2, 60)
    assert led.high_watermark == 60
    assert not led.fetch(3, 99)
    assert led.fetch(3, 100)


def test_a_proposed_follower_counts_until_the_answer_arrives() -> None:
    led = Led(isr=(1, 2))
    led.fetch(2, 100)
    led.fetch(3, 100)
    proposal = led.proposal()
    assert proposal is not None
    led.append(120)
    led.fetch(2, 120)
    led.advance(3)
    assert led.high_watermark == 100
    led.progress.on_isr((1, 2), PARTITION_EPOCH, led.now, proposal.number)
    led.advance(3)
    assert led.high_watermark == 120


def test_an_answer_to_an_older_copy_of_a_proposal_is_ignored() -> None:
    led = Led(isr=(1, 2))
    led.fetch(2, 100)
    led.fetch(3, 100)
    first = led.proposal()
    led.now += PROPOSAL_REPEAT_NS
    assert led.progress.tick(led.now)
    second = led.proposal()
    assert first is not None and second is not None and second == first._replace(number=second.number) and second.number > first.number
    led.progress.on_isr((1, 2), PARTITION_EPOCH, led.now, first.number)
    led.progress.on_isr((1, 2), PARTITION_EPOCH, led.now)
    assert led.progress.maximal_isr == {1, 2, 3}
    led.progress.on_isr((1, 2), PARTITION_EPOCH, led.now, second.number)
    assert led.progress.maximal_isr == {1, 2}


def test_an_older_partition_epoch_is_not_taken_over() -> None:
    led = Led()
    led.progress.on_isr((1,), PARTITION_EPOCH - 1, led.now)
    assert led.progress.isr == (1, 2, 3)


def test_after_a_refusal_there_is_a_pause() -> None:
    led = Led(isr=(1, 2))
    led.fetch(2, 100)
    led.fetch(3, 100)
    proposal = led.proposal()
    assert proposal is not None
    led.progress.on_isr((1, 2), PARTITION_EPOCH, led.now, proposal.number)
    assert not led.fetch(3, 100) and led.proposal() is None
    led.now += ISR_PROPOSAL_PAUSE_NS
    assert led.fetch(3, 100) and led.proposal() is not None


def test_a_follower_that_left_the_isr_must_report_its_position_again() -> None:
    led = Led()
    led.fetch(2, 100)
    led.fetch(3, 100)
    left_at = led.now + SECOND
    led.now = left_at
    led.commit((1, 2))
    assert not led.fetch(3, 100, received=left_at)  # it came before: its disk may be gone by now
    assert led.proposal() is None and led.progress.dropped == 1
    assert led.fetch(3, 100, received=left_at + 1)


def test_a_fetch_of_an_older_broker_epoch_is_ignored() -> None:
    led = Led(isr=(1, 2))
    led.fetch(2, 60, broker_epoch=9)
    led.now += SECOND
    led.fetch(2, 100, broker_epoch=8)
    assert led.high_watermark == 90 and led.progress.dropped == 1


def test_a_fetch_that_was_received_earlier_says_nothing_any_more() -> None:
    led = Led(isr=(1, 2))
    led.fetch(2, 60)
    led.fetch(2, 100, received=led.now - 1)
    assert led.high_watermark == 90 and led.progress.dropped == 1


def test_a_fetch_beyond_the_log_or_of_a_stranger_is_dropped() -> None:
    led = Led()
    assert not led.fetch(2, 101) and not led.fetch(9, 100) and not led.fetch(2, -1)
    assert led.progress.dropped == 3


def test_an_outsider_that_keeps_up_is_waited_for_and_one_that_went_silent_is_not() -> None:
    for is_silent in (False, True):
        led = Led(isr=(1,), min_insync=1, replicas=(1, 2))
        led.append(110)
        led.fetch(2, 100)
        led.append(120)
        led.fetch(2, 110)  # it has what there was at its last fetch, and is behind what is committed
        assert led.proposal() is None and led.high_watermark == 120
        led.append(130)
        assert led.high_watermark == 120
        if is_silent:
            led.advance(1.5)
            assert led.high_watermark == 130
        else:
            led.fetch(2, 120)
            assert led.proposal() is not None


@pytest.mark.parametrize("round_seconds", [0.05, 0.3, 0.6, 2.0])
def test_an_outsider_gets_in_while_records_come_in_however_long_its_rounds_take(round_seconds: float) -> None:
    """On an overloaded machine; it has always what there was at its last fetch."""
    led = Led(isr=(1,), min_insync=1, replicas=(1, 2))
    offset = 0
    for _ in range(5):
        led.fetch(2, offset)
        offset = led.progress.log_end_offset
        for _ in range(10):
            led.advance(round_seconds / 10)
            led.append(led.progress.log_end_offset + 1)
    assert led.proposal() is not None


def test_an_outsider_is_not_awaited_longer_because_its_fetch_was_parked() -> None:
    led = Led(isr=(1,), min_insync=1, replicas=(1, 2), high_watermark=100)
    led.progress.on_isr((1,), PARTITION_EPOCH + 1, led.now)
    led.fetch(2, 90)
    led.advance(0.02)
    led.fetch(2, 100)
    proposal = led.proposal()
    assert proposal is not None
    led.progress.on_isr((1,), led.progress.partition_epoch, led.now, proposal.number)  # refused
    led.advance(0.4)  # at the leader, which had nothing new
    led.fetch(2, 100)
    led.append(110)
    led.advance(0.3)
    assert led.high_watermark == 110


def test_before_the_first_order_of_the_controller_every_replica_counts_and_nothing_is_proposed() -> None:
    progress = ReplicationState(1, LAG, 1)
    progress.on_become_leader(EPOCH, (1, 2), (1, 2, 3), UNKNOWN, 0, 100, 90, SECOND)
    progress.on_progress(2, 100, 2 * SECOND)
    assert progress.high_watermark == 90
    for _ in range(100):
        assert not progress.tick(3 * SECOND)
    progress.on_progress(3, 95, 3 * SECOND)
    assert progress.high_watermark == 95 and progress.take_proposal(3 * SECOND) is None
    progress.on_become_leader(EPOCH, (1, 2), (1, 2, 3), PARTITION_EPOCH, 0, 100, 95, 4 * SECOND)
    assert progress.maximal_isr == {1, 2}
    progress.on_append(101, 5 * SECOND)
    progress.on_progress(2, 101, 6 * SECOND)
    assert progress.high_watermark == 101


def test_a_replica_that_leaves_the_assignment_counts_while_it_is_in_sync_and_is_never_let_in_again() -> None:
    led = Led(isr=(1, 2, 3))
    led.fetch(2, 100)
    led.fetch(3, 95)
    led.progress.on_become_leader(EPOCH, (1, 2, 3), (1, 2), PARTITION_EPOCH + 1, 0, 100, 95, led.now)
    assert led.high_watermark == 95
    led.commit((1, 2))
    assert led.high_watermark == 100
    led.now += 1
    assert not led.fetch(3, 100) and led.proposal() is None


def test_where_acknowledgements_wait_for_flushes_the_leaders_own_log_counts_only_when_it_is_durable() -> None:
    led = Led(isr=(1, 2))
    led.progress.on_durable(100, led.now)
    led.append(110)
    led.fetch(2, 110)
    assert led.high_watermark == 100
    assert led.progress.on_durable(105, led.now) and led.high_watermark == 105
    assert led.progress.on_durable(None, led.now) and led.high_watermark == 110


def test_the_low_watermark_is_the_lowest_log_start_offset_of_live_replicas() -> None:
    led = Led()
    led.progress.log_start_offset = 50
    led.fetch(2, 100, log_start=50)
    assert led.progress.low_watermark(None) == 0
    led.fetch(3, 100, log_start=40)
    assert led.progress.low_watermark(None) == 40
    led.commit((1, 2))
    assert led.progress.low_watermark(None) == led.progress.low_watermark(frozenset((1, 2, 3))) == 0, "out of sync, it has to show itself anew"
    assert led.progress.low_watermark(frozenset((1, 2))) == 50
