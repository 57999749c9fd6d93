"""What is said on `controller.sock`: Kafka requests handed on whole, changes of the metadata image, topics to create by the way."""

from __future__ import annotations

from struct import Struct

KAFKA_REQUEST = 1
"""acceptor → controller: int16 api key, int16 api version, int16 length of client id, client id, request body."""
KAFKA_RESPONSE = 2
"""controller → acceptor: the response body, without size and header. Empty: the request could not be answered, close the connection."""
IMAGE_CHANGED = 3
"""controller → everyone connected, at connect and at each change: u64 generation."""
AUTO_CREATE = 4
"""acceptor or ingest → controller: JSON {"topics": [name, …]} or {"topics": {name: partitions}}."""
AUTO_CREATE_DONE = 5
"""controller → asker: JSON {"errors": {name: Kafka error code}}; 0 and TOPIC_ALREADY_EXISTS mean that it is there."""

GENERATION = Struct("<Q")
_REQUEST = Struct("<hhh")


def pack_kafka_request(api_key: int, api_version: int, client_id: str, body: bytes) -> bytes:
    """The payload of KAFKA_REQUEST."""
    identity = client_id.encode()[:32767]
    return _REQUEST.pack(api_key, api_version, len(identity)) + identity + body


def unpack_kafka_request(payload: bytes) -> tuple[int, int, str, bytes]:
    """(api key, api version, client id, body)."""
    api_key, api_version, length = _REQUEST.unpack_from(payload)
    body_position = _REQUEST.size + length
    return api_key, api_version, payload[_REQUEST.size : body_position].decode(), payload[body_position:]
