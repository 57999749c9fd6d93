"""The four forms of a message of Fluent's forward protocol (v1), and their entries as records.

Pure functions over whole messages: `[tag, time, record, option?]` (FluentMessage), `[tag, [[time,
record], …], option?]` (Forward), `[tag, bytes, option?]` (PackedForward, and
CompressedPackedForward with `compressed: gzip` or `zstd`). Entries are decoded in slices. An
invalid entry is stored with `parsed: false`; so is a chunk that cannot be decompressed, and one of
metrics or traces (`fluent_signal`), which has no entries. Weak: `size` in the options is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import msgpack

from appliance.senders.listener import Listener
from services.ingest.protocols.bounded_inflate import NotCompressed, TooLarge, inflate_slowly
from services.ingest.protocols.document import Extension, deep_text, encode_document, utf8
from services.ingest.protocols.fluent.msgpack_stream import decode_objects, has_many_containers, may_hold_nan, pieces_of, read_stamped, split_objects
from services.ingest.records.agent_event import agent_record, epoch_ns, unparsed_record
from services.ingest.records.agent_events import Common, agent_records, common_of
from services.ingest.records.ingest_record import IngestRecord

_NS: Final = 1_000_000_000
_EVENT_TIME, _EVENT_TIME_LAYOUT = 0, Struct(">II")
"""The extension type of a time: seconds and nanoseconds."""
_LARGE_BYTES: Final = 1 << 18
SLICE_RECORDS: Final = 128
"""Entries in a slice: their data is still in the processor's caches when they are stored."""
_COMPRESSIONS: Final = ("gzip", "zstd")
ENTRIES_MAX: Final = 500_000
"""Limit for one chunk: an entry can take one byte, or a thousandth of a compressed byte, and costs
hundreds of bytes here. Fluentd's largest chunk (8 MB) has fewer.
"""
_LOGS: Final = 0
_LIST_HEADERS: Final = {0xDC: 3, 0xDD: 5}
_TEXTS: Final = frozenset((*range(0xA0, 0xC0), 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB))


class FluentMessage(NamedTuple):
    """One message. `packed` has its entries in msgpack, possibly compressed; otherwise `opened` are
    the entries.
    """

    tag: str
    option: dict[Any, Any]
    packed: bytes | None = None
    opened: Sequence[Any] = ()
    careful: bool = False
    """`opened` may contain NaN."""

    @property
    def chunk(self) -> Any:
        """The chunk id to acknowledge; None if there is none, or it is empty: an empty id would be
        that of every chunk.
        """
        chunk = self.option.get("chunk")
        return chunk if type(chunk) in (str, bytes, int) and chunk not in ("", b"") else None


def read_messages(data: bytes, ends: Sequence[int]) -> Iterator[FluentMessage | None]:
    """Decode whole messages; None for each invalid one."""
    if len(data) <= _LARGE_BYTES:
        careful = may_hold_nan(data)
        for value in decode_objects(data, ends):
            yield _message_of(value, careful)
        return
    start = 0
    for end in ends:
        message = data[start:end]
        yield _read_message(message)
        start = end


def _read_message(data: bytes) -> FluentMessage | None:
    if len(data) > _LARGE_BYTES:
        if (message := _read_large_forward(data)) is not None:
            return message
        if data[_second_at(data)] not in _TEXTS and has_many_containers(data):
            return None
    return _message_of(decode_objects(data, [len(data)])[0], may_hold_nan(data) if len(data) <= _LARGE_BYTES else True)


def _second_at(data: bytes) -> int:
    """Return where the second element of a message begins; 0 if there is none."""
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(data)
    try:
        if unpacker.read_array_header() < 2:
            return 0
        unpacker.skip()
    except (msgpack.UnpackException, ValueError):
        return 0
    return int(unpacker.tell())


