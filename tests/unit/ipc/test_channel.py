from __future__ import annotations

import fcntl
import os
import select
import socket
from collections.abc import Callable, Iterator
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
from lab.scratch_layout import open_descriptors


class Handshake:
    """Both ends of a control socket in one process, and what each side needs to greet."""

    def __init__(self, layout: BoxLayout) -> None:
        one, other = socket.socketpair()
        self.layout = layout
        self.source_control, self.sink_control = FrameSocket(one), FrameSocket(other)
        self.source = Source(layout, "acceptor@0", 5, 1 << 16, 8)
        self.table = PartitionTableWriter.create(layout.shared_memory_name("table", "d0", 6), 6)
        self.bell = Doorbell(self.table.shared.words, SLEEPING_WORD)

    def greet(self, capacity: int = 8) -> SourceChannel:
        self.source.ring_entries = capacity
        return SourceChannel.greet(self.source_control, self.source, "rings")

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
    sink = SinkChannel(handshake.sink_control, hello)
    handshake.welcome()
    channel.on_welcome(*handshake.source_control.receive())
    assert (sink.source, sink.incarnation, channel.writer_info["incarnation"]) == ("acceptor@0", 5, 6)
    handshake.source.arena.memory[5_000] = 42
    channel.descriptors.offer(1, 0, 0, 2, 3, 4, 5, 6, 5_000, 99, 0, 0, 0, 0)
    ((*_, position, token, _, _, _, _),) = sink.descriptors.poll(9)
    assert (sink.memory[position], token) == (42, 99)
    sink.completions.offer(1, 0, 0, 2, 99, 7, -1, 0, 8, 4, 1, 0)
    assert channel.completions.poll(9)[0][4] == 99
    assert channel.table is not None and channel.table.generation == 0
    sink.close()
    channel.close()


def test_each_side_rings_the_other_only_when_it_sleeps(handshake: Handshake) -> None:
    channel = handshake.greet()
    sink = SinkChannel(handshake.sink_control, handshake.hello())
    handshake.welcome()
    channel.on_welcome(*handshake.source_control.receive())
    for bell, ring in ((handshake.bell, channel.ring), (handshake.source.doorbell, sink.ring)):
        ring()
        assert select.select([bell], [], [], 0)[0] == []
        bell.prepare_to_sleep()
        ring()
        assert select.select([bell], [], [], 0)[0] == [bell]
        bell.drain()
        assert select.select([bell], [], [], 0)[0] == []
    assert not sink.watches_rows()
    handshake.source.watch_rows(True)
    assert sink.watches_rows()
    sink.close()
    channel.close()


def test_memory_of_another_incarnation_than_the_sending_one_is_not_mapped(handshake: Handshake) -> None:
    channel = handshake.greet()
    hello = handshake.hello(incarnation=4)
    before = open_descriptors()
    with pytest.raises(SharedObjectAbsent, match="another incarnation"):
        SinkChannel(handshake.sink_control, hello)
    assert open_descriptors() <= before - set(hello.descriptors)
    channel.close()


def _memory_file(flags: int = os.MFD_ALLOW_SEALING, seals: int = 0, size_bytes: int = 1 << 17) -> int:
    made = os.memfd_create("hostile", flags)
    os.ftruncate(made, size_bytes)
    if seals:
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return made


_SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
HOSTILE: dict[str, Callable[[], int]] = {
    "memory that can be truncated": _memory_file,
    "memory that can become shorter": lambda: _memory_file(seals=fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL),
    "memory that can become longer": lambda: _memory_file(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL),
    "memory that cannot be sealed": lambda: _memory_file(0),
    "memory that cannot be written": lambda: _memory_file(seals=_SEALED | fcntl.F_SEAL_WRITE),
    "no memory": lambda: _memory_file(seals=_SEALED, size_bytes=0),
    "more memory than an arena has": lambda: _memory_file(seals=_SEALED, size_bytes=65 << 30),
    "memory of zeros": lambda: _memory_file(seals=_SEALED),
    "a pipe": lambda: os.pipe()[0],
    "a directory": lambda: os.open("/", os.O_RDONLY),
    "a file": lambda: os.open(__file__, os.O_RDONLY),
    "a device": lambda: os.open("/dev/zero", os.O_RDWR),
}


@pytest.mark.parametrize("place", [1, 2])
@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_sealed_memory_of_an_arena_or_of_rings_is_not_mapped(case: str, place: int, handshake: Handshake) -> None:
    channel = handshake.greet()
    hello = handshake.hello()
    os.close(hello.descriptors[place])
    descriptors = list(hello.descriptors)
    before = open_descriptors() - set(descriptors)
    descriptors[place] = HOSTILE[case]()
    with pytest.raises(SharedObjectAbsent):
        SinkChannel(handshake.sink_control, hello._replace(descriptors=tuple(descriptors)))
    assert not open_descriptors() & set(descriptors)
    for left in open_descriptors() - before:
        os.close(left)  # the other end of the pipe
    channel.close()


