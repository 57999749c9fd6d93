"""Kafka's messages as the client side writes and reads them: plain dictionaries in, kio's dataclasses out.

A request is one nested dictionary that serves all versions of its API: fields that a version does not have are left
out, fields not given take Kafka's default. kio (20 MB) is imported at the first message, so importing this is
cheap. Weak spot: a misspelt field name is silently "a field that this version does not have"; the tests against a
foreign broker are what catches it.
"""

from __future__ import annotations

import importlib
import io
import struct
from functools import lru_cache
from typing import Any, NamedTuple

from appliance.base.errors import ProtocolViolation


class Api(NamedTuple):
    """One API and the versions of it that this client speaks."""

    key: int
    name: str
    min_version: int
    max_version: int
    first_flexible_version: int

    def is_flexible(self, version: int) -> bool:
        return version >= self.first_flexible_version


PRODUCE = Api(0, "produce", 3, 9, 9)
FETCH = Api(1, "fetch", 4, 12, 12)
"""By topic name: from 13 on, topics are named by id."""
LIST_OFFSETS = Api(2, "list_offsets", 1, 7, 6)
METADATA = Api(3, "metadata", 1, 12, 9)
OFFSET_COMMIT = Api(8, "offset_commit", 2, 8, 8)
OFFSET_FETCH = Api(9, "offset_fetch", 8, 8, 6)
"""From 8 on several groups at once."""
FIND_COORDINATOR = Api(10, "find_coordinator", 4, 4, 3)
"""From 4 on several keys at once."""
DESCRIBE_GROUPS = Api(15, "describe_groups", 1, 5, 5)
LIST_GROUPS = Api(16, "list_groups", 0, 5, 3)
API_VERSIONS = Api(18, "api_versions", 0, 3, 3)
CREATE_TOPICS = Api(19, "create_topics", 4, 7, 5)
"""From 4 on -1 means the broker's default number of partitions and of replicas."""
DELETE_TOPICS = Api(20, "delete_topics", 1, 5, 4)
"""From 6 on the request has another shape, for deletion by id."""
DELETE_RECORDS = Api(21, "delete_records", 0, 2, 2)
INIT_PRODUCER_ID = Api(22, "init_producer_id", 2, 4, 2)
ADD_PARTITIONS_TO_TXN = Api(24, "add_partitions_to_txn", 0, 3, 3)
"""From 4 on for brokers among themselves."""
ADD_OFFSETS_TO_TXN = Api(25, "add_offsets_to_txn", 0, 3, 3)
END_TXN = Api(26, "end_txn", 0, 3, 3)
"""From 5 on every end raises the producer's epoch (KIP-890)."""
WRITE_TXN_MARKERS = Api(27, "write_txn_markers", 1, 1, 1)
TXN_OFFSET_COMMIT = Api(28, "txn_offset_commit", 0, 3, 3)
DESCRIBE_CONFIGS = Api(32, "describe_configs", 1, 4, 4)
"""From 1 on an answer says where a value comes from."""
DESCRIBE_LOG_DIRS = Api(35, "describe_log_dirs", 1, 4, 2)
"""From 4 on with the size of the disk and what is free."""
CREATE_PARTITIONS = Api(37, "create_partitions", 0, 3, 2)
DELETE_GROUPS = Api(42, "delete_groups", 0, 2, 2)
ELECT_LEADERS = Api(43, "elect_leaders", 1, 2, 2)
"""From 1 on an election may be unclean."""
INCREMENTAL_ALTER_CONFIGS = Api(44, "incremental_alter_configs", 0, 1, 1)
ALTER_PARTITION_REASSIGNMENTS = Api(45, "alter_partition_reassignments", 0, 0, 0)
LIST_PARTITION_REASSIGNMENTS = Api(46, "list_partition_reassignments", 0, 0, 0)
DESCRIBE_CLUSTER = Api(60, "describe_cluster", 0, 1, 0)
DESCRIBE_PRODUCERS = Api(61, "describe_producers", 0, 0, 0)
UNREGISTER_BROKER = Api(64, "unregister_broker", 0, 0, 0)
DESCRIBE_TRANSACTIONS = Api(65, "describe_transactions", 0, 0, 0)
LIST_TRANSACTIONS = Api(66, "list_transactions", 0, 1, 0)
CONSUMER_GROUP_DESCRIBE = Api(69, "consumer_group_describe", 0, 0, 0)

