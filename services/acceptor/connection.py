"""One client connection: what came in and is not a whole request yet, and the replies that must leave in request order.

Every request that wants an answer takes a `PendingReply` when it is accepted; replies become ready in any order and leave in theirs. Produces may
run ahead of each other, so may offset commits; a follower's fetch ends the one that it has parked; anything else waits until all earlier replies
have left. Owned by the acceptor; holds a transport, no other resource. No reference cycles: a reply knows its connection, the connection forgets
replies as they leave.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias

from appliance.protocol.apis import ApiKey
from appliance.security.authorizer import Rights
from appliance.security.principals import ACTING, UNAUTHENTICATED, Principal, RequestOrigin
from appliance.security.transport import NOT_RESIDENT, WOULD_BLOCK, ClientTransport
from services.acceptor.fetch.record_ranges import SEND_BYTES_A_TURN, ArenaRange, FileRange
from services.acceptor.listening_socket import ListeningSocket
from services.acceptor.produce.refused_sequences import RefusedSequences

if TYPE_CHECKING:
    from services.acceptor.sasl_session import SaslSession  # hashlib brings OpenSSL

RUNS_AHEAD = frozenset((ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.WRITE_SHARE_GROUP_STATE))
"""Several requests of one of these APIs may be under way: they take effect in their order, or in any."""
_NO_KEY = -1
REQUESTS_AHEAD_MAX = 16
"""Requests of one connection under way at once."""
REQUEST_BYTES_AHEAD_MAX = 4 << 20
"""Bytes of one connection under way at once: in a log-writer's queue they delay other clients."""
ARENA_HOLD_NS = 1_000_000_000
"""How long a client may take to read what is in a log-reader's memory."""


class Records(Protocol):
    @property
    def size_bytes(self) -> int: ...


Piece: TypeAlias = bytes | memoryview | FileRange | ArenaRange | Records


class Awaited(Protocol):
    """A request that another process works on, which may hang."""

    deadline_ns: int

    def on_too_late(self) -> None: ...


class ThrottleTime(Protocol):
    """For how long a client pauses after a response."""

    throttle_ms: int

    def apply(self, reply: PendingReply) -> None: ...


class FetchLimits(Protocol):
    """The quotas of a client, as a fetch needs them."""

    def fetch_bytes(self, most: int) -> int: ...

    def holds_back(self, reply: PendingReply, version: int, size_bytes: int) -> bool: ...


class PendingReply:
    """The place of one response in its connection's order."""

    __slots__ = ("awaited", "closes", "closing", "connection", "gives_way", "pieces", "ready", "request_bytes", "throttle")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.request_bytes = connection.next_bytes
        self.pieces: list[Piece] = []
        self.ready = False
        self.closes = False
        self.closing: tuple[str, str] | None = None
        """reason and log message, if it closes the connection; None: a produce without acks failed"""
        self.awaited: Awaited | None = None
        """the request to notify when it takes too long; None if it ends by itself"""
        self.gives_way = False
        """True for a follower's parked fetch: the next one does not wait for it, but ends it"""
        self.throttle: ThrottleTime | None = None
        """its throttle time, if the client is above a quota"""


class Body:
    """A large produce that is being received straight into an arena slot: bytes `filled` to `end` of the arena are still missing."""

    __slots__ = ("began_ns", "end", "filled", "position")

    def __init__(self, position: int, filled: int, end: int, began_ns: int) -> None:
        self.position = position
        self.filled = filled
        self.end = end
        self.began_ns = began_ns

    @property
    def received_bytes(self) -> int:
        return self.filled - self.position


