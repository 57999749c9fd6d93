"""One disk's log-writer as one source sees it: the channel, the requests in flight, and their fate
if the log-writer dies or is replaced.

Owned by `LogWriterProxies`; the broker offers to it directly. It connects without blocking, detects
a death by hang-up, drains the published completions of the dead log-writer, reports its remaining
requests as lost, and connects again. A token identifies a request; the completion returns the
caller's object. A full ring is counted and returned. Weak: a log-writer that hangs is not dead, so
its requests stay in flight (and their memory in use) until the socket hangs up; the caller decides
how long its clients wait.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from typing import Any

from appliance.ipc.channel import ISR_CHANGES, REFUSED, WELCOME, SourceChannel, read_document
from appliance.ipc.descriptors import COMPLETION_ERROR, COMPLETION_RECORDS, COMPLETION_TOKEN, TOKEN, VALUE_A
from appliance.ipc.frames import PeerGone, Registry, connect_unix
from appliance.ipc.source import Source
from appliance.shm.counters import Counters
from appliance.shm.mapping import SharedMemoryFull, SharedObjectAbsent
from appliance.shm.partition_table import PartitionTableReader

COMPLETED_COUNTER = 'source.completed_records{{disk="{disk}"}}'
HELLO_TIMEOUT_NS = 2_000_000_000
RECONNECT_NS = 20_000_000
DRAIN_BURST = 512


class LogWriterProxy:
    """One disk's log-writer as one source sees it."""

    def __init__(self, disk: str, source: Source, registry: Registry, counters: Counters, counts_records: bool) -> None:
        self.disk = disk
        self.channel: SourceChannel | None = None
        self.serving = False
        self.is_hung = False
        """The disk blocks its log-writer (set by `ipc/box_disks.py` only). It gets nothing new;
        requests in flight stay."""
        self.is_full = False
        """The disk has no space for appends (set by `ipc/box_disks.py` only)."""
        self.outstanding: dict[int, tuple[Any, int]] = {}
        """token → (the caller's object, bytes charged)"""
        self.outstanding_bytes = 0
        self._queued: deque[tuple[tuple[int, ...], int, Any]] = deque()
        self._source = source
        self._registry = registry
        self._completed = counters.counter(COMPLETED_COUNTER.format(disk=disk)) if counts_records else None
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
        self.isr_changes: list[dict[str, Any]] = []
        """In-sync sets that leaders on this disk request; for a controller."""

    @property
    def table(self) -> PartitionTableReader | None:
        return self.channel.table if self.serving and self.channel is not None else None

    @property
    def writer_info(self) -> dict[str, Any]:
        return self.channel.writer_info if self.channel is not None else {}

    def offer(self, descriptor: tuple[int, ...], charge: int, context: Any) -> bool:
        """Offer one descriptor; its token field (`TOKEN`) is set here. False if the ring is full or
        there is no log-writer; nothing is kept."""
        channel = self.channel
        if not self.serving or channel is None or len(self.outstanding) >= channel.capacity:
            self._ring_full.add()
            return False
        token = self._next_token
        if not channel.descriptors.offer(*descriptor[:TOKEN], token, *descriptor[VALUE_A:]):
            self._ring_full.add()
            return False
        self._next_token = token + 1
        self.outstanding[token] = (context, charge)
        self.outstanding_bytes += charge
        self._offered = True
        return True

    def offer_or_queue(self, descriptor: tuple[int, ...], charge: int, context: Any) -> bool:
        """Like `offer`, but while the ring is full the descriptor waits here in order, charged to
        the budget. False without a log-writer."""
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
        """Ring the log-writer's doorbell if anything was offered since the last call."""
        if self._offered:
            self._offered = False
            if self.channel is not None:
                self.channel.ring()

    def under_way(self) -> list[Any]:
        """Return the objects of requests that were offered or wait, and have no completion."""
        return [context for context, _ in self.outstanding.values()] + [context for _, _, context in self._queued]

    def has_completions(self) -> bool:
        return self.serving and self.channel is not None and self.channel.completions.has_entries()

    def drain(self, on_completion: Callable[[Any, tuple[Any, ...]], None]) -> int:
        """Pass each published completion to its caller; returns how many, at most `DRAIN_BURST`."""
        channel = self.channel
        if channel is None or not self.serving:
            return 0
        outstanding = self.outstanding
        # What was taken from the ring and not yet handled dies with this process. The next incarnation of a source that
        # counts what it takes knows the rest, so such a source takes one completion at a time.
        completed = self._completed
        burst = DRAIN_BURST if completed is None else 1
        drained = 0
        while drained < DRAIN_BURST:
            entries = channel.completions.poll(burst)
            for entry in entries:
                if completed is not None and not entry[COMPLETION_ERROR]:
                    completed.add(entry[COMPLETION_RECORDS])
                context, charge = outstanding.pop(entry[COMPLETION_TOKEN])
                self.outstanding_bytes -= charge
                on_completion(context, entry)
            drained += len(entries)
            if len(entries) < burst:
                break
        if self._queued:
            self._offer_queued()
        return drained

    # -- the state of the channel

    def connect_if_due(self, now_ns: int) -> None:
        """Connect if it is time, or give up a HELLO without an answer. Never blocks."""
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
            self.channel = SourceChannel.greet(control, source, name)
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
                elif frame.kind == ISR_CHANGES:
                    self.isr_changes += read_document(frame, "changes")["changes"]
                elif frame.kind == REFUSED:
                    raise PeerGone(frame.payload.decode())
        except (PeerGone, SharedObjectAbsent):
            self.gone = True

    def take_gone(self, on_completion: Callable[[Any, tuple[Any, ...]], None], on_lost: Callable[[Any], None]) -> bool:
        """After a hang-up: drain the published completions, report the rest as lost, close the
        channel. True if that happened."""
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

    def detach(self, on_detached: Callable[[Any], None], on_lost: Callable[[Any], None]) -> DetachedChannel | None:
        """Detach from a log-writer whose disk another process serves now; its old disk may block it
        for ever.

        Its offered requests are reported to `on_detached` at once; their memory stays in use until
        it is gone (`DetachedChannel`). What it never received is lost. Connects again in the next
        turn.
        """
        queued = [context for _, _, context in self._queued]
        self._queued.clear()
        channel, outstanding = self.channel, [context for context, _ in self.outstanding.values()]
        was_serving = self.serving and not self.gone
        self.outstanding.clear()
        self.outstanding_bytes = 0
        self.gone = self.just_connected = False
        detached: DetachedChannel | None = None
        if channel is not None and was_serving:
            self.channel, self.serving, self.is_hung, self.is_full = None, False, False, False
            self._registry.unregister(channel.control.fileno())
            detached = DetachedChannel(channel, outstanding, self._registry)
        else:
            self._retire()
        for context in outstanding:
            on_detached(context)
        if detached is None:
            queued += outstanding
        for context in queued:
            on_lost(context)
        self._next_attempt_ns = 0
        return detached

    def _retire(self) -> None:
        if self.channel is not None:
            self._registry.unregister(self.channel.control.fileno())
            self.channel.close()
            self.channel = None
        self.isr_changes.clear()
        self.serving = self.is_hung = self.is_full = False

    def close(self) -> None:
        self._retire()


class DetachedChannel:
    """A channel to a replaced log-writer. It gets nothing new and its completions are ignored.

    The memory of its requests is not reused before it is gone: a process that is blocked in the
    kernel may still read it when its disk answers.
    """

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
