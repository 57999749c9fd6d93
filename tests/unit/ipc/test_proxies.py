from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout
from appliance.ipc.channel import HELLO, REFUSED
from appliance.ipc.descriptors import Completion, DescriptorKind
from appliance.ipc.frames import FrameSocket, accept, listen_unix
from appliance.ipc.log_writer_proxy import HELLO_TIMEOUT_NS
from appliance.ipc.proxies import LogWriterProxies, command_callbacks
from appliance.ipc.source import Source
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters
from appliance.shm.mapping import SharedMemoryFull, SharedObject
from appliance.shm.partition_table import DISK_OFFLINE
from lab.scratch_layout import open_descriptors
from tests.support.stepped_log_writer import SteppedLogWriter

RING = 8


class SteppedSource:
    """A source with one disk, whose callbacks record their arguments."""

    def __init__(self, layout: BoxLayout, incarnation: int = 5, counts_records: bool = False, name: str = "acceptor@0") -> None:
        self.clock = ManualClock()
        self.poller = Poller()
        self.counters = Counters.create_or_adopt(layout, name, incarnation)
        self.source = Source(layout, name, incarnation, 1 << 16, RING)
        self.told: list[Any] = []
        self.proxies = LogWriterProxies(
            self.source, ["d0"], self.poller, self.counters,
            lambda context, entry: self.told.append((context, entry[2])),
            lambda context: self.told.append((context, "lost")),
            lambda disk: self.told.append("connected"),
            lambda disk: self.told.append("gone"),
            counts_records,
            lambda disk, wishes: self.told.append((disk, wishes)),
        )  # fmt: skip
        self.proxy = self.proxies.by_disk["d0"]

    def turn(self) -> int:
        """Sockets first, then work, as the runner does it; 25 ms apart."""
        self.clock.advance_ms(25)
        self.poller.poll(0)
        work = self.proxies.do_work(self.clock.monotonic_ns())
        self.proxies.flush()
        return work

    def offer(self, context: Any, charge: int = 100, queue: bool = False) -> bool:
        descriptor = (1, 0, 0, 0, 0, 0, 0, 10, 4_096, 0, 1, 0, 0, 0)
        return (self.proxy.offer_or_queue if queue else self.proxy.offer)(descriptor, charge, context)

    def count(self, label: str) -> int:
        return self.counters.counter(f'source.{label}{{disk="d0"}}').value

    def take_reported(self) -> list[Any]:
        told, self.told[:] = self.told[:], []
        return told

    def close(self) -> None:
        self.proxies.close()
        self.source.close()
        self.poller.close()
        self.counters.close()


@pytest.fixture
def source(layout: BoxLayout) -> Iterator[SteppedSource]:
    made = SteppedSource(layout)
    yield made
    made.close()


@pytest.fixture
def writer(layout: BoxLayout) -> Iterator[SteppedLogWriter]:
    made = SteppedLogWriter(layout, "d0", 6)
    yield made
    made.close()


def connect(source: SteppedSource, writer: SteppedLogWriter) -> None:
    for _ in range(3):
        source.turn()
        writer.turn()
    assert source.take_reported() == ["connected"]


def tokens_taken(writer: SteppedLogWriter) -> list[int]:
    return [entry[9] for _, _, entry in writer.taken]


# -- normal operation


def test_a_source_waits_for_its_log_writer_without_blocking(source: SteppedSource, layout: BoxLayout) -> None:
    for _ in range(5):
        source.turn()
    assert not source.proxies.connected("d0") and source.proxies.is_offline("d0") and source.take_reported() == []
    assert not source.offer("unconnected") and not source.offer("unconnected", queue=True)
    writer = SteppedLogWriter(layout, "d0", 6)
    connect(source, writer)
    assert source.proxies.connected("d0") and not source.proxies.is_offline("d0")
    assert source.proxies.writer_info("d0")["incarnation"] == 6
    writer.close()


def test_descriptors_are_taken_in_order_and_completions_bring_the_callers_object_back(source: SteppedSource, writer: SteppedLogWriter) -> None:
    connect(source, writer)
    for context in "abc":
        assert source.offer(context)
    assert (len(source.proxy.outstanding), source.proxy.outstanding_bytes) == (3, 300)
    writer.turn()
    assert tokens_taken(writer) == [1, 2, 3]
    writer.complete([2, 3, 1])
    assert source.proxies.has_completions()
    source.turn()
    assert source.take_reported() == [("b", 0), ("c", 0), ("a", 0)]
    assert (source.proxy.outstanding, source.proxy.outstanding_bytes) == ({}, 0)


