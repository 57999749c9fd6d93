"""REPAIR at a real log-writer, stepped by hand: a damaged batch is written in place below the high watermark, as leader and as follower, or left."""

from __future__ import annotations

import _thread
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.errors import ErrorCode
from appliance.ipc.descriptors import Completion, DescriptorKind, RepairOrder, repair_descriptor
from appliance.storage import file_io
from appliance.storage.batch_repair import RepairVerdict
from services.log_writer.background import batch_repairs
from tests.support.replicas import SteppedReplica, _Slot, batch, fetch, replicas

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_waiting_for_the_disk")]

SEGMENT_BATCHES = 5


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[SteppedReplica]]:
    """Broker 1 leads, 2 follows; two closed segments of five batches, an active one of two, all committed but the last batch."""
    size = len(batch())
    with replicas(tmp_path, 2, {"segment.bytes": str(SEGMENT_BATCHES * size)}) as made:
        one, two = made
        assert one.lead(1, [1, 2], [1, 2]) == 0 and two.follow(1, 1, [1, 2], [1, 2]) == 0
        for _ in range(12):
            one.produce(batch())
            one.turn(1)
        while fetch(two, one) != "told":
            pass
        fetch(two, one)
        assert one.row.high_watermark == two.row.high_watermark == 12
        one.produce(batch())
        one.turn(1)
        fetch(two, one)
        assert two.row.log_end_offset == 13 and two.row.high_watermark == 12
        yield made


def path_of(replica: SteppedReplica, base_offset: int) -> Path:
    return Path(replica.hosted.log.directory, f"{base_offset:020d}.log")


def zero(path: Path, position: int, size: int) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + size] = bytes(size)
    with open(path, "r+b") as file:
        file.write(content)


def offer(replica: SteppedReplica, content: bytes, order: RepairOrder) -> None:
    arena = replica.fetcher.source.arena
    position = arena.allocate(len(content))
    arena.memory[position : position + len(content)] = content
    entry = repair_descriptor(replica.hosted.row, replica.hosted.row_generation, position, len(content), order)
    assert replica.fetcher.by_disk[replica.writer.disk].offer(entry, 0, _Slot(replica.fetcher, position))


def repair(replica: SteppedReplica, content: bytes, order: RepairOrder) -> Completion:
    offer(replica, content, order)
    return next(each for each in replica.answer(replica.fetcher) if each.kind == DescriptorKind.REPAIR)


def counted(replica: SteppedReplica) -> int:
    return replica.writer.counters.counter("log_writer.batches_repaired").value


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_batch_of_a_closed_segment_is_repaired_and_said_so(pair: list[SteppedReplica], damaged: int) -> None:
    one, size = pair[damaged - 1], len(batch())
    path = path_of(one, 5)
    good = path.read_bytes()
    zero(path, 2 * size, size)
    done = repair(one, good[size:], RepairOrder(5, size, 3))
    assert (done.error_code, done.record_count, done.base_offset) == (0, RepairVerdict.REPAIR, 7)
    assert path.read_bytes() == good and counted(one) == 1
    evidence = Path(f"{path}.{2 * size}.damaged")
    assert evidence.read_bytes() == bytes(size) and f"what was there is in {evidence}" in one.writer.said
    assert "disk d0: 1 damaged batch of t-0 at offset 7 repaired with the copy of broker 3" in one.writer.said
    again = repair(one, good[size:], RepairOrder(5, size, 3))
    assert (again.error_code, again.record_count, counted(one)) == (0, RepairVerdict.SOUND, 1)
    assert one.writer.said.count("repaired") == 1


def test_the_active_segment_is_repaired_below_the_high_watermark_while_it_grows(pair: list[SteppedReplica]) -> None:
    one, size = pair[0], len(batch())
    path = path_of(one, 10)
    good = path.read_bytes()
    zero(path, size, size)
    one.produce(batch())
    offer(one, good, RepairOrder(10, 0, 2))
    assert [each.record_count for each in one.answer(one.fetcher) if each.kind == DescriptorKind.REPAIR] == [RepairVerdict.REPAIR]
    assert path.read_bytes()[: len(good)] == good and one.log_end == 14
    assert len(path.read_bytes()) == 4 * size
    zero(path, 2 * size, size)  # offset 12 is in no follower's word yet
    left = repair(one, good, RepairOrder(10, 0, 2))
    assert (left.error_code, left.record_count) == (0, RepairVerdict.SOUND), "it ends where the high watermark is"
    assert path.read_bytes()[2 * size : 3 * size] == bytes(size)


