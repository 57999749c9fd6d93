"""A log-writer without a disk: the real channel, rings and table, and a dictionary where the directory would be. Stepped by hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import orjson

from appliance.base.errors import ErrorCode
from appliance.base.layout import BoxLayout
from appliance.ipc.channel import HELLO, WELCOME, SinkChannel
from appliance.ipc.descriptors import DescriptorKind
from appliance.ipc.disk_reports import CAUGHT_UP, MoveProgress, moves_file, write_moves
from appliance.ipc.frames import FrameSocket, PeerGone, accept, listen_unix
from appliance.shm.mapping import SharedObjectAbsent
from appliance.shm.partition_table import DISK_FULL, DISK_ONLINE, TURNS_WORD, PartitionTableWriter


class FakeDirectory:
    """What outlives a log-writer: partitions by name with their topic's id and log end, copies that are being made (topic id, where they are complete),
    the highest leader epoch each was led under, and the directories that were given up for it."""

    def __init__(self, directory_id: str) -> None:
        self.directory_id = directory_id
        self.replaces: tuple[str, ...] = ()
        self.partitions: dict[tuple[str, int], str] = {}
        self.leader_epochs: dict[tuple[str, int], int] = {}
        self.log_ends: dict[tuple[str, int], int] = {}
        self.futures: dict[tuple[str, int], tuple[str, int | None]] = {}


class FakeLogWriter:
    """One incarnation. `refuse(kind, payload)` gives an error code to answer with, 0 to obey, None
    to stay silent.
    """

    def __init__(self, layout: BoxLayout, disk: str, directory: FakeDirectory, incarnation: int, needs_epoch_bump: bool = False) -> None:
        self.directory = directory
        self.needs_epoch_bump = needs_epoch_bump
        self.commands: list[tuple[DescriptorKind, dict[str, Any]]] = []
        self.leading: dict[tuple[str, int], int] = {}
        self.following: dict[tuple[str, int], tuple[int, int]] = {}
        """partition → leader and leader epoch"""
        self.in_sync: dict[tuple[str, int], list[int]] = {}
        self.live_brokers: list[int] = []
        """Which boxes run, as last received; that is not among `commands`."""
        self.refuse: Callable[[DescriptorKind, dict[str, Any]], int | None] = lambda _kind, _payload: 0
        self.frozen: set[tuple[str, int]] = set()
        self.marked: set[tuple[str, int]] = set()
        self.is_suspended = False
        """It makes no turn, as a process that was stopped by a signal."""
        self._disk = disk
        self._moves_file = moves_file(layout, disk)
        write_moves(self._moves_file, [])
        self._incarnation = incarnation
        self._table = PartitionTableWriter.create(layout.shared_memory_name("table", disk, incarnation), incarnation)
        self._listening = listen_unix(layout.log_writer_socket(disk))
        self._greeting: list[FrameSocket] = []
        self._channels: list[SinkChannel] = []
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def turn(self) -> int:
        """Accept, greet, obey; returns the commands carried out."""
        if self.is_suspended:
            return 0
        self._table.shared.words[TURNS_WORD] += 1
        while (control := accept(self._listening)) is not None:
            self._greeting.append(control)
        for control in list(self._greeting):
            self._greet(control)
        return sum(self._obey(channel) for channel in list(self._channels))

    def set_full(self, is_full: bool) -> None:
        self._table.set_disk_state(DISK_FULL if is_full else DISK_ONLINE)

    def _greet(self, control: FrameSocket) -> None:
        try:
            for frame in control.receive():
                assert frame.kind == HELLO
                channel = SinkChannel(control, frame)
                info = {
                    "table": self._table.shared.name,
                    "incarnation": self._incarnation,
                    "completed": 0,
                    "directory_id": self.directory.directory_id,
                    "replaces": self.directory.replaces,
                    "needs_epoch_bump": self.needs_epoch_bump,
                    "partitions": [[*name, topic_id, self.directory.leader_epochs.get(name, -1), 0] for name, topic_id in self.directory.partitions.items()],
                    "futures": [[topic, partition, *future] for (topic, partition), future in self.directory.futures.items()],
                    "frozen": [[topic, partition, self.directory.partitions[(topic, partition)]] for topic, partition in self.frozen],
                }
                control.send(WELCOME, 0, orjson.dumps(info), (self._doorbell,))
                self._greeting.remove(control)
                self._channels.append(channel)
        except (PeerGone, SharedObjectAbsent):
            self._greeting.remove(control)
            control.close()

    def _obey(self, channel: SinkChannel) -> int:
        entries = channel.descriptors.poll(256)
        answers = []
        for entry in entries:
            kind, payload = DescriptorKind(entry[0]), orjson.loads(bytes(channel.memory[entry[8] : entry[8] + entry[7]]))
            if kind is DescriptorKind.LIVE_BROKERS:  # about no partition
                self.live_brokers = payload["brokers"]
                answers.append((entry[0], 0, 0, 0, entry[9], 0, -1, 0, 0, -1, 0, 0))
                continue
            self.commands.append((kind, payload))
            code = self.refuse(kind, payload)
            if code is None:
                continue
            code = code or self._carry_out(kind, payload)
            log_end = self.directory.log_ends.get((payload["topic"], payload["partition"]), 0)
            answers.append((entry[0], 0, code, 0, entry[9], log_end, -1, 0, log_end, -1, 0, 0))
        channel.complete(answers)
        try:
            channel.control.receive()
        except PeerGone:
            self._channels.remove(channel)
            channel.close()
        return len(entries)

    def _carry_out(self, kind: DescriptorKind, payload: dict[str, Any]) -> int:
        key = (payload["topic"], payload["partition"])
        held = self.directory.partitions.get(key)
        if kind is DescriptorKind.CREATE:
            if held is not None and held != payload["topic_id"]:
                return ErrorCode.INCONSISTENT_TOPIC_ID
            self.directory.partitions[key] = payload["topic_id"]
        elif kind is DescriptorKind.DELETE:
            if held == payload["topic_id"]:
                del self.directory.partitions[key]
            self.leading.pop(key, None)
        elif kind is DescriptorKind.BECOME_LEADER:
            if held != payload["topic_id"]:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if payload["leader_epoch"] < self.leading.get(key, -1):
                return ErrorCode.FENCED_LEADER_EPOCH
            self.leading[key] = payload["leader_epoch"]
            self.in_sync[key] = payload["isr"]
            self.following.pop(key, None)
            self.directory.leader_epochs[key] = payload["leader_epoch"]
        elif kind is DescriptorKind.BECOME_FOLLOWER:
            if held != payload["topic_id"]:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self.leading.pop(key, None)
            self.following[key] = payload["leader"], payload["leader_epoch"]
        elif kind is DescriptorKind.ISR:
            if payload["leader_epoch"] != self.leading.get(key):
                return ErrorCode.FENCED_LEADER_EPOCH
            self.in_sync[key] = payload["isr"]
        elif kind in _MOVES:
            return _MOVES[kind](self, key, payload)
        return ErrorCode.NONE

    # --- moves: a copy is made at once

    def append(self, key: tuple[str, int]) -> bool:
        """A record; whether it is acknowledged."""
        if key not in self.leading or key in self.frozen:
            return False
        self.directory.log_ends[key] = self.directory.log_ends.get(key, 0) + 1
        return True

    def _begin(self, key: tuple[str, int], payload: dict[str, Any]) -> int:
        self.directory.futures[key] = payload["topic_id"], None
        moves = [MoveProgress(*name, topic_id, payload["source_disk"], self._disk, CAUGHT_UP) for name, (topic_id, _) in self.directory.futures.items()]
        write_moves(self._moves_file, moves)
        return ErrorCode.NONE

    def _mark(self, key: tuple[str, int], _payload: dict[str, Any]) -> int:
        self.marked.add(key)
        return ErrorCode.NONE if key in self.directory.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _freeze(self, key: tuple[str, int], _payload: dict[str, Any]) -> int:
        if key not in self.directory.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.frozen.add(key)
        return ErrorCode.NONE

    def _finish(self, key: tuple[str, int], payload: dict[str, Any]) -> int:
        self.directory.futures[key] = payload["topic_id"], payload["log_end_offset"]
        return ErrorCode.NONE

    def _commit(self, key: tuple[str, int], payload: dict[str, Any]) -> int:
        if key not in self.directory.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if key not in self.frozen or payload["log_end_offset"] != self.directory.log_ends.get(key, 0):
            return ErrorCode.FENCED_LEADER_EPOCH
        del self.directory.partitions[key]
        self.directory.log_ends.pop(key, None)
        self.frozen.discard(key)
        self.marked.discard(key)
        self.leading.pop(key, None)
        return ErrorCode.NONE

    def _promote(self, key: tuple[str, int], payload: dict[str, Any]) -> int:
        topic_id, complete_at = self.directory.futures.get(key, ("", None))
        if not topic_id:
            return ErrorCode.NONE if key in self.directory.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if complete_at is None:
            return ErrorCode.INVALID_REQUEST
        del self.directory.futures[key]
        self.directory.partitions[key] = payload["topic_id"]
        self.directory.log_ends[key] = complete_at
        return ErrorCode.NONE

    def _cancel(self, key: tuple[str, int], payload: dict[str, Any]) -> int:
        self.frozen.discard(key)
        if not payload.get("keeps_mark"):
            self.marked.discard(key)
        self.directory.futures.pop(key, None)
        return ErrorCode.NONE

    def die(self) -> None:
        """As if killed: sockets hang up, the table stays behind as a name without an owner."""
        for channel in self._channels:
            channel.close()
        for control in self._greeting:
            control.close()
        self._channels, self._greeting = [], []
        self._listening.close()
        self._table.close()
        os.close(self._doorbell)


_MOVES: dict[DescriptorKind, Callable[[FakeLogWriter, tuple[str, int], dict[str, Any]], int]] = {
    DescriptorKind.MOVE_BEGIN: FakeLogWriter._begin,
    DescriptorKind.MOVE_MARK: FakeLogWriter._mark,
    DescriptorKind.MOVE_FREEZE: FakeLogWriter._freeze,
    DescriptorKind.MOVE_FINISH: FakeLogWriter._finish,
    DescriptorKind.MOVE_COMMIT: FakeLogWriter._commit,
    DescriptorKind.MOVE_PROMOTE: FakeLogWriter._promote,
    DescriptorKind.MOVE_CANCEL: FakeLogWriter._cancel,
}