def test_a_burst_rings_a_sleeping_log_writer_once(source: SteppedSource, writer: SteppedLogWriter) -> None:
    connect(source, writer)
    assert source.proxy.channel is not None and source.proxy.channel.button is not None
    writer.bell.prepare_to_sleep()
    for context in "abc":
        source.offer(context)
    source.proxies.flush()
    source.proxies.flush()
    assert source.proxy.channel.button.rings == 1


def test_completions_never_overflow_because_no_more_is_outstanding_than_fits(source: SteppedSource, writer: SteppedLogWriter) -> None:
    connect(source, writer)
    assert all(source.offer(number) for number in range(RING))
    writer.turn()
    writer.complete([1, 2, 3])
    assert not source.offer("completed but not drained counts") and source.count("ring_full") == 1
    source.turn()
    assert all(source.offer(number) for number in range(3)) and not source.offer("full again")
    writer.turn()
    writer.complete([4, 5, 6, 7, 8, 9, 10, 11])
    source.turn()
    assert source.proxy.outstanding == {}


def test_queued_descriptors_are_sent_in_order_and_charged_once(source: SteppedSource, writer: SteppedLogWriter) -> None:
    connect(source, writer)
    for number in range(RING + 5):
        assert source.offer(number, queue=True)
    assert source.proxy.outstanding_bytes == 100 * (RING + 5) and len(source.proxy.outstanding) == RING
    writer.turn()
    writer.complete([1])
    source.turn()
    assert source.offer("behind the others", queue=True)
    writer.turn()
    writer.complete(list(range(2, RING + 2)))
    source.turn()
    writer.turn()
    writer.complete(tokens_taken(writer)[RING + 1 :])
    source.turn()
    assert [context for context, _ in source.take_reported()] == [*range(RING + 5), "behind the others"]
    assert (source.proxy.outstanding, source.proxy.outstanding_bytes) == ({}, 0)


def test_a_callback_may_offer_again_at_once(source: SteppedSource, writer: SteppedLogWriter) -> None:
    connect(source, writer)
    source.proxies.on_completion = lambda context, entry: source.told.append(source.offer(context + 1))
    for number in range(RING):
        source.offer(number)
    for _ in range(3):
        writer.turn()
        writer.complete(tokens_taken(writer)[-RING:])
        source.turn()
    assert source.take_reported() == [True] * (3 * RING) and len(source.proxy.outstanding) == RING


def test_the_table_reports_an_offline_disk(source: SteppedSource, writer: SteppedLogWriter) -> None:
    connect(source, writer)
    writer.table.set_disk_state(DISK_OFFLINE)
    assert source.proxies.is_offline("d0") and source.proxies.connected("d0")


# -- deaths


def test_a_death_drains_what_was_published_and_gives_the_rest_back_as_lost(source: SteppedSource, writer: SteppedLogWriter, layout: BoxLayout) -> None:
    connect(source, writer)
    for number in range(RING + 5):
        source.offer(number, queue=True)
    writer.turn()
    writer.complete([1, 2])
    writer.die()
    source.turn()
    told = source.take_reported()
    assert told[:2] == [(0, 0), (1, 0)] and told[-1] == "gone"
    assert sorted(told[2:-1]) == [(number, "lost") for number in range(2, RING + 5)]
    assert (source.proxy.outstanding, source.proxy.outstanding_bytes, source.count("log_writer_deaths")) == ({}, 0, 1)
    assert not source.offer("gone") and source.proxy.table is None and source.proxies.is_offline("d0")


def test_the_next_incarnation_of_a_log_writer_gets_new_rings_and_no_old_descriptor(source: SteppedSource, writer: SteppedLogWriter, layout: BoxLayout) -> None:
    connect(source, writer)
    for context in "abc":
        source.offer(context)
    writer.die()
    source.turn()
    assert source.take_reported() == [("a", "lost"), ("b", "lost"), ("c", "lost"), "gone"]
    heir = SteppedLogWriter(layout, "d0", 7)
    connect(source, heir)
    source.offer("d")
    heir.turn()
    assert tokens_taken(heir) == [4]
    heir.complete([4])
    source.turn()
    assert source.take_reported() == [("d", 0)]
    heir.close()


