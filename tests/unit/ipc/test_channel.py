from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from appliance.base.layout import BoxLayout
from appliance.ipc.channel import HELLO, WELCOME, SinkChannel, SourceChannel
from appliance.ipc.frames import Frame, FrameSocket, PeerGone
from appliance.ipc.source import Source
from appliance.shm.doorbell import Doorbell
from appliance.shm.mapping import MAX_WORD, LayoutMismatch, SharedMemoryFull, SharedObjectAbsent
from appliance.shm.partition_table import SLEEPING_WORD, PartitionTableWriter
from appliance.shm.ring import COMPLETION_HEAD_WORD, COMPLETION_TAIL_WORD, DESCRIPTOR_HEAD_WORD, DESCRIPTOR_TAIL_WORD
from lab.scratch_layout import open_descriptors, purposes_left


class Handshake:
    """Both ends of a control socket in one process, and what each side needs to greet."""

    def __init__(self, layout: BoxLayout) -> None:
        one, other = socket.socketpair()
        self.layout = layout
        self.source_control, self.sink_control = FrameSocket(one), FrameSocket(other)
        self.source = Source(layout, "acceptor@0", 5, 1 << 16, 8)
        self.table = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 6), 6)
        self.bell = Doorbell(self.table.shared.words, SLEEPING_WORD)

    def greet(self, keep_name: bool = False, capacity: int = 8) -> SourceChannel:
        source = self.source
        name = self.layout.shared_memory_name("channel", "acceptor@0.d0.1", 5)
        return SourceChannel.greet(self.source_control, source.name, 5, source.arena, source.doorbell, name, capacity, keep_name)

    def hello(self, **changes: Any) -> Frame:
        """The HELLO that has come, with other fields."""
        (frame,) = self.sink_control.receive()
        return frame._replace(payload=orjson.dumps({**orjson.loads(frame.payload), **changes}))

    def welcome(self, document: Any = None) -> None:
        payload = orjson.dumps({"table": self.table.shared.name, "incarnation": 6} if document is None else document)
        self.sink_control.send(WELCOME, 0, payload, (self.bell.fileno(),))

    def close(self) -> None:
        for thing in (self.source_control, self.sink_control, self.bell, self.source, self.table):
            thing.close()


@pytest.fixture
def handshake(layout: BoxLayout) -> Iterator[Handshake]:
    made = Handshake(layout)
    yield made
    made.close()


def test_both_sides_map_the_same_rings_arena_and_table(handshake: Handshake) -> None:
    channel = handshake.greet()
    (hello,) = handshake.sink_control.receive()
    assert hello.kind == HELLO
    sink = SinkChannel(handshake.sink_control, hello, 6)
    handshake.welcome()
    channel.on_welcome(*handshake.source_control.receive())
    assert (sink.source, sink.incarnation, channel.writer_info["incarnation"], channel.rings.writer_incarnation) == ("acceptor@0", 5, 6, 6)
    handshake.source.arena.memory[5_000] = 42
    channel.descriptors.offer(1, 0, 0, 2, 3, 4, 5, 6, 5_000, 99, 0, 0, 0, 0)
    ((*_, position, token, _, _, _, _),) = sink.descriptors.poll(9)
    assert (sink.memory[position], token) == (42, 99)
    sink.completions.offer(1, 0, 0, 2, 99, 7, -1, 0, 8, 4, 1, 0)
    assert channel.completions.poll(9)[0][4] == 99
    assert channel.table is not None and channel.table.generation == 0
    sink.close()
    assert channel.rings.retired
    channel.close()


def test_each_side_rings_the_other_only_when_it_sleeps(handshake: Handshake) -> None:
    channel = handshake.greet()
    sink = SinkChannel(handshake.sink_control, handshake.hello(), 6)
    handshake.welcome()
    channel.on_welcome(*handshake.source_control.receive())
    for bell, ring in ((handshake.bell, channel.ring), (handshake.source.doorbell, sink.ring)):
        ring()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(bell.fileno())
        bell.prepare_to_sleep()
        ring()
        assert os.eventfd_read(bell.fileno()) == 1
    assert not sink.watches_rows()
    handshake.source.watch_rows(True)
    assert sink.watches_rows()
    sink.close()
    channel.close()


@pytest.mark.parametrize("keep", [True, False])
def test_the_rings_lose_their_name_at_welcome_unless_the_next_incarnation_reads_them(keep: bool, handshake: Handshake) -> None:
    channel = handshake.greet(keep)
    sink = SinkChannel(handshake.sink_control, handshake.hello(), 6)
    handshake.welcome()
    channel.on_welcome(*handshake.source_control.receive())
    assert ("channel.acceptor@0.d0.1.5" in purposes_left(handshake.layout)) is keep
    channel.close()
    assert "channel.acceptor@0.d0.1.5" not in purposes_left(handshake.layout)
    sink.close()


