from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.layout import BoxLayout
from appliance.ipc import channel as channel_module
from appliance.ipc import channel_acceptor
from appliance.ipc.channel import HELLO, ISR_CHANGES, REFUSED, WELCOME, ChannelBroken
from appliance.ipc.frames import FrameSocket, PeerGone, connect_unix
from appliance.shm.mapping import VERSION_WORD
from lab.scratch_layout import open_descriptors
from tests.support.stepped_log_writer import SteppedLogWriter
from tests.unit.ipc.test_proxies import SteppedSource, connect


@pytest.fixture
def writer(layout: BoxLayout) -> Iterator[SteppedLogWriter]:
    made = SteppedLogWriter(layout, "d0", 6)
    yield made
    made.close()


def knock(layout: BoxLayout) -> FrameSocket:
    control = connect_unix(layout.log_writer_socket("d0"))
    assert control is not None
    return control


def test_a_source_that_hangs_up_is_forgotten_and_what_it_offered_is_dropped(layout: BoxLayout, writer: SteppedLogWriter) -> None:
    source = SteppedSource(layout)
    connect(source, writer)
    for number in range(3):
        source.offer(number)
    assert source.proxy.channel is not None
    source.proxy.channel.control.close()
    writer.poller.poll(0)
    assert writer.door.channels == [] and writer.taken == []
    assert writer.counters.counter("log_writer.dropped_of_dead_sources").value == 3
    assert [name for name, _ in writer.gone] == ["acceptor@0"]
    source.close()


def test_a_source_that_goes_on_offering_is_forgotten_after_one_look(layout: BoxLayout, writer: SteppedLogWriter) -> None:
    source = SteppedSource(layout)
    connect(source, writer)
    (channel,) = writer.door.channels
    source.offer(1)
    ring = channel.descriptors

    class _Endless:
        head = 0

        def poll(self, limit: int) -> list[tuple[Any, ...]]:
            polled = ring.poll(limit)
            if writer.counters.counter("log_writer.dropped_of_dead_sources").value < 50:
                source.offer(2)
            return polled

    channel.descriptors = _Endless()  # type: ignore[assignment]
    writer.door.refuse(ChannelBroken(channel, "it requests what it may not"))
    assert writer.counters.counter("log_writer.dropped_of_dead_sources").value == 1
    source.close()


def test_the_next_incarnation_of_a_source_ends_the_last_one_before_its_hang_up_is_read(layout: BoxLayout, writer: SteppedLogWriter) -> None:
    dead = SteppedSource(layout, 4)
    connect(dead, writer)
    dead.offer("of the dead")
    heir = SteppedSource(layout, 5)
    heir.turn()
    for _ in range(2):
        writer.poller.poll(0)
    heir.turn()
    heir.offer("of the living")
    writer.turn()
    assert [incarnation for _, incarnation, _ in writer.taken] == [5]
    assert len(writer.door.channels) == 1 and writer.gone == [("acceptor@0", "its next incarnation has connected")]
    assert writer.counters.counter("log_writer.dropped_of_dead_sources").value == 1
    heir.close()
    dead.close()


def test_a_welcome_longer_than_a_socket_buffer_continues_when_the_socket_is_writable(layout: BoxLayout, writer: SteppedLogWriter) -> None:
    """10,000 partitions are 700 kB of JSON; a Unix socket takes 200 kB at once."""
    writer.partitions = [["topic-with-a-name", number, "x" * 22, 5, 1 << 40] for number in range(10_000)]
    source = SteppedSource(layout)
    connect_turns = 0
    while not source.proxies.connected("d0"):
        source.turn()
        writer.turn()
        connect_turns += 1
        assert connect_turns < 50
    assert source.proxies.writer_info("d0")["partitions"] == writer.partitions
    source.offer("goes through")
    writer.turn()
    assert len(writer.taken) == 1
    source.close()


@pytest.mark.parametrize("kind", [HELLO, WELCOME, 99])
def test_a_connection_without_a_hello_is_closed_and_others_are_not_affected(kind: int, layout: BoxLayout, writer: SteppedLogWriter) -> None:
    source = SteppedSource(layout)
    connect(source, writer)
    before = open_descriptors()
    stranger = knock(layout)
    bell = os.eventfd(0)
    stranger.send(kind, 0, b"{}", (bell,))
    os.close(bell)
    for _ in range(3):
        writer.turn()
    with pytest.raises(PeerGone):
        stranger.receive()
    stranger.close()
    assert open_descriptors() <= before and len(writer.door.channels) == 1
    source.close()


def test_a_source_of_another_release_is_refused_with_the_reason(layout: BoxLayout, writer: SteppedLogWriter) -> None:
    source = SteppedSource(layout)
    source.source.arena.shared.words[VERSION_WORD] += 1
    source.turn()
    assert source.proxy.channel is not None
    for _ in range(2):
        writer.turn()
    (frame,) = source.proxy.channel.control.receive()
    assert frame.kind == REFUSED and b"layout version" in frame.payload
    assert writer.counters.counter("log_writer.refused_sources").value == 1 and writer.door.channels == []
    source.close()


