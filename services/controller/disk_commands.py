"""The controller's commands to the log-writers of its box, with a queue per disk in front of the
ring, so that a full ring refuses nothing.

Owned by the controller process. If the log-writer is away, or dies before it answers, the command
ends with KAFKA_STORAGE_ERROR. Weak: the queue of a hung log-writer grows with the commands to that
disk (bounded by the topics of the box, not by time).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_LEADER_EPOCH, NO_OFFSET
from appliance.ipc.box_disks import DiskHealth
from appliance.ipc.descriptors import Completion
from appliance.ipc.proxies import Command, LogWriterProxies, command_callbacks
from appliance.ipc.source import Source
from appliance.runtime.agent import ServiceContext
from appliance.shm.disk_tables import fence_life
from services.controller.zookeeper.operation import DiskCommand

ARENA_BYTES = 1 << 20
RING_ENTRIES = 256

OnDone = Callable[[Completion], None]
LOST = Completion(0, 0, ErrorCode.KAFKA_STORAGE_ERROR, 0, 0, NO_OFFSET, -1, NO_OFFSET, NO_OFFSET, NO_LEADER_EPOCH, 0, 0)


class DiskCommands:
    """Commands by disk, in order.

    `on_connected(disk)` and `on_gone(disk)` report log-writers that connect and disconnect,
    `on_health_changed()` a disk that hangs, is full or has space again.
    """

    def __init__(
        self,
        context: ServiceContext,
        on_connected: Callable[[str], None],
        on_gone: Callable[[str], None],
        on_isr_requests: Callable[[str, list[dict[str, Any]]], None],
        on_health_changed: Callable[[], None],
    ) -> None:
        counters = context.counters
        disks = [disk.name for disk in context.box.disks]
        self._source = Source(context.layout, "controller", context.incarnation, ARENA_BYTES, RING_ENTRIES)
        self._queues: dict[str, deque[tuple[DiskCommand, OnDone]]] = {disk: deque() for disk in disks}
        self._gone_callback = on_gone
        self._on_health_changed = on_health_changed
        self._sent = counters.counter("controller.disk_commands")
        self._refused = counters.counter("controller.disk_commands_refused")
        completed, self._give_back = command_callbacks(self._on_completion)
        self._lost: list[Any] = []
        self._log = context.log
        self._proxies = LogWriterProxies(
            self._source, disks, context.poller, counters, completed, self._on_lost, on_connected, self._on_gone, on_isr_changes=on_isr_requests
        )
        self._health = DiskHealth(
            self._proxies.by_disk.values(), context.box.integer("log.disk.deadline.ms"), self._on_hung, lambda _disk: None, lambda _disk: on_health_changed()
        )

    def _on_hung(self, disk: str, operation: str) -> None:
        """Fence the log-writer: it publishes nothing more.

        Commands under way end with its process; new ones are refused at once.
        """
        self._log.error(f"disk {disk} hangs ({operation}): fenced log-writer@{disk}, which restarts when the disk answers", disk=disk)
        fence_life(self._proxies.writer_info(disk)["table"])
        self._on_health_changed()

    def add_disk(self, disk: str) -> None:
        self._queues[disk] = deque()
        self._proxies.add_disk(disk)

    def remove_disk(self, disk: str) -> None:
        """Remove a disk; its commands end as if the log-writer had died."""
        self._proxies.remove_disk(disk, self._on_detached)
        self._end_queue(disk)
        del self._queues[disk]

    def replace_disk(self, disk: str) -> None:
        """Replace a disk; its commands end, and later ones go to the new log-writer."""
        self._proxies.replace_disk(disk, self._on_detached)
        self._end_queue(disk)

    def _on_detached(self, command: Command) -> None:
        """End the command of a detached log-writer; its arena slot stays reserved until that
        process is gone.
        """
        on_done, command.context = command.context, None
        on_done(LOST)

    def _on_lost(self, command: Command) -> None:
        if command.context is None:
            command.finish()
        else:
            self._lost.append(command)

    def _end_queue(self, disk: str) -> None:
        """End the queued commands of a log-writer that never connected, so that no disconnect ends
        them.
        """
        queue, self._queues[disk] = self._queues[disk], deque()
        for _command, on_done in queue:
            on_done(LOST)

    def command(self, command: DiskCommand, on_result: Callable[[Any], None]) -> None:
        """Queue a command. `on_result(error code)`, or `on_result(completion)` with
        `wants_completion`, may be called at once.
        """

        def on_done(completion: Completion) -> None:
            on_result(completion if command.wants_completion else completion.error_code)

        if command.disk not in self._queues or not self._proxies.connected(command.disk) or self._proxies.by_disk[command.disk].is_hung:
            self._refused.add()
            on_done(LOST)
            return
        self._queues[command.disk].append((command, on_done))
        self._send(command.disk)

    def _send(self, disk: str) -> int:
        queue = self._queues[disk]
        sent = 0
        while queue:
            command, on_done = queue[0]
            if not self._proxies.offer_command(disk, command.kind, command.payload, on_done):
                break
            queue.popleft()
            self._sent.add()
            sent += 1
        return sent

    def do_work(self, now_ns: int) -> int:
        """Handle completions, detect deaths, send queued commands, ring the doorbells. Bounded."""
        work = self._proxies.do_work(now_ns)
        work += self._health.look(now_ns)
        for disk, queue in self._queues.items():
            if queue:
                work += self._send(disk)
        self._proxies.flush()
        return work

    def flush(self) -> None:
        self._proxies.flush()

    def _on_completion(self, on_done: Any, completion: Completion) -> None:
        if completion.error_code != ErrorCode.NONE:
            self._refused.add()
        on_done(completion)

    def _on_gone(self, disk: str) -> None:
        """Report the disconnect first, then end the lost commands: their callbacks must see that
        the disk is away.
        """
        queue, self._queues[disk] = self._queues[disk], deque()
        lost = self._lost[:]
        self._lost.clear()
        self._gone_callback(disk)
        for outstanding in lost:
            self._give_back(outstanding)
        for _command, on_done in queue:
            on_done(LOST)

    def connected(self, disk: str) -> bool:
        return self._proxies.connected(disk)

    def writer_info(self, disk: str) -> dict[str, Any]:
        return self._proxies.writer_info(disk)

    def is_offline(self, disk: str) -> bool:
        """Whether it accepts no commands now: failed, hung, or away."""
        return self._proxies.is_offline(disk) or self._proxies.by_disk[disk].is_hung

    def is_full(self, disk: str) -> bool:
        """Whether it refuses appends for want of space; it serves reads."""
        return self._proxies.by_disk[disk].is_full

    def may_park(self) -> bool:
        """Set the doorbell's sleeping word, then check for completions once more, so that none is
        missed.
        """
        self._source.doorbell.prepare_to_sleep()
        if self._proxies.has_completions():
            self._source.doorbell.wake()
            return False
        return True

    def unpark(self) -> None:
        self._source.doorbell.wake()

    def close(self) -> None:
        self._proxies.close()
        self._source.close()
