"""The proxies of all log-writers of the box, for any source: acceptor, ingest, controller,
coordinator, replica-fetcher.

Keeps a `LogWriterProxy` per disk, runs their turns, and reports connections, deaths and completions
to the owner. If another process takes over a disk, the old channel is kept beside the new one until
the old process has ended.

Commands to log-writers in flight: the arena slot of each, and the answer if the log-writer died.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import orjson

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER_EPOCH, NO_OFFSET
from appliance.ipc.box_disks import DiskSetChange
from appliance.ipc.descriptors import Completion, DescriptorKind
from appliance.ipc.frames import Registry
from appliance.ipc.log_writer_proxy import DetachedChannel, LogWriterProxy
from appliance.ipc.source import Source
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from appliance.shm.partition_table import DISK_OFFLINE


class Command:
    """A command in flight: its arena slot and the caller's object, which is None once the caller
    stopped waiting."""

    __slots__ = ("arena", "context", "position")

    def __init__(self, arena: Arena, position: int, context: Any) -> None:
        self.arena = arena
        self.position = position
        self.context = context

    def finish(self) -> Any:
        """Free the arena slot; returns the caller's object."""
        self.arena.free(self.position)
        return self.context


def command_callbacks(
    on_completion: Callable[[Any, Completion], None],
) -> tuple[Callable[[Any, tuple[Any, ...]], None], Callable[[Any], None]]:
    """Return callbacks for a source that sends only commands (the controller). A command whose
    log-writer died ends with KAFKA_STORAGE_ERROR."""

    def completed(command: Command, entry: tuple[Any, ...]) -> None:
        on_completion(command.finish(), Completion(*entry))

    def lost(command: Command) -> None:
        error = Completion(0, 0, ErrorCode.KAFKA_STORAGE_ERROR, 0, 0, NO_OFFSET, -1, NO_OFFSET, NO_OFFSET, NO_LEADER_EPOCH, 0, 0)
        on_completion(command.finish(), error)

    return completed, lost


class LogWriterProxies:
    """All log-writers of the box, as one source sees them. Callbacks return the caller's own
    object.

    `counts_records`: count those of completions, for the next incarnation (`COMPLETED_COUNTER`).
    `on_completion(context, entry)` has the fields of `Completion` in their order;
    `on_lost(context)` is called if the log-writer died first. `on_gone(disk)` comes alone if it
    died before `on_connected(disk)`. `on_isr_changes(disk, changes)`: see ISR_CHANGES in
    `ipc/channel.py`.
    """

    def __init__(
        self,
        source: Source,
        disks: list[str],
        registry: Registry,
        counters: Counters,
        on_completion: Callable[[Any, tuple[Any, ...]], None],
        on_lost: Callable[[Any], None],
        on_connected: Callable[[str], None],
        on_gone: Callable[[str], None],
        counts_records: bool = False,
        on_isr_changes: Callable[[str, list[dict[str, Any]]], None] = lambda _disk, _changes: None,
    ) -> None:
        self.source = source
        self.by_disk = {disk: LogWriterProxy(disk, source, registry, counters, counts_records) for disk in disks}
        self._proxies = list(self.by_disk.values())
        self._detached: list[DetachedChannel] = []
        self._make_proxy: Callable[[str], LogWriterProxy] = lambda disk: LogWriterProxy(disk, source, registry, counters, counts_records)
        self.on_completion = on_completion
        self.on_lost = on_lost
        self._on_connected = on_connected
        self._on_gone = on_gone
        self.on_isr_changes = on_isr_changes
        registry.register(source.doorbell.fileno(), select.EPOLLIN, source.doorbell.drain)

    def do_work(self, now_ns: int) -> int:
        """Connect, drain completions, detect deaths. Bounded; returns how much was done."""
        work = 0
        for proxy in self._proxies:
            if proxy.gone:
                disk_was_serving = proxy.serving
                proxy.take_gone(self.on_completion, self.on_lost)
                work += 1
                if disk_was_serving:
                    self._on_gone(proxy.disk)
            elif proxy.serving:
                if proxy.just_connected:
                    proxy.just_connected = False
                    work += 1
                    self._on_connected(proxy.disk)
                if proxy.isr_changes:
                    changes, proxy.isr_changes = proxy.isr_changes, []
                    work += 1
                    self.on_isr_changes(proxy.disk, changes)
                work += proxy.drain(self.on_completion)
                continue
            proxy.connect_if_due(now_ns)
        if self._detached:
            work += self._release_detached()
        return work

    def _release_detached(self) -> int:
        """Report the requests of detached log-writers that are gone now as lost."""
        gone = [detached for detached in self._detached if detached.is_gone]
        for detached in gone:
            self._detached.remove(detached)
            detached.close()
            for context in detached.outstanding:
                self.on_lost(context)
        return len(gone)

    def add_disk(self, disk: str) -> None:
        """Add a disk of the box."""
        self.by_disk[disk] = proxy = self._make_proxy(disk)
        self._proxies.append(proxy)

    def replace_disk(self, disk: str, on_detached: Callable[[Any], None]) -> None:
        """Follow the replacement of a disk: another process serves it from another directory.

        `on_detached(context)` is called for each request of the old process; `on_lost(context)`
        follows when that is gone and the memory is free.
        """
        proxy = self.by_disk[disk]
        while proxy.drain(self.on_completion):
            pass
        if proxy.serving:
            self._on_gone(disk)
        detached = proxy.detach(on_detached, self.on_lost)
        if detached is not None:
            self._detached.append(detached)

    def remove_disk(self, disk: str, on_detached: Callable[[Any], None]) -> None:
        """Remove a disk of the box: like `replace_disk`, without connecting again."""
        self.replace_disk(disk, on_detached)
        self._proxies.remove(self.by_disk.pop(disk))

    def follow(self, changes: DiskSetChange, on_detached: Callable[[Any], None]) -> None:
        """Follow disks that were added, removed or replaced."""
        for disk in changes.came:
            self.add_disk(disk.name)
        for disk in changes.went:
            self.remove_disk(disk.name, on_detached)
        for disk in changes.replaced:
            self.replace_disk(disk.name, on_detached)

    def flush(self) -> None:
        """Ring the doorbells of all log-writers with new descriptors; once per turn."""
        for proxy in self._proxies:
            proxy.flush()

    def has_completions(self) -> bool:
        return any(proxy.has_completions() or proxy.gone for proxy in self._proxies)

    def connected(self, disk: str) -> bool:
        return self.by_disk[disk].serving

    def writer_info(self, disk: str) -> dict[str, Any]:
        """Return what the log-writer sent in WELCOME."""
        return self.by_disk[disk].writer_info

    def is_offline(self, disk: str) -> bool:
        table = self.by_disk[disk].table
        return table is None or table.disk_state == DISK_OFFLINE

    def offer_command(self, disk: str, kind: DescriptorKind, payload: dict[str, Any], context: Any) -> bool:
        """Send a command with JSON in our arena; the slot is freed with the answer. False if ring
        or arena is full, or there is no log-writer."""
        proxy = self.by_disk[disk]
        if not proxy.serving:
            return False
        document = orjson.dumps(payload)
        arena = self.source.arena
        position = arena.allocate(len(document))
        if position < 0:
            return False
        arena.memory[position : position + len(document)] = document
        if not proxy.offer((kind, 0, 0, 0, 0, 0, 0, len(document), position, 0, 0, 0, 0, 0), 0, Command(arena, position, context)):
            arena.free(position)
            return False
        return True

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        for detached in self._detached:
            detached.close()
