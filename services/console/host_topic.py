"""The topic of the machine's figures and its two requests, CreateTopics and Produce. Bytes only;
`console_host` owns the socket.

Encoded here, because twenty records in ten seconds need no producer with partitions, retries and
batches. CreateTopics 4 is the last version without tagged fields. Weak: the single partition is
addressed where the metadata image says.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.protocol import sasl_apis, topic_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.wire import write_bytes, write_count, write_nullable_string, write_string
from appliance.records.builder import BatchBuilder
from appliance.records.compression import Codec

CREATE_VERSION: Final = 4
PRODUCE_VERSION: Final = 7
LOGIN_VERSION: Final = 1
CLIENT_ID: Final = "millrace-console"
TIMEOUT_MS: Final = 10_000
RESPONSE_BYTES_MAX: Final = 1 << 20
ACKS_ALL: Final = -1

TOPIC_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * 24 * 3600 * 1000),
    "retention.bytes": str(256 * 1024 * 1024),
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(24 * 3600 * 1000),
}
"""Initial configs of the topic; an operator changes them like those of any topic."""

FRAME_SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">hhi")
_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_INT32: Final = Struct(">i")
_PRODUCED: Final = Struct(">ih")


def create_topic_request(correlation_id: int, topic: str) -> bytes:
    """Return a request for one partition with the broker's default number of replicas."""
    configs = tuple(topic_apis.TopicConfig(name, value) for name, value in TOPIC_CONFIGS.items())
    request = topic_apis.CreateTopicsRequest((topic_apis.CreatableTopic(topic, 1, -1, (), configs),), TIMEOUT_MS)
    return _frame(ApiKey.CREATE_TOPICS, CREATE_VERSION, correlation_id, topic_apis.CREATE_TOPICS_REQUEST.encode(CREATE_VERSION, request))


def create_topic_answer(frame: bytes, correlation_id: int) -> int:
    """Return the error code of the topic. Raises `ProtocolViolation`."""
    answer = topic_apis.CREATE_TOPICS_RESPONSE.decode(frame, _after_header(frame, correlation_id), len(frame), CREATE_VERSION)
    if len(answer.topics) != 1:
        raise ProtocolViolation("client_response", f"an answer about {len(answer.topics)} topics, where one was asked for")
    return answer.topics[0].error_code


def handshake_request(correlation_id: int, mechanism: str) -> bytes:
    """Return the first request of a login to another box."""
    body = sasl_apis.SASL_HANDSHAKE_REQUEST.encode(LOGIN_VERSION, sasl_apis.SaslHandshakeRequest(mechanism))
    return _frame(ApiKey.SASL_HANDSHAKE, LOGIN_VERSION, correlation_id, body)


def check_handshake(frame: bytes, correlation_id: int) -> None:
    """Raise ValueError if the box does not take the mechanism. Raises `ProtocolViolation`."""
    answer = sasl_apis.SASL_HANDSHAKE_RESPONSE.decode(frame, _after_header(frame, correlation_id), len(frame), LOGIN_VERSION)
    if answer.error_code:
        raise ValueError(f"the box takes {', '.join(answer.mechanisms)} only (sasl.enabled.mechanisms of its listener)")


def authenticate_request(correlation_id: int, token: bytes) -> bytes:
    """Return a request with a token of the login."""
    body = sasl_apis.SASL_AUTHENTICATE_REQUEST.encode(LOGIN_VERSION, sasl_apis.SaslAuthenticateRequest(token))
    return _frame(ApiKey.SASL_AUTHENTICATE, LOGIN_VERSION, correlation_id, body)


def authenticate_answer(frame: bytes, correlation_id: int) -> bytes:
    """Return the box's token. Raises ValueError if it refuses the user, and `ProtocolViolation`."""
    answer = sasl_apis.SASL_AUTHENTICATE_RESPONSE.decode(frame, _after_header(frame, correlation_id), len(frame), LOGIN_VERSION)
    if answer.error_code:
        raise ValueError(f"the box refused inter.broker.user: {answer.error_message}")
    return bytes(answer.auth_bytes)


def produce_request(correlation_id: int, topic: str, key: bytes, records: Iterable[tuple[int, bytes]]) -> bytes:
    """Return a request with one batch of `records` for partition 0: (timestamp in ms, value) each.
    gzip, which all clients can read."""
    builder = BatchBuilder(Codec.GZIP)
    for timestamp_ms, value in records:
        builder.append(timestamp_ms, key, value)
    body = b"".join(
        (
            write_nullable_string(None),
            _ACKS_AND_TIMEOUT.pack(ACKS_ALL, TIMEOUT_MS),
            write_count(1),
            write_string(topic),
            write_count(1),
            _INT32.pack(0),
            write_bytes(builder.build()),
        )
    )
    return _frame(ApiKey.PRODUCE, PRODUCE_VERSION, correlation_id, body)


def produce_answer(frame: bytes, correlation_id: int, topic: str) -> int:
    """Return the error code of the single partition. Raises `ProtocolViolation`."""
    position = _after_header(frame, correlation_id)
    expected = write_count(1) + write_string(topic) + write_count(1)
    if frame[position : position + len(expected)] != expected or len(frame) < position + len(expected) + _PRODUCED.size:
        raise ProtocolViolation("client_response", "an answer about something else than what was produced")
    return int(_PRODUCED.unpack_from(frame, position + len(expected))[1])


def error_name(code: int) -> str:
    """Return the name of Kafka's error code, or the number if it is unknown."""
    return ErrorCode(code).name if code in ErrorCode.__members__.values() else str(code)


def _frame(api: ApiKey, version: int, correlation_id: int, body: bytes) -> bytes:
    header = _HEADER.pack(api, version, correlation_id) + write_string(CLIENT_ID)
    return FRAME_SIZE.pack(len(header) + len(body)) + header + body


def _after_header(frame: bytes, correlation_id: int) -> int:
    if len(frame) < _INT32.size or _INT32.unpack_from(frame)[0] != correlation_id:
        raise ProtocolViolation("client_response", "an answer to another request")
    return _INT32.size
