"""Read for acceptors what is not in the page cache: each piece once, however many requests need it.

A READ request becomes pieces in shared memory. Threads wait for the disk (`cold_threads`), so that OPEN
and LOOKUP of consumers at the log end are answered meanwhile. Reads are taken from each acceptor and
partition in turn. A consumer that continues where its last answer ended finds the next pieces read
already. An acceptor holds the slots of its answer (`cold_holders`). Weak spot: two reads that hang stop
all others of that disk until their deadlines.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from appliance.base.errors import ErrorCode
from appliance.base.model import NO_OFFSET
from appliance.ipc.log_reader_messages import FIRST_WHATEVER, IS_ACTIVE, READ, WHOLE_BATCHES, Answer, Question, ReadAnswer
from appliance.records.batch import whole_batches
from appliance.runtime.agent import ServiceContext
from appliance.shm.arena import PIECE_BYTES, PieceMemory, sweep_pieces
from appliance.storage.cold_file import SEALED_WAYS
from appliance.storage.page_cache import PAGE_BYTES
from services.log_reader.cold_holders import ColdHolders
from services.log_reader.cold_pieces import ColdPieces, ColdSegment, ColdSegments, Piece
from services.log_reader.cold_threads import THREADS, ColdThreads, FairQueue

PARTS_MAX = 3
"""An answer has at most so many pieces; together they hold any batch of up to 2 MiB."""
READ_DEADLINE_MS = 5_000
"""So long an acceptor waits; what is older is not read any more."""
WAITING_MAX = 4096
AHEAD = 2
IDLE_NS = 30_000_000_000
"""After so long without a question memory and files are given back."""


class PieceRequester(Protocol):
    """One acceptor's connection, as far as cold reads use it."""

    sock: socket.socket
    is_gone: bool


class _Request:
    """One READ request. `end`: exclusive; it may still grow towards the request's limit."""

    __slots__ = ("arrived_ns", "asker", "end", "file", "is_done", "missing", "pieces", "question")

    def __init__(self, asker: PieceRequester, question: Question, file: ColdSegment, end: int, arrived_ns: int) -> None:
        self.asker = asker
        self.question = question
        self.file = file
        self.end = end
        self.arrived_ns = arrived_ns
        self.pieces: list[Piece[_Request]] = []
        self.missing = 0
        self.is_done = False


