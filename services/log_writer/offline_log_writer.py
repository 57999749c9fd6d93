"""The log-writer of a directory that cannot be opened: it answers only KAFKA_STORAGE_ERROR.

It holds no file of the disk, so that the disk can be unmounted, checked and replaced. So the
failure of one disk stays with that disk: the process is there, the box is ready, the others serve.
When the disk answers, it exits, and the next incarnation opens the directory. Weak spot: if the
disk failed, the rows of the last incarnation are not used, and its logs are recovered as after a
power cut.
"""

from __future__ import annotations

import select
from typing import Any

from appliance.base.errors import ConfigurationProblems, DiskFull, ErrorCode, OutOfDescriptors, StepsDown, StorageFailed
from appliance.base.layout import boot_id
from appliance.ipc.channel import ChannelBroken, SinkChannel
from appliance.ipc.channel_acceptor import ChannelAcceptor
from appliance.ipc.descriptors import KIND, ROW, TOKEN, VALUE_A
from appliance.runtime.agent import PARK_MS_MAX, Agent, ServiceContext
from appliance.runtime.known_disks import read_known_disk
from appliance.shm.doorbell import Doorbell
from appliance.shm.partition_table import DISK_OFFLINE, SLEEPING_WORD, TURNS_WORD, PartitionTableWriter
from services.log_writer.agent import LogWriterAgent
from services.log_writer.background.disk_trouble import DiskDoesNotAnswer, DiskFences, DiskReturn, check_answers
from services.log_writer.previous_incarnations import PreviousTables

DESCRIPTOR_BURST = 256


def open_log_writer(context: ServiceContext) -> Agent:
    """The log-writer of a disk, whatever state the disk is in."""
    fences = DiskFences(context.counters, context.clock.monotonic_ns())
    wait_ns = fences.wait_ns()
    if wait_ns:
        failure = DiskDoesNotAnswer(f"fenced {fences.count} times because it was too slow; looked at again after {wait_ns // 1_000_000_000} s")
        return OfflineLogWriter(context, failure, wait_ns)
    try:
        check_answers(context.box.state_directory, context.box.disk(context.instance).path, context.box.integer("log.disk.deadline.ms"))
        return LogWriterAgent(context)
    except OutOfDescriptors:
        raise  # says nothing about the disk
    except DiskDoesNotAnswer as failure:
        return OfflineLogWriter(context, failure, 0)
    except (StorageFailed, ConfigurationProblems) as failure:
        return OfflineLogWriter(context, failure)


class OfflineLogWriter:
    """One incarnation without a disk."""

    def __init__(self, context: ServiceContext, failure: StorageFailed | ConfigurationProblems, first_look_ns: int | None = None) -> None:
        """`first_look_ns`: after so long the disk is looked at; by default that depends on how
        often it came and went.
        """
        self.context = context
        self._clock = context.clock
        self.disk = context.box.disk(context.instance)
        self._reason = str(failure)
        table_name = context.layout.shared_memory_name("table", self.disk.name, context.incarnation)
        self.table = PartitionTableWriter.create(table_name, context.incarnation)
        self.doorbell = Doorbell(self.table.shared.words, SLEEPING_WORD)
        context.poller.register(self.doorbell.fileno(), select.EPOLLIN, self.doorbell.drain)
        self._is_suspect = not isinstance(failure, DiskFull | ConfigurationProblems | DiskDoesNotAnswer)
        if self._is_suspect:
            self.table.set_suspect()
            PreviousTables(context.layout, self.disk.name, table_name).forget()
        self.table.set_disk_state(DISK_OFFLINE)
        context.log.error(f"disk {self.disk.name} ({self.disk.path}) stays offline: {failure}", disk=self.disk.name)
        self.disk_return = DiskReturn(context, self.disk, self._clock.monotonic_ns(), first_look_ns)
        self._fences = DiskFences(context.counters, self._clock.monotonic_ns())
        self.door = ChannelAcceptor(self.doorbell.fileno(), context.poller, context.counters, self.describe, self._on_gone)
        self._refused = context.counters.counter("log_writer.refused")
        self.door.open(context.layout.log_writer_socket(self.disk.name))
        context.notifier.ready()
        context.notifier.status(self.status_line())
        context.counters.set_state("offline")

    # -- duty cycle

    def do_work(self) -> int:
        self.table.shared.words[TURNS_WORD] += 1
        work = 0
        try:
            for channel in self.door.channels:
                entries = channel.take(DESCRIPTOR_BURST)
                if entries:
                    work += len(entries)
                    channel.complete([_refusal(entry) for entry in entries])
        except ChannelBroken as broken:
            self.door.refuse(broken)
        self._refused.add(work)
        reason = self.disk_return.reason
        try:
            self.disk_return.turn(self._clock.monotonic_ns())
            if self.disk_return.reason != reason:
                self.context.notifier.status(self.status_line())
        except StepsDown:
            self._fences.on_waited()
            raise
        return work

    def may_park(self) -> bool:
        self.doorbell.prepare_to_sleep()
        if self.door.has_descriptors():
            self.doorbell.wake()
            return False
        return True

    def unpark(self) -> None:
        self.doorbell.wake()

    def park_ms(self) -> int:
        return PARK_MS_MAX

    def begin_stop(self) -> None:
        self.door.shut()

    def stopped(self) -> bool:
        return not self.door.has_descriptors()

    def close(self) -> None:
        """Keep the table of a suspect disk: its mark makes the next incarnation drop the page
        cache.
        """
        self.door.close()
        if not self._is_suspect:
            self.table.close()

    def status_line(self) -> str:
        return f"offline: {self.disk_return.reason or self._reason}"

    # -- sources

    def describe(self) -> dict[str, Any]:
        return {
            "table": self.table.shared.name,
            "incarnation": self.context.incarnation,
            "boot": "offline",
            "boot_id": boot_id().hex(),
            "directory_id": read_known_disk(self.context.box.state_directory, self.disk.path).directory_id,
            "needs_epoch_bump": False,
            "partitions": [],
            "offline": self._reason,
            "free_bytes": 0,
            "free_rows": 0,
        }

    def _on_gone(self, channel: SinkChannel, reason: str) -> None:
        self.context.log.info(f"{channel.source} is gone ({reason})", disk=self.disk.name, peer=channel.source)


def _refusal(entry: tuple[Any, ...]) -> tuple[int, ...]:
    return (entry[KIND], 0, ErrorCode.KAFKA_STORAGE_ERROR, entry[ROW], entry[TOKEN], -1, -1, -1, -1, -1, entry[VALUE_A] & 0xFFFFFFFF, 0)