def test_a_hang_up_is_seen_before_the_next_park(source: SteppedSource, writer: SteppedLogWriter) -> None:
    connect(source, writer)
    writer.die()
    source.poller.poll(0)
    assert source.proxies.has_completions()


def test_a_log_writer_that_dies_right_after_welcome_is_gone_and_not_connected(source: SteppedSource, writer: SteppedLogWriter) -> None:
    source.turn()
    writer.turn()
    writer.turn()
    source.poller.poll(0)
    writer.die()
    source.poller.poll(0)
    assert source.proxy.just_connected
    source.turn()
    assert source.take_reported() == ["gone"] and not source.proxy.just_connected


def test_deaths_leave_no_descriptor_open(source: SteppedSource, layout: BoxLayout) -> None:
    source.turn()
    before = open_descriptors()
    for incarnation in range(10, 14):
        writer = SteppedLogWriter(layout, "d0", incarnation)
        connect(source, writer)
        source.offer("x")
        writer.turn()
        writer.die()
        writer.table.close()
        source.turn()
        source.take_reported()
    assert open_descriptors() <= before


# -- greetings that fail


def accept_hello(source: SteppedSource, layout: BoxLayout) -> tuple[Any, FrameSocket]:
    """A log-writer that accepts and then is silent."""
    listening = listen_unix(layout.log_writer_socket("d0"))
    source.turn()
    control = accept(listening)
    assert control is not None
    return listening, control


