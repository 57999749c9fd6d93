"""A channel: the rings between one life of a source and one life of a log-writer, and the handshake that makes them.

The source makes the rings, connects to the log-writer's socket and says HELLO (names of rings and arena, its doorbell's eventfd);
the log-writer maps them and answers WELCOME (name of its table, what it knows about its disk, its doorbell's eventfd). The socket
stays open for as long as both live: its hang-up is the proof of death, because every descriptor is close-on-exec and the kernel
closes sockets only after a process's memory is gone. Nothing is resumed from a ring that another life wrote.
Weak spot: HELLO names objects rather than passing them, so both sides must be of the same box and user.
"""

from __future__ import annotations

import os
from typing import Any

import orjson

from appliance.base.invariants import InvariantViolation
from appliance.ipc.descriptors import COMPLETION, DESCRIPTOR
from appliance.ipc.frames import Frame, FrameSocket, PeerGone, close_descriptors
from appliance.shm.arena import SLEEPING_WORD as ARENA_SLEEPING_WORD
from appliance.shm.arena import WATCHING_WORD, Arena, attach_arena
from appliance.shm.atomic import fence
from appliance.shm.doorbell import Doorbell, DoorbellButton
from appliance.shm.mapping import LayoutMismatch, SharedMemoryFull, SharedObject, SharedObjectAbsent
from appliance.shm.partition_table import SLEEPING_WORD as TABLE_SLEEPING_WORD
from appliance.shm.partition_table import PartitionTableReader
from appliance.shm.ring_pair import RingPair

HELLO = 1
WELCOME = 2
REFUSED = 3
ISR_WISHES = 4
"""log-writer → controller: JSON {"wishes": [{"topic", "partition", "topic_id", "leader_epoch", "partition_epoch": of the state that it is for, "wish": its
number, which comes back with the answer, "isr": the in-sync set that the leader wants, "broker_epochs": {"N": epoch under which the added replica N
fetches}}, …]}; each is answered by the order ISR."""


class SourceChannel:
    """The source's side. Before `on_welcome` nothing can be offered."""

    def __init__(self, control: FrameSocket, rings: RingPair, keep_name: bool) -> None:
        self.control = control
        self.rings = rings
        self.table: PartitionTableReader | None = None
        self.writer_info: dict[str, Any] = {}
        self._keep_name = keep_name
        self._button: DoorbellButton | None = None
        self.descriptors = rings.descriptor_producer(DESCRIPTOR)
        self.completions = rings.completion_consumer(COMPLETION)
        self.capacity = rings.capacity

    @classmethod
    def greet(
        cls, control: FrameSocket, source: str, incarnation: int, arena: Arena, doorbell: Doorbell, rings_name: str, capacity: int, keep_name: bool
    ) -> SourceChannel:
        """Make the rings and say HELLO on a connected control socket. Raises PeerGone, SharedMemoryFull; the socket is closed then."""
        try:
            rings = RingPair.create(rings_name, capacity, incarnation)
        except SharedMemoryFull:
            control.close()
            raise
        hello = {"source": source, "incarnation": incarnation, "rings": rings_name, "arena": arena.shared.name}
        channel = cls(control, rings, keep_name)
        try:
            control.send(HELLO, 0, orjson.dumps(hello), (doorbell.fileno(),))
        except PeerGone:
            channel.close()
            raise
        return channel

    def on_welcome(self, frame: Frame) -> None:
        """Map the log-writer's table and take its doorbell. Raises SharedObjectAbsent when it died since, PeerGone when the frame is not WELCOME."""
        doorbell = take_doorbell(frame)
        try:
            self.writer_info = read_document(frame, "table")
            self.table = PartitionTableReader.attach(self.writer_info["table"])
        except (PeerGone, SharedObjectAbsent, LayoutMismatch):
            os.close(doorbell)
            raise
        self._button = DoorbellButton(doorbell, self.table.words, TABLE_SLEEPING_WORD)
        if not self._keep_name:
            self.rings.shared.unlink()

    def ring(self) -> None:
        """Wake the log-writer if it sleeps; to be called once after a burst of offers."""
        if self._button is not None:
            self._button.ring_if_sleeping()

    def close(self) -> None:
        """Let go of everything, the rings' name too: whoever lives to call this has drained them."""
        self.control.close()
        if self._button is not None:
            self._button.close()
        if self.table is not None:
            self.table.close()
        self.rings.close()
        self.rings.shared.unlink()


