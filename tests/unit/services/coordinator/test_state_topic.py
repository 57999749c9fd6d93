"""A state topic's tenures, appends and loads (`services/coordinator/state/state_topic.py`, `services/coordinator/state/state_load.py`), stepped by
hand over a real row and a real arena."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import ProducerIdentity, StateRecord
from appliance.ipc.descriptors import ACKS_ALL_FLAG, COORDINATOR_FLAG, VERIFIED_FLAG, DescriptorKind
from appliance.ipc.log_reader_messages import LOOKUP, OPEN, READ
from appliance.records.builder import BatchBuilder
from appliance.records.control_batch import EndTransactionMarker, build_end_transaction_batch
from lab.scratch_layout import scratch_layout
from services.coordinator.verification_guards import GuardQuestion
from tests.support.stepped_state import TOPIC, SteppedState


@pytest.fixture
def world() -> Iterator[SteppedState]:
    with scratch_layout() as layout:
        world = SteppedState(layout)
        yield world
        world.close()


def _append(world: SteppedState, key: bytes = b"k", producer: ProducerIdentity | None = None, timeout_ms: int = 5_000) -> list[ErrorCode]:
    told: list[ErrorCode] = []
    world.topic.append(0, [StateRecord(key, b"value of " + key)], told.append, producer=producer, timeout_ms=timeout_ms)
    return told


def _batch(*keys: bytes) -> bytes:
    builder = BatchBuilder()
    for key in keys:
        builder.append(1_000, key, b"value of " + key)
    return builder.build()


# --- tenures and loads


def test_a_partition_that_this_box_leads_is_read_from_its_start_to_its_end(world: SteppedState) -> None:
    world.reader.append(_batch(b"a", b"b"))
    builder = BatchBuilder()
    builder.append(1_000, b"c", None)
    world.reader.append(builder.build(9, 2))
    world.reader.append(bytes(build_end_transaction_batch(9, 2, EndTransactionMarker(True, 0), 1_000)))
    world.show()
    world.lead()
    assert [(record.offset, record.key, record.value) for record in world.state.records] == [
        (0, b"a", b"value of a"),
        (1, b"b", b"value of b"),
        (2, b"c", None),
        (3, b"", None),
    ]
    assert [record.producer for record in world.state.records] == [None, None, ProducerIdentity(9, 2), ProducerIdentity(9, 2)]
    assert [record.is_commit for record in world.state.records] == [None, None, None, True]
    assert world.state.told == [("begin", 0), ("finish", 0)]
    assert world.reader.asked == [LOOKUP, OPEN, READ, READ, READ]


def test_an_empty_partition_is_served_without_a_question(world: SteppedState) -> None:
    world.lead()
    assert world.state.told == [("begin", 0), ("finish", 0)]
    assert world.reader.asked == []


def test_records_that_a_load_left_out_are_counted_once(world: SteppedState) -> None:
    world.state.skipped_records = 2
    world.lead()
    world.show(leader_epoch=4)
    world.state.skipped_records = 3
    world.lead()
    assert world.state.told.count(("finish", 0)) == 2
    assert world.counters.counter(f'coordinator.skipped_records{{topic="{TOPIC}"}}').value == 3


@pytest.mark.parametrize("trouble", ["away", "error"])
def test_a_load_that_fails_begins_anew(world: SteppedState, trouble: str) -> None:
    world.reader.append(_batch(b"a"))
    world.show()
    world.reader.is_away, world.reader.error_code = trouble == "away", ErrorCode.KAFKA_STORAGE_ERROR if trouble == "error" else 0
    world.topic.refresh()
    world.turn()
    assert world.state.told == [("begin", 0), ("unload", 0), ("begin", 0)]
    assert world.turn() == 0, "not at once"
    world.reader.is_away, world.reader.error_code = False, 0
    world.clock.advance_ms(101)
    world.turn()
    assert world.state.told[-1] == ("finish", 0)
    assert len(world.state.records) == 1


def test_a_batch_that_does_not_hold_together_is_left_out(world: SteppedState) -> None:
    world.reader.append(_batch(b"a"))
    broken = bytearray(_batch(b"b"))
    broken[-3] ^= 0xFF
    broken[61] ^= 0xFF
    world.reader.append(bytes(broken))
    world.reader.append(_batch(b"c"))
    world.show()
    world.lead()
    assert [record.key for record in world.state.records if record.key in (b"a", b"c")] == [b"a", b"c"]
    assert world.state.told[-1] == ("finish", 0)
    assert [place[1:] for place in world.reader.checked] == [(0, 1)], "the scrubber checks it, so that the next load has it"


def test_another_leader_epoch_is_another_tenure_and_memory_begins_anew(world: SteppedState) -> None:
    world.lead()
    told = _append(world)
    world.show(leader_epoch=4)
    world.topic.refresh()
    assert world.state.told[-2:] == [("unload", 0), ("begin", 0)]
    world.complete()
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER], "it may be in the log: the load decides"
    world.show(leader_epoch=4)
    world.topic.refresh()
    world.lead()
    assert [record.key for record in world.state.records] == [b"k"]


def test_what_a_new_leader_has_above_the_high_watermark_is_read_and_served_when_it_is_replicated(world: SteppedState) -> None:
    world.reader.append(_batch(b"a"))
    world.reader.append(_batch(b"of the former leader"))
    world.show(high_watermark=1)
    world.topic.refresh()
    for _ in range(3):
        world.turn()
    assert [record.key for record in world.state.records] == [b"a", b"of the former leader"]
    assert world.state.told == [("begin", 0)], "a leader may follow that never had it"
    assert (world.topic.loading_count, world.topic.waits_for_rows) == (1, True)
    world.show(high_watermark=2)
    world.turn()
    assert world.state.told == [("begin", 0), ("finish", 0)]
    assert world.topic.loading_count == 0
    assert world.turn() == 0


def test_what_was_read_and_not_replicated_is_forgotten_with_its_tenure(world: SteppedState) -> None:
    world.reader.append(_batch(b"a"))
    world.reader.append(_batch(b"vanishes"))
    world.show(high_watermark=1)
    world.topic.refresh()
    world.turn()
    world.show(leader_epoch=4, is_leader=False, high_watermark=1)
    world.topic.refresh()
    world.reader.truncate(1)
    world.show(leader_epoch=5)
    world.lead()
    assert [record.key for record in world.state.records] == [b"a"]
    assert world.state.told == [("begin", 0), ("unload", 0), ("begin", 0), ("finish", 0)]


def test_a_load_that_brings_more_than_there_was_waits_for_all_of_it(world: SteppedState) -> None:
    world.reader.append(_batch(b"a"))
    world.show()
    world.reader.append(_batch(b"b"))
    world.topic.refresh()
    world.reader.batches_a_portion = 2
    world.turn()
    assert [record.key for record in world.state.records] == [b"a", b"b"]
    assert world.topic.loading_count == 1
    world.show()
    world.turn()
    assert world.topic.loading_count == 0


def test_an_append_does_not_go_by_a_row_that_is_another_partitions_now(world: SteppedState) -> None:
    world.lead()
    told = _append(world)
    world.complete()
    world.show(row_generation=2)
    world.turn()
    assert told == []


def test_a_partition_that_another_box_leads_is_unloaded(world: SteppedState) -> None:
    world.lead()
    world.show(is_leader=False)
    world.topic.refresh()
    assert world.state.told[-1] == ("unload", 0)
    told = _append(world)
    assert told == [], "never from within"
    world.turn()
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert world.topic.leader_epoch_of(0) == -1


# --- appends


def test_an_append_is_answered_when_the_high_watermark_has_passed_it(world: SteppedState) -> None:
    world.lead()
    told = _append(world)
    descriptor = world.offered[0][0]
    assert (descriptor.kind, descriptor.flags, descriptor.leader_epoch, descriptor.value_a) == (DescriptorKind.PRODUCE, ACKS_ALL_FLAG, 3, 1)
    world.complete()
    world.turn()
    assert told == []
    assert world.topic.waits_for_rows
    world.show()
    world.turn()
    assert told == [ErrorCode.NONE]
    assert not world.topic.has_unanswered


def test_what_belongs_to_a_transaction_is_flagged_as_a_coordinators(world: SteppedState) -> None:
    world.lead()
    _append(world, producer=ProducerIdentity(9, 2))
    assert world.offered[0][0].flags == ACKS_ALL_FLAG | COORDINATOR_FLAG


def test_appends_wait_for_free_space_and_keep_their_order(world: SteppedState) -> None:
    world.lead()
    world.is_full = True
    tolds = [_append(world, key) for key in (b"1", b"2", b"3")]
    world.is_full = False
    world.turn()
    for _ in range(3):
        world.complete()
    world.show()
    world.turn()
    assert tolds == [[ErrorCode.NONE]] * 3
    world.show(leader_epoch=4)
    world.topic.refresh()
    world.lead()
    assert [record.key for record in world.state.records] == [b"1", b"2", b"3"]


def test_a_refused_append_is_reported_and_leaves_nothing(world: SteppedState) -> None:
    world.lead()
    told = _append(world)
    world.complete(ErrorCode.KAFKA_STORAGE_ERROR)
    assert told == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert not world.topic.has_unanswered


@pytest.mark.parametrize("where", ["waiting", "under way", "appended"])
def test_an_append_that_times_out_is_answered_once_and_its_slot_is_freed(world: SteppedState, where: str) -> None:
    world.lead()
    world.is_full = where == "waiting"
    told = _append(world, timeout_ms=100)
    if where == "appended":
        world.complete()
    world.clock.advance_ms(101)
    world.turn()
    assert told == [ErrorCode.REQUEST_TIMED_OUT]
    world.is_full = False
    if where == "under way":
        world.complete()
    world.show()
    world.turn()
    assert told == [ErrorCode.REQUEST_TIMED_OUT]
    assert world.arena.slots_in_use() == 0


def test_an_append_whose_log_writer_died_is_answered_and_its_slot_is_freed(world: SteppedState) -> None:
    world.lead()
    told = _append(world)
    world.topic.on_lost(world.offered.pop()[1])
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert world.arena.slots_in_use() == 0


def test_an_append_to_a_partition_that_is_not_there_is_refused_with_the_next_turn(world: SteppedState) -> None:
    world.lead()
    told: list[ErrorCode] = []
    world.topic.append(5, [StateRecord(b"k", b"v")], told.append)
    assert told == []
    world.turn()
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


# --- what another box is asked about first

PRODUCER = ProducerIdentity(9, 2)


def _ask_for_guard(world: SteppedState) -> list[tuple[ErrorCode, int]]:
    told: list[tuple[ErrorCode, int]] = []
    world.topic.begin_verification(0, PRODUCER, lambda code, guard: told.append((code, guard)))
    return told


def test_an_append_comes_with_the_guard_that_was_given_before_another_box_was_asked(world: SteppedState) -> None:
    world.lead()
    told = _ask_for_guard(world)
    descriptor, question = world.offered.pop()
    assert (descriptor.kind, descriptor.value_a, descriptor.value_c, descriptor.leader_epoch) == (DescriptorKind.BEGIN_VERIFICATION, 9, 2, 3)
    assert isinstance(question, GuardQuestion) and told == []
    world.topic.guards.on_answer(question, (descriptor.kind, 0, 0, 0, 0, -1, -1, -1, -1, -1, 0, 77))
    assert told == [(ErrorCode.NONE, 77)]
    with world.topic.guards.guarded(0, PRODUCER, 77):
        _append(world, b"guarded", PRODUCER)
        _append(world, b"the next", PRODUCER)
    _append(world, b"later", PRODUCER)
    guarded = ACKS_ALL_FLAG | COORDINATOR_FLAG | VERIFIED_FLAG
    assert [(offered.flags, offered.guard) for offered, _ in world.offered] == [(guarded, 77), (guarded & ~VERIFIED_FLAG, 0), (guarded & ~VERIFIED_FLAG, 0)]


def test_a_guard_that_is_not_used_is_forgotten(world: SteppedState) -> None:
    world.lead()
    with world.topic.guards.guarded(0, PRODUCER, 77):
        pass
    _append(world, b"later", PRODUCER)
    assert (world.offered[0][0].flags, world.offered[0][0].guard) == (ACKS_ALL_FLAG | COORDINATOR_FLAG, 0)


@pytest.mark.parametrize("trouble", ["not ours", "refused", "lost", "late"])
def test_a_refused_guard_is_reported_once(world: SteppedState, trouble: str) -> None:
    if trouble != "not ours":
        world.lead()
    told = _ask_for_guard(world)
    codes = {"refused": ErrorCode.KAFKA_STORAGE_ERROR, "late": ErrorCode.REQUEST_TIMED_OUT}
    if trouble == "refused":
        world.topic.guards.on_answer(world.offered.pop()[1], (21, 0, ErrorCode.KAFKA_STORAGE_ERROR, 0, 0, -1, -1, -1, -1, -1, 0, 0))
    elif trouble == "lost":
        world.topic.guards.on_lost(world.offered.pop()[1])
    elif trouble == "late":
        world.clock.advance_ms(5_001)
        world.turn()
        world.topic.guards.on_answer(world.offered.pop()[1], (21, 0, 0, 0, 0, -1, -1, -1, -1, -1, 0, 77))
    assert told == [(codes.get(trouble, ErrorCode.NOT_LEADER_OR_FOLLOWER), 0)]