def test_a_source_that_died_before_its_hello_was_read_leaves_nothing(layout: BoxLayout, writer: SteppedLogWriter) -> None:
    before = open_descriptors()
    dead = SteppedSource(layout)
    dead.turn()
    dead.close()
    for _ in range(3):
        writer.turn()
    assert writer.door.channels == [] and writer.door.connections == {} and open_descriptors() <= before


def test_a_shut_acceptor_refuses_new_connections_and_serves_open_channels(layout: BoxLayout, writer: SteppedLogWriter) -> None:
    source = SteppedSource(layout)
    connect(source, writer)
    writer.door.shut()
    assert connect_unix(layout.log_writer_socket("d0")) is None
    source.offer("inside")
    assert writer.door.has_descriptors()
    writer.turn()
    assert len(writer.taken) == 1 and not writer.door.has_descriptors()
    source.close()


def test_closing_the_acceptor_notifies_the_sources(layout: BoxLayout, writer: SteppedLogWriter) -> None:
    source = SteppedSource(layout)
    connect(source, writer)
    stranger = knock(layout)
    writer.turn()
    assert source.proxy.channel is not None
    writer.door.close()
    source.turn()
    assert source.take_reported() == ["gone"]
    with pytest.raises(PeerGone):
        stranger.receive()
    stranger.close()
    source.close()


def test_many_sources_are_served_side_by_side(layout: BoxLayout, writer: SteppedLogWriter) -> None:
    others: list[Any] = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for other in others:
        other.connect(layout.log_writer_socket("d0"))
    source = SteppedSource(layout)
    connect(source, writer)
    source.offer("one of many")
    writer.turn()
    assert len(writer.taken) == 1
    for other in others:
        other.close()
    writer.turn()
    assert len(writer.door.connections) == 1
    source.close()


def test_only_a_connected_source_receives_a_message(layout: BoxLayout, writer: SteppedLogWriter) -> None:
    source = SteppedSource(layout)
    assert not writer.door.send(source.source.name, ISR_CHANGES, b"{}")
    connect(source, writer)
    assert writer.door.is_connected(source.source.name) and not writer.door.is_connected("another source")
    assert writer.door.send(source.source.name, ISR_CHANGES, b'{"changes":[{"topic":"t"}]}')
    assert writer.door.send(source.source.name, ISR_CHANGES, b'{"changes":[{"topic":"u"}]}')
    source.turn()
    assert source.take_reported() == [("d0", [{"topic": "t"}, {"topic": "u"}])]
    source.close()


def test_a_source_that_may_be_taken_over_has_a_doorbell_of_its_own(layout: BoxLayout, writer: SteppedLogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a shared one it takes the rings of others, or holds them: it clears the flag, and fills the counter."""
    before = open_descriptors()
    trusted = SteppedSource(layout, name="controller")
    connect(trusted, writer)
    monkeypatch.setattr(channel_module, "is_trusted_user", lambda _user: False)
    sources = [trusted, *(SteppedSource(layout, name=name) for name in ("acceptor@0", "acceptor@1"))]
    for source in sources[1:]:
        connect(source, writer)
    buttons = [source.proxy.channel.button for source in sources if source.proxy.channel is not None]
    hostile, other = (button.descriptor for button in (buttons[1], buttons[2]) if button is not None)
    os.set_blocking(hostile, True)
    os.eventfd_write(hostile, (1 << 64) - 2)
    writer.bell.prepare_to_sleep()
    for button in (buttons[0], buttons[2]):
        assert button is not None and not os.get_blocking(button.descriptor) and button.ring_if_sleeping()
    writer.poller.poll(0)
    for descriptor in (writer.bell.fileno(), other):
        with pytest.raises(BlockingIOError):
            os.eventfd_read(descriptor)
    os.set_blocking(hostile, False)
    with pytest.raises(BlockingIOError):
        os.eventfd_read(hostile)
    for source in sources:
        source.close()
    while writer.door.connections:
        writer.turn()
    assert open_descriptors() == before


def test_sources_that_may_be_taken_over_bring_no_more_memory_than_the_box_needs(
    layout: BoxLayout, writer: SteppedLogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "is_trusted_user", lambda _user: False)
    source, greedy = SteppedSource(layout), SteppedSource(layout, name="acceptor@1")
    connect(source, writer)
    (channel,) = writer.door.channels
    monkeypatch.setattr(channel_acceptor, "sealed_bytes_max", lambda: 2 * channel.mapped_bytes - 1)
    for _ in range(3):
        greedy.turn()
        writer.turn()
    assert [each.source for each in writer.door.channels] == ["acceptor@0"] and "brings more memory" in writer.gone[0][1]
    assert writer.counters.counter("log_writer.refused_sources").value > 0
    monkeypatch.setattr(channel_acceptor, "sealed_bytes_max", lambda: 2 * channel.mapped_bytes)
    while not writer.door.is_connected("acceptor@1"):
        greedy.turn()
        writer.turn()
    greedy.close()
    source.close()
