"""The proxy of one disk's log-reader: sends requests, calls back with answers, and ends those that
a hung disk delays.

The bytes of READ are in the memory of the log-reader until their parts are released
(`ReaderArena`). Never blocks: what the socket does not accept is queued up to a limit; beyond
that `ask` returns False. Weak: an answer may still arrive after its deadline; its token identifies
it, and its descriptor is closed.

An acceptor's mapping of a log-reader's memory, and the parts of it that are in use until their
last reference is gone.

A released part adds its slot to `released`, which the proxy sends in its next turn. The memory of a
dead log-reader stays mapped as long as one of its parts is in use. Owned by one `LogReaderProxy`.
Weak: a leaked reference keeps a slot of the log-reader.
"""

from __future__ import annotations

import array
import os
import select
import socket
from collections import deque
from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.base.invariants import InvariantViolation
from appliance.base.layout import BoxLayout
from appliance.base.model import Offset
from appliance.ipc.box_disks import DiskSetChange
from appliance.ipc.frames import Registry
from appliance.ipc.log_reader_messages import (
    CHECK,
    MAX_MESSAGE_BYTES,
    OFFSETS_MAX,
    READ,
    RELEASE,
    Answer,
    Extent,
    Question,
    ReadAnswer,
    Span,
    pack_question,
    unpack_answer,
    unpack_question,
)
from appliance.shm.arena import attach_pieces
from appliance.shm.counters import Counters
from appliance.shm.mapping import LayoutMismatch, SharedObject, SharedObjectAbsent


class ArenaPart:
    """Bytes that a log-reader has read. They do not change before this object is deleted."""

    __slots__ = ("_incarnation", "_released", "_slot", "memory")

    def __init__(self, memory: memoryview, released: list[tuple[int, int]], incarnation: int, slot: int) -> None:
        self.memory = memory
        self._released = released
        self._incarnation = incarnation
        self._slot = slot

    def __del__(self) -> None:
        self._released.append((self._incarnation, self._slot))


class ReaderArena:
    """The memory of one disk's log-reader, of the incarnation that answers."""

    def __init__(self, layout: BoxLayout, disk: str) -> None:
        self._layout = layout
        self._owner = f"log-reader@{disk}"
        self._mapped: SharedObject | None = None
        self.released: list[tuple[int, int]] = []
        """(incarnation, slot) of each released part"""

    def take(self, answer: ReadAnswer) -> list[ArenaPart]:
        """Return the parts of an answer; none if the log-reader died meanwhile."""
        mapped = self._mapped
        if mapped is None or mapped.incarnation != answer.incarnation:
            self.close()
            try:
                mapped = self._mapped = attach_pieces(self._layout.shared_memory_name("arena", self._owner, answer.incarnation))
            except (SharedObjectAbsent, LayoutMismatch):
                self.give_back(answer)
                return []
        memory = mapped.memory
        if any(at + count > len(memory) for _, at, count in answer.parts):
            raise InvariantViolation(f"{self._owner} names bytes outside its memory: {answer.parts}")
        return [ArenaPart(memory[at : at + count], self.released, answer.incarnation, slot) for slot, at, count in answer.parts]

    def give_back(self, answer: ReadAnswer) -> None:
        """Release the parts of an answer that no request waits for."""
        self.released += ((answer.incarnation, slot) for slot, _, _ in answer.parts)

    def take_released(self) -> dict[int, list[int]]:
        """Return the slots that were released since the last call, by incarnation."""
        found: dict[int, list[int]] = {}
        while self.released:
            incarnation, slot = self.released.pop()
            found.setdefault(incarnation, []).append(slot)
        return found

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None


RECONNECT_NS = 20_000_000
UNSENT_MAX = 16_384
QUESTIONS_AHEAD_MAX = 1_024
"""Limit of requests in flight for one client request over many partitions, so that one client
cannot fill the shared queue."""
assert QUESTIONS_AHEAD_MAX * 16 <= UNSENT_MAX
READ_DEADLINE_NS = 5_000_000_000
"""Deadline of a read in ns. Until a late one is answered, no other read is sent to that disk."""
_INTEREST = select.EPOLLIN | select.EPOLLRDHUP