class SinkChannel:
    """The log-writer's side of one source."""

    def __init__(self, control: FrameSocket, hello: Frame, writer_incarnation: int) -> None:
        """Map what HELLO names. Raises SharedObjectAbsent, LayoutMismatch, PeerGone (the source is gone, foreign, or says no HELLO)."""
        doorbell = take_doorbell(hello)
        try:
            named = read_document(hello, "source", "incarnation", "arena", "rings")
            self.source: str = named["source"]
            self.incarnation: int = named["incarnation"]
            self.control = control
            self.arena, self.rings = self._map(named)
        except (PeerGone, SharedObjectAbsent, LayoutMismatch):
            os.close(doorbell)
            raise
        self.rings.claim(writer_incarnation)
        self.descriptors = self.rings.descriptor_consumer(DESCRIPTOR)
        self.completions = self.rings.completion_producer(COMPLETION)
        self._button = DoorbellButton(doorbell, self.arena.words, ARENA_SLEEPING_WORD)
        self._arena_words = self.arena.words
        self.memory = self.arena.memory
        self.size_bytes = len(self.memory)

    @staticmethod
    def _map(named: dict[str, Any]) -> tuple[SharedObject, RingPair]:
        """Arena and rings, both of the life that greets: a name that another life left is not taken for it."""
        arena = attach_arena(named["arena"])
        try:
            rings = RingPair.attach(named["rings"])
        except (SharedObjectAbsent, LayoutMismatch):
            arena.close()
            raise
        if arena.incarnation != named["incarnation"] or rings.shared.incarnation != named["incarnation"]:
            arena.close()
            rings.close()
            raise SharedObjectAbsent(f"arena or rings of {named['source']} are of another life")
        return arena, rings

    def slice(self, position: int, length: int) -> memoryview:
        """The `length` bytes at `position` of the source's arena, where a descriptor says they are.

        A slice beyond the end would be shorter without an error. Raises `InvariantViolation`.
        """
        if position + length > self.size_bytes:
            raise InvariantViolation(f"{self.source} names {length} bytes at {position} of its arena")
        return self.memory[position : position + length]

    def watches_rows(self) -> bool:
        """Whether the source waits for rows to change (parked produces, long polls). Called after rows were stored, hence the fence."""
        fence()
        return bool(self._arena_words[WATCHING_WORD])

    def ring(self) -> None:
        """Wake the source if it sleeps."""
        self._button.ring_if_sleeping()

    def close(self) -> None:
        """Retire the rings and unmap."""
        self.rings.retire()
        self.control.close()
        self._button.close()
        self.rings.close()
        self.arena.close()


def take_doorbell(frame: Frame) -> int:
    """The one descriptor that HELLO and WELCOME carry. Raises PeerGone (with none of them left open) when there is another number of them.

    None comes when the receiver had no descriptor left: the kernel drops what it cannot install.
    """
    if len(frame.descriptors) != 1:
        close_descriptors(frame)
        raise PeerGone(f"a greeting carried {len(frame.descriptors)} descriptors, not the one doorbell")
    return frame.descriptors[0]


def read_document(frame: Frame, *keys: str) -> dict[str, Any]:
    """A greeting's JSON, which has all of `keys`. Raises PeerGone."""
    try:
        document: dict[str, Any] = orjson.loads(frame.payload)
    except orjson.JSONDecodeError as error:
        raise PeerGone(f"a greeting is not JSON: {error}") from error
    if not isinstance(document, dict) or any(key not in document for key in keys):
        raise PeerGone(f"a greeting lacks one of {', '.join(keys)}")
    return document
