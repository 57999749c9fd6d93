"""systemd's journal export format: `NAME=value` lines; `NAME`, a 64-bit little-endian size and
bytes for other values; an empty line after each entry (https://systemd.io/JOURNAL_EXPORT_FORMATS).

Owned by one stream. It returns whole entries, with fields as bytes and several values of one name
as a list. An entry above the limit is not kept and returned as None, so that the stream continues
after it. Weak: after a wrong size the rest of the stream is one value; that cannot be detected.
"""

from __future__ import annotations

from struct import Struct
from typing import cast

NAME_BYTES_MAX = 256
"""systemd's own names have at most 64."""
FIELDS_MAX = 4096
_SIZE = Struct("<Q")

Value = bytes | list[bytes]
Entry = dict[bytes, Value]


class BadExport(ValueError):
    """The bytes are not in export format, so the begin of the next entry is unknown."""


class JournalExportReader:
    """`feed` pieces of the stream; it returns entries when they are complete."""

    def __init__(self, entry_bytes_max: int) -> None:
        self._entry_bytes_max = entry_bytes_max
        self._tail = bytearray()
        self._wanted_bytes = 0  # bytes needed before the tail is parsed again: a slow sender must not cost a search from the start for each byte
        self._wants_line = False
        self._line_bytes_max = 0
        """A longer tail that waits for the end of its line is parsed again: a name or an entry
        above the limit shows then.
        """
        self._entry: Entry = {}
        self._entry_bytes = 0
        self._discard_bytes = 0  # of a value that is not kept
        self._discard_line = False

    @property
    def is_inside_entry(self) -> bool:
        return bool(self._tail or self._entry or self._entry_bytes)

    @property
    def buffered_bytes(self) -> int:
        return len(self._tail) + (self._entry_bytes if self._entry_bytes <= self._entry_bytes_max else 0)

    def feed(self, data: bytes) -> list[Entry | None]:
        """Raises `BadExport`; complete entries before it are lost with it, so feed pieces, not
        whole streams.
        """
        entries: list[Entry | None] = []
        if self._tail:
            self._tail += data
            if len(self._tail) < self._wanted_bytes or (self._wants_line and b"\n" not in data and len(self._tail) <= self._line_bytes_max):
                return entries
            data = bytes(self._tail)
            self._tail.clear()
        self._wanted_bytes, self._wants_line = 0, False
        position, end = 0, len(data)
        while position < end:
            if self._discard_bytes:
                size = min(self._discard_bytes, end - position)
                self._discard_bytes -= size
                position += size
                continue
            if not self._entry_bytes and (following := self._take_plain_entry(data, position, entries)):
                position = following
                continue
            line_end = data.find(b"\n", position)
            if self._discard_line:
                self._discard_line = line_end < 0
                position = line_end + 1 or end
                continue
            if line_end == position:
                self._end_entry(entries)
                position += 1
                continue
            following = self._take_field(data, position, line_end, end)
            if following < 0:
                break
            position = following
        if position < end:
            self._tail += data[position:]
        return entries

    def _take_plain_entry(self, data: bytes, position: int, entries: list[Entry | None]) -> int:
        """Parse the usual entry, all of whose fields are lines, at once. 0: it has another form."""
        entry_end = data.find(b"\n\n", position)
        if entry_end <= position or entry_end - position >= self._entry_bytes_max:  # its last line end counts as well, as in `_add`
            return 0
        pairs = [line.split(b"=", 1) for line in data[position:entry_end].split(b"\n")]
        try:
            entry = cast("Entry", dict(pairs))
        except ValueError:
            return 0
        if len(entry) != len(pairs) or len(pairs) > FIELDS_MAX or b"" in entry or max(map(len, entry)) > NAME_BYTES_MAX:
            return 0
        entries.append(entry)
        return entry_end + 2

    def _take_field(self, data: bytes, position: int, line_end: int, end: int) -> int:
        """Parse one field at `position`; return where the next begins, -1 if it is incomplete."""
        equals = data.find(b"=", position, line_end if line_end >= 0 else end)
        name_end = equals if equals >= 0 else line_end if line_end >= 0 else end
        if name_end - position > NAME_BYTES_MAX:
            raise BadExport("a name of a field does not end")
        if line_end < 0:
            if equals < 0 or self._entry_bytes + end - position <= self._entry_bytes_max:
                self._wants_line = True
                self._line_bytes_max = NAME_BYTES_MAX if equals < 0 else self._entry_bytes_max
                return -1
            self._entry_bytes = self._entry_bytes_max + 1
            self._discard_line = True
            return end
        if equals >= 0:
            self._add(data[position:equals], data, equals + 1, line_end)
            return line_end + 1
        start = line_end + 1 + _SIZE.size
        if start > end:
            self._wanted_bytes = start - position
            return -1
        (size,) = _SIZE.unpack_from(data, line_end + 1)
        if self._entry_bytes + size > self._entry_bytes_max:
            self._entry_bytes = self._entry_bytes_max + 1
            self._discard_bytes = size + 1
            return start
        if start + size >= end:
            self._wanted_bytes = start - position + size + 1
            return -1
        if data[start + size] != 0x0A:
            raise BadExport("a value does not end where its size says")
        self._add(data[position:line_end], data, start, start + size)
        return int(start + size + 1)

    def _add(self, name: bytes, data: bytes, start: int, end: int) -> None:
        if not name:
            raise BadExport("a field without a name")
        self._entry_bytes += len(name) + end - start + 2
        if self._entry_bytes > self._entry_bytes_max or len(self._entry) >= FIELDS_MAX:
            self._entry_bytes = self._entry_bytes_max + 1
            self._entry.clear()
            return
        value = data[start:end]
        earlier = self._entry.get(name)
        if earlier is None:
            self._entry[name] = value
        elif isinstance(earlier, list):
            earlier.append(value)
        else:
            self._entry[name] = [earlier, value]

    def _end_entry(self, entries: list[Entry | None]) -> None:
        if self._entry_bytes > self._entry_bytes_max:
            entries.append(None)
        elif self._entry:
            entries.append(self._entry)
        self._entry = {}
        self._entry_bytes = 0
