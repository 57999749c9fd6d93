"""The mover, stepped by hand: throttled, finished, hurt on either side; and when it takes back that a copy is complete."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.storage import file_io
from appliance.storage.future_directories import FutureDirectories
from appliance.storage.log_directory import LogDirectory
from appliance.storage.move_record import (
    COMPLETE,
    FAILED,
    FINISH,
    NO_THROTTLE,
    PACKET_BYTES_MAX,
    PROGRESS,
    THROTTLE,
    Complete,
    MoveCommand,
    MoveJob,
    MoveRecord,
    MoveSaid,
    read_move,
)
from appliance.storage.move_source import SourceState
from services.log_writer.mover.agent import ABSENT_NS_MAX, LogMover
from tests.unit.storage.storage_support import NAME, NOW_MS, TOPIC_ID, batch, open_log


class Mover:
    """A mover, its log-writer's end of the channel, and the source that it sees."""

    def __init__(self, path: Path) -> None:
        self.source_path = path / "source" / str(NAME)
        self.source_path.mkdir(parents=True)
        self.source = open_log(self.source_path)
        self.directory = LogDirectory.open(str(path / "target"), 1, None, ManualClock(NOW_MS))
        self.future = FutureDirectories(self.directory).make(TOPIC_ID, MoveRecord(NAME.topic, NAME.partition, "d0", "id", -1))
        self.clock = ManualClock(NOW_MS)
        self.life, self.is_served, self.is_led = 1, True, True
        self.ours: socket.socket | None = None
        self.theirs: socket.socket | None = None
        self.mover: LogMover | None = None

    def look(self, anew: bool = False) -> SourceState | None:
        log = self.source
        state = SourceState(self.life, log.log_start_offset, log.log_end_offset, log.active_base_offset, self.is_led)
        return state if self.is_served else None

    def start(self, bytes_per_second: int = NO_THROTTLE) -> None:
        self.end()
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        job = MoveJob("d1", "", self.future.path, "d0", str(self.source_path), str(TOPIC_ID), NAME.partition, {}, bytes_per_second, 0, 0)
        self.mover = LogMover(MoveJob.decode(job.encode()), self.theirs, self, self.clock)

    def step(self) -> bool:
        assert self.mover is not None
        self.clock.advance_ms(300)
        return self.mover.step()

    def order(self, order: MoveCommand) -> None:
        assert self.ours is not None
        self.ours.send(order.encode())

    def said(self) -> list[MoveSaid]:
        assert self.ours is not None
        found = []
        try:
            while packet := self.ours.recv(PACKET_BYTES_MAX):
                found.append(MoveSaid.decode(packet))
        except BlockingIOError:
            pass
        return found

    def until(self, kind: str) -> MoveSaid:
        """PROGRESS: to the source's end."""
        for _ in range(200):
            self.step()
            for said in self.said():
                if said.kind == kind and (kind != PROGRESS or said.log_end_offset == said.source_log_end_offset):
                    return said
        raise AssertionError(f"it never said {kind}")

    def append(self, count: int) -> None:
        for _ in range(count):
            self.source.append_as_leader([batch(b"v" * 90)], 0, NOW_MS)

    def freeze(self) -> Complete:
        self.is_led = False
        return Complete(self.source.log_end_offset, self.source.log_end_offset, self.source.log_start_offset)

    @property
    def complete(self) -> Complete | None:
        record = read_move(self.future.path)
        assert record is not None
        return record.complete

    def end(self) -> None:
        if self.mover is not None:
            self.mover.close()
        for channel in (self.ours, self.theirs):
            if channel is not None:
                channel.close()
        self.mover = self.ours = self.theirs = None


@pytest.fixture
def mover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mover]:
    monkeypatch.setattr("services.log_writer.mover.agent.take_ordinary_io", lambda: None)
    monkeypatch.setattr("services.log_writer.mover.agent.IDLE_MS", 0)
    made = Mover(tmp_path)
    made.append(20)
    made.start()
    yield made
    made.end()
    made.source.abandon()
    made.directory.abandon()


