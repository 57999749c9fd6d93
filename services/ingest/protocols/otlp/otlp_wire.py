"""Decodes LogRecords from protobuf's wire format in the form that nearly every sender writes, at
half the cost of protobuf's library.

Owned by the process; it caches attributes by their bytes, because most attributes of a sender are
the same in each record. It decodes what is certain: tags of one byte, lengths of at most two,
UTF-8. Attributes and bodies that are not plain values are passed to the library. For anything else
`read_plain` returns None and the library decodes the record; the result is never different from the
library's. Weak: a sender whose attributes are all different fills the cache again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from services.ingest.protocols.otlp.otlp_record import Row

_TIME, _SEVERITY_NUMBER, _SEVERITY_TEXT, _BODY, _ATTRIBUTE, _DROPPED = 0x09, 0x10, 0x1A, 0x2A, 0x32, 0x38
_FLAGS, _TRACE_ID, _SPAN_ID, _OBSERVED_TIME, _EVENT_NAME = 0x45, 0x4A, 0x52, 0x59, 0x62
_KEY, _VALUE = 0x0A, 0x12
_STRING, _BOOL, _INT = 0x0A, 0x10, 0x18
"""First bytes of fields (number << 3 | wire type) of LogRecord, KeyValue and AnyValue."""
_WIRE_TYPE, _SIZED = 0x07, 0x02
_UINT64: Final = Struct("<Q")
_UINT32: Final = Struct("<I")
ATTRIBUTES_SEEN_MAX: Final = 4096
ATTRIBUTE_BYTES_MAX: Final = 128
_INT_BYTES_MAX: Final = 9
"""For a number that is not negative."""

Pair = tuple[str, Any]
_seen: dict[bytes, Pair] = {}


def read_plain(data: bytes, position: int, end: int, pair_of: Callable[[bytes], Pair], value_of: Callable[[bytes], Any]) -> Row | None:
    """Decode the record in a range. `pair_of` decodes any KeyValue, `value_of` any AnyValue; their
    exceptions are passed on.
    """
    time_ns = observed_ns = severity_number = flags = dropped = 0
    severity_text = trace_id = span_id = event_name = ""
    body = None
    has_body = False
    attributes: dict[str, Any] = {}
    attribute_count = 0
    seen = _seen
    try:
        while position < end:
            tag, size, begin = data[position], data[position + 1], position + 2
            if tag & _WIRE_TYPE == _SIZED:
                if size > 0x7F:
                    if data[begin] > 0x7F:
                        return None
                    size, begin = size & 0x7F | data[begin] << 7, begin + 1
                position = begin + size
                if position > end:
                    return None
                content = data[begin:position]
                if tag == _ATTRIBUTE:
                    key, value = seen.get(content) or _read_pair(content, pair_of)
                    attributes[key] = value
                    attribute_count += 1
                elif tag == _TRACE_ID:
                    trace_id = content.hex()
                elif tag == _SPAN_ID:
                    span_id = content.hex()
                elif tag == _SEVERITY_TEXT:
                    severity_text = content.decode()
                elif tag == _BODY:
                    if has_body:
                        return None
                    has_body = True
                    text_at = _string_at(content, 0)
                    body = content[text_at:].decode() if text_at else value_of(content)
                elif tag == _EVENT_NAME:
                    event_name = content.decode()
                else:
                    return None
            elif tag == _TIME:
                (time_ns,) = _UINT64.unpack_from(data, position + 1)
                position += 9
            elif tag == _OBSERVED_TIME:
                (observed_ns,) = _UINT64.unpack_from(data, position + 1)
                position += 9
            elif size > 0x7F and tag != _FLAGS:
                return None
            elif tag == _SEVERITY_NUMBER:
                severity_number, position = size, begin
            elif tag == _DROPPED:
                dropped, position = size, begin
            elif tag == _FLAGS:
                (flags,) = _UINT32.unpack_from(data, position + 1)
                position += 5
            else:
                return None
    except (IndexError, ValueError, StructError):  # it is truncated, or not UTF-8
        return None
    if position != end or len(attributes) != attribute_count:
        return None
    return time_ns, observed_ns, severity_number, severity_text, body, attributes, trace_id, span_id, event_name, flags, dropped


def _read_pair(content: bytes, pair_of: Callable[[bytes], Pair]) -> Pair:
    pair = _read_plain_pair(content) or pair_of(content)
    if len(content) <= ATTRIBUTE_BYTES_MAX:
        if len(_seen) >= ATTRIBUTES_SEEN_MAX:
            _seen.clear()
        _seen[content] = pair
    return pair


def _read_plain_pair(content: bytes) -> Pair | None:
    """Decode a text, a non-negative number or a boolean without anything else."""
    if content[0] != _KEY or content[1] > 0x7F:
        return None
    key_end = 2 + content[1]
    if content[key_end] != _VALUE:
        return None
    size, value_at = content[key_end + 1], key_end + 2
    if size > 0x7F:
        if content[value_at] > 0x7F:
            return None
        size, value_at = size & 0x7F | content[value_at] << 7, value_at + 1
    if value_at + size != len(content) or size < 2:
        return None
    key, kind = content[2:key_end].decode(), content[value_at]
    if kind == _STRING:
        text_at = _string_at(content, value_at)
        return (key, content[text_at:].decode()) if text_at else None
    last = content[-1]
    if kind == _BOOL and size == 2 and last < 2:
        return key, last == 1
    if kind != _INT or size > 1 + _INT_BYTES_MAX:
        return None
    number = 0
    for place, byte in enumerate(content[value_at + 1 :]):
        number |= (byte & 0x7F) << 7 * place
        if (byte > 0x7F) != (place < size - 2):
            return None
    return key, number


def _string_at(content: bytes, value_at: int) -> int:
    """Return where the text of an AnyValue begins that fills the rest of `content`; 0 for any
    other.
    """
    if len(content) < value_at + 2 or content[value_at] != _STRING:
        return 0
    size, text_at = content[value_at + 1], value_at + 2
    if size > 0x7F:
        if len(content) <= text_at or content[text_at] > 0x7F:
            return 0
        size, text_at = size & 0x7F | content[text_at] << 7, text_at + 1
    return text_at if text_at + size == len(content) else 0
