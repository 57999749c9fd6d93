"""A channel: the rings between one incarnation of a source and one of a log-writer, and the
handshake that creates them.

The source creates the rings, connects to the log-writer's socket and sends HELLO (descriptors of
its doorbell, arena and rings). The log-writer maps them and answers WELCOME (name of its table,
state of its disk, the eventfd of its doorbell). The socket stays open as long as both run. Its
hang-up proves the death of the other side, because each descriptor is close-on-exec and the kernel
closes sockets only after the memory of a process is gone. A ring of another incarnation is never
resumed. Weak: a source may write to its batches while the log-writer appends them.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import orjson

from appliance.base.errors import MillraceError
from appliance.base.invariants import InvariantViolation
from appliance.ipc.descriptors import COMPLETION, COMPLETION_ERROR, COMPLETION_RECORDS, DESCRIPTOR, KIND, DescriptorKind
from appliance.ipc.frames import Frame, FrameSocket, PeerGone, close_descriptors, is_trusted_user
from appliance.ipc.source import Source
from appliance.shm.arena import SLEEPING_WORD as ARENA_SLEEPING_WORD
from appliance.shm.arena import WATCHING_WORD, attach_arena
from appliance.shm.counters import Counter
from appliance.shm.doorbell import DoorbellButton, SourceDoorbellButton
from appliance.shm.mapping import LayoutMismatch, SharedMemoryFull, SharedObject, SharedObjectAbsent, fence
from appliance.shm.partition_table import SLEEPING_WORD as TABLE_SLEEPING_WORD
from appliance.shm.partition_table import PartitionTableReader
from appliance.shm.ring import RingBroken, RingPair

# The handshake:
#
#  source                                                             log-writer@DISK
#    │ (its arena exists since its start)                                │ listens when logs are open
#    │ connect to log-writer@DISK.sock; absent: retry in 20 ms           │
#    │ create the rings                                                  │
#    │ ── HELLO {source, incarnation} + doorbell, arena, rings ────────▶ │ map arena and rings; both
#    │                                                                   │ must be sealed, and of that
#    │                                                                   │ incarnation
#    │ ◀── WELCOME {table, incarnation, boot, directory_id,              │
#    │              partitions, …} + eventfd ─────────────────────────── │ (other layout: REFUSED)
#    │ map the table read-only                                           │
#    │                                                                   │
#    │ ── descriptors (ring) ── doorbell if it sleeps ─────────────────▶ │
#    │ ◀── completions (ring) ── doorbell if it sleeps or watches rows ─ │
#    │                                                                   │
#    │ the socket stays open; its close is the proof of death            │

NAME_MAX = 255
HELLO = 1
WELCOME = 2
REFUSED = 3
ISR_CHANGES = 4
"""log-writer → controller: JSON {"changes": [{"topic", "partition", "topic_id", "leader_epoch",
"partition_epoch": of the requested state, "change": number that the answer repeats, "isr": the
requested in-sync set, "broker_epochs": {"N": epoch under which the added replica N fetches}}, …]}.
The order ISR answers each."""

NETWORK_SOURCE = re.compile("(acceptor|ingest)@[0-9]{1,2}")
"""Sources that may have another user than the log-writer (`trusted_files.NETWORK_USER`)."""
COORDINATOR = "coordinator"
NETWORK_KINDS = frozenset(
    int(kind)
    for kind in (
        DescriptorKind.PRODUCE, DescriptorKind.PROGRESS, DescriptorKind.TRANSACTION_MARKER,
        DescriptorKind.DELETE_RECORDS, DescriptorKind.DESCRIBE_PRODUCERS,
    )
)  # fmt: skip
"""What they may request: what Kafka clients may, and no command of the controller."""
_KIND_OF = itemgetter(KIND)
_PRODUCE = int(DescriptorKind.PRODUCE)


class ChannelBroken(MillraceError):
    """A source stored what breaks the protocol: the log-writer drops its channel, and goes on."""

    def __init__(self, channel: SinkChannel, reason: str) -> None:
        super().__init__(reason)
        self.channel = channel


class SourceChannel:
    """The source's side. Nothing can be offered before `on_welcome`."""

    def __init__(self, control: FrameSocket, rings: RingPair) -> None:
        self.control = control
        self.rings = rings
        self.table: PartitionTableReader | None = None
        self.writer_info: dict[str, Any] = {}
        self.button: DoorbellButton | None = None
        self.descriptors = rings.descriptor_producer(DESCRIPTOR)
        self.completions = rings.completion_consumer(COMPLETION)
        self.capacity = rings.capacity

    @classmethod
    def greet(cls, control: FrameSocket, source: Source, rings_name: str) -> SourceChannel:
        """Create the rings and send HELLO on a connected control socket. Raises PeerGone,
        SharedMemoryFull; the socket is then closed."""
        try:
            rings = RingPair.create(rings_name, source.ring_entries, source.incarnation)
        except SharedMemoryFull:
            control.close()
            raise
        hello = {"source": source.name, "incarnation": source.incarnation}
        channel = cls(control, rings)
        try:
            descriptors = source.doorbell.button_descriptor, source.arena.shared.descriptor, rings.shared.descriptor
            control.send(HELLO, 0, orjson.dumps(hello), descriptors)
        except PeerGone:
            channel.close()
            raise
        return channel

    def on_welcome(self, frame: Frame) -> None:
        """Map the log-writer's table and take its doorbell. Raises SharedObjectAbsent if it has
        died, PeerGone if the frame is not WELCOME."""
        doorbell, *_ = take_descriptors(frame, 1, _is_eventfd)
        os.set_blocking(doorbell, False)
        try:
            self.writer_info = read_document(frame, "table")
            self.table = PartitionTableReader.attach(self.writer_info["table"])
        except (PeerGone, SharedObjectAbsent, LayoutMismatch):
            os.close(doorbell)
            raise
        self.button = DoorbellButton(doorbell, self.table.words, TABLE_SLEEPING_WORD)

    def ring(self) -> None:
        """Wake the log-writer if it sleeps; call it once after a series of offers."""
        if self.button is not None:
            self.button.ring_if_sleeping()

    def close(self) -> None:
        """Close all resources; a running source has drained the rings."""
        self.control.close()
        if self.button is not None:
            self.button.close()
        if self.table is not None:
            self.table.close()
        self.rings.close()


