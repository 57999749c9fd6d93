"""From received bytes to requests: cuts frames, receives large produce bodies straight into the arena, stops reading when it must.

Size and header are read privately, into one scratch buffer that all connections of an acceptor share; what is left of an incomplete request
is kept with its connection. Only produce bodies take arena slots. A connection is not read while its next request has to wait (for
earlier replies, or for room in the arena): TCP slows its client down. Owned by one acceptor.
Weak spot: a request other than Produce may have at most `OTHER_REQUEST_BYTES_MAX`, because it is held in our heap.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from appliance.base.clock import Clock
from appliance.base.errors import ProtocolViolation
from appliance.broker.arena_slots import ArenaSlot, allocate_slot
from appliance.broker.connection import Body, Connection
from appliance.broker.transport import WOULD_BLOCK
from appliance.protocol.apis import ApiKey
from appliance.protocol.framing import REQUEST_SIZE_MIN, read_frame_size
from appliance.shm.arena import Arena
from appliance.shm.counters import Counters

SCRATCH_BYTES = 256 << 10
FIRST_BITE_BYTES = 4 << 10
"""How much is received into the scratch buffer from a connection that sends large produces: what lands there is copied once more."""
BODY_BYTES_MIN = 32 << 10
"""Produces of at least this size are received straight into the arena."""
OTHER_REQUEST_BYTES_MAX = 4 << 20
_API_KEY = Struct(">h")
_SIZE_BYTES = 4

OnRequest = Callable[[Connection, memoryview, int, int, ArenaSlot | None], bool]
"""(connection, buffer, position, limit, body slot) → False: there is no room in the arena now, offer it again later."""


class _ArenaBody(Body):
    """A body under way, with the slot that holds it."""

    __slots__ = ("slot",)

    def __init__(self, slot: ArenaSlot, filled: int, end: int) -> None:
        super().__init__(slot.position, filled, end)
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
        self.waiting_for_arena: dict[Connection, None] = {}
        """in the order in which they will be tried again"""

    def receive(self, connection: Connection) -> bool:
        """Take what has come. False: the client is gone. Raises ProtocolViolation, OSError."""
        if connection.body is not None:
            return self._receive_body(connection, connection.body)
        room = FIRST_BITE_BYTES if connection.expects_large else SCRATCH_BYTES
        scratch = self._scratch
        size_bytes = connection.transport.receive_into(scratch[:room])
        if size_bytes <= 0:
            return size_bytes == WOULD_BLOCK
        self._received.add(size_bytes)
        if connection.pending:
            data = memoryview(connection.pending + bytes(scratch[:size_bytes]))
            connection.pending = b""
            self._take_frames(connection, data, len(data))
        else:
            self._take_frames(connection, scratch, size_bytes)
        return True

    def resume(self, connection: Connection) -> None:
        """Go on with the requests that had to wait. Raises ProtocolViolation."""
        if connection.pending:
            data = memoryview(connection.pending)
            connection.pending = b""
            self._take_frames(connection, data, len(data))

    def _take_frames(self, connection: Connection, data: memoryview, end: int) -> None:
        position = 0
        connection.read_paused = False
        while end - position >= _SIZE_BYTES:
            size_bytes = read_frame_size(data, position, self._request_bytes_max, REQUEST_SIZE_MIN)
            start = position + _SIZE_BYTES
            if end - start < _API_KEY.size:
                break
            is_produce = _API_KEY.unpack_from(data, start)[0] == ApiKey.PRODUCE
            if not is_produce and size_bytes > OTHER_REQUEST_BYTES_MAX:
                raise ProtocolViolation("frame-too-large", f"request of {size_bytes} bytes; only Produce may have more than {OTHER_REQUEST_BYTES_MAX}")
            limit = start + size_bytes
            is_whole = limit <= end
            if not is_whole and not (is_produce and size_bytes >= BODY_BYTES_MIN):
                break
            if not connection.may_start(is_produce):
                self._pause(connection)
                break
            if is_whole:
                connection.expects_large = False
                if not self._on_request(connection, data, start, limit, None):
                    self._wait_for_arena(connection)
                    break
                position = limit
                if connection.closed:
                    return
            else:
                if not self._begin_body(connection, data[start:end], size_bytes):
                    self._wait_for_arena(connection)
                    break
                position = end
        rest = end - position
        connection.pending = bytes(data[position:end]) if rest else b""
        self._note_frame(connection, bool(rest) or connection.body is not None)

    def _note_frame(self, connection: Connection, is_incomplete: bool) -> None:
        """An incomplete request has a deadline; one that waits for our own replies has not."""
        if not is_incomplete or connection.read_paused:
            connection.frame_since_ns = 0
        elif not connection.frame_since_ns:
            connection.frame_since_ns = self._clock.monotonic_ns()

    def _pause(self, connection: Connection) -> None:
        connection.read_paused = True
        self._on_paused(connection)

    def _wait_for_arena(self, connection: Connection) -> None:
        self._arena_full.add()
        self.waiting_for_arena[connection] = None
        self._pause(connection)

    def _begin_body(self, connection: Connection, first: memoryview, size_bytes: int) -> bool:
        slot = allocate_slot(self._arena, size_bytes)
        if slot is None:
            return False
        connection.expects_large = True
        filled = slot.position + len(first)
        self._memory[slot.position : filled] = first
        connection.body = _ArenaBody(slot, filled, slot.position + size_bytes)
        return True

    def _receive_body(self, connection: Connection, body: Body) -> bool:
        size_bytes = connection.transport.receive_into(self._memory[body.filled : body.end])
        if size_bytes <= 0:
            return size_bytes == WOULD_BLOCK
        self._received.add(size_bytes)
        body.filled += size_bytes
        if body.filled == body.end:
            assert isinstance(body, _ArenaBody)
            connection.body = None
            connection.frame_since_ns = 0
            try:
                self._on_request(connection, self._memory, body.position, body.end, body.slot)
            except ProtocolViolation:
                body.slot.release()
                raise
        return True

    def drop(self, connection: Connection) -> None:
        """Forget a closed connection."""
        body, connection.body = connection.body, None
        if isinstance(body, _ArenaBody):
            body.slot.release()
        connection.pending = b""
