"""Splits a syslog TCP stream into messages (RFC 6587): octet counting and LF or NUL trailers,
recognised for each frame.

Owned by one connection. A frame that starts with a digit 1-9, a count and a space is octet-counted;
any other frame ends at a trailer. The first trailer of a stream (LF or NUL) stays its trailer.
Everything that is not empty is returned, so that it can be counted: after a wrong count the
splitter continues at the next bytes that look like a frame. Memory is limited by
`max_message_bytes` plus one received piece.

Weak: a count that is too large swallows what follows it, up to that count; this cannot be detected.
A line of an LF stream that starts like `300 <13>` is taken for an octet-counted frame; rsyslog's
receiver does the same.
"""

from __future__ import annotations

import re

DEFAULT_MAX_MESSAGE_BYTES = 65536
COUNT_DIGITS_MAX = 8
BELIEVED_COUNT_MAX = 16 * 1024 * 1024
"""A larger count is noise: a stream that obeyed it would lose lines for hours."""

_LINE_FEED, _CARRIAGE_RETURN, _NUL, _LESS_THAN = 0x0A, 0x0D, 0x00, 0x3C
_DIGIT_ONE, _DIGIT_NINE = 0x31, 0x39
_BETWEEN_FRAMES = frozenset((_LINE_FEED, _CARRIAGE_RETURN, _NUL))
_COUNTED_FRAME = re.compile(rb"[1-9][0-9]{0,7} <[0-9]{1,3}>")
_COUNTED_FRAME_START_BYTES_MAX = COUNT_DIGITS_MAX + len(b" <191>")
_NOT_YET = -1


class CutMessage(bytes):
    """A message without its end: longer than allowed, or its connection closed inside an
    octet-counted frame.
    """

    __slots__ = ()


def cut_message(message: bytes, max_message_bytes: int) -> bytes:
    """Return `message` if it fits, otherwise its first `max_message_bytes` as a `CutMessage`."""
    return message if len(message) <= max_message_bytes else _cut(message, max_message_bytes)


def unframe_datagram(datagram: bytes) -> bytes:
    """Return the message in a datagram, without an octet count that fits (loggen -D -P sends one)."""
    if _COUNTED_FRAME.match(datagram):
        count, _, message = datagram.partition(b" ")
        if int(count) in (len(message), len(message) - 1):
            return message
    return datagram


def _cut(message: bytes, size_bytes: int) -> CutMessage:
    """Return the first `size_bytes`, or up to three fewer, so that no UTF-8 character is split (the
    whole text would be invalid).
    """
    end = size_bytes
    while end > size_bytes - 3 and end > 0 and message[end] & 0xC0 == 0x80:
        end -= 1
    return CutMessage(message[: end if message[end] & 0xC0 != 0x80 else size_bytes])