class SinkChannel:
    """The log-writer's side of one source."""

    def __init__(self, control: FrameSocket, hello: Frame) -> None:
        """Map the memory that HELLO brings. Raises SharedObjectAbsent, LayoutMismatch, or PeerGone
        if the source is gone, belongs to another box or sent no HELLO."""
        doorbell, arena, rings = take_descriptors(hello, 3, _is_unix_socket)
        try:
            user = control.peer_user()
            named = read_document(hello, "source", "incarnation")
            if type(named["incarnation"]) is not int or not _is_name(named["source"]):
                raise PeerGone("a greeting names something that is no name")
            self.source: str = named["source"]
            self.incarnation: int = named["incarnation"]
            self.control = control
            self.is_restricted = not is_trusted_user(user)
            self.is_coordinator = self.source == COORDINATOR and not self.is_restricted
            """The only source that appends to the topics of the coordinators."""
            if self.is_restricted and NETWORK_SOURCE.fullmatch(self.source) is None:
                raise PeerGone(f"a process of user {user} may not be {self.source}")
            self.arena, self.rings = self._map(arena, rings)
        except (PeerGone, SharedObjectAbsent, LayoutMismatch):
            os.close(doorbell)
            raise
        finally:
            os.close(arena)
            os.close(rings)
        self.descriptors = self.rings.descriptor_consumer(DESCRIPTOR)
        self.completions = self.rings.completion_producer(COMPLETION)
        self._button = SourceDoorbellButton(doorbell, self.arena.words, ARENA_SLEEPING_WORD)
        self._arena_words = self.arena.words
        self.memory = self.arena.memory
        self.size_bytes = len(self.memory)
        self.capacity = self.rings.capacity
        self.own_bell = -1
        """An eventfd by which this source alone rings; -1: it rings the log-writer's."""
        self.mapped_bytes = self.size_bytes + len(self.rings.shared.memory)
        self.completed: Counter | None = None
        """Counts records whose completion was published, for a source whose next incarnation wants
        to know what it did not read (`ChannelAcceptor`)."""

    def _map(self, arena_descriptor: int, rings_descriptor: int) -> tuple[SharedObject, RingPair]:
        """Map arena and rings, both of the incarnation that sent HELLO: those of another one are
        refused."""
        arena = attach_arena(arena_descriptor)
        try:
            rings = RingPair.attach(rings_descriptor)
        except (SharedObjectAbsent, LayoutMismatch):
            arena.close()
            raise
        problem = ""
        if arena.incarnation != self.incarnation or rings.shared.incarnation != self.incarnation:
            problem = f"arena or rings of {self.source} are of another incarnation"
        elif rings.has_been_used:
            problem = f"rings of {self.source} are not new"
        if problem:
            arena.close()
            rings.close()
            raise SharedObjectAbsent(problem)
        return arena, rings

    def take(self, limit: int) -> list[tuple[Any, ...]]:
        """Return up to `limit` descriptors. Raises ChannelBroken if the ring has more than its
        capacity, and as `require`."""
        try:
            entries = self.descriptors.poll(limit)
        except RingBroken as broken:
            raise ChannelBroken(self, str(broken)) from broken
        if entries:
            self.require(entries)
        return entries

    def require(self, entries: list[tuple[Any, ...]]) -> None:
        """Raise ChannelBroken if more descriptors are without completion than the ring has places,
        or the source may not request what these say."""
        if self.descriptors.head - self.completions.tail > self.capacity:
            raise ChannelBroken(self, f"{self.source} has offered more descriptors than its ring has completions")
        if self.is_restricted and not NETWORK_KINDS.issuperset(map(_KIND_OF, entries)):
            raise ChannelBroken(self, self._forbidden(entries))

    @staticmethod
    def _forbidden(entries: list[tuple[Any, ...]]) -> str:
        kind = next(entry[KIND] for entry in entries if entry[KIND] not in NETWORK_KINDS)
        name = next((known.name for known in DescriptorKind if known == kind), str(kind))
        return f"a process of another user may request no {name}"

    def complete(self, entries: list[tuple[Any, ...]]) -> None:
        """Publish completions, and wake the source if it sleeps. Raises ChannelBroken if the ring
        has no place for them, because the source stored another head or reads none."""
        if self.completed is not None:
            self.completed.add(sum(entry[COMPLETION_RECORDS] for entry in entries if entry[KIND] == _PRODUCE and not entry[COMPLETION_ERROR]))
        try:
            self.completions.offer_all(entries)
        except InvariantViolation as violation:
            raise ChannelBroken(self, f"{self.source} takes no completions: {violation}") from violation
        self._button.ring_if_sleeping()

    def slice(self, position: int, length: int) -> memoryview:
        """Return the `length` bytes at `position` of the source's arena, where a descriptor says
        they are. Raises ChannelBroken if they are beyond its end, because a slice would be silently
        shorter."""
        if position + length > self.size_bytes:
            raise ChannelBroken(self, f"{self.source} names {length} bytes at {position} of its arena")
        return self.memory[position : position + length]

    def watches_rows(self) -> bool:
        """Return whether the source waits for changes of rows (parked produces, long polls). Called
        after rows were stored, hence the fence."""
        fence()
        return bool(self._arena_words[WATCHING_WORD])

    def ring(self) -> None:
        """Wake the source if it sleeps."""
        self._button.ring_if_sleeping()

    def close(self) -> None:
        """Unmap arena and rings."""
        self.control.close()
        self._button.close()
        if self.own_bell >= 0:
            os.close(self.own_bell)
            self.own_bell = -1
        self.rings.close()
        self.arena.close()