OnAnswer = Callable[[Answer | None, int], None]
"""Called with the answer and a descriptor (-1: none); with None if the log-reader died or the
deadline passed."""


def follow_disks(readers: dict[str, LogReaderProxy], changes: DiskSetChange, make_reader: Callable[[str], LogReaderProxy]) -> None:
    """Follow disks that were added, removed or replaced."""
    for disk in changes.came:
        readers[disk.name] = make_reader(disk.name)
    for disk in changes.went:
        readers.pop(disk.name).close()
    for disk in changes.replaced:
        readers[disk.name].hang_up()


class LogReaderProxy:
    """One log-reader as an acceptor sees it."""

    def __init__(self, disk: str, layout: BoxLayout, registry: Registry, clock: Clock, counters: Counters, deadline_ms: int) -> None:
        self.disk = disk
        self._path = layout.log_reader_socket(disk)
        self._registry = registry
        self._clock = clock
        self._deadline_ns = deadline_ms * 1_000_000
        self._socket: socket.socket | None = None
        self._next_attempt_ns = 0
        self._next_token = 1
        self.waiting: dict[int, tuple[int, OnAnswer]] = {}
        self._reads: dict[int, tuple[int, OnAnswer]] = {}
        """READ requests, which have their own deadline."""
        self._late_reads: set[int] = set()
        self.arena = ReaderArena(layout, disk)
        self._unsent: deque[bytes] = deque()
        """Requests that the socket has not accepted yet: a wide fetch sends a thousand at once."""
        self._questions = counters.counter(f'log_reader.questions{{disk="{disk}"}}')
        self._failures = counters.counter(f'log_reader.unanswered{{disk="{disk}"}}')

    @property
    def reads_hang(self) -> bool:
        """Whether a read has missed its deadline and is still unanswered, so that another one would
        only wait, too."""
        return bool(self._late_reads)

    def ask(
        self,
        kind: int,
        topic: str,
        partition: int,
        segment_list_generation: int,
        value_a: int,
        value_b: int,
        on_answer: OnAnswer,
        extent: Extent | None = None,
        span: Span | None = None,
        ahead_bytes: int = 0,
    ) -> bool:
        """Send or queue a request. False if no log-reader listens or too many requests wait; then
        nothing is kept."""
        now_ns = self._clock.monotonic_ns()
        sock = self._socket or self._connect(now_ns)
        if sock is None:
            return False
        token = self._next_token
        question = Question(kind, token, partition, segment_list_generation, value_a, value_b, topic, extent, (), span, ahead_bytes)
        if len(self._unsent) >= UNSENT_MAX:
            self._failures.add()
            return False
        self._unsent.append(pack_question(question))
        if len(self._unsent) == 1 and not self.flush(sock):
            return False
        self._next_token = token + 1
        if extent is None:
            self.waiting[token] = (now_ns + self._deadline_ns, on_answer)
        else:
            self._reads[token] = (now_ns + READ_DEADLINE_NS, on_answer)
        self._questions.add()
        return True

    def have_checked(self, topic: str, partition: int, offset: Offset) -> None:
        """Ask the scrubber to check the batch with this offset; ignored if no log-reader listens."""
        sock = self._socket or self._connect(self._clock.monotonic_ns())
        if sock is not None and len(self._unsent) < UNSENT_MAX:
            self._unsent.append(pack_question(Question(CHECK, 0, partition, 0, offset, 0, topic)))
            if len(self._unsent) == 1:
                self.flush(sock)

    def send_releases(self) -> None:
        """Report the released parts of the log-reader's memory; call it when `arena.released` is
        not empty."""
        sock = self._socket
        if sock is None or len(self._unsent) >= UNSENT_MAX:
            return
        was_empty = not self._unsent
        for incarnation, slots in self.arena.take_released().items():
            for start in range(0, len(slots), OFFSETS_MAX):
                released = tuple(slots[start : start + OFFSETS_MAX])
                self._unsent.append(pack_question(Question(RELEASE, 0, 0, 0, incarnation, 0, "", None, released)))
        if was_empty:
            self.flush(sock)

    def flush(self, sock: socket.socket) -> bool:
        """Send queued requests, as many as the socket accepts. False if it hung up."""
        unsent = self._unsent
        try:
            while unsent:
                sock.send(unsent[0])
                unsent.popleft()
        except (BlockingIOError, InterruptedError):
            self._registry.modify(sock.fileno(), _INTEREST | select.EPOLLOUT)
            return True
        except OSError:
            self.hang_up()
            return False
        return True

    def expire(self, now_ns: int) -> int:
        """End requests whose deadline has passed; returns how many. Tokens grow, so the oldest come
        first."""
        expired = 0
        while self.waiting:
            token, (deadline_ns, on_answer) = next(iter(self.waiting.items()))
            if deadline_ns > now_ns:
                break
            del self.waiting[token]
            self._failures.add()
            expired += 1
            on_answer(None, -1)
        while self._reads:
            token, (deadline_ns, on_answer) = next(iter(self._reads.items()))
            if deadline_ns > now_ns:
                break
            del self._reads[token]
            self._late_reads.add(token)
            self._failures.add()
            expired += 1
            on_answer(None, -1)
        return expired

    def give_up(self) -> None:
        """End all requests because the disk hangs; further clients get the error of the disk's
        state."""
        waiting, self.waiting = self.waiting, {}
        reads, self._reads = self._reads, {}
        self._late_reads.update(reads)
        for _deadline_ns, on_answer in (*waiting.values(), *reads.values()):
            self._failures.add()
            on_answer(None, -1)

    def _connect(self, now_ns: int) -> socket.socket | None:
        if now_ns < self._next_attempt_ns:
            return None
        self._next_attempt_ns = now_ns + RECONNECT_NS
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            sock.connect(self._path)
        except OSError:
            sock.close()
            return None
        self._socket = sock
        self._registry.register(sock.fileno(), _INTEREST, self._on_event)
        return sock

    def _on_event(self, events: int) -> None:
        sock = self._socket
        if sock is not None and events & select.EPOLLOUT:
            self._registry.modify(sock.fileno(), _INTEREST)
            self.flush(sock)
        while sock is not None and sock is self._socket:
            try:
                message, ancillary, _flags, _address = sock.recvmsg(MAX_MESSAGE_BYTES, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                message, ancillary = b"", []
            if not message:
                self.hang_up()
                return
            descriptor = -1
            for _level, _kind, content in ancillary:
                rights = array.array("i", content)
                descriptor = rights[0]
                for surplus in rights[1:]:  # CMSG_SPACE rounds up to space for two descriptors
                    os.close(surplus)
            answer = unpack_answer(message)
            waiting = self.waiting.pop(answer.token, None)
            if waiting is None and answer.kind == READ:
                self._late_reads.discard(answer.token)
                waiting = self._reads.pop(answer.token, None)
                if waiting is None and answer.offsets:
                    self.arena.give_back(ReadAnswer.unpacked(answer.offsets))
            if waiting is not None:
                waiting[1](answer, descriptor)
            elif descriptor >= 0:
                os.close(descriptor)

    def hang_up(self) -> None:
        """Disconnect from a dead or replaced log-reader; end its requests. The next request
        connects again."""
        sock, self._socket = self._socket, None
        if sock is not None:
            self._registry.unregister(sock.fileno())
            sock.close()
        for message in self._unsent:
            if message[0] == RELEASE:  # the same incarnation may listen again
                owed = unpack_question(message)
                self.arena.released += ((owed.value_a, slot) for slot in owed.released)
        self._unsent.clear()
        self._late_reads.clear()
        waiting, self.waiting = self.waiting, {}
        reads, self._reads = self._reads, {}
        for _deadline_ns, on_answer in (*waiting.values(), *reads.values()):
            self._failures.add()
            on_answer(None, -1)

    def close(self) -> None:
        self.hang_up()
        self.arena.close()
