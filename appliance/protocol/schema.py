"""Messages as data: a NamedTuple whose annotations name wire types and version ranges, read and written in every version.

For the APIs that are asked seldom; Produce, Fetch and the Metadata response are packed by hand. A field is
`Annotated[type, Field(wire type, since, until, nullable_since)]`; fields stand in the order of the wire, and a version that lacks a field
gives it its default. A nested struct is a NamedTuple class, an array `ArrayOf(…)` of either. Layouts are made at first use
and kept, one per message and version. Owned by nobody. Weak spot: known tagged fields are not expressible (unknown ones are skipped,
none is written); no message kept here needs one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast, get_type_hints

from appliance.base.errors import ProtocolViolation
from appliance.base.invariants import check
from appliance.base.model import TopicId
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.wire import (
    MALFORMED,
    NO_TAGGED_FIELDS,
    UUID_SIZE,
    Buffer,
    malformed,
    read_compact_count,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_nullable_string,
    read_string,
    require_count,
    skip_tagged_fields,
    truncated,
    write_compact_count,
    write_compact_nullable_string,
    write_compact_string,
    write_count,
    write_nullable_string,
    write_string,
)

NEVER: Final = 1_000
"""A version nobody reaches: `until=NEVER` for fields that stay, `nullable_since=NEVER` for fields that are never null."""

BODY_SIZE_MAX: Final = 4 << 20
"""No request without records is longer: a body of small elements costs about a microsecond for each, and an event loop reads it."""

Body = TypeVar("Body", bound=tuple[Any, ...])
Reader: TypeAlias = Callable[[Buffer, int, int], tuple[Any, int]]
Writer: TypeAlias = Callable[[Any], bytes]


class Codec(NamedTuple):
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


class ArrayOf(NamedTuple):
    """An array, in its old or its compact form; a tuple in Python."""

    element: WireType


WireType: TypeAlias = Fixed | Bool | Uuid | Text | ArrayOf | type[tuple[Any, ...]]

INT8: Final = Fixed(Struct(">b"))
INT16: Final = Fixed(Struct(">h"))
INT32: Final = Fixed(Struct(">i"))
INT64: Final = Fixed(Struct(">q"))
BOOL: Final = Bool()
UUID: Final = Uuid()
STRING: Final = Text()


class Field(NamedTuple):
    """A wire type and the versions that carry it (inclusive), and from which version null is a value."""

    wire_type: WireType
    since: int = 0
    until: int = NEVER
    nullable_since: int = NEVER


class Message(Generic[Body]):
    """One direction of one API: decodes and encodes bodies of class `body` in every version that is served."""

    def __init__(self, api_key: ApiKey, name: str, body: type[Body]) -> None:
        self.api = SERVED_APIS[api_key]
        self.name = name
        self.body = body

    def decode(self, buffer: Buffer, position: int, limit: int, version: int) -> Body:
        """The body in `buffer[position:limit]`; bytes behind it are ignored, as Kafka does."""
        if limit - position > BODY_SIZE_MAX:
            raise ProtocolViolation("body-too-large", f"{self.name} v{version} of {limit - position} bytes is larger than the {BODY_SIZE_MAX} bytes allowed")
        try:
            body, position = self._codec(version).read(buffer, position, limit)
        except MALFORMED as error:
            raise malformed(self.name, version, error) from error
        if position > limit:
            raise truncated(self.name, version, position, limit)
        return cast(Body, body)

    def encode(self, version: int, body: Body) -> bytes:
        """The body alone."""
        return self._codec(version).write(body)

    def encode_response(self, version: int, correlation_id: int, body: Body) -> bytes:
        """The whole frame of a response: size, header, body."""
        return response_frame(self.api.is_flexible(version), correlation_id, self.encode(version, body))

    def _codec(self, version: int) -> Codec:
        return struct_codec(self.body, version, self.api.is_flexible(version))


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
def struct_codec(body: type[tuple[Any, ...]], version: int, flexible: bool) -> Codec:
    """The codec of a NamedTuple class, its fields that `version` lacks left at their defaults."""
    defaults: dict[str, Any] = body._field_defaults  # type: ignore[attr-defined]
    names: tuple[str, ...] = body._fields  # type: ignore[attr-defined]
    hints = get_type_hints(body, include_extras=True)
    present: list[tuple[int, Codec]] = []
    for index, name in enumerate(names):
        field: Field = hints[name].__metadata__[0]
        if field.since <= version <= field.until:
            present.append((index, _field_codec(field.wire_type, version, flexible, version >= field.nullable_since)))
        else:
            check(name in defaults, f"{body.__name__}.{name} is absent in version {version} and has no default")
    template: list[Any] = [defaults.get(name) for name in names]
    make: Callable[..., Any] = body

    def read(buffer: Buffer, position: int, limit: int) -> tuple[Any, int]:
        values = template.copy()
        for index, codec in present:
            values[index], position = codec.read(buffer, position, limit)
        if flexible:
            position = skip_tagged_fields(buffer, position, limit)
        return make(*values), position

    def write(value: Any) -> bytes:
        parts = [codec.write(value[index]) for index, codec in present]
        if flexible:
            parts.append(NO_TAGGED_FIELDS)
        return b"".join(parts)

    return Codec(read, write, sum(codec.size_min for _, codec in present) + flexible)


def _field_codec(wire_type: WireType, version: int, flexible: bool, nullable: bool) -> Codec:
    match wire_type:
        case Fixed(layout):
            return _fixed_codec(layout)
        case Bool():
            return Codec(_read_bool, _write_bool, 1)
        case Uuid():
            return Codec(_read_uuid, bytes, UUID_SIZE)
        case Text():
            return _TEXT_CODECS[flexible, nullable]
        case ArrayOf(element):
            return _array_codec(_field_codec(element, version, flexible, nullable=False), flexible, nullable)
        case _:
            codec = struct_codec(wire_type, version, flexible)
            return _nullable_struct_codec(codec) if nullable else codec


def _nullable_struct_codec(codec: Codec) -> Codec:
    """One byte in front: −1 for null, 1 for a struct that follows."""

    def read(buffer: Buffer, position: int, limit: int) -> tuple[Any, int]:
        if buffer[position] >= _NEGATIVE_BYTE:
            return None, position + 1
        return codec.read(buffer, position + 1, limit)

    return Codec(read, lambda value: b"\xff" if value is None else b"\1" + codec.write(value), 1)


def _fixed_codec(layout: Struct) -> Codec:
    unpack = layout.unpack_from
    size = layout.size

    def read(buffer: Buffer, position: int, limit: int) -> tuple[Any, int]:
        return unpack(buffer, position)[0], position + size

    return Codec(read, layout.pack, size)


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
    (False, False): Codec(read_string, write_string, 2),
    (False, True): Codec(read_nullable_string, write_nullable_string, 2),
    (True, False): Codec(read_compact_string, write_compact_string, 1),
    (True, True): Codec(read_compact_nullable_string, write_compact_nullable_string, 1),
}


def _array_codec(element: Codec, flexible: bool, nullable: bool) -> Codec:
    read_array_count = read_compact_count if flexible else read_count
    write_array_count = write_compact_count if flexible else write_count

    def read(buffer: Buffer, position: int, limit: int) -> tuple[tuple[Any, ...] | None, int]:
        count, position = read_array_count(buffer, position, limit, element.size_min)
        if count < 0 and nullable:
            return None, position
        values = []
        for _ in range(require_count(count, position)):
            value, position = element.read(buffer, position, limit)
            values.append(value)
        return tuple(values), position

    def write(values: tuple[Any, ...] | None) -> bytes:
        if values is None:
            check(nullable, "an array that may not be null is null")
            return write_array_count(-1)
        return write_array_count(len(values)) + b"".join([element.write(value) for value in values])

    return Codec(read, write, 1 if flexible else 4)
