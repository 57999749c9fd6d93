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
from appliance.ipc.frames import FrameSocket, PeerGone, accept, listen_unix
from appliance.shm.mapping import SharedObjectAbsent
from appliance.shm.partition_table import PartitionTableWriter


class FakeDirectory:
    """What outlives a log-writer: partitions by name with their topic's id, and the highest leader epoch each was led under."""

    def __init__(self, directory_id: str) -> None:
        self.directory_id = directory_id
        self.partitions: dict[tuple[str, int], str] = {}
        self.leader_epochs: dict[tuple[str, int], int] = {}


class FakeLogWriter:
    """One life. `refuse(kind, payload)` gives an error code to answer with, 0 to obey, None to stay silent."""

    def __init__(self, layout: BoxLayout, disk: str, directory: FakeDirectory, incarnation: int, needs_epoch_bump: bool = False) -> None:
        self.directory = directory
        self.needs_epoch_bump = needs_epoch_bump
        self.commands: list[tuple[DescriptorKind, dict[str, Any]]] = []
        self.leading: dict[tuple[str, int], int] = {}
        self.refuse: Callable[[DescriptorKind, dict[str, Any]], int | None] = lambda _kind, _payload: 0
        self._incarnation = incarnation
        self._table = PartitionTableWriter.create(layout.shared_memory_name("table", disk, incarnation), incarnation)
        self._listening = listen_unix(layout.log_writer_socket(disk))
        self._greeting: list[FrameSocket] = []
        self._channels: list[SinkChannel] = []
        self._doorbell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def turn(self) -> int:
        """Accept, greet, obey; returns the commands carried out."""
        while (control := accept(self._listening)) is not None:
            self._greeting.append(control)
        for control in list(self._greeting):
            self._greet(control)
        return sum(self._obey(channel) for channel in list(self._channels))

    def _greet(self, control: FrameSocket) -> None:
        try:
            for frame in control.receive():
                assert frame.kind == HELLO
                channel = SinkChannel(control, frame, self._incarnation)
                info = {
                    "table": self._table.shared.name,
                    "incarnation": self._incarnation,
                    "directory_id": self.directory.directory_id,
                    "needs_epoch_bump": self.needs_epoch_bump,
                    "partitions": [[topic, partition, topic_id, 0, 0] for (topic, partition), topic_id in self.directory.partitions.items()],
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
            self.commands.append((kind, payload))
            code = self.refuse(kind, payload)
            if code is None:
                continue
            answers.append((entry[0], 0, code or self._carry_out(kind, payload), 0, entry[9], -1, -1, -1, -1, -1, 0, 0))
        channel.completions.offer_all(answers)
        channel.ring()
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
            self.directory.leader_epochs[key] = payload["leader_epoch"]
        return ErrorCode.NONE

    def die(self) -> None:
        """As if killed: sockets hang up, the table stays behind as a name that nobody owns."""
        for channel in self._channels:
            channel.close()
        for control in self._greeting:
            control.close()
        self._channels, self._greeting = [], []
        self._listening.close()
        self._table.close()
        os.close(self._doorbell)
