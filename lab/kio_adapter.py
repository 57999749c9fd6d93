"""Every API by kio, from Kafka's own schemas: what our codecs are held against, and what raw clients of tests and load tests speak.

kio belongs to the tests; neither the processes of a box nor the command use it. Messages are kio's frozen
dataclasses (`kio.schema.<api>.v<version>`, error codes as `kio.schema.errors.ErrorCode`); nothing reaches kio's decoder before `kio_bounds` has looked
at it. Weak spots: kio's encoder is slow (10-50 µs a message); its decoder refuses unknown tagged fields, which KIP-482 says to skip; its schemas are
Kafka 4's, so versions that Kafka 4 dropped (Produce 0-2, CreateTopics 0-1, …) are unknown to it.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
from typing import Any, Final, get_args, get_type_hints

from appliance.base.errors import ProtocolViolation
from appliance.protocol.schema import response_frame
from appliance.protocol.wire import Buffer
from lab.kio_bounds import check_bounds

_API_VERSIONS_KEY: Final = 18


def serves(api_key: int, version: int) -> bool:
    """Whether kio has a schema for this request."""
    from kio.schema.index import api_key_map, schema_name_map

    return api_key in api_key_map and version in schema_name_map[api_key_map[api_key]]


def request_class(api_key: int, version: int) -> type[Any]:
    """kio's dataclass of a request; a `ProtocolViolation` if there is none."""
    from kio.index import KioIndexError, load_request_schema

    try:
        return load_request_schema(api_key, version)
    except KioIndexError as error:
        raise ProtocolViolation("unsupported-version", f"API {api_key} v{version} has no schema: {error}") from error


def response_class(api_key: int, version: int) -> type[Any]:
    """kio's dataclass of a response."""
    from kio.index import KioIndexError, load_response_schema

    try:
        return load_response_schema(api_key, version)
    except KioIndexError as error:
        raise ProtocolViolation("unsupported-version", f"API {api_key} v{version} has no schema: {error}") from error


def decode_request(api_key: int, version: int, body: Buffer) -> Any:
    """A request's body as kio's dataclass."""
    return _decode(request_class(api_key, version), body)


def decode_response(api_key: int, version: int, body: Buffer) -> Any:
    """A response's body (without size and header) as kio's dataclass."""
    return _decode(response_class(api_key, version), body)


def encode_response_frame(correlation_id: int, response: Any) -> bytes:
    """The whole frame of a response: size, header, body."""
    flexible_header = response.__flexible__ and response.__api_key__ != _API_VERSIONS_KEY
    return response_frame(flexible_header, correlation_id, encode(response))


def encode(message: Any) -> bytes:
    """The body of any message of kio's."""
    from kio.serial import entity_writer

    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def build(message_class: Any, values: dict[str, Any]) -> Any:
    """An instance of a kio class from those of `values` that its version has: nested dictionaries and lists, durations in milliseconds."""
    from kio.schema.errors import ErrorCode

    hints = get_type_hints(message_class)
    arguments = {}
    for field in dataclasses.fields(message_class):
        if field.name not in values:
            continue
        value = values[field.name]
        hint = hints[field.name]
        candidates = [argument for part in (hint, *get_args(hint)) for argument in (part, *get_args(part))]
        nested = next((candidate for candidate in candidates if dataclasses.is_dataclass(candidate)), None)
        if nested is not None and value is not None:
            value = tuple(build(nested, item) for item in value)
        elif isinstance(value, list):
            value = tuple(value)
        elif str(field.metadata.get("kafka_type", "")).startswith("timedelta"):
            value = datetime.timedelta(milliseconds=value)
        elif field.name == "error_code":
            value = ErrorCode(value)
        arguments[field.name] = value
    return message_class(**arguments)


def _decode(message_class: type[Any], body: Buffer) -> Any:
    from kio.serial import entity_reader
    from kio.serial.errors import SerialError

    check_bounds(message_class, body)
    # kio's decoder refuses buffers that could change under it.
    source = body if isinstance(body, bytes) else memoryview(body).toreadonly()
    try:
        message, _size = entity_reader(message_class)(source, 0)
    except (SerialError, ValueError, OverflowError, KeyError) as error:  # KeyError: a tag kio has no field for
        raise ProtocolViolation("malformed-request", f"{message_class.__name__} v{message_class.__version__} cannot be read: {error}") from error
    return message