def test_a_source_cannot_change_the_size_of_what_its_log_writer_maps(handshake: Handshake) -> None:
    channel = handshake.greet()
    sink = SinkChannel(handshake.sink_control, handshake.hello())
    for memory in (handshake.source.arena.shared, channel.rings.shared):
        for size_bytes in (0, len(memory.memory) - 4096, len(memory.memory) + 4096):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.descriptor, size_bytes)
    assert sink.memory[len(sink.memory) - 1] == 0
    sink.close()
    channel.close()


@pytest.mark.parametrize("word", [DESCRIPTOR_TAIL_WORD, DESCRIPTOR_HEAD_WORD, COMPLETION_TAIL_WORD, COMPLETION_HEAD_WORD])
def test_rings_that_do_not_begin_empty_are_not_mapped(word: int, handshake: Handshake) -> None:
    channel = handshake.greet()
    channel.rings.shared.words[word] = MAX_WORD
    with pytest.raises(SharedObjectAbsent, match="not new"):
        SinkChannel(handshake.sink_control, handshake.hello())
    channel.close()


@pytest.mark.parametrize("payload", [b"", b"not json", b"[]", b'{"source": "acceptor@0"}'])
def test_a_hello_that_is_none_is_a_hang_up(payload: bytes, handshake: Handshake) -> None:
    before = open_descriptors()
    with pytest.raises(PeerGone):
        SinkChannel(handshake.sink_control, Frame(HELLO, 0, payload, tuple(socket.socket(socket.AF_UNIX).detach() for _ in range(3))))
    assert open_descriptors() <= before


@pytest.mark.parametrize(
    "wrong", [{"source": 5}, {"source": None}, {"source": ["acceptor@0"]}, {"incarnation": "5"}, {"source": "/a\0"}, {"source": "/" + "x" * 300}]
)
def test_a_hello_that_names_no_names_is_a_hang_up(wrong: dict[str, Any], handshake: Handshake) -> None:
    channel = handshake.greet()
    hello = handshake.hello(**wrong)
    before = open_descriptors()
    with pytest.raises(PeerGone, match="no name"):
        SinkChannel(handshake.sink_control, hello)
    assert open_descriptors() == before - set(hello.descriptors)
    channel.close()


@pytest.mark.parametrize("case", ["a pipe", "an eventfd", "a datagram socket", "a network socket"])
def test_the_doorbell_of_a_source_is_a_unix_socket(case: str, handshake: Handshake) -> None:
    channel = handshake.greet()
    hello = handshake.hello()
    reading, writing = os.pipe()
    made = {"a pipe": os.dup(writing), "an eventfd": os.eventfd(0)}
    made |= {"a datagram socket": socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach(), "a network socket": socket.socket().detach()}
    before = open_descriptors()
    with pytest.raises(PeerGone, match="no doorbell"):
        SinkChannel(handshake.sink_control, hello._replace(descriptors=(made[case], *map(os.dup, hello.descriptors[1:]))))
    assert open_descriptors() == before - {made.pop(case)}
    for descriptor in (reading, writing, *made.values(), *hello.descriptors):
        os.close(descriptor)
    channel.close()


@pytest.mark.parametrize("end", ["full", "closed"])
def test_a_log_writer_never_waits_for_the_doorbell_of_a_source(end: str, handshake: Handshake) -> None:
    """A source that does not drain it, whatever flags it sets, or has closed it."""
    channel = handshake.greet()
    hello = handshake.hello()
    bell = handshake.source.doorbell
    bell.prepare_to_sleep()
    os.set_blocking(bell.button_descriptor, True)
    if end == "closed":
        os.close(os.dup(bell.descriptor))
        with socket.socket(fileno=os.dup(bell.descriptor)) as ours:
            ours.shutdown(socket.SHUT_RDWR)
    sink = SinkChannel(handshake.sink_control, hello)
    for _ in range(2_000):
        sink.ring()
    sink.close()
    channel.close()


def test_the_doorbell_of_a_log_writer_is_an_eventfd(handshake: Handshake) -> None:
    channel = handshake.greet()
    handshake.welcome()
    (welcome,) = handshake.source_control.receive()
    os.close(welcome.descriptors[0])
    with pytest.raises(PeerGone, match="no doorbell"):
        channel.on_welcome(welcome._replace(descriptors=(os.open(os.devnull, os.O_RDONLY),)))
    channel.close()


@pytest.mark.parametrize("count", [0, 2])
def test_a_greeting_carries_one_doorbell_or_is_a_hang_up(count: int, handshake: Handshake) -> None:
    channel = handshake.greet()
    hello = handshake.hello()
    for descriptor in hello.descriptors:
        os.close(descriptor)
    before = open_descriptors()
    for action in (lambda frame: SinkChannel(handshake.sink_control, frame), channel.on_welcome):
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
    assert handshake.source_control.fileno() == -1


def test_a_hello_without_memory_for_rings_closes_the_socket(handshake: Handshake) -> None:
    with pytest.raises(SharedMemoryFull):
        handshake.greet(capacity=1 << 43)
    assert handshake.source_control.fileno() == -1
