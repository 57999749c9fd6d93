"""Moves between two real log-writers, stepped by hand, with real movers: every command, every guard, and what deaths in the middle leave."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout
from appliance.base.model import TopicPartition
from appliance.ipc.descriptors import Completion, DescriptorKind, ReplicaAppend, TruncateOrder, Truncation, replica_append_descriptor, truncate_descriptor
from appliance.ipc.disk_reports import CAUGHT_UP, COMPLETE, COPYING, FAILED, WAITING, MoveProgress, moves_file, read_moves
from appliance.records.batch import stamp_batch
from appliance.records.builder import BatchBuilder
from appliance.shm.partition_table import DISK_ONLINE, ROLE_FOLLOWER, ROLE_LEADER, ROLE_NONE
from appliance.storage import checkpoints, file_io
from appliance.storage.move_record import MOVE_RECORD
from lab.running_box import eventually
from services.log_writer.background.cleaning_rounds import CleaningRounds
from services.log_writer.moves import incoming_moves
from services.log_writer.replicas.replica import Replica
from services.log_writer.replicas.replicas_of_disk import DescriptorBudget
from tests.support.real_log_writer import BROKER_ID, TOPIC_ID, RealLogWriter
from tests.unit.storage.storage_support import stored_bytes

pytestmark = [pytest.mark.slow, pytest.mark.system, pytest.mark.usefixtures("no_waiting_for_the_disk")]

SETTINGS: dict[str, Any] = {"log.flush.offset.checkpoint.interval.ms": 100, "log.disk.reserve.bytes": 0}
CONFIG = {"segment.bytes": "4000", "file.delete.delay.ms": "0"}
COMMANDERS = {"d0": "controller", "d1": "acceptor@7"}
"""Two sources of one name would share their arena."""


class Pair:
    """The source d0, which leads partition 0, and the target d1."""

    def __init__(self, layout: BoxLayout, path: Path) -> None:
        self.layout, self.path = layout, path
        self.lives = 0
        self.source_is_away = False
        self.source = self.started("d0")
        self.target = self.started("d1")
        assert self.source_says(DescriptorKind.CREATE, config=CONFIG).error_code == 0
        assert self.lead("d0") == 0
        self.acceptor = self.source.source("acceptor@0")

    def started(self, disk: str) -> RealLogWriter:
        self.lives += 1
        writer = RealLogWriter(self.layout, self.path / disk, self.lives, SETTINGS, disk)
        writer.recover()
        writer.source(COMMANDERS[disk])
        return writer

    def turn(self) -> None:
        for writer in (self.target,) if self.source_is_away else (self.source, self.target):
            writer.clock.advance_ms(2)
            writer.turn()

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        def look() -> Any:
            self.turn()
            return condition()

        return eventually(look, what)

    def says(self, writer: RealLogWriter, kind: DescriptorKind, **more: Any) -> Completion:
        """A command and its answer."""
        before = self.ask(writer, kind, **more)
        answered: list[Completion] = self.until(lambda: [each for each in writer.completions[before:] if each.kind == kind], f"{kind.name} is answered")
        return answered[0]

    def ask(self, writer: RealLogWriter, kind: DescriptorKind, **more: Any) -> int:
        """How many answers there were before."""
        commander = writer.sources[COMMANDERS[writer.disk]]
        asked = {"topic": "t", "partition": 0, "topic_id": str(TOPIC_ID)} | more
        assert commander.offer_command(writer.disk, kind, asked, (kind, 0))
        commander.flush()
        return len(writer.completions)

    def source_says(self, kind: DescriptorKind, **more: Any) -> Completion:
        return self.says(self.source, kind, **more)

    def target_says(self, kind: DescriptorKind, **more: Any) -> Completion:
        return self.says(self.target, kind, **more)

    def lead(self, disk: str, leader_epoch: int = 0, **more: Any) -> int:
        asked: dict[str, Any] = {"leader_epoch": leader_epoch, "isr": [BROKER_ID], "replicas": [BROKER_ID], "config": CONFIG} | more
        return self.says(self.source if disk == "d0" else self.target, DescriptorKind.BECOME_LEADER, **asked).error_code

    def append(self, count: int = 1) -> list[int]:
        """Batches to the source; their error codes."""
        before = len(self.source.codes("produce"))
        for _ in range(count):
            builder = BatchBuilder()
            builder.append(self.source.clock.wall_ms(), b"k", b"v" * 700)
            self.source.produce(self.acceptor, 0, builder.build())
            self.turn()
        self.until(lambda: len(self.source.codes("produce")) == before + count, "produces are answered")
        return self.source.codes("produce")[before:]

    def begin(self, **more: Any) -> int:
        asked = {"source_disk": "d0", "source_path": str(self.path / "d0" / "t-0"), "source_directory_id": "x"} | more
        return self.target_says(DescriptorKind.MOVE_BEGIN, **asked).error_code

    @property
    def progress(self) -> MoveProgress:
        moves = read_moves(moves_file(self.layout, "d1"))
        return moves[0] if moves else MoveProgress("", 0, "", "", "", "")

    def reach(self, state: str) -> None:
        def look() -> bool:
            self.target.clock.advance_ms(100)
            return self.progress.state == state

        self.until(look, f"the move is {state}")

    def start(self, batches: int = 40) -> None:
        self.append(batches)
        assert self.source_says(DescriptorKind.MOVE_MARK, target_disk="d1").error_code == 0
        assert self.begin() == 0
        self.reach(CAUGHT_UP)

    def freeze(self) -> Completion:
        frozen = self.source_says(DescriptorKind.MOVE_FREEZE)
        assert frozen.error_code == 0
        return frozen

    def finish(self, frozen: Completion, **more: Any) -> Completion:
        return self.target_says(
            DescriptorKind.MOVE_FINISH,
            log_end_offset=frozen.log_end_offset,
            high_watermark=frozen.base_offset,
            log_start_offset=frozen.log_start_offset,
            **more,
        )

    def commit(self, frozen: Completion) -> int:
        return self.source_says(DescriptorKind.MOVE_COMMIT, log_end_offset=frozen.log_end_offset).error_code

    def promote(self) -> int:
        return self.target_says(DescriptorKind.MOVE_PROMOTE, config=CONFIG).error_code

    def hosted(self, writer: RealLogWriter) -> Replica:
        hosted = writer.agent.partitions.find(TOPIC_ID, 0)
        assert hosted is not None
        return hosted

    def segments(self, disk: str) -> dict[str, bytes]:
        return {name: content for name, content in stored_bytes(self.path / disk / "t-0").items() if name.endswith(".log")}

    def directories(self, disk: str) -> list[str]:
        return sorted(name for name in os.listdir(self.path / disk) if name.startswith("t-"))

    @property
    def mover(self) -> int:
        run = self.target.agent.moves.incoming.run
        assert run is not None
        return run[1].pid

    def settle(self) -> None:
        def look() -> bool:
            self.target.agent.moves.incoming.task.join()
            self.target.seconds(1)
            return not (self.path / "d1" / "t-0" / MOVE_RECORD).exists()

        eventually(look, "the record is gone")

    def close(self) -> None:
        self.source.stop()
        self.target.stop()


@pytest.fixture
def pair(layout: BoxLayout, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(layout, tmp_path)
    yield made
    made.close()


def test_a_partition_is_moved_while_it_is_written_and_leads_on_under_its_epoch(pair: Pair) -> None:
    pair.start()
    pair.append(10)
    frozen = pair.freeze()
    assert (frozen.log_end_offset, frozen.base_offset, frozen.log_start_offset) == (50, 50, 0)
    assert pair.append(1) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert pair.hosted(pair.source).role == ROLE_NONE
    before = pair.segments("d0")
    assert pair.finish(frozen).error_code == 0
    pair.reach(COMPLETE)
    assert pair.commit(frozen) == 0
    assert pair.source.agent.partitions.find(TOPIC_ID, 0) is None
    assert all(name.endswith("-delete") for name in pair.directories("d0"))
    assert pair.promote() == 0
    hosted = pair.hosted(pair.target)
    assert (hosted.role, hosted.high_watermark, hosted.log.log_end_offset) == (ROLE_NONE, 50, 50)
    assert pair.segments("d1") == before and len(before) > 3
    assert pair.lead("d1") == 0
    assert hosted.role == ROLE_LEADER and hosted.leader_epoch == 0
    assert pair.promote() == 0, "twice is once"
    pair.settle()
    assert pair.directories("d1") == ["t-0"]
    for name, offset in ((checkpoints.RECOVERY_POINTS, 50), (checkpoints.HIGH_WATERMARKS, 50)):
        assert checkpoints.read_offsets(str(pair.path / "d1" / name))[TopicPartition("t", 0)] == offset
    assert read_moves(moves_file(pair.layout, "d1")) == ()


@pytest.fixture
def no_mover(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any) -> None:
        raise AssertionError("a mover was started")

    monkeypatch.setattr(incoming_moves, "MoverProcess", start)


@pytest.mark.usefixtures("no_mover")
def test_a_partition_without_records_is_moved_without_a_process(pair: Pair) -> None:
    pair.start(0)
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0
    pair.reach(COMPLETE)
    assert pair.commit(frozen) == 0 and pair.promote() == 0
    hosted = pair.hosted(pair.target)
    assert (hosted.high_watermark, hosted.log.log_end_offset, pair.lead("d1")) == (0, 0, 0)
    builder = BatchBuilder()
    builder.append(pair.target.clock.wall_ms(), b"k", b"v")
    pair.target.produce(pair.target.source("acceptor@1"), 0, builder.build())
    pair.until(lambda: pair.target.codes("produce") == [0], "it takes a record")
    pair.settle()
    pair.target.die()
    pair.target = pair.started("d1")
    assert pair.hosted(pair.target).log.log_end_offset == 1 and "CRITICAL" not in pair.target.said


def test_a_partition_that_gets_its_first_record_before_the_hand_over_is_copied(pair: Pair) -> None:
    pair.start(0)
    assert pair.target.agent.moves.incoming.run is None
    pair.append(3)
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0
    assert pair.commit(frozen) == 0 and pair.promote() == 0
    assert pair.hosted(pair.target).log.log_end_offset == 3


def test_a_commit_needs_a_frozen_source_and_the_same_log_end(pair: Pair) -> None:
    pair.start(5)
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0
    assert pair.commit(frozen._replace(log_end_offset=4)) == ErrorCode.FENCED_LEADER_EPOCH
    assert pair.source_says(DescriptorKind.MOVE_CANCEL).error_code == 0
    assert pair.hosted(pair.source).role == ROLE_LEADER
    assert pair.commit(frozen) == ErrorCode.FENCED_LEADER_EPOCH
    assert pair.append(2) == [0, 0]
    again = pair.freeze()
    assert again.log_end_offset == 7
    assert pair.commit(frozen) == ErrorCode.FENCED_LEADER_EPOCH
    assert pair.finish(again).error_code == 0
    assert pair.commit(again) == 0 and pair.promote() == 0
    assert pair.hosted(pair.target).log.log_end_offset == 7


def test_a_hand_over_that_is_taken_back_leaves_the_mark_that_keeps_compaction_away(pair: Pair) -> None:
    """The copy holds some of the log, and would lack what was in segments that compaction put together."""
    pair.start(5)
    assert pair.hosted(pair.source).is_moving
    pair.freeze()
    assert pair.source_says(DescriptorKind.MOVE_CANCEL, keeps_mark=True).error_code == 0
    assert pair.hosted(pair.source).role == ROLE_LEADER and pair.hosted(pair.source).is_moving
    assert pair.source_says(DescriptorKind.MOVE_CANCEL).error_code == 0
    assert not pair.hosted(pair.source).is_moving


def test_a_complete_copy_goes_on_when_the_source_leads_again(pair: Pair) -> None:
    pair.start(5)
    assert pair.finish(pair.freeze()).error_code == 0
    pair.reach(COMPLETE)
    assert pair.target.agent.describe()["futures"] == [["t", 0, str(TOPIC_ID), 5]]
    assert pair.source_says(DescriptorKind.MOVE_CANCEL).error_code == 0
    pair.append(3)
    pair.until(lambda: pair.target.agent.describe()["futures"] == [["t", 0, str(TOPIC_ID), None]], "the statement is taken back")
    pair.reach(CAUGHT_UP)
    assert pair.promote() == ErrorCode.INVALID_REQUEST
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0 and pair.commit(frozen) == 0 and pair.promote() == 0


def test_a_promotion_that_found_no_descriptor_is_carried_out_when_there_is_one(pair: Pair) -> None:
    pair.start(5)
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0 and pair.commit(frozen) == 0
    partitions = pair.target.agent.partitions
    descriptors, partitions.descriptors = partitions.descriptors, cast(DescriptorBudget, SimpleNamespace(limit=0, for_logs=0, for_flush_round=64))
    assert pair.promote() == ErrorCode.KAFKA_STORAGE_ERROR
    assert pair.promote() == ErrorCode.KAFKA_STORAGE_ERROR
    partitions.descriptors = descriptors
    assert pair.promote() == 0 and pair.lead("d1") == 0
    assert pair.hosted(pair.target).log.log_end_offset == 5


def test_a_complete_copy_is_left_alone_after_the_commit_whatever_is_begun(pair: Pair) -> None:
    pair.start(5)
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0 and pair.commit(frozen) == 0
    assert pair.begin() == 0
    for _ in range(50):
        pair.turn()
    pair.target.die()
    pair.target = pair.started("d1")
    assert pair.begin() == 0
    pair.until(lambda: pair.target.agent.moves.incoming.run, "its mover runs")
    pair.reach(COMPLETE)
    assert pair.promote() == 0 and pair.lead("d1") == 0


def test_a_source_that_dies_frozen_leads_again_and_gives_nothing_away(pair: Pair) -> None:
    pair.start(10)
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0
    pair.source.die()
    pair.source = pair.started("d0")
    assert pair.commit(frozen) == ErrorCode.FENCED_LEADER_EPOCH
    assert pair.source.agent.describe()["frozen"] == []
    assert pair.lead("d0", moving_to="d1") == 0 and pair.hosted(pair.source).is_moving
    pair.acceptor = pair.source.source("acceptor@0")
    assert pair.append(4) == [0] * 4
    pair.reach(CAUGHT_UP)
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0 and pair.commit(frozen) == 0 and pair.promote() == 0
    assert pair.hosted(pair.target).log.log_end_offset == 14


def test_a_frozen_partition_is_reported_and_freezing_it_again_returns_the_same(pair: Pair) -> None:
    pair.append(3)
    assert pair.freeze()[1:] == pair.freeze()._replace(token=pair.source.completions[-2].token)[1:]
    assert pair.source.agent.describe()["frozen"] == [["t", 0, str(TOPIC_ID)]]
    assert pair.lead("d0") == 0 and pair.source.agent.describe()["frozen"] == []
    assert pair.append() == [0]


def test_a_frozen_partition_leads_again_if_its_move_does_not_continue(pair: Pair) -> None:
    pair.append(3)
    pair.freeze()
    pair.source.seconds(5)
    assert pair.hosted(pair.source).role == ROLE_NONE
    pair.source.seconds(6)
    assert pair.hosted(pair.source).role == ROLE_LEADER and "frozen for a move that did not continue" in pair.source.said


def test_a_partition_that_is_not_served_but_there_is_not_said_to_be_gone(pair: Pair, tmp_path: Path) -> None:
    other = {"partition": 5}
    assert pair.source_says(DescriptorKind.MOVE_FREEZE, **other).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (tmp_path / "d0" / "t-5").mkdir()
    for kind in (DescriptorKind.MOVE_MARK, DescriptorKind.MOVE_FREEZE, DescriptorKind.MOVE_COMMIT):
        assert pair.source_says(kind, log_end_offset=0, **other).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (tmp_path / "d0" / "t-5").rmdir()


def test_a_partition_that_does_not_lead_is_not_frozen(pair: Pair) -> None:
    pair.hosted(pair.source).withdraw(ROLE_NONE)
    assert pair.source_says(DescriptorKind.MOVE_FREEZE).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_mover_that_is_killed_is_followed_by_another_that_goes_on(pair: Pair) -> None:
    pair.start(20)
    os.kill(pair.mover, signal.SIGKILL)
    pair.append(5)
    pair.reach(FAILED)
    assert "mover died" in pair.progress.reason
    pair.reach(CAUGHT_UP)
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0 and pair.commit(frozen) == 0 and pair.promote() == 0
    assert pair.hosted(pair.target).log.log_end_offset == 25


def test_a_target_that_dies_finds_its_copy_and_reports_it_again(pair: Pair) -> None:
    pair.start(20)
    pair.target.die()
    pair.target = pair.started("d1")
    assert pair.target.agent.describe()["futures"] == [["t", 0, str(TOPIC_ID), None]]
    assert pair.promote() == ErrorCode.INVALID_REQUEST
    assert pair.begin() == 0
    pair.reach(CAUGHT_UP)
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0
    pair.target.die()
    pair.target = pair.started("d1")
    assert pair.target.agent.describe()["futures"] == [["t", 0, str(TOPIC_ID), 20]]
    assert pair.commit(frozen) == 0 and pair.promote() == 0


def test_a_target_that_dies_after_the_promotion_believes_the_record_until_the_checkpoints_say_the_same(pair: Pair) -> None:
    pair.start(20)
    pair.says(pair.source, DescriptorKind.CONFIG, config=CONFIG)
    pair.hosted(pair.source).advance_log_start_offset(9)
    frozen = pair.freeze()
    assert frozen.log_start_offset == 9
    assert pair.finish(frozen).error_code == 0 and pair.commit(frozen) == 0
    pair.target.agent.moves.incoming.settle = lambda now_ns: None  # type: ignore[method-assign]
    assert pair.promote() == 0
    pair.target.die()
    assert (pair.path / "d1" / "t-0" / MOVE_RECORD).exists()
    pair.target = pair.started("d1")
    hosted = pair.hosted(pair.target)
    assert (hosted.log.log_start_offset, hosted.log.log_end_offset, hosted.log.recovery_point) == (9, 20, 20)
    assert hosted.high_watermark == 20
    pair.settle()
    assert checkpoints.read_offsets(str(pair.path / "d1" / checkpoints.LOG_START_OFFSETS)) == {TopicPartition("t", 0): 9}


def test_a_cancelled_copy_goes_and_the_source_is_as_before(pair: Pair) -> None:
    pair.start(20)
    mover = pair.mover
    assert pair.target_says(DescriptorKind.MOVE_CANCEL).error_code == 0
    assert pair.source_says(DescriptorKind.MOVE_CANCEL).error_code == 0
    assert not pair.hosted(pair.source).is_moving
    # A killed mover is reaped in the log-writer's next turn of moves, a second of its clock later.
    pair.until(lambda: pair.target.seconds(1) or not os.path.exists(f"/proc/{mover}"), "the mover is gone")  # type: ignore[func-returns-value]
    pair.until(lambda: pair.target.seconds(3) or not pair.directories("d1"), "the copy is removed")  # type: ignore[func-returns-value]
    assert pair.target.agent.describe()["futures"] == [] and pair.append() == [0]
    assert pair.target_says(DescriptorKind.MOVE_CANCEL).error_code == 0, "twice is once"
    assert pair.promote() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert pair.begin() == 0
    pair.reach(CAUGHT_UP)


def test_a_finish_that_does_not_come_in_time_is_said_and_the_copy_goes_on(pair: Pair) -> None:
    pair.start(5)
    frozen = pair.freeze()
    os.kill(pair.mover, signal.SIGSTOP)
    pair.target.clock.advance_ms(10)
    wanted = {"log_end_offset": frozen.log_end_offset, "high_watermark": 5, "log_start_offset": 0}
    before = pair.ask(pair.target, DescriptorKind.MOVE_FINISH, **wanted, deadline_ms=500)
    pair.turn()
    assert len(pair.target.completions) == before
    pair.target.seconds(1)
    assert pair.target.completions[-1].error_code == ErrorCode.REQUEST_TIMED_OUT
    os.kill(pair.mover, signal.SIGCONT)
    assert pair.source_says(DescriptorKind.MOVE_CANCEL).error_code == 0
    pair.append(3)
    pair.reach(CAUGHT_UP)
    pair.until(lambda: pair.progress.log_end_offset == 8 or pair.target.seconds(1), "it goes on")  # type: ignore[func-returns-value]
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0 and pair.commit(frozen) == 0 and pair.promote() == 0


def test_a_source_that_is_away_is_waited_for_and_said(pair: Pair) -> None:
    pair.append(10)
    pair.source.agent.table.set_suspect()
    pair.source.die()
    pair.source_is_away = True
    assert pair.begin() == 0
    pair.reach(COPYING)
    pair.until(lambda: pair.target.seconds(1) or "does not serve it" in pair.progress.reason, "it says why")  # type: ignore[func-returns-value]
    pair.source, pair.source_is_away = pair.started("d0"), False
    assert pair.lead("d0", leader_epoch=1) == 0
    pair.reach(CAUGHT_UP)


def test_a_copy_of_another_directory_is_not_gone_on_with(pair: Pair) -> None:
    pair.start(5)
    pair.target.die()
    pair.target = pair.started("d1")
    assert pair.begin(source_directory_id="y") == 0
    pair.reach(CAUGHT_UP)
    assert len([name for name in pair.directories("d1") if name.endswith("-future")]) == 1
    future = pair.target.agent.moves.incoming.futures.find(TOPIC_ID, 0)
    assert future is not None and future.record.source_directory_id == "y"
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0 and pair.commit(frozen) == 0 and pair.promote() == 0


def test_a_name_that_is_taken_on_the_target_is_not_moved_to(pair: Pair) -> None:
    pair.append(1)
    assert pair.target_says(DescriptorKind.CREATE).error_code == 0
    assert pair.begin() == ErrorCode.INCONSISTENT_TOPIC_ID


def test_a_disk_without_space_refuses_a_copy_and_is_not_hurt(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.append(1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as short:
        short.setattr(file_io, "mkdir", full)
        assert pair.begin() == ErrorCode.KAFKA_STORAGE_ERROR
    assert pair.target.disk_state == DISK_ONLINE
    assert pair.begin() == 0
    pair.reach(CAUGHT_UP)


def test_copies_have_their_turns_one_after_the_other(pair: Pair) -> None:
    assert pair.source_says(DescriptorKind.CREATE, partition=1).error_code == 0
    pair.start(5)
    begun = {"source_disk": "d0", "source_path": str(pair.path / "d0" / "t-1")}
    assert pair.target_says(DescriptorKind.MOVE_BEGIN, partition=1, **begun).error_code == 0
    pair.until(lambda: pair.target.seconds(1) or len(read_moves(moves_file(pair.layout, "d1"))) == 2, "both are reported")  # type: ignore[func-returns-value]
    assert [move.state for move in read_moves(moves_file(pair.layout, "d1"))] == [CAUGHT_UP, WAITING]
    frozen = pair.freeze()
    assert pair.finish(frozen).error_code == 0 and pair.commit(frozen) == 0 and pair.promote() == 0
    pair.reach(CAUGHT_UP)
    assert pair.progress.partition == 1


def test_a_log_that_is_moved_is_not_compacted(pair: Pair) -> None:
    pair.append(5)
    cleaning = pair.source.agent.cleaning
    pair.source.agent.partitions.configure(
        pair.hosted(pair.source), {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "2000"}
    )
    pair.append(20)
    pair.source.seconds(3)
    assert pair.source_says(DescriptorKind.MOVE_MARK, target_disk="d1").error_code == 0
    assert not looks(cleaning)
    assert pair.source_says(DescriptorKind.MOVE_CANCEL).error_code == 0
    assert looks(cleaning)


def looks(cleaning: CleaningRounds) -> bool:
    """Whether the cleaner finds a log worth a look."""
    cleaning.look()
    if not (cleaning.task.is_running or cleaning.task.has_ended):
        return False
    cleaning.task.join()
    return True


class _Follower:
    """The source follows another box, and what that sends comes over the rings."""

    def __init__(self, pair: Pair, leader_epoch: int) -> None:
        self.pair = pair
        self.fetcher = pair.source.sources.get("replica-fetcher") or pair.source.source("replica-fetcher")
        asked = {"leader": 2, "leader_epoch": leader_epoch, "isr": [BROKER_ID, 2], "replicas": [BROKER_ID, 2], "config": CONFIG}
        assert pair.source_says(DescriptorKind.BECOME_FOLLOWER, **asked).error_code == 0

    def _offer(self, entry: tuple[int, ...]) -> int:
        before = len(self.pair.source.completions)
        assert self.fetcher.by_disk["d0"].offer(entry, 0, ("replica", 0))
        self.pair.until(lambda: len(self.pair.source.completions) > before, "it is answered")
        return self.pair.source.completions[-1].error_code

    def append(self, count: int, value: bytes) -> list[int]:
        hosted, arena = self.pair.hosted(self.pair.source), self.fetcher.source.arena
        codes = []
        for _ in range(count):
            builder = BatchBuilder()
            builder.append(self.pair.source.clock.wall_ms(), b"k", value * 700)
            content = bytearray(builder.build())
            stamp_batch(content, 0, hosted.log.log_end_offset, hosted.leader_epoch)
            position = arena.allocate(len(content))
            arena.memory[position : position + len(content)] = content
            told = ReplicaAppend(hosted.log.log_end_offset, 0)
            codes.append(self._offer(replica_append_descriptor(hosted.row, hosted.row_generation, hosted.leader_epoch, position, len(content), told)))
            arena.free(position)
        return codes

    def cut(self, offset: int) -> int:
        hosted = self.pair.hosted(self.pair.source)
        order = TruncateOrder(Truncation.TO_OFFSET, -1, offset)
        return self._offer(truncate_descriptor(hosted.row, hosted.row_generation, hosted.leader_epoch, order))


def test_a_copy_of_a_follower_is_cut_where_its_source_is_cut(pair: Pair) -> None:
    follower = _Follower(pair, 1)
    assert set(follower.append(20, b"a")) == {0}
    pair.start(0)
    follower = _Follower(pair, 2)
    assert follower.cut(12) == 0
    assert set(follower.append(15, b"b")) == {0}, "and it has grown past the end that the copy has seen"
    frozen = pair.freeze()
    assert (frozen.log_end_offset, pair.hosted(pair.source).role) == (27, ROLE_NONE)
    assert follower.append(1, b"c") == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    before = pair.segments("d0")
    assert pair.finish(frozen).error_code == 0
    assert pair.commit(frozen) == 0 and pair.promote() == 0
    assert pair.segments("d1") == before
    assert pair.hosted(pair.target).high_watermark == frozen.base_offset == 26


def test_a_follower_whose_hand_over_is_taken_back_follows_again(pair: Pair) -> None:
    follower = _Follower(pair, 1)
    follower.append(3, b"a")
    pair.start(0)
    pair.freeze()
    assert pair.source_says(DescriptorKind.MOVE_CANCEL).error_code == 0
    assert pair.hosted(pair.source).role == ROLE_FOLLOWER
    assert follower.append(1, b"b") == [0]
