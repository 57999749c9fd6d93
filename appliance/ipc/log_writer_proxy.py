"""One disk's log-writer as one source sees it: the channel's life, what is outstanding, and what becomes of it when the log-writer dies or is replaced.

Owned by `LogWriterProxies`; the broker offers to it directly. Connects without ever blocking, notices deaths by hang-up, drains what a dead one
had still published before its outstanding requests are given back as lost, and connects again. Requests are known by a token; the caller's own object
comes back with the completion. A full ring is an answer, counted. Weak spot: a log-writer that hangs is not dead: its outstanding requests stay outstanding
here (their memory is in quarantine) for as long as the socket does not hang up; the caller decides how long its clients wait.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Any

from appliance.ipc.channel import ISR_WISHES, REFUSED, WELCOME, SourceChannel, read_document
from appliance.ipc.frames import PeerGone, connect_unix
from appliance.ipc.registry import Registry
from appliance.ipc.source import Source
from appliance.shm.counters import Counters
from appliance.shm.mapping import SharedMemoryFull, SharedObjectAbsent
from appliance.shm.partition_table import PartitionTableReader

HELLO_TIMEOUT_NS = 2_000_000_000
RECONNECT_NS = 20_000_000
DRAIN_BURST = 512


class LogWriterProxy:
    """One disk's log-writer as one source sees it."""

    def __init__(self, disk: str, source: Source, registry: Registry, counters: Counters, keep_ring_names: bool) -> None:
        self.disk = disk
        self.channel: SourceChannel | None = None
        self.serving = False
        self.is_hung = False
        """Its disk keeps it waiting (`ipc/disk_health.py` says so, alone): nothing new is for it, what it was given stays its own."""
        self.outstanding: dict[int, tuple[Any, int]] = {}
        """token → (the caller's object, bytes charged)."""
        self.outstanding_bytes = 0
        self._queued: deque[tuple[tuple[int, ...], int, Any]] = deque()
        self._source = source
        self._registry = registry
        self._keep_ring_names = keep_ring_names
        self._next_attempt_ns = 0
        self._deadline_ns = 0
        self._attempts = 0
        self._next_token = 1
        self._offered = False
        self._ring_full = counters.counter(f'source.ring_full{{disk="{disk}"}}')
        self._deaths = counters.counter(f'source.log_writer_deaths{{disk="{disk}"}}')
        self._failed_greetings = counters.counter(f'source.failed_greetings{{disk="{disk}"}}')
        self.just_connected = False
        self.gone = False
        self.isr_wishes: list[dict[str, Any]] = []
        """What leaders on this disk wish their in-sync sets to be; for a controller."""

    @property
    def table(self) -> PartitionTableReader | None:
        return self.channel.table if self.serving and self.channel is not None else None

    @property
    def writer_info(self) -> dict[str, Any]:
        return self.channel.writer_info if self.channel is not None else {}

    def offer(self, descriptor: tuple[int, ...], charge: int, context: Any) -> bool:
        """Offer one descriptor whose token field (index 9) is filled in here. False: ring full or no log-writer; nothing was kept."""
        channel = self.channel
        if not self.serving or channel is None or len(self.outstanding) >= channel.capacity:
            self._ring_full.add()
            return False
        token = self._next_token
        if not channel.descriptors.offer(*descriptor[:9], token, *descriptor[10:]):
            self._ring_full.add()
            return False
        self._next_token = token + 1
        self.outstanding[token] = (context, charge)
        self.outstanding_bytes += charge
        self._offered = True
        return True

    def offer_or_queue(self, descriptor: tuple[int, ...], charge: int, context: Any) -> bool:
        """As `offer`, but while the ring is full the descriptor waits here, in order, charged to the budget. False: no log-writer."""
        if not self.serving:
            return False
        if self._queued or not self.offer(descriptor, charge, context):
            self._queued.append((descriptor, charge, context))
            self.outstanding_bytes += charge
        return True

    def _offer_queued(self) -> None:
        queued = self._queued
        channel = self.channel
        while queued and channel is not None and len(self.outstanding) < channel.capacity:
            descriptor, charge, context = queued[0]
            self.outstanding_bytes -= charge
            if not self.offer(descriptor, charge, context):
                self.outstanding_bytes += charge
                return
            queued.popleft()

    def flush(self) -> None:
        """Ring the log-writer's doorbell if anything was offered since."""
        if self._offered:
            self._offered = False
            if self.channel is not None:
                self.channel.ring()

    def under_way(self) -> list[Any]:
        """What was offered, or waits to be, and has no completion yet."""
        return [context for context, _ in self.outstanding.values()] + [context for _, _, context in self._queued]

    def has_completions(self) -> bool:
        return self.serving and self.channel is not None and self.channel.completions.has_entries()

    def drain(self, on_completion: Callable[[Any, tuple[Any, ...]], None]) -> int:
        """Hand every published completion to its caller; returns how many."""
        channel = self.channel
        if channel is None or not self.serving:
            return 0
        entries = channel.completions.poll(DRAIN_BURST)
        outstanding = self.outstanding
        for entry in entries:
            context, charge = outstanding.pop(entry[4])
            self.outstanding_bytes -= charge
            on_completion(context, entry)
        if self._queued:
            self._offer_queued()
        return len(entries)

    # -- the channel's life

    def connect_if_due(self, now_ns: int) -> None:
        """Try to connect, or give up a HELLO that nobody answered. Never blocks."""
        if self.channel is not None:
            if not self.serving and now_ns > self._deadline_ns:
                self._failed_greetings.add()
                self._retire()
                self._next_attempt_ns = now_ns + RECONNECT_NS
            return
        if now_ns < self._next_attempt_ns:
            return
        self._next_attempt_ns = now_ns + RECONNECT_NS
        source = self._source
        control = connect_unix(source.layout.log_writer_socket(self.disk))
        if control is None:
            return
        self._attempts += 1
        name = source.layout.shared_memory_name("channel", f"{source.name}.{self.disk}.{self._attempts}", source.incarnation)
        try:
            self.channel = SourceChannel.greet(
                control, source.name, source.incarnation, source.arena, source.doorbell, name, source.ring_entries, self._keep_ring_names
            )
        except (PeerGone, SharedMemoryFull):
            self._failed_greetings.add()
            return
        self._deadline_ns = now_ns + HELLO_TIMEOUT_NS
        self._registry.register(control.fileno(), select.EPOLLIN | select.EPOLLRDHUP, self._on_control)

    def _on_control(self, _events: int) -> None:
        channel = self.channel
        if channel is None:
            return
        try:
            for frame in channel.control.receive():
                if frame.kind == WELCOME:
                    channel.on_welcome(frame)
                    self.serving = True
                    self.just_connected = True
                elif frame.kind == ISR_WISHES:
                    self.isr_wishes += read_document(frame, "wishes")["wishes"]
                elif frame.kind == REFUSED:
                    raise PeerGone(frame.payload.decode())
        except (PeerGone, SharedObjectAbsent):
            self.gone = True

    def take_gone(self, on_completion: Callable[[Any, tuple[Any, ...]], None], on_lost: Callable[[Any], None]) -> bool:
        """After a hang-up: drain what it had published, give the rest back as lost, close the channel. True if that happened."""
        if not self.gone:
            return False
        self.gone = False
        self.just_connected = False
        if not self.serving:
            self._failed_greetings.add()
        else:
            self._deaths.add()
            while self.drain(on_completion):
                pass
        lost = [context for context, _ in self.outstanding.values()]
        lost += [context for _, _, context in self._queued]
        self.outstanding.clear()
        self._queued.clear()
        self.outstanding_bytes = 0
        self._retire()
        for context in lost:
            on_lost(context)
        return True

    def set_aside(self, on_set_aside: Callable[[Any], None], on_lost: Callable[[Any], None]) -> SetAsideChannel | None:
        """Another process serves the disk from now on; this one may be held by the old disk for ever. What it was offered is told to `on_set_aside` at
        once, and its memory stays its own until it is gone (`SetAsideChannel`); what it never saw is lost. Connects anew at the next turn."""
        queued = [context for _, _, context in self._queued]
        self._queued.clear()
        channel, outstanding = self.channel, [context for context, _ in self.outstanding.values()]
        was_serving = self.serving and not self.gone
        self.outstanding.clear()
        self.outstanding_bytes = 0
        self.gone = self.just_connected = False
        aside: SetAsideChannel | None = None
        if channel is not None and was_serving:
            self.channel, self.serving, self.is_hung = None, False, False
            self._registry.unregister(channel.control.fileno())
            aside = SetAsideChannel(channel, outstanding, self._registry)
        else:
            self._retire()
        for context in outstanding:
            on_set_aside(context)
        if aside is None:
            queued += outstanding
        for context in queued:
            on_lost(context)
        self._next_attempt_ns = 0
        return aside

    def _retire(self) -> None:
        if self.channel is not None:
            self._registry.unregister(self.channel.control.fileno())
            self.channel.close()
            self.channel = None
        self.isr_wishes.clear()
        self.serving = False
        self.is_hung = False

    def close(self) -> None:
        self._retire()


class SetAsideChannel:
    """A channel to a log-writer that serves its disk no more: it is given nothing, what it says is not heard, and what it was given is not touched before
    it is gone, since a process that waits in the kernel may still read it when its disk lets it go."""

    def __init__(self, channel: SourceChannel, outstanding: list[Any], registry: Registry) -> None:
        self.outstanding = outstanding
        self.is_gone = False
        self._channel = channel
        self._registry = registry
        registry.register(channel.control.fileno(), select.EPOLLIN | select.EPOLLRDHUP, self._on_control)

    def _on_control(self, _events: int) -> None:
        try:
            for _frame in self._channel.control.receive():
                pass
        except PeerGone:
            self.is_gone = True

    def close(self) -> None:
        self._registry.unregister(self._channel.control.fileno())
        self._channel.close()