class Connection:
    """State of one client. `closed` connections are kept only by requests that are still under way."""

    __slots__ = (
        "address",
        "ahead_bytes",
        "ahead_count",
        "ahead_key",
        "body",
        "certificate_names",
        "closed",
        "closing",
        "expects_large",
        "expires_ns",
        "frame_since_ns",
        "held_bytes",
        "interest",
        "is_box_user",
        "last_active_ns",
        "limited",
        "limits",
        "listening",
        "mechanism",
        "muted_until_ns",
        "next_bytes",
        "next_key",
        "origin",
        "outgoing",
        "outgoing_bytes",
        "packed_origin",
        "pending",
        "read_paused",
        "refused_sequences",
        "replies",
        "request_bytes",
        "rights",
        "sasl",
        "sent_file_bytes",
        "transport",
        "waits_for_disk",
        "wanted_bytes",
    )

    listening: ListeningSocket
    """set by what accepted it"""

    def __init__(self, transport: ClientTransport, address: str, now_ns: int, origin: RequestOrigin = UNAUTHENTICATED) -> None:
        self.transport = transport
        self.address = address
        self.set_origin(origin)
        self.pending: bytes | bytearray = b""
        """input that is no whole request, or has to wait"""
        self.wanted_bytes = 0
        """how much of `pending` must be there before it is worth another look"""
        self.body: Body | None = None
        self.expects_large = False
        self.replies: deque[PendingReply] = deque()
        self.ahead_count = 0
        """replies under way that may run ahead of each other; -1: one that may not"""
        self.ahead_key = _NO_KEY
        """API of those"""
        self.next_bytes = 0
        """size of the request that is being taken"""
        self.next_key = _NO_KEY
        """API of that"""
        self.ahead_bytes = 0
        """size of the requests under way"""
        self.outgoing: deque[Piece] = deque()
        self.outgoing_bytes = 0
        """of `outgoing`, what lies in our heap"""
        self.request_bytes = 0
        """size of the request under way that is no produce"""
        self.held_bytes = 0
        """what `HeldMemory` has charged"""
        self.read_paused = False
        self.refused_sequences: RefusedSequences | None = None
        """made when the first batch of an idempotent producer is refused for now"""
        self.interest = 0
        self.last_active_ns = now_ns
        self.frame_since_ns = 0
        self.closed = False
        self.closing: tuple[str, str] | None = None
        """why a reply closed it"""
        self.sent_file_bytes = 0
        self.sasl: SaslSession | None = None
        """its authentication, while that is under way"""
        self.limited = "", address
        """what is counted for the limit of connections of an address"""
        self.mechanism = ""
        """with which it has authenticated"""
        self.expires_ns = 0
        """when it must have authenticated again; 0: never"""
        self.limits: FetchLimits | None = None
        """of the client that sent the last request; None: it is not limited"""
        self.muted_until_ns = 0
        """when its next request may be taken, because its client is above a quota; 0: now"""
        self.certificate_names: frozenset[str | bytes] | None = None
        """of its certificate, on an inter-broker listener with TLS"""
        self.is_box_user: bool | None = None
        """whether it has logged in as boxes do, on the listener where they do; None: on another one"""
        self.waits_for_disk = False
        """a log-reader brings what has to be sent next"""

    def set_origin(self, origin: RequestOrigin) -> None:
        """Set principal, listener and flags; the authentication of a connection changes them."""
        self.origin = origin
        self.packed_origin = origin.pack()
        """as requests to controller and coordinator carry it"""
        self.rights: Rights | None = None
        """what its principal may do; None without an authorizer, and until its first request"""

    @property
    def principal(self) -> Principal:
        return self.origin.principal

    @property
    def listener(self) -> str:
        """Name of the listener that accepted it."""
        return self.origin.listener

    @property
    def way(self) -> str:
        """How it came, for the audit: its listener, or `console`."""
        return ACTING.lower() if self.mechanism == ACTING else self.listening.name

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing under way, neither a request that has begun to come nor a reply."""
        return not (self.replies or self.outgoing or self.pending or self.body is not None)

    def may_start(self, api_key: int) -> bool:
        """Whether the next request may be taken now, or has to wait for earlier replies."""
        if not self.replies and not self.outgoing:
            return not self.muted_until_ns
        if api_key == ApiKey.FETCH:
            return len(self.replies) == 1 and self.replies[0].gives_way and len(self.outgoing) < REQUESTS_AHEAD_MAX
        return (
            api_key in RUNS_AHEAD
            and (not self.replies or api_key == self.ahead_key)
            and self.ahead_count == len(self.replies) < REQUESTS_AHEAD_MAX
            and len(self.outgoing) < REQUESTS_AHEAD_MAX
            and self.ahead_bytes < REQUEST_BYTES_AHEAD_MAX
            and not self.muted_until_ns
        )

    def expect_reply(self, runs_ahead: bool) -> PendingReply:
        """Take the next place in the order of replies; with `runs_ahead` others of its API need not wait for it."""
        reply = PendingReply(self)
        self.replies.append(reply)
        self.ahead_bytes += reply.request_bytes
        if runs_ahead:
            self.ahead_count += 1
            self.ahead_key = self.next_key
        else:
            self.ahead_count = -1  # nothing runs ahead of or behind it
        return reply

    def collect_ready(self) -> bool:
        """Move ready replies to `outgoing`, in order. False: one of them asks for the connection to be closed."""
        replies = self.replies
        while replies and replies[0].ready:
            reply = replies.popleft()
            self.ahead_bytes -= reply.request_bytes
            self.ahead_count = max(0, self.ahead_count - 1)
            if reply.closes:
                self.closing = reply.closing
                return False
            if reply.throttle is not None:
                reply.throttle.apply(reply)
            self.outgoing.extend(reply.pieces)
            for piece in reply.pieces:
                if isinstance(piece, bytes | memoryview):
                    self.outgoing_bytes += _heap_bytes(piece)
        if not replies:
            self.request_bytes = 0
        return True

    def send_outgoing(self) -> bool:
        """Send what the transport takes, within the bounds of a turn. True when all has left. False with `waits_for_disk`: the log-reader has to bring
        what comes next. False otherwise: when the transport is writable, which it may be now, there is more. Raises OSError."""
        outgoing, transport = self.outgoing, self.transport
        left = SEND_BYTES_A_TURN
        while outgoing:
            if left <= 0:
                return False
            piece = outgoing[0]
            if isinstance(piece, FileRange):
                sent = piece.file.residency.send(transport, piece, len(outgoing) > 1)
                if sent == WOULD_BLOCK:
                    return False
                if sent == NOT_RESIDENT:
                    self.waits_for_disk = True
                    return False
                if sent == 0:
                    raise OSError(f"a segment ended {piece.size_bytes} bytes before its high watermark")
                self.sent_file_bytes += sent
                left -= sent
                if sent < piece.size_bytes:
                    outgoing[0] = FileRange(piece.file, piece.position + sent, piece.size_bytes - sent)
                    continue
            elif isinstance(piece, ArenaRange):
                part = piece.next_piece
                is_last = len(outgoing) == 1 and piece.is_last and len(part) <= left
                sent = transport.send(part[:left], not is_last)
                if sent == WOULD_BLOCK:
                    return False
                left -= sent
                piece.on_sent(sent)
                if piece.size_bytes:
                    continue
            else:
                if len(outgoing) > 1 and isinstance(outgoing[1], bytes):
                    piece = self._join_bytes()
                assert isinstance(piece, bytes | memoryview)
                sent = transport.send(piece, len(outgoing) > 1)
                if sent == WOULD_BLOCK:
                    return False
                left -= sent
                if sent < len(piece):
                    outgoing[0] = memoryview(piece)[sent:]
                    continue
                self.outgoing_bytes -= _heap_bytes(piece)
            outgoing.popleft()
        return True

    def move_to_heap(self, now_ns: int) -> bool:
        """Copy what a log-reader has lent for long enough: others need that memory, and here it counts against this connection."""
        moved = False
        for index, piece in enumerate(self.outgoing):
            if isinstance(piece, ArenaRange) and now_ns - piece.since_ns > ARENA_HOLD_NS:
                self.outgoing[index] = copy = piece.to_bytes()
                self.outgoing_bytes += len(copy)
                moved = True
        return moved

    def _join_bytes(self) -> bytes:
        """Neighbouring small replies leave in one call."""
        outgoing = self.outgoing
        parts: list[bytes | memoryview] = []
        while outgoing and isinstance(outgoing[0], bytes | memoryview):
            part = outgoing.popleft()
            assert isinstance(part, bytes | memoryview)
            self.outgoing_bytes -= _heap_bytes(part)
            parts.append(part)
        joined = b"".join(parts)
        self.outgoing_bytes += len(joined)
        outgoing.appendleft(joined)
        return joined


def _heap_bytes(piece: bytes | memoryview) -> int:
    """What a piece keeps alive: the rest of a reply that was sent in part still is the whole reply."""
    return len(piece) if isinstance(piece, bytes) else memoryview(piece.obj).nbytes
