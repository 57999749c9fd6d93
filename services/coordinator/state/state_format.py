"""The encoding of a state topic's records: a version in two bytes, then the fields of that version, for key and value.

A `StateFormat` is one kind of record. The version of a key identifies the kind. Values are read in every version that Kafka
has written, and written in the current one. Owns nothing; records as data. Weak spot: unknown tagged fields of a newer
version are lost when the value is written again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from appliance.base.errors import ProtocolViolation
from appliance.cluster.state_log import StateRecord
from appliance.protocol.schema import NEVER, decode_struct, struct_codec
from appliance.protocol.wire import INT16

Key = TypeVar("Key", bound=tuple[Any, ...])
Value = TypeVar("Value", bound=tuple[Any, ...])
Struct = TypeVar("Struct", bound=tuple[Any, ...])

_VERSION_SIZE: Final = INT16.size


class UnreadableRecord(ValueError):
    """A key or a value that is cut short, lies about a length, or is of a version that is newer than we are."""


class StateFormat(Generic[Key, Value]):
    """One kind of record: the version that its keys are written with, and of its values the last, the first flexible and the one to be written."""

    def __init__(
        self,
        name: str,
        key_version: int,
        key: type[Key],
        value: type[Value],
        *,
        value_version_max: int = 0,
        flexible_since: int = NEVER,
        version_of: Callable[[Value], int] = lambda _value: 0,
    ) -> None:
        self.name = name
        self.key_version = key_version
        self.key = key
        self.value = value
        self._value_version_max = value_version_max
        self._flexible_since = flexible_since
        self._version_of = version_of

    def record(self, key: Key, value: Value | None) -> StateRecord:
        """What is appended; a tombstone without a value."""
        return StateRecord(self.encode_key(key), None if value is None else self.encode_value(value))

    def encode_key(self, key: Key) -> bytes:
        return INT16.pack(self.key_version) + struct_codec(self.key, self.key_version, flexible=False).write(key)

    def decode_key(self, key: bytes) -> Key:
        """Whatever its version, which the caller has looked at."""
        return _decode(self.key, self.key_version, False, key, f"{self.name} key")

    def encode_value(self, value: Value) -> bytes:
        version = self._version_of(value)
        return INT16.pack(version) + struct_codec(self.value, version, self._is_flexible(version)).write(value)

    def decode_value(self, value: bytes) -> Value:
        version = version_of(value)
        if not 0 <= version <= self._value_version_max:
            raise UnreadableRecord(f"{self.name} value of version {version}; 0 to {self._value_version_max} can be read")
        return _decode(self.value, version, self._is_flexible(version), value, f"{self.name} value")

    def _is_flexible(self, version: int) -> bool:
        return version >= self._flexible_since


def version_of(data: bytes) -> int:
    """What the first two bytes of a key or a value say."""
    if len(data) < _VERSION_SIZE:
        raise UnreadableRecord(f"key or value of {len(data)} bytes has no version")
    version: int = INT16.unpack_from(data)[0]
    return version


def _decode(struct: type[Struct], version: int, flexible: bool, data: bytes, what: str) -> Struct:
    try:
        return decode_struct(struct, version, flexible, data, _VERSION_SIZE, len(data), what)
    except ProtocolViolation as violation:
        raise UnreadableRecord(str(violation)) from violation