_FRAME_SIZE = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhi")
CORRELATION_ID = struct.Struct(">i")


def encode_request(api: Api, version: int, correlation_id: int, client_id: str, values: dict[str, Any]) -> bytes:
    """The whole frame, its size first."""
    request_class = _message_class(api, version, "request")
    body = io.BytesIO()
    _writer(request_class)(body, _build(request_class, values))
    client = client_id.encode()
    header = _REQUEST_HEADER.pack(api.key, version, correlation_id) + struct.pack(">h", len(client)) + client
    if api.is_flexible(version):
        header += b"\x00"  # no tagged fields
    return b"".join((_FRAME_SIZE.pack(len(header) + body.tell()), header, body.getbuffer()))


def decode_response(api: Api, version: int, frame: bytes) -> Any:
    """kio's dataclass of a response `frame` (without its size). Raises ProtocolViolation if it is not one."""
    position = CORRELATION_ID.size
    # ApiVersions answers with the old header whatever its version: a client that asked too new a version must be able to read it.
    if api.is_flexible(version) and api is not API_VERSIONS:
        position = _after_tagged_fields(frame, position)
    if api is DESCRIBE_TRANSACTIONS:
        # kio refuses the start -1 that brokers tell of a transaction at rest.
        from appliance.protocol import transaction_apis

        return transaction_apis.DESCRIBE_TRANSACTIONS_RESPONSE.decode(frame, position, len(frame), version)
    from appliance.protocol.kio_bounds import check_bounds

    message_class = _message_class(api, version, "response")
    check_bounds(message_class, memoryview(frame)[position:])
    try:
        response, _ = _reader(message_class)(frame, position)
    except Exception as error:  # kio raises many kinds; each means that the bytes are not what they should be
        raise ProtocolViolation("client_response", f"a {api.name} response (version {version}) could not be read: {error}") from error
    return response


def _after_tagged_fields(frame: bytes, position: int) -> int:
    if position < len(frame) and frame[position] == 0:
        return position + 1
    try:
        count, position = _unsigned_varint(frame, position)
        for _ in range(count):
            _, position = _unsigned_varint(frame, position)
            size_bytes, position = _unsigned_varint(frame, position)
            position += size_bytes
    except IndexError:
        position = len(frame) + 1
    if position > len(frame):
        raise ProtocolViolation("client_response", "a response header ends inside its tagged fields")
    return position


def _unsigned_varint(frame: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 28:
            return value, position
        shift += 7


def _build(entity_class: Any, values: dict[str, Any]) -> Any:
    """An instance of kio's `entity_class` from those of `values` that it has a field for."""
    arguments = {}
    for name, nested_class, is_milliseconds in _fields(entity_class):
        if name not in values:
            continue
        value = values[name]
        if nested_class is not None and value is not None:
            value = tuple(_build(nested_class, item) for item in value)
        elif isinstance(value, list):
            value = tuple(value)
        elif is_milliseconds:
            value = _milliseconds(value)
        arguments[name] = value
    return entity_class(**arguments)


@lru_cache(maxsize=64)
def _fields(entity_class: Any) -> tuple[tuple[str, Any | None, bool], ...]:
    """(name, class of an array's elements if they are structures, is a duration) of each field."""
    import dataclasses
    import typing

    found = []
    for field in dataclasses.fields(entity_class):
        candidates = [argument for part in (field.type, *typing.get_args(field.type)) for argument in (part, *typing.get_args(part))]
        nested = [candidate for candidate in candidates if dataclasses.is_dataclass(candidate)]
        found.append((field.name, nested[0] if nested else None, str(field.metadata.get("kafka_type", "")).startswith("timedelta")))
    return tuple(found)


def _milliseconds(value: int) -> Any:
    import datetime

    return datetime.timedelta(milliseconds=value)


@lru_cache(maxsize=64)
def _message_class(api: Api, version: int, side: str) -> Any:
    module = importlib.import_module(f"kio.schema.{api.name}.v{version}.{side}")
    return getattr(module, "".join(word.capitalize() for word in (*api.name.split("_"), side)))


@lru_cache(maxsize=64)
def _writer(entity_class: Any) -> Any:
    return importlib.import_module("kio.serial").entity_writer(entity_class)


@lru_cache(maxsize=64)
def _reader(entity_class: Any) -> Any:
    return importlib.import_module("kio.serial").entity_reader(entity_class)
