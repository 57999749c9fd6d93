"""The door to the box's log-writers, for any source: acceptor, ingest, controller, coordinator and replica-fetcher.

Keeps a `LogWriterProxy` for each disk, turns all of them, and tells their owner of connections, deaths and completions. A disk that another process serves
from now on keeps its old channel beside, until that process is gone.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

import orjson

from appliance.ipc.box_disks import DiskSetChange
from appliance.ipc.commands import Command
from appliance.ipc.dead_incarnations import sweep_rings
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.log_writer_proxy import LogWriterProxy, SetAsideChannel
from appliance.ipc.registry import Registry
from appliance.ipc.source import Source
from appliance.shm.counters import Counters
from appliance.shm.partition_table import DISK_OFFLINE


class LogWriterProxies:
    """All log-writers of the box. Callbacks get the caller's own object back: `on_completion(context, entry)` with the entry's fields
    in the order of `Completion`, `on_lost(context)` when the log-writer died first. `on_gone(disk)` comes alone when it died
    before `on_connected(disk)` was called. `on_isr_wishes(disk, wishes)`: see `ipc/channel.py`, ISR_WISHES."""

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
        keep_ring_names: bool = False,
        on_isr_wishes: Callable[[str, list[dict[str, Any]]], None] = lambda _disk, _wishes: None,
    ) -> None:
        self.source = source
        if not keep_ring_names:
            sweep_rings(source.layout, source.name, source.incarnation)
        self.by_disk = {disk: LogWriterProxy(disk, source, registry, counters, keep_ring_names) for disk in disks}
        self._proxies = list(self.by_disk.values())
        self._set_aside: list[SetAsideChannel] = []
        self._make_proxy: Callable[[str], LogWriterProxy] = lambda disk: LogWriterProxy(disk, source, registry, counters, keep_ring_names)
        self._on_completion = on_completion
        self._on_lost = on_lost
        self._on_connected = on_connected
        self._on_gone = on_gone
        self._on_isr_wishes = on_isr_wishes
        registry.register(source.doorbell.fileno(), select.EPOLLIN, source.doorbell.drain)

    def do_work(self, now_ns: int) -> int:
        """Connect, drain completions, notice deaths. Bounded; returns how much was done."""
        work = 0
        for proxy in self._proxies:
            if proxy.gone:
                disk_was_serving = proxy.serving
                proxy.take_gone(self._on_completion, self._on_lost)
                work += 1
                if disk_was_serving:
                    self._on_gone(proxy.disk)
            elif proxy.serving:
                if proxy.just_connected:
                    proxy.just_connected = False
                    work += 1
                    self._on_connected(proxy.disk)
                if proxy.isr_wishes:
                    wishes, proxy.isr_wishes = proxy.isr_wishes, []
                    work += 1
                    self._on_isr_wishes(proxy.disk, wishes)
                work += proxy.drain(self._on_completion)
                continue
            proxy.connect_if_due(now_ns)
        if self._set_aside:
            work += self._bury()
        return work

    def _bury(self) -> int:
        """Give back what log-writers had that were set aside and are gone now."""
        gone = [aside for aside in self._set_aside if aside.is_gone]
        for aside in gone:
            self._set_aside.remove(aside)
            aside.close()
            for context in aside.outstanding:
                self._on_lost(context)
        return len(gone)

    def add_disk(self, disk: str) -> None:
        """A disk that the box has got while we run."""
        self.by_disk[disk] = proxy = self._make_proxy(disk)
        self._proxies.append(proxy)

    def replace_disk(self, disk: str, on_set_aside: Callable[[Any], None]) -> None:
        """Another process serves the disk now, from another directory. `on_set_aside(context)` for all that the old one had; `on_lost(context)` comes
        too, when it is gone and the context's memory is free."""
        proxy = self.by_disk[disk]
        while proxy.drain(self._on_completion):
            pass
        if proxy.serving:
            self._on_gone(disk)
        aside = proxy.set_aside(on_set_aside, self._on_lost)
        if aside is not None:
            self._set_aside.append(aside)

    def remove_disk(self, disk: str, on_set_aside: Callable[[Any], None]) -> None:
        """A disk that the box has no more: as `replace_disk`, and nobody knocks there again."""
        self.replace_disk(disk, on_set_aside)
        self._proxies.remove(self.by_disk.pop(disk))

    def follow(self, changes: DiskSetChange, on_set_aside: Callable[[Any], None]) -> None:
        """Disks that were added, removed or replaced while we run."""
        for disk in changes.came:
            self.add_disk(disk.name)
        for disk in changes.went:
            self.remove_disk(disk.name, on_set_aside)
        for disk in changes.replaced:
            self.replace_disk(disk.name, on_set_aside)

    def flush(self) -> None:
        """Ring every doorbell that has something new behind it; once per turn."""
        for proxy in self._proxies:
            proxy.flush()

    def has_completions(self) -> bool:
        return any(proxy.has_completions() or proxy.gone for proxy in self._proxies)

    def connected(self, disk: str) -> bool:
        return self.by_disk[disk].serving

    def writer_info(self, disk: str) -> dict[str, Any]:
        """What the log-writer said of itself in WELCOME."""
        return self.by_disk[disk].writer_info

    def is_offline(self, disk: str) -> bool:
        table = self.by_disk[disk].table
        return table is None or table.disk_state == DISK_OFFLINE

    def offer_command(self, disk: str, kind: DescriptorKind, payload: dict[str, Any], context: Any) -> bool:
        """Send a command whose details are JSON in our arena; the slot is freed when the answer comes. False: ring full, arena full or no log-writer."""
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
        for aside in self._set_aside:
            aside.close()