def test_what_is_not_there_or_not_committed_is_refused(pair: list[SteppedReplica]) -> None:
    one, size = pair[1], len(batch())
    for order in (RepairOrder(6, 0, 1), RepairOrder(5, 5 * size, 1), RepairOrder(10, 2 * size, 1)):
        assert repair(one, batch(), order).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    one.hosted.is_moving = True
    assert repair(one, batch(), RepairOrder(5, 0, 1)).error_code == ErrorCode.REQUEST_TIMED_OUT
    one.hosted.is_moving = False
    assert repair(one, batch(5), RepairOrder(5, 0, 1)).record_count == RepairVerdict.DIFFERS
    assert counted(one) == 0


def test_a_segment_that_changes_meanwhile_is_not_written(pair: list[SteppedReplica], monkeypatch: pytest.MonkeyPatch) -> None:
    one, size = pair[1], len(batch())
    path = path_of(one, 5)
    good = path.read_bytes()
    zero(path, size, size)
    before = path.read_bytes()
    compare = batch_repairs.BatchRepair.compare

    def compact_after(self: batch_repairs.BatchRepair) -> None:
        compare(self)
        self.replica.log.replacements += 1

    monkeypatch.setattr(batch_repairs.BatchRepair, "compare", compact_after)
    offer(one, good, RepairOrder(5, 0, 1))
    assert [each.error_code for each in one.answer(one.fetcher)] == [ErrorCode.REQUEST_TIMED_OUT]
    assert path.read_bytes() == before


def test_after_a_kill_at_any_step_the_next_incarnation_repairs_the_damage(pair: list[SteppedReplica]) -> None:
    one, size = pair[1], len(batch())
    path = path_of(one, 5)
    good = path.read_bytes()
    for turns in range(4):
        zero(path, size, size)
        offer(one, good, RepairOrder(5, 0, 1))
        for _ in range(turns):
            one.writer.turn()
        one.die()
        one.start()
        assert one.follow(1, 1 + turns, [1, 2], [1, 2]) == 0
        one.hosted.update_high_watermark(12, False)
        assert path.read_bytes() in (good, good[:size] + bytes(size) + good[2 * size :])
        assert repair(one, good, RepairOrder(5, 0, 1)).record_count in (RepairVerdict.REPAIR, RepairVerdict.SOUND)
        assert path.read_bytes() == good


@pytest.mark.parametrize("call", ["open_file", "pread", "pwritev", "fdatasync"])
def test_a_disk_that_fails_in_the_middle_answers_so(pair: list[SteppedReplica], monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Reading what cannot be read leaves it; what the disk does not take has it offline, as with any write."""
    one, size = pair[1], len(batch())
    path = path_of(one, 5)
    good = path.read_bytes()
    zero(path, size, size)

    def fails(*_: object, **__: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file_io, call, fails)
    assert repair(one, good, RepairOrder(5, 0, 1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    one.turn()
    assert bool(one.writer.agent.trouble.offline) == (call in ("pwritev", "fdatasync"))
    assert "could not be repaired" in one.writer.said and counted(one) == 0


def test_a_repair_whose_thread_ends_in_an_unexpected_way_is_no_sound_place(pair: list[SteppedReplica], monkeypatch: pytest.MonkeyPatch) -> None:
    one, size = pair[0], len(batch())
    path = path_of(one, 5)
    good = path.read_bytes()
    zero(path, 2 * size, size)

    def breaks(*_: object) -> None:
        raise ValueError("a header that is none")

    with monkeypatch.context() as patch:
        patch.setattr(batch_repairs, "plan_repair", breaks)
        assert repair(one, good[size:], RepairOrder(5, size, 2)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "could not be repaired: could not read" in one.writer.said and "ValueError: a header that is none" in one.writer.said
    assert repair(one, good[size:], RepairOrder(5, size, 2)).record_count == RepairVerdict.REPAIR and path.read_bytes() == good


def test_a_repair_waits_for_a_thread_where_none_can_be_started(pair: list[SteppedReplica], monkeypatch: pytest.MonkeyPatch) -> None:
    one, size = pair[0], len(batch())
    path = path_of(one, 5)
    good = path.read_bytes()
    zero(path, 2 * size, size)
    refusals: list[object] = []

    def refuse(*arguments: object) -> int:
        refusals.append(arguments)
        raise RuntimeError("can't start new thread")

    offered = len(one.writer.completions)
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        offer(one, good[size:], RepairOrder(5, size, 3))
        for _ in range(5):
            one.writer.turn()
    assert len(refusals) > 2 and len(one.writer.completions) == offered
    done = next(each for each in one.answer(one.fetcher) if each.kind == DescriptorKind.REPAIR)
    assert (done.error_code, done.record_count) == (0, RepairVerdict.REPAIR) and path.read_bytes() == good