def _read_large_forward(data: bytes) -> FluentMessage | None:
    """Return a message of Forward mode with undecoded entries; None for any other."""
    second = _second_at(data)
    header_bytes = 1 if 0x90 <= data[second] <= 0x9F else _LIST_HEADERS.get(data[second], 0)
    if not second or not header_bytes:
        return None
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(data[second:])
    unpacker.skip()
    end = second + unpacker.tell()
    if end == second + header_bytes:
        return None  # an empty list in a message that is otherwise large
    # without its entries it is a small message of the same form
    small = _message_of(decode_objects(data[:second] + b"\x90" + data[end:], [second + 1 + len(data) - end])[0], False)
    first = data[second + header_bytes]
    if small is None or not (0x90 <= first <= 0x9F or first in _LIST_HEADERS):
        return None
    return small._replace(packed=data[second + header_bytes : end], option={**small.option, "compressed": None})


def _message_of(value: Any, careful: bool) -> FluentMessage | None:
    if type(value) is not list or not 2 <= len(value) <= 4:
        return None
    tag, second = _text(value[0]), value[1]
    option = value[-1] if len(value) > 2 and type(value[-1]) is dict else {}
    if len(value) < 4:
        if type(second) is bytes:
            return FluentMessage(tag, option, second)
        if type(second) is str:
            return FluentMessage(tag, option, utf8(second))
        if type(second) is list and not (len(value) == 3 and _is_time_with_metadata(second)):
            return FluentMessage(tag, option, None, second, careful)
    if len(value) < 3 or type(value[2]) is not dict:
        return None
    return FluentMessage(tag, option if len(value) == 4 else {}, None, ((second, value[2]),), careful)


def _is_time_with_metadata(value: list[Any]) -> bool:
    return len(value) == 2 and type(value[0]) is not list and type(value[1]) is dict


def _text(tag: object) -> str:
    return tag if type(tag) is str else tag.decode("utf-8", "surrogateescape") if type(tag) is bytes else deep_text(tag)


def records_of(message: FluentMessage, listener: Listener, charge: Callable[[int], None] = lambda _bytes: None) -> Iterator[tuple[Sequence[IngestRecord], int]]:
    """Return the records of a message in slices, and the number of invalid entries; a slice without
    records is a step before the first. Raises TooLarge for a chunk above the limit. `charge`: `SessionConnection.charge`.
    """
    known = {"tag": message.tag}
    if len(message.opened) > ENTRIES_MAX:
        raise _too_many()
    if message.packed is None:
        if message.careful:
            yield from _slices(message.opened, listener, known, True)
        else:
            yield from _records_of(message.opened, listener, common_of(known))
        return
    if message.option.get("fluent_signal", _LOGS) != _LOGS:
        yield [unparsed_record(message.packed, "not logs, but metrics or traces", listener, known)], 1
        return
    opening = _opened(message, listener.decompressed_bytes_max)
    while True:
        try:
            next(opening)
        except StopIteration as end:
            entries, ends, behind = end.value
            charge(len(entries) - len(message.packed))
            break
        except NotCompressed as problem:
            yield [unparsed_record(message.packed, str(problem), listener, known)], 1
            return
        yield (), 0
    if len(ends) > ENTRIES_MAX:
        raise _too_many()
    common = common_of(known)
    start = first = 0
    for piece, last in pieces_of(entries, ends):
        piece_ends = [end - start for end in ends[first:last]]
        careful = may_hold_nan(piece)
        if last == first + 1 and has_many_containers(piece):
            yield [unparsed_record(piece, "not an entry that can be decoded", listener, known)], 1
        elif careful:
            yield from _slices(decode_objects(piece, piece_ends), listener, known, True)
        elif (stamped := read_stamped(piece, piece_ends)) is not None:
            yield from _plain_records(*stamped, listener, common)
        else:
            yield from _records_of(decode_objects(piece, piece_ends), listener, common)
        start, first = ends[last - 1], last
    if behind:
        yield [unparsed_record(entries[ends[-1] if ends else 0 :], behind, listener, known)], 1


