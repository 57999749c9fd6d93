"""Objects in /dev/shm that another program deletes: their owners report it and restart one by one,
and no process takes it for a hang.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import StepsDown
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.runtime import shared_memory
from appliance.runtime.shared_memory import LOCK_TRIES, PATIENCE_MS, SharedMemoryWatch
from appliance.shm.counters import Counters, read_counters
from appliance.shm.mapping import PID_WORD, SharedObject, lost_objects
from appliance.shm.partition_table import PartitionTableWriter
from lab.scratch_layout import scratch_layout


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


class Process:
    """One incarnation of a process, as far as its watch reads it."""

    def __init__(self, layout: BoxLayout, name: str, clock: ManualClock, pid: int, log_writers: Sequence[str] = ()) -> None:
        self.name, self.clock = name, clock
        self.reading, writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.counters = Counters.create_or_adopt(layout, name, pid)
        self.counters.shared.words[PID_WORD] = pid
        self.watch = SharedMemoryWatch(layout, name, log_writers, clock, self.counters, Logger(name, descriptor=writing), pid)

    def turn(self) -> None:
        self.clock.advance_ms(1001)
        self.watch.turn(self.clock.monotonic_ns())

    @property
    def said(self) -> str:
        try:
            return os.read(self.reading, 65536).decode()
        except BlockingIOError:
            return ""


def _delete(name: str) -> None:
    os.unlink(f"/dev/shm{name}")


def test_a_deleted_object_is_reported_once_and_its_owner_restarts(layout: BoxLayout) -> None:
    process = Process(layout, "acceptor@0", ManualClock(), 1)
    name = layout.shared_memory_name("table", "d0", 1)
    table = PartitionTableWriter.create(name, 1)
    process.turn()
    assert process.said == ""
    _delete(name)
    with pytest.raises(StepsDown, match="another program deleted 1 shared-memory objects"):
        process.turn()
    assert name in process.said
    table.close()


def test_what_its_owner_closes_or_removes_is_no_loss_and_what_was_replaced_is(layout: BoxLayout) -> None:
    prefix = layout.shared_memory_prefix
    names = [layout.shared_memory_name("arena", f"x@{number}", 1) for number in range(3)]
    closed, removed, replaced = (SharedObject.create(name, b"MLRtests", 4096, 1) for name in names)
    closed.close()
    _delete(names[0])
    removed.unlink()
    assert lost_objects(prefix) == []
    _delete(names[2])
    os.close(os.open(f"/dev/shm{names[2]}", os.O_CREAT | os.O_RDWR, 0o600))
    held = os.open(f"/dev/shm{names[2]}", os.O_RDONLY)
    assert lost_objects(prefix) == [names[2]]
    assert lost_objects("/another-box.") == []
    os.close(held)
    for each in (removed, replaced):
        each.close()
    assert lost_objects(prefix) == []


def test_processes_restart_one_by_one_the_next_when_the_one_before_serves_again(layout: BoxLayout) -> None:
    clock = ManualClock()
    one, two = Process(layout, "acceptor@0", clock, 1), Process(layout, "log-writer@d0", clock, 2)
    for process in (one, two):
        _delete(layout.shared_memory_name("counters", process.name))
    with pytest.raises(StepsDown):
        one.turn()
    for _ in range(3):
        two.turn()
    assert two.said.count("another program deleted") == 1
    back = Process(layout, "acceptor@0", clock, 3)
    two.turn()
    back.counters.set_state("serving")
    with pytest.raises(StepsDown):
        two.turn()


def test_log_writers_restart_before_processes_that_need_their_tables(layout: BoxLayout) -> None:
    clock, names = ManualClock(), ["log-writer@d0"]
    ingest, log_writer = Process(layout, "ingest@0", clock, 1, names), Process(layout, "log-writer@d0", clock, 2, names)
    for process in (ingest, log_writer):
        _delete(layout.shared_memory_name("counters", process.name))
    ingest.turn()
    with pytest.raises(StepsDown):
        log_writer.turn()
    back = Process(layout, "log-writer@d0", clock, 3, names)
    ingest.turn()
    back.counters.set_state("serving")
    with pytest.raises(StepsDown):
        ingest.turn()


def test_a_log_writer_that_does_not_come_back_holds_the_others_up_for_a_while_only(layout: BoxLayout) -> None:
    clock = ManualClock()
    ingest = Process(layout, "ingest@0", clock, 1, ["log-writer@d0"])
    _delete(layout.shared_memory_name("counters", "ingest@0"))
    ingest.turn()
    clock.advance_ms(PATIENCE_MS)
    with pytest.raises(StepsDown):
        ingest.turn()


def test_a_process_that_does_not_come_back_holds_the_others_up_for_a_while_only(layout: BoxLayout) -> None:
    clock = ManualClock()
    one, two = Process(layout, "acceptor@0", clock, 1), Process(layout, "log-writer@d0", clock, 2)
    for process in (one, two):
        _delete(layout.shared_memory_name("counters", process.name))
    with pytest.raises(StepsDown):
        one.turn()
    two.turn()
    clock.advance_ms(PATIENCE_MS)
    with pytest.raises(StepsDown):
        two.turn()


def test_the_next_incarnation_counts_the_loss_once(layout: BoxLayout) -> None:
    clock = ManualClock()
    process = Process(layout, "acceptor@0", clock, 1)
    _delete(layout.shared_memory_name("counters", "acceptor@0"))
    with pytest.raises(StepsDown):
        process.turn()
    for pid in (2, 3):
        process = Process(layout, "acceptor@0", clock, pid)
        process.turn()
        snapshot = read_counters(layout, "acceptor@0")
        assert snapshot is not None and snapshot.values["runtime.shared_memory_losses"] == 1


@pytest.mark.parametrize("pauses", [3, 10_000])
def test_a_loss_is_counted_although_another_process_has_the_lock_when_the_next_incarnation_starts(
    layout: BoxLayout, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process takes it once a second; one that has no processor then holds it for longer, but keeps no process from starting."""
    clock, waited = ManualClock(), 0
    process = Process(layout, "acceptor@0", clock, 1)
    _delete(layout.shared_memory_name("counters", "acceptor@0"))
    with pytest.raises(StepsDown):
        process.turn()
    with open(layout.shared_memory_turn_file, "r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def pause(_seconds: float) -> None:
            nonlocal waited
            waited += 1
            if waited == pauses:
                fcntl.flock(other, fcntl.LOCK_UN)

        monkeypatch.setattr("time.sleep", pause)
        Process(layout, "acceptor@0", clock, 2)
    snapshot = read_counters(layout, "acceptor@0")
    assert snapshot is not None and snapshot.values["runtime.shared_memory_losses"] == (pauses == 3)
    assert waited == min(pauses, LOCK_TRIES - 1)


@pytest.mark.parametrize(
    "content",
    [b"5", b'["a", [], 1, 2]', b"[" * 4000, b'["a", 1e999, 1, false]', b'["../x", 1, 1, false]', b'["a\\u0000", 1, 1, false]', b'["a", 1, 1]', b"null"],
)
def test_a_turn_that_another_user_wrote_stops_no_process(layout: BoxLayout, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "TURN_BYTES_MAX", 1 << 16, raising=False)
    with open(layout.shared_memory_turn_file, "wb") as file:
        file.write(content)
    process = Process(layout, "acceptor@0", ManualClock(), 1)
    _delete(layout.shared_memory_name("counters", "acceptor@0"))
    with pytest.raises(StepsDown):
        process.turn()
