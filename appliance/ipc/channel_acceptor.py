"""The log-writer's door: sources knock at its Unix socket, say HELLO, are let in, and are forgotten when they hang up.

Owned by one log-writer. Of one source only the newest life is inside: when the next one says HELLO before the hang-up of the last one
was seen, the last one's descriptors are dropped first, so nothing that a dead life asked is carried out after what the living one
asks. A WELCOME that is longer than the socket's buffer (thousands of partitions) goes on when there is room again.
Weak spot: whoever connects and never says HELLO keeps its connection; only our own user can.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any

import orjson

from appliance.ipc.channel import HELLO, REFUSED, WELCOME, SinkChannel
from appliance.ipc.frames import Frame, FrameSocket, PeerGone, accept, close_descriptors, listen_unix
from appliance.ipc.registry import Registry
from appliance.shm.counters import Counters
from appliance.shm.mapping import LayoutMismatch, SharedObjectAbsent

_INTEREST = select.EPOLLIN | select.EPOLLRDHUP


class ChannelAcceptor:
    """`describe()` is what WELCOME says (it names the table); `on_gone(channel, reason)` is told of each source that left."""

    def __init__(
        self,
        incarnation: int,
        doorbell: int,
        registry: Registry,
        counters: Counters,
        describe: Callable[[], dict[str, Any]],
        on_gone: Callable[[SinkChannel, str], None],
    ) -> None:
        self.channels: list[SinkChannel] = []
        """Those who are inside, in the order in which they came."""
        self._incarnation = incarnation
        self._doorbell = doorbell
        self._registry = registry
        self._describe = describe
        self._on_gone = on_gone
        self._listening: socket.socket | None = None
        self._by_control: dict[FrameSocket, SinkChannel | None] = {}
        self._dropped = counters.counter("log_writer.dropped_of_dead_sources")
        self._refused = counters.counter("log_writer.refused_sources")

    def open(self, path: str) -> None:
        """Listen from now on."""
        self._listening = listen_unix(path)
        self._registry.register(self._listening.fileno(), select.EPOLLIN, self._on_knock)

    def shut(self) -> None:
        """Let nobody new in; who is inside stays."""
        if self._listening is not None:
            self._registry.unregister(self._listening.fileno())
            self._listening.close()
            self._listening = None

    def has_descriptors(self) -> bool:
        """Whether anybody inside waits to be served (the second look before sleeping)."""
        return any(channel.descriptors.has_entries() for channel in self.channels)

    def close(self) -> None:
        """Shut, and retire the rings of everybody inside. Descriptors that were not taken stay where they are."""
        self.shut()
        for control, channel in self._by_control.items():
            self._registry.unregister(control.fileno())
            (channel or control).close()
        self._by_control.clear()
        self.channels.clear()

    def dismiss(self, source: str) -> None:
        """Hang up on a source: it loses what is under way, connects again, and is told in a new WELCOME what is here now."""
        for control, channel in list(self._by_control.items()):
            if channel is not None and channel.source == source:
                self._forget(control, "it is told anew what is here")

    def tell(self, source: str, kind: int, payload: bytes) -> bool:
        """Send a frame to a source that is inside. False: it is not, or not any more."""
        for control, channel in list(self._by_control.items()):
            if channel is not None and channel.source == source:
                try:
                    control.send(kind, 0, payload)
                except PeerGone as reason:
                    self._forget(control, str(reason))
                    return False
                self._watch(control)
                return True
        return False

    def is_inside(self, source: str) -> bool:
        return any(channel.source == source for channel in self.channels)

    def _on_knock(self, _events: int) -> None:
        while self._listening is not None and (control := accept(self._listening)) is not None:
            self._by_control[control] = None
            self._registry.register(control.fileno(), _INTEREST, self._make_callback(control))

    def _make_callback(self, control: FrameSocket) -> Callable[[int], None]:
        def on_control(events: int) -> None:
            self._on_control(control, events)

        return on_control

    def _on_control(self, control: FrameSocket, events: int) -> None:
        if control not in self._by_control:
            return  # forgotten by an earlier event of this turn
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
        if frame.kind != HELLO or self._by_control.get(control) is not None:
            close_descriptors(frame)
            raise PeerGone(f"frame kind {frame.kind} where HELLO belongs")
        channel = SinkChannel(control, frame, self._incarnation)
        for other, inside in list(self._by_control.items()):
            if inside is not None and inside.source == channel.source:
                self._forget(other, "its next life is here")
        self._by_control[control] = channel
        self.channels.append(channel)
        control.send(WELCOME, 0, orjson.dumps(self._describe()), (self._doorbell,))
        self._watch(control)

    def _watch(self, control: FrameSocket) -> None:
        self._registry.modify(control.fileno(), _INTEREST | (select.EPOLLOUT if control.wants_write else 0))

    def _refuse(self, control: FrameSocket, reason: str) -> None:
        self._refused.add()
        try:
            control.send(REFUSED, 0, reason.encode())
        except PeerGone:
            pass  # it did not wait for the answer
        self._forget(control, reason)

    def _forget(self, control: FrameSocket, reason: str) -> None:
        """It hung up: what it had offered and nobody had taken is dropped, its rings are retired."""
        self._registry.unregister(control.fileno())
        channel = self._by_control.pop(control)
        if channel is None:
            control.close()
            return
        self.channels.remove(channel)
        while dropped := len(channel.descriptors.poll(channel.descriptors.capacity)):
            self._dropped.add(dropped)
        channel.close()
        self._on_gone(channel, reason)