def take_descriptors(frame: Frame, count: int, is_doorbell: Callable[[int], bool]) -> tuple[int, ...]:
    """Return the descriptors of HELLO or WELCOME, the first a doorbell. Raises PeerGone for anything
    else, and closes them.

    Fewer arrive if the receiver had no free descriptor: the kernel drops what it cannot install.
    """
    if len(frame.descriptors) != count:
        close_descriptors(frame)
        raise PeerGone(f"a greeting carried {len(frame.descriptors)} descriptors, not {count}: doorbell, arena and rings, or the doorbell alone")
    if not is_doorbell(frame.descriptors[0]):
        close_descriptors(frame)
        raise PeerGone("a greeting carried a descriptor that is no doorbell")
    return frame.descriptors


def _is_eventfd(descriptor: int) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:[eventfd]"


def _is_unix_socket(descriptor: int) -> bool:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    opened = socket.socket(fileno=descriptor)  # no copy, for which there may be no free descriptor
    try:
        return opened.family == socket.AF_UNIX and opened.type == socket.SOCK_STREAM
    finally:
        opened.detach()


def _is_name(name: object) -> bool:
    """Return whether a value of HELLO can name a process."""
    return isinstance(name, str) and len(name) <= NAME_MAX and name.isascii() and name.isprintable()


def read_document(frame: Frame, *keys: str) -> dict[str, Any]:
    """Return the JSON of a greeting that has all of `keys`. Raises PeerGone."""
    try:
        document: dict[str, Any] = orjson.loads(frame.payload)
    except orjson.JSONDecodeError as error:
        raise PeerGone(f"a greeting is not JSON: {error}") from error
    if not isinstance(document, dict) or any(key not in document for key in keys):
        raise PeerGone(f"a greeting lacks one of {', '.join(keys)}")
    return document