def _records_of(entries: Sequence[Any], listener: Listener, common: Common) -> Iterator[tuple[Sequence[IngestRecord], int]]:
    """For entries without NaN."""
    plain = _plain_entries(entries)
    if plain is None:
        yield from _slices(entries, listener, common.known, False)
    else:
        yield from _plain_records(*plain, listener, common)


def _plain_entries(entries: Sequence[Any]) -> tuple[list[int | None], list[dict[str, Any]]] | None:
    """Return times and maps if all entries are pairs of these and nothing else."""
    times_ns: list[int | None] = []
    fields: list[dict[str, Any]] = []
    for entry in entries:
        if type(entry) not in (list, tuple) or len(entry) != 2 or type(entry[1]) is not dict:
            return None
        time = entry[0]
        if type(time) is list and _is_time_with_metadata(time) and not time[1]:
            time = time[0]
        time_ns, time_text = _time_of(time)
        if time_text:
            return None
        times_ns.append(time_ns)
        fields.append(entry[1])
    return times_ns, fields


def _plain_records(
    times_ns: Sequence[int | None], fields: Sequence[dict[str, Any]], listener: Listener, common: Common
) -> Iterator[tuple[Sequence[IngestRecord], int]]:
    for start in range(0, len(fields), SLICE_RECORDS):
        yield agent_records(fields[start : start + SLICE_RECORDS], listener, common, times_ns[start : start + SLICE_RECORDS]), 0


def _too_many() -> TooLarge:
    return TooLarge(f"a chunk has more than {ENTRIES_MAX} entries")


Opened = tuple[bytes, list[int], str]
"""Entries, where each ends, and the problem after the last one."""


def _opened(message: FluentMessage, opened_bytes_max: int) -> Generator[None, None, Opened]:
    entries = yield from _inflated(message, opened_bytes_max)
    return entries, *(yield from split_objects(entries, ENTRIES_MAX))


def _inflated(message: FluentMessage, opened_bytes_max: int) -> Generator[None, None, bytes]:
    assert message.packed is not None
    compressed = message.option.get("compressed")
    if compressed in (None, "text"):
        return message.packed
    if type(compressed) is not str or compressed not in _COMPRESSIONS:
        raise NotCompressed(f"compressed: {deep_text(compressed)} is not known")
    return (yield from inflate_slowly(compressed, message.packed, opened_bytes_max))


def _slices(entries: Sequence[Any], listener: Listener, known: dict[str, Any], careful: bool) -> Iterator[tuple[list[IngestRecord], int]]:
    for start in range(0, len(entries), SLICE_RECORDS):
        yield records_of_entries(entries[start : start + SLICE_RECORDS], listener, known, careful)


def records_of_entries(entries: Sequence[Any], listener: Listener, known: dict[str, Any], careful: bool) -> tuple[list[IngestRecord], int]:
    records: list[IngestRecord] = []
    unparsed = 0
    for entry in entries:
        try:
            time, fields = entry
        except (TypeError, ValueError):
            fields = None
        if type(fields) is not dict:
            unparsed += 1
            records.append(unparsed_record(encode_document(entry, True), "an entry is not a pair of time and record", listener, known))
            continue
        what = known
        if type(time) is list and _is_time_with_metadata(time):
            time, metadata = time
            if metadata:
                what = {**known, "metadata": metadata}
        time_ns, time_text = _time_of(time)
        records.append(agent_record(fields, listener, what, time_ns, time_text, careful=careful))
    return records, unparsed


def _time_of(time: Any) -> tuple[int | None, str]:
    kind = type(time)
    if kind is Extension and time.code == _EVENT_TIME and len(time.data) == _EVENT_TIME_LAYOUT.size:
        seconds, nanoseconds = _EVENT_TIME_LAYOUT.unpack(time.data)
        return seconds * _NS + nanoseconds, ""
    if kind is int or kind is float:
        time_ns = epoch_ns(time)  # milliseconds from some loggers
        return (time_ns, "") if time_ns is not None else (None, deep_text(time))
    if kind is msgpack.Timestamp:
        return time.to_unix_nano(), ""
    if time is None:
        return None, ""
    return None, time if kind is str else deep_text(time)
