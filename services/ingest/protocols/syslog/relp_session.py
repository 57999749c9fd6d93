"""RELP on one connection: a frame is answered `200` when its record fulfils the listener's `acks`;
answers come in the order of the frames.

Owned by one connection. The frames that arrive together are one ack group, with a digest for each
frame; after a reconnect the sender repeats what was not answered, and `intake.open_stream`
recognises it. librelp drops a frame that is answered `500`, and repeats unanswered ones. So a
record that can never be stored is answered `500`; one that is refused for now is not answered, the
session ends, and the sender repeats it.

Weak: a frame that is repeated on the same connection (relppy does so after 5 s) is recognised only
while the first is in progress; later it ends the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from services.ingest.protocols.session import SessionConnection, Unfinished
from services.ingest.protocols.syslog.relp_frames import TRANSACTION_MAX, RelpFrame, RelpSplitter, is_cut, next_transaction
from services.ingest.records.ack_group import AckGroup, AckOutcome, digest_of
from services.ingest.records.intake import Oddity, RefusedReason

SOFTWARE = b"millrace"
REASON_BYTES_MAX = 80
CLOSED = "relp-closed"
_OFFERS = b"200 OK\nrelp_version=0\nrelp_software=" + SOFTWARE + b"\ncommands=syslog"
_SERVER_CLOSE = b"0 serverclose 0\n"


class _Answer:
    """An outstanding answer, in order: for `transactions` of an ack group, or `ready` bytes; then
    the session may end (`closes`).
    """

    __slots__ = ("closes", "is_completed", "ready", "size_bytes", "transactions", "unit")

    def __init__(self, transactions: Sequence[int], unit: AckGroup | None, size_bytes: int = 0, ready: bytes = b"", closes: str = "") -> None:
        self.transactions = transactions
        self.unit = unit
        self.size_bytes = size_bytes
        self.ready = ready
        self.closes = closes
        self.is_completed = unit is None


class RelpSession:
    """The commands `open`, `syslog` and `close`."""

    __slots__ = (
        "_answers",
        "_connection",
        "_expected",
        "_frames_done",
        "_is_ended",
        "_is_lost",
        "_is_open",
        "_splitter",
        "_stream",
        "_unfinished",
        "unacknowledged_bytes",
    )

    def __init__(self, connection: SessionConnection) -> None:
        self._connection = connection
        listener = connection.listener
        self._splitter = RelpSplitter(listener.frame_bytes_max, listener.message_bytes_max)
        self._stream = connection.intake.open_stream(listener, connection.source)
        self._answers: deque[_Answer] = deque()
        self._expected = 0
        self._frames_done = 0
        self._is_open = False
        self._is_ended = False
        self._is_lost = False
        self._unfinished = Unfinished()
        self.unacknowledged_bytes = 0

    # -- in

    @property
    def buffered_bytes(self) -> int:
        return self._splitter.buffered_bytes

    def received(self, data: bytes | memoryview) -> None:
        if self._is_ended:
            return
        texts: list[bytes] = []
        expected = first = self._expected
        for frame in self._splitter.feed(bytes(data)):
            transaction, command, text = frame
            if transaction == expected and command == b"syslog" and self._is_open:
                texts.append(text)
                expected = transaction + 1 if transaction < TRANSACTION_MAX else 1
                continue
            self._take(first, texts)
            texts = []
            self._expected = expected
            if not self._on_command(frame):
                break
            expected = first = self._expected
        self._expected = expected
        self._take(first, texts)
        if self._splitter.problem and not self._is_ended:
            reason = RefusedReason.TOO_LARGE if self._splitter.problem == "frame too large" else RefusedReason.MALFORMED
            self._connection.intake.refuse(self._connection.listener, self._connection.source, reason)
            self._end("relp-" + self._splitter.problem.replace(" ", "-"))

    def _take(self, first: int, texts: Sequence[bytes]) -> None:
        if not texts:
            return
        connection = self._connection
        self._frames_done += len(texts)
        unit = AckGroup(connection.listener, connection.source, [digest_of(text) for text in texts], self._on_completed)
        unit.stream = self._stream
        answer = unit.context = _Answer(_transactions(first, len(texts)), unit, sum(map(len, texts)) + len(texts))
        self.unacknowledged_bytes += answer.size_bytes
        self._answers.append(answer)
        if cut := sum(map(is_cut, texts)):
            connection.intake.note(connection.listener, connection.source, Oddity.TRUNCATED, cut)
        connection.intake.take_syslog(unit, texts)
        connection.intake.close_group(unit)

    def _on_command(self, frame: RelpFrame) -> bool:
        """Handle every frame but an expected syslog frame. False if the session ends."""
        transaction, command, data = frame
        self._frames_done += 1
        if command == b"open":
            self._on_open(transaction, data)
        elif not self._is_open:
            self._refuse(transaction, b"the session is not open", "relp-not-open")
        elif command == b"syslog" and self._is_repeated(transaction):
            pass  # its answer is already queued
        elif transaction != self._expected:
            self._refuse(transaction, b"transaction %d was expected" % self._expected, "relp-transaction-order")
        elif command == b"close":
            self._stream.hurry()  # held frames come first, and then this is answered
            self._answer(transaction, b"")
            self._end(CLOSED)
        else:
            self._expected = next_transaction(transaction)
            self._answer(transaction, b"500 command %b is not known" % command)
        return not self._is_ended

    def _on_open(self, transaction: int, offers: bytes) -> None:
        if self._is_open:
            self._refuse(transaction, b"the session is open already", "relp-opened-twice")
            return
        commands = [line.partition(b"=")[2].split(b",") for line in offers.split(b"\n") if line.startswith(b"commands=")]
        if not any(b"syslog" in names for names in commands):
            self._refuse(transaction, b"this server needs the command syslog, and it is not offered", "relp-no-syslog")
            return
        self._is_open = True
        self._expected = next_transaction(transaction)
        self._answer(transaction, _OFFERS)

    def _is_repeated(self, transaction: int) -> bool:
        return any(transaction in answer.transactions for answer in self._answers)

    def finished(self) -> None:
        """What is in progress is still answered; then the listener closes the connection."""
        if self._splitter.buffered_bytes and not self._is_ended:
            self._connection.intake.refuse(self._connection.listener, self._connection.source, RefusedReason.INCOMPLETE)
        if self._answers and self._is_ended:
            self._stream.hurry()
        elif not self._answers and self._connection.has_delivered:
            self._stream.end(True)  # many senders leave without a `close`
        else:
            self._stream.leave()

    def left(self) -> None:
        if not self._is_ended:
            self._stream.leave()

    def lost(self) -> None:
        self._is_lost = self._is_ended = True
        self._stream.end(False)

    def tick(self, now_ms: int) -> None:
        if not self._is_ended and self._unfinished.is_overdue(self._frames_done, self._splitter.buffered_bytes, now_ms, self._connection.listener.idle_ms_max):
            self._connection.intake.refuse(self._connection.listener, self._connection.source, RefusedReason.TIMED_OUT)
            self._end("idle")

    # -- out

    def _answer(self, transaction: int, data: bytes) -> None:
        self._owe(_Answer((), None, ready=_response(transaction, data)))

    def _refuse(self, transaction: int, words: bytes, reason: str) -> None:
        """Answer a protocol error, and end the session."""
        self._connection.intake.refuse(self._connection.listener, self._connection.source, RefusedReason.MALFORMED)
        self._answer(transaction, b"500 " + words)
        self._end(reason)

    def _end(self, reason: str) -> None:
        """Take nothing more; answer what is in progress, and close."""
        self._is_ended = True
        if reason != CLOSED:
            self._stream.leave()  # closing may take time; the sender may reconnect before that
        self._owe(_Answer((), None, ready=_SERVER_CLOSE, closes=reason))

    def _owe(self, answer: _Answer) -> None:
        self._answers.append(answer)
        self._pay()

    def _on_completed(self, unit: AckGroup) -> None:
        unit.context.is_completed = True
        self.unacknowledged_bytes -= unit.context.size_bytes
        self._pay()

    def _pay(self) -> None:
        """Send the known answers, up to the first unknown one."""
        answers = self._answers
        while answers and answers[0].is_completed:
            answer = answers.popleft()
            unit = answer.unit
            if self._is_lost:
                continue
            if unit is not None and unit.outcome is AckOutcome.REFUSED:
                answers.clear()
                self._is_ended = True
                self._stream.leave()
                answer = _Answer((), None, ready=_SERVER_CLOSE, closes="relp-refused")
            elif unit is not None:
                answer.ready = _responses(answer.transactions, unit.rejected)
            self._connection.send(answer.ready)
            if answer.closes == CLOSED:
                self._stream.end(True)
            if answer.closes:
                self._connection.close(answer.closes)


def _transactions(first: int, count: int) -> Sequence[int]:
    if first + count <= TRANSACTION_MAX + 1:
        return range(first, first + count)
    return [(first + index - 1) % TRANSACTION_MAX + 1 for index in range(count)]


def _responses(transactions: Sequence[int], rejected: Sequence[tuple[int, str]]) -> bytes:
    responses = [b"%d rsp 6 200 OK\n" % transaction for transaction in transactions]
    for index, reason in rejected:
        if 0 <= index < len(responses):
            responses[index] = _response(transactions[index], b"500 " + reason.encode()[:REASON_BYTES_MAX].replace(b"\n", b" "))
    return b"".join(responses)


def _response(transaction: int, data: bytes) -> bytes:
    return b"%d rsp %d %b\n" % (transaction, len(data), data) if data else b"%d rsp 0\n" % transaction
