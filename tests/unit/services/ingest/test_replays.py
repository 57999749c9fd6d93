"""One incarnation of an ingest after the other, over the same journal and spool: batches in flight
are resolved, and replays are recognised.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.model import BrokerId, LeaderEpoch, TopicId
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from services.ingest.producer.spool_replay import SpooledBatches
from services.ingest.records.ack_group import digest_of
from services.ingest.replay.replay_memory import Known
from services.ingest.replay.replays import Replays
from services.ingest.replay.stream_replay import HOLD_MS
from tests.support.ingest_state import LISTENER, SOURCE, IngestState, WaitingBatch
from tests.support.played_leaders import PlayedLeaders

CHUNK = digest_of(b"chunk")
PARTITIONS = tuple(PartitionImage(BrokerId(1), LeaderEpoch(3), (), ()) for _ in range(2))
TOPIC = TopicImage("syslog", TopicId(b"syslog-topic-id!"), PARTITIONS, {})
IMAGE = MetadataImage(1, "", BrokerId(1), {BrokerId(1): BrokerImage(BrokerId(1), "127.0.0.1", 9092)}, {"syslog": TOPIC})


class Incarnations:
    """`replays` of the current incarnation; `kill` begins the next."""

    def __init__(self, directory: Path) -> None:
        self.state = IngestState(directory)
        self.leaders = PlayedLeaders()
        self.aligned: list[tuple[Any, int]] = []
        self.dropped: list[Any] = []
        self.number = 0
        self.kill()

    def kill(self) -> None:
        self.number += 1
        journal = str(self.state.directory / "journal")
        state = self.state
        self.replays = Replays(journal, f"life{self.number}", state.boot, 1000, 600_000, self.leaders, state.clock, state.counters, state.log)
        while not self.replays.is_loaded:
            self.replays.do_work(self.state.clock.monotonic_ms(), IMAGE, True)

    def run(self, milliseconds: int = 1000, rings_are_final: bool = True) -> None:
        for _ in range(milliseconds // 50):
            self.replays.do_work(self.state.clock.monotonic_ms(), IMAGE, rings_are_final)
            self.leaders.answer()
            self.state.clock.advance_ms(50)

    def open_stream(self) -> Any:
        return self.replays.open_stream(LISTENER, SOURCE, lambda token, serial: self.aligned.append((token, serial)), self.dropped.append)


@pytest.fixture
def incarnations(tmp_path: Path) -> Iterator[Incarnations]:
    made = Incarnations(tmp_path)
    yield made
    made.state.close()


def frames(*numbers: int) -> list[bytes]:
    return [digest_of(b"line %d" % number) for number in numbers]


@pytest.mark.parametrize(("last_sequence", "verdict"), [(9, Known.PARTLY), (4, Known.NEW), (None, Known.NEW)])
def test_a_batch_that_was_offered_is_asked_for_and_until_then_a_replay_waits(incarnations: Incarnations, last_sequence: int | None, verdict: Known) -> None:
    incarnations.replays.before_offer(WaitingBatch(10, [(CHUNK, 0, 10)]))
    incarnations.kill()
    memory = incarnations.replays.memory
    assert memory.lookup(CHUNK) is Known.UNRESOLVED
    incarnations.leaders.last = {7: (0, last_sequence)} if last_sequence is not None else {}
    incarnations.run(rings_are_final=False)
    assert incarnations.replays.memory.lookup(CHUNK) is Known.UNRESOLVED and not incarnations.leaders.asked, "its rings may still be appended from"
    told: list[Known] = []
    memory.when_known(CHUNK, lambda: told.append(memory.lookup(CHUNK)))
    incarnations.run()
    assert told == [verdict] and incarnations.replays.is_resolved
    assert memory.has(CHUNK, "syslog", 9) is (verdict is Known.PARTLY)


def test_no_later_incarnation_asks_again_for_a_known_result(incarnations: Incarnations) -> None:
    stored, refused = WaitingBatch(10, [(CHUNK, 0, 10)]), WaitingBatch(5, [(CHUNK, 10, 5)], sequence=10)
    asked_for = WaitingBatch(2, [(CHUNK, 15, 2)], sequence=15)
    for batch in (stored, refused, asked_for):
        incarnations.replays.before_offer(batch)
    incarnations.replays.stored(stored)
    incarnations.replays.refused(refused)
    incarnations.leaders.last = {7: (0, 16)}
    incarnations.run(2000)
    incarnations.kill()
    incarnations.run(2000)
    assert len(incarnations.leaders.asked) == 3, "one batch: producers, end, high watermark"
    incarnations.kill()
    assert incarnations.replays.is_resolved
    assert [ordinal for ordinal in range(20) if incarnations.replays.memory.has(CHUNK, "syslog", ordinal)] == [*range(10), 15, 16]


@pytest.mark.parametrize(("last_sequence", "kept"), [(14, 15), (9, 10), (None, 0)])
def test_after_a_power_cut_the_leader_says_what_is_stored_whatever_the_journal_says(incarnations: Incarnations, last_sequence: int | None, kept: int) -> None:
    """The log lost with its page cache what the journal records as stored; a repeated record must
    not be acknowledged without being stored.
    """
    for batch in (WaitingBatch(10, [(CHUNK, 0, 10)]), WaitingBatch(5, [(CHUNK, 10, 5)], sequence=10)):
        incarnations.replays.before_offer(batch)
        incarnations.replays.stored(batch)
    incarnations.replays.close()
    incarnations.state.boot = digest_of(b"another boot")
    incarnations.kill()
    assert incarnations.replays.memory.lookup(CHUNK) is Known.UNRESOLVED
    incarnations.leaders.last = {7: (0, last_sequence)} if last_sequence is not None else {}
    incarnations.kill()
    assert incarnations.replays.memory.lookup(CHUNK) is Known.UNRESOLVED, "the incarnation between has asked no leader"
    incarnations.run()
    memory = incarnations.replays.memory
    assert [ordinal for ordinal in range(15) if memory.has(CHUNK, "syslog", ordinal)] == list(range(kept))
    incarnations.run()
    incarnations.kill()
    assert incarnations.replays.is_resolved, "what a leader said in this boot is believed"
    assert [ordinal for ordinal in range(15) if incarnations.replays.memory.has(CHUNK, "syslog", ordinal)] == list(range(kept))


def test_after_a_power_cut_a_stream_is_asked_for_too(incarnations: Incarnations) -> None:
    session = incarnations.open_stream()
    session.take(frames(0, 1, 2), "first")
    batch = WaitingBatch(3, [(session.identity, 0, 3)])
    incarnations.replays.before_offer(batch)
    incarnations.replays.stored(batch)
    session.completed(0, 3)
    incarnations.replays.close()
    incarnations.state.boot = digest_of(b"another boot")
    incarnations.kill()
    again = incarnations.open_stream()
    assert again.take(frames(0, 1, 2, 3), "all") is None, "held back until the leader has answered"
    incarnations.leaders.last = {7: (0, 1)}
    incarnations.run(HOLD_MS + 100)
    ((_, serial),) = incarnations.aligned
    assert not incarnations.replays.memory.has(again.identity, "syslog", serial), "the log has nothing of it"


def test_an_identity_that_was_forgotten_is_new_in_the_next_incarnation(incarnations: Incarnations) -> None:
    batch = WaitingBatch(10, [(CHUNK, 0, 10)])
    incarnations.replays.before_offer(batch)
    incarnations.replays.stored(batch)
    incarnations.replays.forget(CHUNK)
    incarnations.run(100)
    incarnations.kill()
    assert incarnations.replays.memory.lookup(CHUNK) is Known.NEW and incarnations.replays.is_resolved


def test_an_identity_is_forgotten_for_the_next_incarnation_only_after_a_turn_in_which_its_answer_is_sent(incarnations: Incarnations) -> None:
    batch = WaitingBatch(10, [(CHUNK, 0, 10)])
    incarnations.replays.before_offer(batch)
    incarnations.replays.stored(batch)
    incarnations.run(2000)  # the result is in the journal
    incarnations.replays.forget(CHUNK)
    assert incarnations.replays.memory.lookup(CHUNK) is Known.NEW
    incarnations.run(50)
    incarnations.kill()
    assert incarnations.replays.memory.has(CHUNK, "syslog", 9)


def test_an_identity_that_is_used_again_before_it_was_journalled_as_forgotten_is_kept(incarnations: Incarnations) -> None:
    first, second = WaitingBatch(10, [(CHUNK, 0, 10)]), WaitingBatch(10, [(CHUNK, 0, 10)], sequence=10)
    incarnations.replays.before_offer(first)
    incarnations.replays.stored(first)
    incarnations.replays.forget(CHUNK)
    incarnations.replays.before_offer(second)
    incarnations.replays.stored(second)
    incarnations.run(2000)
    incarnations.kill()
    assert incarnations.replays.memory.has(CHUNK, "syslog", 9)


def test_frames_of_a_session_that_died_with_the_process_are_found_again(incarnations: Incarnations) -> None:
    session = incarnations.open_stream()
    assert session.take(frames(0, 1, 2), "first") == 0
    assert session.take(frames(3, 4), "never batched") == 3
    incarnations.replays.before_offer(WaitingBatch(3, [(session.identity, 0, 3)]))
    incarnations.leaders.last = {7: (0, 2)}
    incarnations.kill()
    again = incarnations.open_stream()
    assert again.take(frames(1, 2, 3), "a") is None
    assert again.take(frames(4, 5, 6), "b") is None
    incarnations.run()
    assert incarnations.aligned == [("a", 1), ("b", 4)]
    assert again.replayed_end == 5 and again.take(frames(7), "c") == 7
    has = [incarnations.replays.memory.has(again.identity, "syslog", serial) for serial in range(8)]
    assert has == [True, True, True, False, False, False, False, False], "what was never batched is stored now"


def test_frames_wait_until_the_leader_has_answered(incarnations: Incarnations) -> None:
    session = incarnations.open_stream()
    session.take(frames(0, 1), "first")
    incarnations.replays.before_offer(WaitingBatch(2, [(session.identity, 0, 2)]))
    incarnations.kill()
    incarnations.leaders.is_away = True
    again = incarnations.open_stream()
    assert again.take(frames(0, 1, 2), "a") is None
    incarnations.run(5 * HOLD_MS)
    assert not incarnations.aligned
    incarnations.leaders.is_away = False
    incarnations.leaders.last = {7: (0, 1)}
    incarnations.run()
    assert incarnations.aligned == [("a", 0)]


def test_a_session_whose_end_was_clean_leaves_nothing(incarnations: Incarnations) -> None:
    session = incarnations.open_stream()
    assert session.take(frames(0, 1), "first") == 0
    batch = WaitingBatch(2, [(session.identity, 0, 2)])
    incarnations.replays.before_offer(batch)
    incarnations.replays.stored(batch)
    session.end(True)
    session.completed(0, 2)
    incarnations.run(2000)
    assert len(incarnations.replays.memory) == 0
    assert incarnations.open_stream().take(frames(0, 1), "the same lines again") == 0
    incarnations.kill()
    assert incarnations.open_stream().take(frames(0, 1), "and in the next incarnation") == 0


def test_of_another_host_nothing_is_held_back(incarnations: Incarnations) -> None:
    session = incarnations.open_stream()
    session.take(frames(0, 1), "first")
    session.end(False)
    other = incarnations.replays.open_stream(LISTENER, SOURCE._replace(host=b"192.0.2.2"), lambda _token, _serial: None, lambda _token: None)
    assert other.take(frames(0, 1), "a") == 0
    assert incarnations.open_stream().take(frames(0, 1), "b") is None


def test_a_spooled_batch_is_stored_once_whatever_the_dead_incarnation_had_done_with_it(incarnations: Incarnations) -> None:
    spool = incarnations.state.spool()
    waiting, offered = WaitingBatch(3, [(CHUNK, 0, 3)]), WaitingBatch(2, [(CHUNK, 3, 2)], partition=1, sequence=0)
    offered.producer_id = 8
    for batch in (waiting, offered):
        assert spool.write(batch, b"data")
    incarnations.replays.before_offer(offered)
    incarnations.kill()
    incarnations.leaders.last = {8: (0, 1)}
    spool = incarnations.state.spool()
    left = SpooledBatches(spool, incarnations.replays)
    assert left.turn() == [], "a leader is asked"
    incarnations.run()
    (ready,) = left.turn()
    assert ready.parts == [(CHUNK, 0, 3)] and left.is_empty
    assert incarnations.replays.memory.lookup(CHUNK) is Known.UNRESOLVED, "replays wait until it is stored"
    batch = WaitingBatch(3, ready.parts)
    left.adopt(batch, ready)
    assert spool.read(batch) == b"data"
    incarnations.replays.before_offer(batch)
    incarnations.replays.stored(batch)
    spool.done(batch)
    assert incarnations.replays.memory.lookup(CHUNK) is Known.PARTLY
    assert all(incarnations.replays.memory.has(CHUNK, "syslog", ordinal) for ordinal in range(5))
    assert not incarnations.state.files("spool")
