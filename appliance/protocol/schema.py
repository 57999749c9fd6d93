"""Messages as data: a NamedTuple whose annotations name wire types and version ranges, for every version.

For APIs that are not hot; Produce, Fetch and the Metadata response are packed by hand. A field is
`Annotated[type, Field(wire type, since, until, nullable_since)]`. Fields are in the order of the wire, and a
version that lacks a field gives it its default. A nested struct is a NamedTuple class, an array `ArrayOf(…)`
of either. A field with a tag is in the tagged section and is written only if it differs from its default. If
old versions have another shape (one group instead of many), an `OlderShape` translates, and callers see the
new one only. Codecs are made at first use and kept, one per message and version. Modules of messages do not
import `annotations` from `__future__`: typing compiles each annotation that is a text, at every process's start.
Weak spot: the elements of a message are counted in one place (`_elements`), so a process decodes one message
at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast, get_type_hints

from appliance.base.errors import ProtocolViolation
from appliance.base.invariants import check
from appliance.base.model import TopicId
from appliance.protocol.apis import CODED_APIS, ApiKey
from appliance.protocol.wire import (
    ELEMENTS_MAX,
    MALFORMED,
    NO_TAGGED_FIELDS,
    UUID_SIZE,
    Buffer,
    malformed,
    read_bytes,
    read_compact_bytes,
    read_compact_count,
    read_compact_nullable_bytes,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_nullable_bytes,
    read_nullable_string,
    read_string,
    read_tagged_fields,
    require_count,
    skip_tagged_fields,
    truncated,
    write_bytes,
    write_compact_bytes,
    write_compact_count,
    write_compact_nullable_bytes,
    write_compact_nullable_string,
    write_compact_string,
    write_count,
    write_nullable_bytes,
    write_nullable_string,
    write_string,
    write_tagged_fields,
)

NEVER: Final = 1_000
"""Larger than each version: `until=NEVER` for fields that stay, `nullable_since=NEVER` for fields that are never null."""

BODY_SIZE_MAX: Final = 4 << 20
"""No request without records is longer: a body of small elements costs about a microsecond for each, and an event loop reads it."""

Body = TypeVar("Body", bound=tuple[Any, ...])
Reader: TypeAlias = Callable[[Buffer, int, int], tuple[Any, int]]
Writer: TypeAlias = Callable[[Any], bytes]


class FieldCodec(NamedTuple):
    """How one field is read and written in one version; no encoding is shorter than `size_min`."""

    read: Reader
    write: Writer
    size_min: int


class Fixed(NamedTuple):
    """A number of fixed size."""

    layout: Struct


class Bool(NamedTuple):
    """One byte; whatever is not 0 is true."""


class Uuid(NamedTuple):
    """Sixteen bytes, a `TopicId`."""


class Text(NamedTuple):
    """A string, in its old or its compact form."""


class Octets(NamedTuple):
    """Bytes behind their length, in its old or its compact form."""


class ArrayOf(NamedTuple):
    """An array, in its old or its compact form; a tuple in Python."""

    element: WireType


WireType: TypeAlias = Fixed | Bool | Uuid | Text | Octets | ArrayOf | type[tuple[Any, ...]]

INT8: Final = Fixed(Struct(">b"))
INT16: Final = Fixed(Struct(">h"))
UINT16: Final = Fixed(Struct(">H"))
INT32: Final = Fixed(Struct(">i"))
INT64: Final = Fixed(Struct(">q"))
FLOAT64: Final = Fixed(Struct(">d"))
BOOL: Final = Bool()
UUID: Final = Uuid()
STRING: Final = Text()
BYTES: Final = Octets()


class Field(NamedTuple):
    """A wire type and the versions that carry it (inclusive), from which version null is a value, and its tag if it has one."""

    wire_type: WireType
    since: int = 0
    until: int = NEVER
    nullable_since: int = NEVER
    tag: int | None = None


class OlderShape(NamedTuple):
    """What versions up to `until` say with other fields: their class, and the translations from it and to it."""

    until: int
    body: type[tuple[Any, ...]]
    widen: Callable[[Any], Any]
    narrow: Callable[[Any], Any]


class Message(Generic[Body]):
    """One direction of one API: decodes and encodes bodies of class `body` in every version that is coded."""

    def __init__(
        self,
        api_key: ApiKey,
        name: str,
        body: type[Body],
        older: OlderShape | None = None,
        error: Callable[[int, Any, int, str | None], Body] | None = None,
    ) -> None:
        """`error` makes an error response where a body with `error_code` alone is not one."""
        self.api = CODED_APIS[api_key]
        self.name = name
        self.body = body
        self._older = older
        self._error = error

    def decode(self, buffer: Buffer, position: int, limit: int, version: int, size_max: int = BODY_SIZE_MAX, elements_max: int = ELEMENTS_MAX) -> Body:
        """The body in `buffer[position:limit]`; bytes behind it are ignored, as Kafka does."""
        if limit - position > size_max:
            raise ProtocolViolation("body-too-large", f"{self.name} v{version} of {limit - position} bytes is larger than the {size_max} bytes allowed")
        body = decode_struct(self.shape(version), version, self.api.is_flexible(version), buffer, position, limit, self.name, elements_max)
        return self.widened(version, body)

    def encode(self, version: int, body: Body) -> bytes:
        """The body alone."""
        if self._older and version <= self._older.until:
            return self._codec(version).write(self._older.narrow(body))
        return self._codec(version).write(body)

    def encode_response(self, version: int, correlation_id: int, body: Body) -> bytes:
        """The whole frame of a response: size, header, body."""
        return response_frame(self.api.is_flexible(version), correlation_id, self.encode(version, body))

    def error_response(self, version: int, request: Any, error_code: int, message: str | None = None) -> Body:
        """The response to `request` with `error_code` in each place where the API has one."""
        if self._error is not None:
            return self._error(version, request, error_code, message)
        fields: dict[str, Any] = {"error_code": error_code}
        if "error_message" in self.body._fields:  # type: ignore[attr-defined]
            fields["error_message"] = message
        return self.body(**fields)

    def shape(self, version: int) -> type[tuple[Any, ...]]:
        """The class whose fields are on the wire."""
        return self._older.body if self._older and version <= self._older.until else self.body

    def widened(self, version: int, body: tuple[Any, ...]) -> Body:
        """What a body of `shape(version)` means."""
        return cast(Body, self._older.widen(body) if self._older and version <= self._older.until else body)

    def _codec(self, version: int) -> FieldCodec:
        return struct_codec(self.shape(version), version, self.api.is_flexible(version))


class _ElementCount:
    """How many elements the message has that is being read: small ones in nested arrays would cost an event loop seconds."""

    def __init__(self) -> None:
        self._count = 0

    def begin(self, elements_max: int) -> None:
        self._count = ELEMENTS_MAX - elements_max

    def add(self, count: int, position: int) -> None:
        """`count` more, of an array before `position`; a `ProtocolViolation` if they are null or too many."""
        self._count += require_count(count, position, self._count)


_elements: Final = _ElementCount()
_NEGATIVE_BYTE: Final = 0x80
_RESPONSE_HEAD: Final = Struct(">ii")
_FLEXIBLE_RESPONSE_HEAD: Final = Struct(">iiB")


def response_frame(flexible: bool, correlation_id: int, body: bytes) -> bytes:
    """`body` behind its size and the response header of version 1 (flexible) or 0."""
    if flexible:
        return _FLEXIBLE_RESPONSE_HEAD.pack(5 + len(body), correlation_id, 0) + body
    return _RESPONSE_HEAD.pack(4 + len(body), correlation_id) + body


# ---- codecs of one version


@cache
def struct_codec(body: type[tuple[Any, ...]], version: int, flexible: bool) -> FieldCodec:
    """The codec of a NamedTuple class, its fields that `version` lacks left at their defaults."""
    defaults: dict[str, Any] = body._field_defaults  # type: ignore[attr-defined]
    names: tuple[str, ...] = body._fields  # type: ignore[attr-defined]
    hints = get_type_hints(body, include_extras=True)
    present: list[tuple[int, FieldCodec]] = []
    tagged: dict[int, tuple[int, FieldCodec]] = {}
    for index, name in enumerate(names):
        field: Field = hints[name].__metadata__[0]
        always = field.since == 0 and field.until == NEVER and field.tag is None
        check(always or name in defaults, f"{body.__name__}.{name} may be absent and has no default")
        if field.since <= version <= field.until:
            codec = _field_codec(field.wire_type, version, flexible, version >= field.nullable_since)
            if field.tag is None:
                present.append((index, codec))
            else:
                tagged[field.tag] = (index, codec)
    template: list[Any] = [defaults.get(name) for name in names]
    make: Callable[..., Any] = body

    def read(buffer: Buffer, position: int, limit: int) -> tuple[Any, int]:
        values = template.copy()
        for index, codec in present:
            values[index], position = codec.read(buffer, position, limit)
        if tagged:
            position = _read_tagged(tagged, values, buffer, position, limit)
        elif flexible:
            position = skip_tagged_fields(buffer, position, limit)
        return make(*values), position

    def write(value: Any) -> bytes:
        parts = [codec.write(value[index]) for index, codec in present]
        if tagged:
            parts.append(write_tagged_fields([(tag, codec.write(value[index])) for tag, (index, codec) in tagged.items() if value[index] != template[index]]))
        elif flexible:
            parts.append(NO_TAGGED_FIELDS)
        return b"".join(parts)

    check(flexible or not tagged, f"{body.__name__} has tagged fields in version {version}, which is not flexible")
    check(list(tagged) == sorted(tagged), f"{body.__name__} has tags out of order")
    return FieldCodec(read, write, sum(codec.size_min for _, codec in present) + flexible)


def _read_tagged(known: dict[int, tuple[int, FieldCodec]], values: list[Any], buffer: Buffer, position: int, limit: int) -> int:
    """Fills in the fields of `known` that are there; the position behind the tagged section."""
    fields, position = read_tagged_fields(buffer, position, limit)
    for tag, (index, codec) in known.items():
        if tag in fields:
            start, end = fields[tag]
            values[index], found = codec.read(buffer, start, end)
            if found != end:
                raise ProtocolViolation("lying-length", f"tagged field {tag} of {end - start} bytes at byte {start} ends at byte {found}")
    return position


def decode_struct(
    body: type[Body], version: int, flexible: bool, buffer: Buffer, position: int, limit: int, what: str, elements_max: int = ELEMENTS_MAX
) -> Body:
    """The struct at `position`, whatever lies behind it; a `ProtocolViolation` unless it ends at `limit` or before, with at most `elements_max` elements."""
    _elements.begin(elements_max)
    try:
        value, position = struct_codec(body, version, flexible).read(buffer, position, limit)
    except MALFORMED as error:
        raise malformed(what, version, error) from error
    if position > limit:
        raise truncated(what, version, position, limit)
    return cast(Body, value)


def _field_codec(wire_type: WireType, version: int, flexible: bool, nullable: bool) -> FieldCodec:
    match wire_type:
        case Fixed(layout):
            return _fixed_codec(layout)
        case Bool():
            return FieldCodec(_read_bool, _write_bool, 1)
        case Uuid():
            return FieldCodec(_read_uuid, bytes, UUID_SIZE)
        case Text():
            return _TEXT_CODECS[flexible, nullable]
        case Octets():
            return _OCTETS_CODECS[flexible, nullable]
        case ArrayOf(element):
            return _array_codec(_field_codec(element, version, flexible, nullable=False), flexible, nullable)
        case _:
            codec = struct_codec(wire_type, version, flexible)
            return _nullable_struct_codec(codec) if nullable else codec


def _nullable_struct_codec(codec: FieldCodec) -> FieldCodec:
    """One byte in front: −1 for null, 1 for a struct that follows."""

    def read(buffer: Buffer, position: int, limit: int) -> tuple[Any, int]:
        if buffer[position] >= _NEGATIVE_BYTE:
            return None, position + 1
        return codec.read(buffer, position + 1, limit)

    return FieldCodec(read, lambda value: b"\xff" if value is None else b"\1" + codec.write(value), 1)


def _fixed_codec(layout: Struct) -> FieldCodec:
    unpack = layout.unpack_from
    size = layout.size

    def read(buffer: Buffer, position: int, limit: int) -> tuple[Any, int]:
        return unpack(buffer, position)[0], position + size

    return FieldCodec(read, layout.pack, size)


def _read_bool(buffer: Buffer, position: int, limit: int) -> tuple[bool, int]:
    return buffer[position] != 0, position + 1


def _write_bool(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def _read_uuid(buffer: Buffer, position: int, limit: int) -> tuple[TopicId, int]:
    end = position + UUID_SIZE
    if end > limit:
        raise ProtocolViolation("truncated-request", f"topic id at byte {position} of a frame that ends at byte {limit}")
    return TopicId(bytes(buffer[position:end])), end


_TEXT_CODECS: Final = {
    (False, False): FieldCodec(read_string, write_string, 2),
    (False, True): FieldCodec(read_nullable_string, write_nullable_string, 2),
    (True, False): FieldCodec(read_compact_string, write_compact_string, 1),
    (True, True): FieldCodec(read_compact_nullable_string, write_compact_nullable_string, 1),
}

_OCTETS_CODECS: Final = {
    (False, False): FieldCodec(read_bytes, write_bytes, 4),
    (False, True): FieldCodec(read_nullable_bytes, write_nullable_bytes, 4),
    (True, False): FieldCodec(read_compact_bytes, write_compact_bytes, 1),
    (True, True): FieldCodec(read_compact_nullable_bytes, write_compact_nullable_bytes, 1),
}


def _array_codec(element: FieldCodec, flexible: bool, nullable: bool) -> FieldCodec:
    read_array_count = read_compact_count if flexible else read_count
    write_array_count = write_compact_count if flexible else write_count

    def read(buffer: Buffer, position: int, limit: int) -> tuple[tuple[Any, ...] | None, int]:
        count, position = read_array_count(buffer, position, limit, element.size_min)
        if count < 0 and nullable:
            return None, position
        _elements.add(count, position)
        values = []
        for _ in range(count):
            value, position = element.read(buffer, position, limit)
            values.append(value)
        return tuple(values), position

    def write(values: tuple[Any, ...] | None) -> bytes:
        if values is None:
            check(nullable, "an array that may not be null is null")
            return write_array_count(-1)
        return write_array_count(len(values)) + b"".join([element.write(value) for value in values])

    return FieldCodec(read, write, 1 if flexible else 4)
