"""From received bytes to requests: splits frames, receives large produce bodies straight into the arena.

Size and API key are read in one scratch buffer that all connections of an acceptor share; the rest of an
incomplete request is kept with its connection. Only produce bodies take arena slots. A connection is not read
while its next request has to wait (for earlier responses, or for an arena slot): TCP slows its client down.
Each turn receives a limited number of bytes from a connection. Owned by one acceptor.
Weak spot: a request other than Produce may have at most `OTHER_REQUEST_BYTES_MAX`, because it is in our heap.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from appliance.base.clock import Clock
from appliance.base.errors import ProtocolViolation
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import REQUEST_SIZE_MIN, read_frame_size
from appliance.security.transport import WOULD_BLOCK
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters
from services.acceptor.connection import Body, Connection
from services.acceptor.request_memory import ArenaSlot, allocate_slot

SCRATCH_BYTES = 256 << 10
BODY_BYTES_MIN = 32 << 10
"""Produces of at least this size go straight into the arena, once this much was received: a size alone is cheap to claim."""
FIRST_BITE_BYTES = BODY_BYTES_MIN + (4 << 10)
"""Received into the scratch buffer from a connection that sends large produces: it is copied once more."""
BODY_BITE_BYTES = 1 << 20
"""Received of a large produce in one turn."""
BODY_SHARE = 2
"""Incomplete large produces may hold one part in so many of the arena: claimed and never sent, they must not
block small requests. A single one is always admitted."""
BODY_GRACE_NS = 2_000_000_000
BODY_BYTES_PER_SECOND_MIN = 64 << 10
"""A large produce that is slower than this after the grace period is closed if others wait for a slot."""
OTHER_REQUEST_BYTES_MAX = 4 << 20
_API_KEY = Struct(">h")
_SIZE_BYTES = 4
_START_BYTES = _SIZE_BYTES + _API_KEY.size
"""Size and API key, which decide how a request is received."""

OnRequest = Callable[[Connection, memoryview, int, int, ArenaSlot | None], bool]
"""(connection, buffer, position, limit, body slot) → False: the arena has no free slot now, retry later."""


class _ArenaBody(Body):
    """A body under way, with the slot that holds it."""

    __slots__ = ("slot",)

    def __init__(self, slot: ArenaSlot, filled: int, end: int, began_ns: int) -> None:
        super().__init__(slot.position, filled, end, began_ns)
        self.slot = slot


class Receiver:
    """The receiving side of every connection of one acceptor."""

    def __init__(
        self, arena: Arena, clock: Clock, counters: Counters, request_bytes_max: int, on_request: OnRequest, on_paused: Callable[[Connection], None]
    ) -> None:
        self._arena = arena
        self._memory = arena.memory
        self._clock = clock
        self._request_bytes_max = request_bytes_max
        self._on_request = on_request
        self._on_paused = on_paused
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._received = counters.counter("acceptor.received_bytes")
        self._arena_full = counters.counter("acceptor.arena_full")
        self._bodies: dict[Connection, None] = {}
        self._body_bytes = 0
        self._refusals = 0
        self._body_bytes_max = arena.size_bytes // BODY_SHARE
        self._waiting_small: dict[Connection, int] = {}
        self._waiting_large: dict[Connection, int] = {}
        """connections that wait for an arena slot, and since when, in the order of their retries; large bodies
        apart, because only those have a share"""

    def serve_by(self, on_request: OnRequest) -> None:
        """Pass requests to another function from now on."""
        self._on_request = on_request

    def receive(self, connection: Connection) -> bool:
        """Receive a limited number of bytes. False: the client is gone. Raises ProtocolViolation, OSError."""
        body = connection.body
        if body is None:
            if not self._receive_frames(connection):
                return False
            body = connection.body  # begun now: the rest is mostly there, and a turn costs more than asking
            if body is None or connection.closed:
                return True
        return self._receive_body(connection, body)

    def _receive_frames(self, connection: Connection) -> bool:
        room = FIRST_BITE_BYTES if connection.expects_large else SCRATCH_BYTES
        scratch = self._scratch
        size_bytes = connection.transport.receive_into(scratch[:room])
        if size_bytes <= 0:
            return size_bytes == WOULD_BLOCK
        self._received.add(size_bytes)
        pending = connection.pending
        if not pending:
            self._take_frames(connection, scratch, size_bytes)
            return True
        if not isinstance(pending, bytearray):
            pending = connection.pending = bytearray(pending)
        pending += scratch[:size_bytes]
        # A request that comes in small pieces is looked at once it is whole: not copied and parsed anew for each piece.
        if len(pending) >= connection.wanted_bytes:
            connection.pending = b""
            self._take_frames(connection, memoryview(pending), len(pending))
        return True

    def resume(self, connection: Connection) -> None:
        """Continue with requests that had to wait. Raises ProtocolViolation."""
        if connection.pending:
            data = memoryview(connection.pending)
            connection.pending = b""
            self._take_frames(connection, data, len(data))

    def _take_frames(self, connection: Connection, data: memoryview, end: int) -> None:
        position = 0
        wanted_bytes = 0
        connection.read_paused = False
        while end - position >= _SIZE_BYTES:
            size_bytes = read_frame_size(data, position, self._request_bytes_max, REQUEST_SIZE_MIN)
            start = position + _SIZE_BYTES
            if end - position < _START_BYTES:
                break
            api_key = _API_KEY.unpack_from(data, start)[0]
            is_produce = api_key == ApiKey.PRODUCE
            if not is_produce and size_bytes > OTHER_REQUEST_BYTES_MAX:
                raise ProtocolViolation("frame-too-large", f"request of {size_bytes} bytes; only Produce may have more than {OTHER_REQUEST_BYTES_MAX}")
            limit = start + size_bytes
            is_whole = limit <= end
            if not is_whole and not (is_produce and end - start >= BODY_BYTES_MIN):
                wanted_bytes = _SIZE_BYTES + (min(size_bytes, BODY_BYTES_MIN) if is_produce else size_bytes)
                break
            if not connection.may_start(api_key):
                self._pause(connection)
                break
            connection.next_bytes, connection.next_key = size_bytes, api_key
            if is_whole:
                connection.expects_large = False
                if not is_produce:
                    connection.request_bytes = connection.ahead_bytes + size_bytes
                if not self._on_request(connection, data, start, limit, None):
                    self._wait_for_arena(connection, self._waiting_small)
                    break
                position = limit
                if connection.closed:
                    return
            else:
                if not self._begin_body(connection, data[start:end], size_bytes):
                    self._wait_for_arena(connection, self._waiting_large)
                    break
                position = end
        rest = end - position
        connection.pending = bytes(data[position:end]) if rest else b""
        connection.wanted_bytes = wanted_bytes
        self._note_frame(connection, bool(rest) or connection.body is not None, position > 0)

    def _note_frame(self, connection: Connection, is_incomplete: bool, is_new: bool) -> None:
        """An incomplete request has a deadline from its first bytes on, unless it waits for our own responses."""
        if not is_incomplete or connection.read_paused:
            connection.frame_since_ns = 0
        elif is_new or not connection.frame_since_ns:
            connection.frame_since_ns = self._clock.monotonic_ns()

    def _pause(self, connection: Connection) -> None:
        connection.read_paused = True
        self._on_paused(connection)

    def _wait_for_arena(self, connection: Connection, waiting: dict[Connection, int]) -> None:
        self._refusals += 1
        if connection not in waiting:
            self._arena_full.add()
            waiting[connection] = self._clock.monotonic_ns()
        self._pause(connection)

    @property
    def has_waiting(self) -> bool:
        """True if requests wait for an arena slot."""
        return bool(self._waiting_small or self._waiting_large)

    def retry(self, resume: Callable[[Connection], None]) -> int:
        """Retry waiting requests with `resume`, in order, until one finds no slot again. Return how many found one."""
        served = 0
        for waiting in (self._waiting_small, self._waiting_large):
            for connection in list(waiting):
                refused_before = self._refusals
                if not connection.closed:
                    resume(connection)
                if self._refusals != refused_before and connection in waiting:
                    break
                waiting.pop(connection, None)
                served += 1
        return served

    def _begin_body(self, connection: Connection, first: memoryview, size_bytes: int) -> bool:
        charge = self._arena.rounded_size(size_bytes)
        if self._body_bytes and self._body_bytes + charge > self._body_bytes_max:
            return False
        slot = allocate_slot(self._arena, size_bytes)
        if slot is None:
            return False
        self._body_bytes += slot.charge
        connection.expects_large = True
        filled = slot.position + len(first)
        self._memory[slot.position : filled] = first
        connection.body = _ArenaBody(slot, filled, slot.position + size_bytes, self._clock.monotonic_ns())
        self._bodies[connection] = None
        return True

    def _receive_body(self, connection: Connection, body: Body) -> bool:
        size_bytes = connection.transport.receive_into(self._memory[body.filled : min(body.end, body.filled + BODY_BITE_BYTES)])
        if size_bytes <= 0:
            return size_bytes == WOULD_BLOCK
        self._received.add(size_bytes)
        body.filled += size_bytes
        if body.filled == body.end:
            slot = self._end_body(connection)
            connection.frame_since_ns = 0
            try:
                self._on_request(connection, self._memory, body.position, body.end, slot)
            except ProtocolViolation:
                slot.release()
                raise
        return True

    def _end_body(self, connection: Connection) -> ArenaSlot:
        body, connection.body = connection.body, None
        assert isinstance(body, _ArenaBody)
        del self._bodies[connection]
        self._body_bytes -= body.slot.charge
        return body.slot

    def slow_bodies(self, now_ns: int) -> list[Connection]:
        """Return the connections that hold or need a slot for a large body and send too slowly, if others wait."""
        if not self.has_waiting:
            return []
        slow = []
        for connection in self._bodies:
            body = connection.body
            assert body is not None
            age_ns = now_ns - body.began_ns
            if age_ns > BODY_GRACE_NS and body.received_bytes * 1_000_000_000 < BODY_BYTES_PER_SECOND_MIN * age_ns:
                slow.append(connection)
        for connection, since_ns in self._waiting_large.items():
            # It is not read while it waits, so the kernel has what it sent.
            if now_ns - since_ns > BODY_GRACE_NS and connection.transport.receivable_bytes() < self._awaited_bytes(connection):
                slow.append(connection)
        return slow

    def _awaited_bytes(self, connection: Connection) -> int:
        missing = _SIZE_BYTES + read_frame_size(connection.pending, 0, self._request_bytes_max) - len(connection.pending)
        return max(1, min(missing, BODY_BYTES_MIN))

    def drop(self, connection: Connection) -> None:
        """Forget a closed connection."""
        if connection.body is not None:
            self._end_body(connection).release()
        self._waiting_small.pop(connection, None)
        self._waiting_large.pop(connection, None)
        connection.pending = b""