class SyslogSplitter:
    """The framing state of one connection. `feed` and `finish` return messages without framing; cut
    ones are `CutMessage`.
    """

    __slots__ = (
        "_count_needs_priority",
        "_discard_bytes",
        "_discard_line",
        "_max_message_bytes",
        "_saw_counted",
        "_searched_bytes",
        "_tail",
        "_trailer",
        "cut_messages",
        "discarded_bytes",
        "resynchronisations",
    )

    def __init__(self, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> None:
        self._max_message_bytes = max_message_bytes
        self._tail = b""
        self._searched_bytes = 0  # how much of the tail has no line end: a slow sender must not cost a search from the start for each byte
        self._trailer = b""
        self._saw_counted = False
        self._count_needs_priority = False
        self._discard_bytes = 0
        self._discard_line = False
        self.cut_messages = 0
        self.discarded_bytes = 0
        self.resynchronisations = 0

    @property
    def buffered_bytes(self) -> int:
        return len(self._tail)

    def feed(self, received: bytes) -> list[bytes]:
        """Return the messages that `received` completes; the rest is kept."""
        data = self._tail + received if self._tail else received
        messages: list[bytes] = []
        position, size_bytes = 0, len(data)
        while position < size_bytes:
            if self._discard_bytes:
                position = self._discard_counted(position, size_bytes)
                continue
            first = data[position]
            if self._discard_line:
                following = self._discard_to_end_of_line(data, position)
            elif first in _BETWEEN_FRAMES:
                following = position + 1
            elif _DIGIT_ONE <= first <= _DIGIT_NINE and (start := self._counted_body(data, position)):
                following = self._take_counted(data, position, start, messages) if start > 0 else _NOT_YET
            else:
                following = self._take_line(data, position, messages)
            if following < 0:
                break
            position = following
        self._tail = data[position:] if position < size_bytes else b""
        return messages

    def finish(self) -> list[bytes]:
        """The connection ended: return the rest of its last message, if any."""
        tail, self._tail = self._tail, b""
        self._searched_bytes = 0
        if not tail or self._discard_line:
            self.discarded_bytes += len(tail)
            return []
        start = self._counted_body(tail, 0) if _DIGIT_ONE <= tail[0] <= _DIGIT_NINE else 0
        if 0 < start < len(tail):
            self.cut_messages += 1
            return [CutMessage(tail[start : start + self._max_message_bytes])]
        return [self._whole_line(tail[:-1] if tail[-1] == _CARRIAGE_RETURN else tail)]

    def _counted_body(self, data: bytes, position: int) -> int:
        """Return where the body of the octet-counted frame at `position` starts; 0 if there is
        none, `_NOT_YET` if more bytes are needed.
        """
        space = data.find(b" ", position, position + COUNT_DIGITS_MAX + 1)
        digits = data[position:space] if space > 0 else data[position : position + COUNT_DIGITS_MAX + 1]
        if not digits.isdigit() or len(digits) > COUNT_DIGITS_MAX:
            return 0
        if space < 0 or space + 1 == len(data):
            return _NOT_YET
        if int(digits) > max(BELIEVED_COUNT_MAX, self._max_message_bytes):
            return 0
        return space + 1 if data[space + 1] == _LESS_THAN or not self._count_needs_priority else 0

    def _take_counted(self, data: bytes, position: int, start: int, messages: list[bytes]) -> int:
        end = start + int(data[position : start - 1])
        if end - start > self._max_message_bytes:
            return self._take_counted_too_long(data, start, end, messages)
        if end > len(data):
            return _NOT_YET
        self._on_counted(data, start)
        messages.append(data[start:end])
        return end

    def _take_counted_too_long(self, data: bytes, start: int, end: int, messages: list[bytes]) -> int:
        keep_end = start + self._max_message_bytes
        if keep_end >= len(data):  # one byte more than is kept, for the check of the cut
            return _NOT_YET
        self._on_counted(data, start)
        message = self._within_limit(data[start : keep_end + 1])
        messages.append(message)
        following = start + len(message)
        self._discard_bytes = end - following
        return following

    def _on_counted(self, data: bytes, start: int) -> None:
        if not self._saw_counted:
            self._saw_counted = True
            self._count_needs_priority |= data[start] == _LESS_THAN

    def _take_line(self, data: bytes, position: int, messages: list[bytes]) -> int:
        end = self._end_of_line(data, position, position + 1)
        size_bytes_max = self._max_message_bytes + 1  # its last byte may be a carriage return
        if end < 0 and self._saw_counted:
            size_bytes_max += _COUNTED_FRAME_START_BYTES_MAX  # enough to recognise a frame that starts where the line would be cut
        if (end if end >= 0 else len(data)) - position > size_bytes_max:
            self._count_needs_priority = self._discard_line = True
            message = self._within_limit(data[position : position + self._max_message_bytes + 1])
            messages.append(message)
            self._searched_bytes = 0
            return position + len(message)
        if end < 0:
            self._searched_bytes = len(data) - position
            return _NOT_YET
        self._searched_bytes = 0
        line = data[position : end - 1] if data[end - 1] == _CARRIAGE_RETURN else data[position:end]
        self._on_line(data, end)
        messages.append(self._whole_line(line))
        return end

    def _on_line(self, data: bytes, end: int) -> None:
        self._count_needs_priority = True
        if not self._trailer and data[end] in (_LINE_FEED, _NUL):
            self._trailer = data[end : end + 1]
        if self._saw_counted:
            self.resynchronisations += 1

    def _end_of_line(self, data: bytes, position: int, frame_from: int) -> int:
        """Return where the line at `position` ends: at its trailer or, on streams with octet
        counts, at an octet-counted frame; -1 if it is incomplete.
        """
        search = position + max(0, self._searched_bytes - _COUNTED_FRAME_START_BYTES_MAX)
        end = data.find(self._trailer or b"\n", search)
        if not self._trailer:
            nul = data.find(b"\0", search, end if end >= 0 else len(data))
            end = nul if nul >= 0 else end
        if self._saw_counted:
            frame = _COUNTED_FRAME.search(data, max(search, frame_from), end if end >= 0 else len(data))
            end = frame.start() if frame else end
        return end

    def _discard_counted(self, position: int, size_bytes: int) -> int:
        skipped = min(self._discard_bytes, size_bytes - position)
        self._discard_bytes -= skipped
        self.discarded_bytes += skipped
        return position + skipped

    def _discard_to_end_of_line(self, data: bytes, position: int) -> int:
        """Skip the rest of a cut line; the possible start of an octet-counted frame is kept until
        more arrives.
        """
        end = self._end_of_line(data, position, position)
        following = end if end >= 0 else max(position, len(data) - (_COUNTED_FRAME_START_BYTES_MAX if self._saw_counted else 0))
        self.discarded_bytes += following - position
        self._discard_line = end < 0
        return following if following > position or end >= 0 else _NOT_YET

    def _whole_line(self, line: bytes) -> bytes:
        """Return as much of it as is kept; nothing of it follows."""
        kept = self._within_limit(line)
        self.discarded_bytes += len(line) - len(kept)
        return kept

    def _within_limit(self, message: bytes) -> bytes:
        if len(message) <= self._max_message_bytes:
            return message
        self.cut_messages += 1
        return _cut(message, self._max_message_bytes)