def test_a_hello_without_an_answer_times_out_and_is_repeated(source: SteppedSource, layout: BoxLayout) -> None:
    listening, control = accept_hello(source, layout)
    source.turn()
    assert not source.proxies.connected("d0") and source.proxy.channel is not None
    source.clock.advance_ms(HELLO_TIMEOUT_NS // 1_000_000 + 1)
    source.turn()
    assert source.proxy.channel is None and source.count("failed_greetings") == 1
    source.turn()
    source.turn()
    again = accept(listening)
    assert again is not None and again.receive()[0].kind == HELLO
    for end in (listening, control, again):
        end.close()


def test_a_refusal_is_tried_again_and_no_death_is_counted(source: SteppedSource, layout: BoxLayout) -> None:
    listening, control = accept_hello(source, layout)
    control.send(REFUSED, 0, b"another release")
    source.turn()
    assert (source.count("failed_greetings"), source.count("log_writer_deaths"), source.take_reported()) == (1, 0, [])
    again = accept(listening)
    assert again is not None
    for end in (listening, control, again):
        end.close()


def test_full_memory_while_greeting_is_counted_and_harms_nothing_else(source: SteppedSource, writer: SteppedLogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> SharedObject:
        raise SharedMemoryFull("no free space")

    with monkeypatch.context() as broken:
        broken.setattr(SharedObject, "create_sealed", full)
        source.turn()
    assert source.count("failed_greetings") == 1
    connect(source, writer)


# -- commands


@pytest.fixture
def commands(layout: BoxLayout) -> Iterator[tuple[SteppedSource, list[tuple[Any, Completion]]]]:
    made = SteppedSource(layout)
    ended: list[tuple[Any, Completion]] = []
    made.proxies.on_completion, made.proxies.on_lost = command_callbacks(lambda context, completion: ended.append((context, completion)))
    yield made, ended
    made.close()


def test_a_command_travels_as_json_in_the_arena_and_its_slot_comes_back(
    commands: tuple[SteppedSource, list[tuple[Any, Completion]]], writer: SteppedLogWriter
) -> None:
    source, ended = commands
    connect(source, writer)
    assert source.proxies.offer_command("d0", DescriptorKind.CREATE, {"topic": "syslog"}, "context")
    source.proxies.flush()
    writer.turn()
    ((_, _, entry),) = writer.taken
    memory = writer.door.channels[0].memory
    assert entry[0] == DescriptorKind.CREATE and orjson.loads(bytes(memory[entry[8] : entry[8] + entry[7]])) == {"topic": "syslog"}
    writer.complete([entry[9]], ErrorCode.INCONSISTENT_TOPIC_ID)
    source.turn()
    ((context, completion),) = ended
    assert (context, completion.error_code, source.source.arena.slots_in_use()) == ("context", ErrorCode.INCONSISTENT_TOPIC_ID, 0)


def test_a_command_whose_log_writer_dies_ends_with_a_storage_error(
    commands: tuple[SteppedSource, list[tuple[Any, Completion]]], writer: SteppedLogWriter
) -> None:
    source, ended = commands
    connect(source, writer)
    source.proxies.offer_command("d0", DescriptorKind.CREATE, {}, "context")
    writer.die()
    source.turn()
    assert [(context, completion.error_code) for context, completion in ended] == [("context", ErrorCode.KAFKA_STORAGE_ERROR)]
    assert source.source.arena.slots_in_use() == 0


def test_a_command_larger_than_the_free_space_is_refused_and_keeps_no_slot(
    commands: tuple[SteppedSource, list[tuple[Any, Completion]]], writer: SteppedLogWriter
) -> None:
    source, _ = commands
    assert not source.proxies.offer_command("d0", DescriptorKind.CREATE, {}, "unconnected")
    connect(source, writer)
    assert not source.proxies.offer_command("d0", DescriptorKind.CREATE, {"topic": "x" * (1 << 17)}, "larger than the arena")
    for number in range(RING):
        assert source.proxies.offer_command("d0", DescriptorKind.CREATE, {}, number)
    assert not source.proxies.offer_command("d0", DescriptorKind.CREATE, {}, "ring full")
    assert source.source.arena.slots_in_use() == RING


# -- a log-writer that is detached


def detach(source: SteppedSource) -> list[Any]:
    source.proxies.replace_disk("d0", lambda context: source.told.append((context, "detached")))
    return source.take_reported()


def test_requests_of_a_detached_log_writer_fail_at_once_and_their_slots_are_freed_when_it_ends(
    source: SteppedSource, writer: SteppedLogWriter, layout: BoxLayout
) -> None:
    connect(source, writer)
    for context in "ab":
        assert source.offer(context)
    writer.turn()
    assert detach(source) == ["gone", ("a", "detached"), ("b", "detached")]
    assert (source.proxy.serving, source.proxy.outstanding_bytes) == (False, 0)
    for _ in range(3):
        source.turn()
    assert "lost" not in str(source.told), "it may still read what it was given"
    source.take_reported()
    writer.die()
    source.turn()
    source.turn()
    assert [told for told in source.take_reported() if told[1] == "lost"] == [("a", "lost"), ("b", "lost")]


def test_the_next_process_is_served_while_the_old_one_still_hangs_and_what_that_says_is_not_heard(
    source: SteppedSource, writer: SteppedLogWriter, layout: BoxLayout
) -> None:
    connect(source, writer)
    assert source.offer("old")
    writer.turn()
    # As the supervisor does, so that no source connects to the old one.
    os.unlink(layout.log_writer_socket("d0"))
    assert detach(source) == ["gone", ("old", "detached")]
    following = SteppedLogWriter(layout, "d0", 7)
    for _ in range(3):
        source.turn()
        following.turn()
    assert source.take_reported() == ["connected"] and source.proxies.writer_info("d0")["incarnation"] == 7
    assert source.offer("new")
    following.turn()
    following.complete(tokens_taken(following))
    writer.complete(tokens_taken(writer))
    source.turn()
    assert source.take_reported() == [("new", 0)]
    writer.die()
    source.turn()
    source.turn()
    assert source.take_reported() == [("old", "lost")] and source.proxies.connected("d0")
    following.close()


def test_removing_a_disk_fails_queued_requests_and_keeps_the_slots_of_sent_ones(source: SteppedSource, writer: SteppedLogWriter) -> None:
    connect(source, writer)
    for number in range(RING + 2):
        assert source.offer(number, queue=True)
    source.proxies.remove_disk("d0", lambda context: source.told.append((context, "detached")))
    assert source.take_reported() == ["gone", *((number, "detached") for number in range(RING)), (RING, "lost"), (RING + 1, "lost")]
    assert source.proxies.by_disk == {}
    writer.die()
    source.turn()
    source.turn()
    assert source.take_reported() == [(number, "lost") for number in range(RING)]


def test_a_log_writer_that_was_gone_already_is_not_kept(source: SteppedSource, writer: SteppedLogWriter) -> None:
    connect(source, writer)
    assert source.offer("a")
    writer.die()
    source.poller.poll(0)  # the hang-up is seen, and not looked at yet
    assert detach(source) == ["gone", ("a", "detached"), ("a", "lost")]