@pytest.mark.parametrize("wrong", [{"arena": "/millrace.none"}, {"rings": "/millrace.none"}, {"incarnation": 4}])
def test_shared_objects_of_a_hello_must_exist_and_belong_to_the_sending_incarnation(wrong: dict[str, Any], handshake: Handshake) -> None:
    channel = handshake.greet()
    hello = handshake.hello(**wrong)
    before = open_descriptors()
    with pytest.raises(SharedObjectAbsent):
        SinkChannel(handshake.sink_control, hello, 6)
    assert open_descriptors() <= before - set(hello.descriptors)
    assert channel.rings.writer_incarnation == 0
    channel.close()


@pytest.mark.parametrize("word", [DESCRIPTOR_TAIL_WORD, DESCRIPTOR_HEAD_WORD, COMPLETION_TAIL_WORD, COMPLETION_HEAD_WORD])
def test_rings_that_do_not_begin_empty_are_not_mapped(word: int, handshake: Handshake) -> None:
    channel = handshake.greet()
    channel.rings.shared.words[word] = MAX_WORD
    with pytest.raises(SharedObjectAbsent, match="not new"):
        SinkChannel(handshake.sink_control, handshake.hello(), 6)
    channel.close()


@pytest.mark.parametrize("payload", [b"", b"not json", b"[]", b'{"source": "acceptor@0"}'])
def test_a_hello_that_is_none_is_a_hang_up(payload: bytes, handshake: Handshake) -> None:
    before = open_descriptors()
    with pytest.raises(PeerGone):
        SinkChannel(handshake.sink_control, Frame(HELLO, 0, payload, (os.eventfd(0),)), 6)
    assert open_descriptors() <= before


@pytest.mark.parametrize(
    "wrong", [{"arena": 5}, {"rings": None}, {"source": ["acceptor@0"]}, {"incarnation": "5"}, {"arena": "/a\0"}, {"rings": "/" + "x" * 300}]
)
def test_a_hello_that_names_no_names_is_a_hang_up(wrong: dict[str, Any], handshake: Handshake) -> None:
    channel = handshake.greet()
    hello = handshake.hello(**wrong)
    before = open_descriptors()
    with pytest.raises(PeerGone, match="no name"):
        SinkChannel(handshake.sink_control, hello, 6)
    assert open_descriptors() == before - set(hello.descriptors)
    channel.close()


def test_a_doorbell_is_an_eventfd_and_never_blocks(handshake: Handshake) -> None:
    channel = handshake.greet()
    hello = handshake.hello()
    reading, writing = os.pipe()
    before = open_descriptors()
    with pytest.raises(PeerGone, match="no eventfd"):
        SinkChannel(handshake.sink_control, hello._replace(descriptors=(writing,)), 6)
    assert open_descriptors() == before - {writing}
    os.close(reading)
    os.set_blocking(hello.descriptors[0], True)
    sink = SinkChannel(handshake.sink_control, hello, 6)
    assert not os.get_blocking(hello.descriptors[0])
    sink.close()
    channel.close()


@pytest.mark.parametrize("count", [0, 2])
def test_a_greeting_carries_one_doorbell_or_is_a_hang_up(count: int, handshake: Handshake) -> None:
    channel = handshake.greet()
    hello = handshake.hello()
    os.close(hello.descriptors[0])
    before = open_descriptors()
    for action in (lambda frame: SinkChannel(handshake.sink_control, frame, 6), channel.on_welcome):
        with pytest.raises(PeerGone, match="doorbell"):
            action(hello._replace(descriptors=tuple(os.eventfd(0) for _ in range(count))))
    assert open_descriptors() <= before
    channel.close()


@pytest.mark.parametrize(("document", "error"), [({"table": "/millrace.none"}, SharedObjectAbsent), ({}, PeerGone), ([], PeerGone)])
def test_a_welcome_of_a_log_writer_that_died_since_leaves_nothing_open(document: Any, error: type[Exception], handshake: Handshake) -> None:
    channel = handshake.greet()
    handshake.welcome(document)
    before = open_descriptors()
    with pytest.raises(error):
        channel.on_welcome(*handshake.source_control.receive())
    assert open_descriptors() <= before
    channel.close()


def test_a_table_of_another_release_is_not_taken_for_a_dead_one(handshake: Handshake) -> None:
    channel = handshake.greet()
    handshake.table.shared.words[1] += 1
    handshake.welcome()
    with pytest.raises(LayoutMismatch):
        channel.on_welcome(*handshake.source_control.receive())
    channel.close()


def test_greeting_a_log_writer_that_is_gone_leaves_no_rings(handshake: Handshake) -> None:
    handshake.sink_control.close()
    with pytest.raises(PeerGone):
        handshake.greet()
    assert [name for name in purposes_left(handshake.layout) if name.startswith("channel")] == []
    assert handshake.source_control.fileno() == -1


def test_a_hello_without_memory_for_rings_closes_the_socket(handshake: Handshake) -> None:
    with pytest.raises(SharedMemoryFull):
        handshake.greet(capacity=1 << 43)
    assert handshake.source_control.fileno() == -1
