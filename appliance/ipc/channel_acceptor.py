"""Accepts the channels of a log-writer: sources connect to its Unix socket, send HELLO, and are
dropped when they hang up.

Owned by one log-writer. Only the newest incarnation of a source is connected: if the next one sends
HELLO before the hang-up of the last one was seen, the last one's descriptors are dropped first, so
that no request of a dead incarnation runs after one of its successor. A WELCOME that is longer than
the socket buffer (thousands of partitions) is sent in parts. Weak: a client that connects and never
sends HELLO keeps its connection; only processes of the box can.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson

from appliance.ipc.channel import HELLO, REFUSED, WELCOME, ChannelBroken, SinkChannel
from appliance.ipc.frames import Frame, FrameSocket, PeerGone, Registry, accept, close_descriptors, is_trusted_user, listen_unix
from appliance.shm.counters import Counters
from appliance.shm.doorbell import drain
from appliance.shm.mapping import LayoutMismatch, SharedObjectAbsent, sealed_bytes_max

HELLO_BYTES_MAX = 1 << 16
CONNECTIONS_MAX = 256
"""Connections of processes that face the network, which may be taken over."""
COUNTED_SOURCES = "ingest@"
"""Sources whose next incarnation accounts for completions that they did not read."""
_INTEREST = select.EPOLLIN | select.EPOLLRDHUP


class ChannelAcceptor:
    """`describe()` returns the content of WELCOME (it names the table); `on_gone(channel, reason)`
    is called for each source that left."""

    def __init__(
        self,
        doorbell: int,
        registry: Registry,
        counters: Counters,
        describe: Callable[[], dict[str, Any]],
        on_gone: Callable[[SinkChannel, str], None],
    ) -> None:
        self.channels: list[SinkChannel] = []
        """Connected sources, in the order of their HELLO."""
        self._counters = counters
        self._doorbell = doorbell
        self._registry = registry
        self._describe = describe
        self._on_gone = on_gone
        self.listening: socket.socket | None = None
        self.connections: dict[FrameSocket, SinkChannel | None] = {}
        """All connections; None before the HELLO."""
        self._dropped = counters.counter("log_writer.dropped_of_dead_sources")
        self._refused = counters.counter("log_writer.refused_sources")

    def open(self, path: str) -> None:
        """Listen at `path` from now on."""
        self.listening = listen_unix(path)
        self._registry.register(self.listening.fileno(), select.EPOLLIN, self._on_connection)

    def shut(self) -> None:
        """Accept no new source; connected ones stay."""
        if self.listening is not None:
            self._registry.unregister(self.listening.fileno())
            self.listening.close()
            self.listening = None

    def has_descriptors(self) -> bool:
        """Return whether a source has unread descriptors (the second check before sleeping)."""
        for channel in self.channels:  # each turn: `any` would make a generator
            if channel.descriptors.has_entries():
                return True
        return False

    def close(self) -> None:
        """Stop listening and close all channels."""
        self.shut()
        for control, channel in self.connections.items():
            self._release(control, channel)
        self.connections.clear()
        self.channels.clear()

    def disconnect(self, source: str) -> None:
        """Disconnect a source: its requests in flight are lost, it connects again and receives a
        new WELCOME."""
        for control, channel in list(self.connections.items()):
            if channel is not None and channel.source == source:
                self._forget(control, "it has to read the table again")

    def refuse(self, broken: ChannelBroken) -> None:
        """Drop a source that breaks the protocol, or requests what it may not."""
        self._refused.add()
        if broken.channel.control in self.connections:
            self._forget(broken.channel.control, str(broken))

    def send(self, source: str, kind: int, payload: bytes) -> bool:
        """Send a frame to a connected source. False if it is not connected."""
        for control, channel in list(self.connections.items()):
            if channel is not None and channel.source == source:
                try:
                    control.send(kind, 0, payload)
                except PeerGone as reason:
                    self._forget(control, str(reason))
                    return False
                self._watch(control)
                return True
        return False

    def is_connected(self, source: str) -> bool:
        """Return whether the source is connected."""
        return any(channel.source == source for channel in self.channels)

    def _on_connection(self, _events: int) -> None:
        while self.listening is not None and (control := accept(self.listening, HELLO_BYTES_MAX)) is not None:
            if len(self.connections) >= CONNECTIONS_MAX and not is_trusted_user(control.peer_user()):
                self._refused.add()
                control.close()
                continue
            self.connections[control] = None
            self._registry.register(control.fileno(), _INTEREST, self._make_callback(control))

    def _make_callback(self, control: FrameSocket) -> Callable[[int], None]:
        def on_control(events: int) -> None:
            self._on_control(control, events)

        return on_control

    def _on_control(self, control: FrameSocket, events: int) -> None:
        if control not in self.connections:
            return  # dropped by an earlier event of this turn
        try:
            if events & select.EPOLLOUT:
                control.flush()
                self._watch(control)
            if events & ~select.EPOLLOUT:
                for frame in control.receive():
                    self._on_frame(control, frame)
        except (PeerGone, SharedObjectAbsent) as reason:
            self._forget(control, str(reason))
        except LayoutMismatch as mismatch:
            self._refuse(control, str(mismatch))

    def _on_frame(self, control: FrameSocket, frame: Frame) -> None:
        if frame.kind != HELLO or self.connections.get(control) is not None:
            close_descriptors(frame)
            raise PeerGone(f"frame kind {frame.kind} where HELLO belongs")
        channel = SinkChannel(control, frame)
        if channel.source.startswith(COUNTED_SOURCES):
            channel.completed = self._counters.counter(f'log_writer.completed_records{{source="{channel.source}"}}')
        for other, inside in list(self.connections.items()):
            if inside is not None and inside.source == channel.source:
                self._forget(other, "its next incarnation has connected")
        self.connections[control] = channel
        self.channels.append(channel)
        if sum(each.mapped_bytes for each in self.channels if each.is_restricted) > sealed_bytes_max():
            self.refuse(ChannelBroken(channel, f"{channel.source} brings more memory than arenas and rings may have"))
            return
        completed = 0 if channel.completed is None else channel.completed.value
        control.send(WELCOME, 0, orjson.dumps({**self._describe(), "completed": completed}), (self._bell_for(channel),))
        self._watch(control)

    def _bell_for(self, channel: SinkChannel) -> int:
        """Return the eventfd by which a source rings. One that may be taken over has its own: it
        could take the rings of others, or hold them."""
        if not channel.is_restricted:
            return self._doorbell
        try:
            bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            raise PeerGone(f"no doorbell for {channel.source}: {error.strerror}") from error
        channel.own_bell = bell
        self._registry.register(bell, select.EPOLLIN, lambda _events: drain(bell))
        return bell

    def _watch(self, control: FrameSocket) -> None:
        self._registry.modify(control.fileno(), _INTEREST | (select.EPOLLOUT if control.wants_write else 0))

    def _refuse(self, control: FrameSocket, reason: str) -> None:
        self._refused.add()
        try:
            control.send(REFUSED, 0, reason.encode())
        except PeerGone:
            pass  # it closed the connection first
        self._forget(control, reason)

    def _forget(self, control: FrameSocket, reason: str) -> None:
        """Drop a source: its unread descriptors are discarded."""
        channel = self.connections.pop(control)
        if channel is None:
            self._release(control, None)
            return
        self.channels.remove(channel)
        with suppress(ChannelBroken):
            self._dropped.add(len(channel.take(channel.rings.capacity)))  # once: a live source may go on offering
        self._release(control, channel)
        self._on_gone(channel, reason)

    def _release(self, control: FrameSocket, channel: SinkChannel | None) -> None:
        self._registry.unregister(control.fileno())
        if channel is not None and channel.own_bell >= 0:
            self._registry.unregister(channel.own_bell)
        (channel or control).close()