def parts_of(position: int, end: int) -> list[tuple[int, int]]:
    """Return (number of the piece, end of the wanted range in it) for a range, at most `PARTS_MAX`.

    Positions are bytes in the file.
    """
    first = position // PIECE_BYTES
    last = min((end - 1) // PIECE_BYTES, first + PARTS_MAX - 1)
    return [(number, min(end, (number + 1) * PIECE_BYTES)) for number in range(first, last + 1)]


class ColdReading:
    """All cold reads of one disk."""

    def __init__(self, context: ServiceContext, disk: str, answer: Callable[[PieceRequester, Answer], None], ways: tuple[str, ...] = SEALED_WAYS) -> None:
        """`answer` sends an answer to an asker that is not gone. `ways`: how files are read, the preferred way first."""
        self._context = context
        self._clock = context.clock
        self._send = answer
        self._disk = disk
        name = context.layout.shared_memory_name("arena", context.process_name, context.incarnation)
        sweep_pieces(name)
        self.memory = PieceMemory.create(name, context.box.integer("log.reader.arena.bytes"), context.incarnation)
        self.pieces: ColdPieces[_Request] = ColdPieces(self.memory.slots)
        self._lanes: FairQueue[_Request] = FairQueue()
        self._segments = ColdSegments(ways, self.pieces.forget_file)
        self._threads: ColdThreads[_Request] = ColdThreads(context.poller, self._on_done)
        self.last_request_ns = 0
        counters = context.counters
        held = counters.gauge("log_reader.held_slots")
        self._holders = ColdHolders(context.poller, held, self.pieces.release, self._dispatch)
        self._read_bytes = counters.counter("log_reader.read_bytes")
        self._reads = counters.counter("log_reader.reads")
        self._latency = counters.histogram("log_reader.read_us")
        self._coalesced = counters.counter("log_reader.coalesced")
        self._ahead = counters.counter("log_reader.read_ahead")
        self._failures = counters.counter("log_reader.failed_reads")
        self._waiting = counters.gauge("log_reader.reads_waiting")

    # -- questions

    def on_read(self, asker: PieceRequester, question: Question, path: str) -> None:
        """Answer a READ request now or later. `path` is the segment's.

        Errors: INVALID_REQUEST for a bad range, NOT_LEADER_OR_FOLLOWER if the segment was replaced
        or too many requests wait, KAFKA_STORAGE_ERROR if the disk fails or the deadline passed.
        """
        extent = question.extent
        if extent is None or extent.size_bytes <= 0 or not 0 <= question.value_b < extent.limit:
            self._send(asker, Answer(READ, question.token, ErrorCode.INVALID_REQUEST))
            return
        self.last_request_ns = now_ns = self._clock.monotonic_ns()
        try:
            file = self._segments.open(path, extent.inode, bool(extent.flags & IS_ACTIVE))
        except OSError as error:
            self._refuse_file(asker, question, path, error)
            return
        if file is None or len(self._lanes) >= WAITING_MAX:
            self._send(asker, Answer(READ, question.token, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        end = min(question.value_b + extent.size_bytes, extent.limit)
        request = _Request(asker, question, file, end, now_ns)
        file.reads += 1
        self._advance(request)

    def _refuse_file(self, asker: PieceRequester, question: Question, path: str, error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            self._send(asker, Answer(READ, question.token, ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        self._failures.add()
        words = f"disk {self._disk}: could not open {path} for a cold read: {(error.strerror or str(error)).lower()}"
        self._context.log.error(words, topic=question.topic, partition=question.partition, disk=self._disk)
        self._send(asker, Answer(READ, question.token, ErrorCode.KAFKA_STORAGE_ERROR))

    def on_release(self, asker: PieceRequester, question: Question) -> None:
        """Release slots that an acceptor has sent.

        Releases of an earlier incarnation's slots are ignored.
        """
        if question.value_a == self.memory.shared.incarnation:
            self._holders.release(asker.sock, question.released)
            self._dispatch()

    def on_gone(self, asker: PieceRequester) -> None:
        """Handle a closed connection. Its process keeps its slots until it is proven dead."""
        asker.is_gone = True
        self._holders.on_hang_up()

    # -- from question to pieces

    def _advance(self, request: _Request) -> None:
        """Wait for pieces that are ready or being read; otherwise queue the request for the disk."""
        found = [self.pieces.find((request.file.number, number), end) for number, end in parts_of(request.question.value_b, request.end)]
        pieces = [piece for piece in found if piece is not None]
        if len(pieces) == len(found):
            self._coalesced.add(len(pieces))
            self._attach(request, pieces)
            return
        self._lanes.add((id(request.asker), request.question.topic, request.question.partition), request)
        self._dispatch()

    def _dispatch(self) -> None:
        while self._lanes and self._threads.running < THREADS:
            request = self._lanes.first()
            if request.asker.is_gone or self._clock.monotonic_ns() - request.arrived_ns > READ_DEADLINE_MS * 1_000_000:
                self._lanes.take()
                self._end(request, ErrorCode.KAFKA_STORAGE_ERROR)
            elif not self._begin(request):
                break
        self._waiting.set(len(self._lanes))

    def _begin(self, request: _Request) -> bool:
        """Read what is missing for the next request. Return False, and keep it queued, if no slot is free."""
        file, extent = request.file, request.question.extent
        assert extent is not None
        wanted = parts_of(request.question.value_b, request.end)
        found = [self.pieces.find((file.number, number), end) for number, end in wanted]
        for piece in found:
            if piece is not None:
                self.pieces.hold(piece)
        has_room = found.count(None) <= self.pieces.available
        if has_room:
            self._lanes.take()
            for index, (number, _) in enumerate(wanted):
                if found[index] is None:
                    found[index] = begun = self._read(file, number, extent.limit)
                    if begun is not None:
                        self.pieces.hold(begun)
        pieces = [piece for piece in found if piece is not None]
        if has_room and len(pieces) == len(wanted):
            self._attach(request, pieces, held=True)
            return True
        for piece in pieces:
            self.pieces.release(piece.slot)
        if has_room:
            self._end(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return has_room

    def _read(self, file: ColdSegment, number: int, limit: int) -> Piece[_Request] | None:
        """Let a thread read a piece. None: there is a slot but no memory for it."""
        position = number * PIECE_BYTES
        piece = self.pieces.begin((file.number, number), min(limit, position + PIECE_BYTES))
        if piece is None:
            return None
        if not self.memory.allocate(piece.slot):
            self.pieces.on_failed(piece)
            self._context.log.error("/dev/shm is full: there is no memory for a cold read; make it larger, or give what fills it another place")
            return None
        pages = (piece.end - position + PAGE_BYTES - 1) // PAGE_BYTES
        file.reads += 1
        self._threads.read((piece, file, self.memory.view(piece.slot, pages * PAGE_BYTES), position, self._clock.monotonic_ns()))
        return piece

    def _attach(self, request: _Request, pieces: list[Piece[_Request]], held: bool = False) -> None:
        request.pieces = pieces
        request.missing = 0
        for piece in pieces:
            if not held:
                self.pieces.hold(piece)
            if not piece.is_ready:
                request.missing += 1
                piece.waiting.append(request)
        if not request.missing:
            self._finish(request)

    # -- from pieces to an answer

    def _finish(self, request: _Request) -> None:
        """Find where the answer ends in the complete pieces, and send it."""
        question, extent = request.question, request.question.extent
        assert extent is not None
        position = question.value_b
        parts = [(piece, *self._range_of(piece, position, request.end)) for piece in request.pieces]
        size_bytes = sum(part[2] for part in parts)
        next_offset, first_batch_bytes = NO_OFFSET, -1
        if extent.flags & WHOLE_BATCHES:
            whole = whole_batches([self.memory.shared.memory[at : at + count] for _, at, count in parts])
            if whole is not None:
                size_bytes, next_offset, first_batch_bytes = whole
                if not size_bytes and first_batch_bytes and self._may_grow(request, first_batch_bytes):
                    return
        answered: list[tuple[int, int, int]] = []
        holder = self._holders.holder(request.asker.sock) if not request.asker.is_gone else None
        for piece, at, count in parts:
            count = min(count, size_bytes)
            size_bytes -= count
            if count and holder is not None:
                self._holders.hold(holder, piece.slot)
                answered.append((piece.slot, at, count))
            else:
                self.pieces.release(piece.slot)
        request.pieces = []
        self._leave(request)
        if holder is None:
            return
        sent = ReadAnswer(self.memory.shared.incarnation, next_offset, 0 if answered else max(first_batch_bytes, 0), tuple(answered))
        self._send(request.asker, Answer(READ, question.token, 0, offsets=sent.packed()))
        if next_offset >= 0:
            self._read_ahead(request.file, position, position + sent.size_bytes, extent.limit)

    def _range_of(self, piece: Piece[_Request], position: int, end: int) -> tuple[int, int]:
        """Return (position in the arena, bytes) of the part of a range that is in a piece."""
        start = piece.key[1] * PIECE_BYTES
        first, last = max(position, start), min(end, start + PIECE_BYTES)
        return self.memory.position(piece.slot) + first - start, last - first

    def _may_grow(self, request: _Request, first_batch_bytes: int) -> bool:
        """Request more bytes if the first batch is longer than the request, must be whole, and fits
        into an answer.
        """
        extent, position = request.question.extent, request.question.value_b
        assert extent is not None
        end = position + first_batch_bytes
        if not extent.flags & FIRST_WHATEVER or end <= request.end or end > min(extent.limit, (position // PIECE_BYTES + PARTS_MAX) * PIECE_BYTES):
            return False
        request.end = end
        for piece in request.pieces:
            self.pieces.release(piece.slot)
        request.pieces = []
        self._advance(request)
        return True

    def _end(self, request: _Request, error_code: ErrorCode) -> None:
        """End a request with an error."""
        for piece in request.pieces:
            self.pieces.release(piece.slot)
        request.pieces = []
        self._leave(request)
        if not request.asker.is_gone:
            self._send(request.asker, Answer(READ, request.question.token, error_code))

    def _leave(self, request: _Request) -> None:
        request.is_done = True
        request.file.reads -= 1

    def _read_ahead(self, file: ColdSegment, position: int, end: int, limit: int) -> None:
        """Read ahead for a consumer that continues where its last answer ended, if that evicts nothing."""
        is_sequel = file.is_sequel(position)
        file.expect(end)
        if not is_sequel:
            return
        number = (end - 1) // PIECE_BYTES
        for ahead in range(number + 1, number + 1 + AHEAD):
            at = ahead * PIECE_BYTES
            piece_end = min(limit, at + PIECE_BYTES)
            if at >= limit or self._lanes or self._threads.running > THREADS or self.pieces.available <= self.pieces.slots // 2:
                return
            if self.pieces.find((file.number, ahead), piece_end) is None and not file.cold.is_resident(at, piece_end - at):
                self._ahead.add()
                self._read(file, ahead, limit)

    # -- what the threads have read

    def _on_done(self) -> None:
        while (done := self._threads.take_done()) is not None:
            piece, file, count, began_ns, error = done
            file.reads -= 1
            start = piece.key[1] * PIECE_BYTES
            if error is not None and not isinstance(error, OSError):
                raise error
            waiting, piece.waiting = piece.waiting, []
            if error is None and start + count >= piece.end:
                self._reads.add()
                self._latency.record(self._clock.monotonic_ns() - began_ns)
                self._read_bytes.add(count)
                self.pieces.on_read(piece)
                for request in waiting:
                    request.missing -= 1
                    if not request.missing and not request.is_done:
                        self._finish(request)
                continue
            self._failures.add()
            reason = error.strerror if error is not None else f"the segment ends at {start + count}, before its high watermark"
            self._context.log.error(f"disk {self._disk}: could not read a segment from position {start} on: {reason}", disk=self._disk)
            self.pieces.on_failed(piece)
            for request in waiting:
                if not request.is_done:
                    self._end(request, ErrorCode.KAFKA_STORAGE_ERROR)
        self._dispatch()

    def sweep(self, now_ns: int) -> None:
        """Close deleted files, whose space would be kept, and release memory and files that were
        unused for `IDLE_NS`. Called once a second.
        """
        self._segments.retire_deleted()
        if self.last_request_ns and now_ns - self.last_request_ns > IDLE_NS and not self._threads.running and not self._lanes:
            self.last_request_ns = 0
            self._segments.retire_all()
            for slot in self.pieces.give_up_unheld():
                self.memory.give_back(slot)

    def status(self) -> str:
        """Return how much of the memory is in use, for people."""
        return f"{self.memory.allocated_slots} of {self.memory.slots} pieces in memory"

    def close(self) -> None:
        """Stop the threads and close files and memory."""
        self._threads.close()
        self._holders.close()
        self._segments.retire_all()
        self.memory.close()