def test_it_follows_reports_and_completes_on_order(mover: Mover) -> None:
    assert mover.until(PROGRESS).source_log_end_offset == 20
    mover.append(5)
    finish = mover.freeze()
    mover.order(MoveCommand(FINISH, finish))
    assert mover.until(COMPLETE).log_end_offset == 25 and mover.complete == finish
    assert not mover.step() and mover.said() == [], "it rests, and says so once"


def test_it_completes_nothing_while_the_source_leads_or_ends_elsewhere(mover: Mover) -> None:
    finish = mover.freeze()
    mover.is_led = True
    mover.order(MoveCommand(FINISH, finish))
    for _ in range(10):
        mover.step()
    assert mover.complete is None
    mover.is_led = False
    mover.append(1)
    for _ in range(10):
        mover.step()
    assert mover.complete is None
    again = mover.freeze()
    mover.order(MoveCommand(FINISH, again))
    mover.until(COMPLETE)
    assert mover.complete == again


def test_a_complete_copy_is_left_alone_until_the_source_leads_again(mover: Mover) -> None:
    finish = mover.freeze()
    mover.order(MoveCommand(FINISH, finish))
    mover.until(COMPLETE)
    mover.is_served = False  # handed over, or dead
    mover.start()
    for _ in range(100):
        assert not mover.step()
    assert mover.complete == finish
    mover.is_served = mover.is_led = True
    mover.until(PROGRESS)
    assert mover.complete is None


@pytest.mark.slow
def test_a_throttle_holds_it_back_and_a_finish_does_not_wait_for_it(mover: Mover) -> None:
    mover.append(60)
    mover.start(bytes_per_second=1000)
    for _ in range(20):
        mover.step()
    told = [said for said in mover.said() if said.kind == PROGRESS]
    assert 0 < told[-1].log_end_offset < 80
    mover.order(MoveCommand(THROTTLE, bytes_per_second=NO_THROTTLE))
    assert mover.until(PROGRESS).source_log_end_offset == 80
    mover.append(60)
    mover.order(MoveCommand(THROTTLE, bytes_per_second=1))
    mover.order(MoveCommand(FINISH, mover.freeze()))
    assert mover.until(COMPLETE).log_end_offset == 140


def _failing(name: str, under: Path | str, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with a descriptor of a file below `under` fail."""
    whole = getattr(file_io, name)

    def call(fd: int, *arguments: Any, **more: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(under)):
            raise OSError(error, os.strerror(error))
        return whole(fd, *arguments, **more)

    monkeypatch.setattr(file_io, name, call)


@pytest.mark.parametrize(
    ("name", "side", "error", "words"),
    [
        ("preadv", "source", errno.EIO, "could not read"),
        ("pwritev", "target", errno.ENOSPC, "no space left on device"),
        ("fdatasync", "target", errno.EIO, "input/output error"),
    ],
)
def test_trouble_on_either_disk_is_said_and_ends_it_and_the_next_one_goes_on(
    mover: Mover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, side: str, error: int, words: str
) -> None:
    with monkeypatch.context() as hurt:
        _failing(name, tmp_path / side, error, hurt)
        assert words in mover.until(FAILED).reason
    mover.start()
    assert mover.until(PROGRESS).log_end_offset == 20
    mover.order(MoveCommand(FINISH, mover.freeze()))
    mover.until(COMPLETE)


def test_a_move_whose_source_stays_away_fails(mover: Mover) -> None:
    mover.is_served = False
    mover.step()
    assert "does not serve it" in mover.said()[-1].reason
    mover.clock.advance_ms(ABSENT_NS_MAX // 1_000_000)
    assert mover.step() and mover.said()[-1].kind == FAILED


def test_damage_in_the_source_is_said_after_it_was_looked_at_again_and_again(mover: Mover) -> None:
    path = mover.source_path / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert "checksum" in mover.until(FAILED).reason


def test_it_ends_when_its_owner_closes_the_channel(mover: Mover) -> None:
    assert mover.ours is not None
    mover.step()
    mover.ours.close()
    assert mover.step()
