"""Splits a RELP stream into frames: `TXNR COMMAND SIZE [DATA] LF`.

Owned by one connection. A frame's size must be at most `frame_bytes_max`. Of a text longer than
`text_bytes_max` only that much is kept (as a `CutMessage`) and the rest is skipped, so a sender
uses no more memory than that and one received piece. The first invalid frame ends the stream
(`problem`): RELP has no mark for resynchronisation. Weak: a frame is returned when it is complete,
so a large one is late by its size.
"""

from __future__ import annotations

import re

from services.ingest.protocols.syslog.syslog_framing import CutMessage, cut_message

TRANSACTION_MAX = 999_999_999
_LINE_FEED = 0x0A
_HEADER = re.compile(rb"([0-9]{1,9}) ([A-Za-z]{1,32}) ([0-9]{1,9})([ \n])")
_HEADER_BEGINNING = re.compile(rb"[0-9]{1,9}(?: (?:[A-Za-z]{1,32}(?: (?:[0-9]{1,9})?)?)?)?\Z")


RelpFrame = tuple[int, bytes, bytes]
"""Transaction, command, data. Transaction 0 is for hints without an answer."""


class RelpSplitter:
    """The framing state of one connection."""

    __slots__ = ("_frame_bytes_max", "_missing_bytes", "_pieces", "_skip_bytes", "_skipping", "_tail", "_text_bytes_max", "problem")

    def __init__(self, frame_bytes_max: int, text_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._text_bytes_max = text_bytes_max
        self._tail = b""
        self._pieces: list[bytes] = []  # bytes since the tail, while they are known to be too few
        self._missing_bytes = 0
        self._skipping: RelpFrame | None = None  # a frame whose text is cut, and whose rest has not arrived
        self._skip_bytes = 0
        self.problem = ""
        """Why the stream ended; empty while it continues."""

    @property
    def buffered_bytes(self) -> int:
        return len(self._tail) + sum(map(len, self._pieces)) + (self._skipping is not None)

    def feed(self, received: bytes) -> list[RelpFrame]:
        """Return the frames that `received` completes."""
        if self._missing_bytes > len(received):
            self._missing_bytes -= len(received)
            self._pieces.append(received)
            return []
        data = b"".join((self._tail, *self._pieces, received)) if self._tail else received
        self._pieces.clear()
        self._missing_bytes = 0
        frames: list[RelpFrame] = []
        position, size_bytes, text_bytes_max = 0, len(data), self._text_bytes_max
        while position < size_bytes and not self.problem:
            if self._skipping is not None:
                position = self._skip(data, position, frames)
                continue
            header = _HEADER.match(data, position)
            if header is None:
                if not _HEADER_BEGINNING.match(data, position):
                    self.problem = "bad frame"
                break
            transaction, command, size_text, separator = header.groups()
            start = header.end()
            end = start + int(size_text)
            if end < size_bytes and separator == b" " and data[end] == _LINE_FEED and end - start <= text_bytes_max:
                frames.append((int(transaction), command, data[start:end]))
                position = end + 1
                continue
            position_after = self._take(data, header, frames)
            if not position_after:
                break
            position = position_after
        self._tail = data[position:] if position < size_bytes and not self.problem else b""
        return frames

    def _take(self, data: bytes, header: re.Match[bytes], frames: list[RelpFrame]) -> int:
        """Parse any frame that is not complete and within the limit at once. Return where it ends,
        0 if it is incomplete.
        """
        transaction_text, command, size_text, separator = header.groups()
        transaction, start = int(transaction_text), header.end()
        end = start + int(size_text)
        if separator == b"\n":
            if end > start:
                self.problem = "bad frame"
                return 0
            frames.append((transaction, command, b""))
            return start
        if end - start > self._text_bytes_max:
            return self._take_cut(data, transaction, command, start, end)
        if end >= len(data):
            self._missing_bytes = end + 1 - len(data)
        else:
            self.problem = "bad frame"
        return 0

    def _take_cut(self, data: bytes, transaction: int, command: bytes, start: int, end: int) -> int:
        if end - start > self._frame_bytes_max:
            self.problem = "frame too large"
            return 0
        keep_end = start + self._text_bytes_max
        if keep_end >= len(data):  # one byte more than is kept, for the check of the cut
            self._missing_bytes = keep_end + 1 - len(data)
            return 0
        text = cut_message(data[start : keep_end + 1], self._text_bytes_max)
        self._skipping = (transaction, command, text)
        self._skip_bytes = end - keep_end
        return keep_end

    def _skip(self, data: bytes, position: int, frames: list[RelpFrame]) -> int:
        skipped = min(self._skip_bytes, len(data) - position)
        self._skip_bytes -= skipped
        position += skipped
        if self._skip_bytes or position == len(data):
            return position
        assert self._skipping is not None
        if data[position] != _LINE_FEED:
            self.problem = "bad frame"
        else:
            frames.append(self._skipping)
        self._skipping = None
        return position + 1


def is_cut(text: bytes) -> bool:
    """Whether the end of a frame's text is missing."""
    return type(text) is CutMessage


def next_transaction(transaction: int) -> int:
    """The number of the next frame."""
    return transaction + 1 if transaction < TRANSACTION_MAX else 1
