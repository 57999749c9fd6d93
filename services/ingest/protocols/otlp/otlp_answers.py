"""How OTLP's answers are written: ExportLogsServiceResponse, google.rpc.Status and RetryInfo, by hand, because they are a few bytes each.

Pure functions. Weak: only the fields that are used.
"""

from __future__ import annotations

import orjson


def encode_success(rejected_records: int, words: str) -> bytes:
    """An ExportLogsServiceResponse; nothing of it is there when no record was rejected."""
    return _field(1, b"\x08" + _varint(rejected_records) + _field(2, words.encode())) if rejected_records else b""


def json_success(rejected_records: int, words: str) -> bytes:
    """The same in JSON."""
    if not rejected_records:
        return b"{}"
    return orjson.dumps({"partialSuccess": {"rejectedLogRecords": str(rejected_records), "errorMessage": words}})


def encode_status(code: int, words: str, details: bytes = b"") -> bytes:
    """A google.rpc.Status. `details`: one Any, encoded."""
    return b"\x08" + _varint(code) + _field(2, words.encode()) + (_field(3, details) if details else b"")


def json_status(code: int, words: str) -> bytes:
    """The same in JSON."""
    return orjson.dumps({"code": code, "message": words})


def retry_info(seconds: int) -> bytes:
    """A google.rpc.RetryInfo."""
    return _field(1, b"\x08" + _varint(seconds))


def as_any(type_name: str, message: bytes) -> bytes:
    """`message` as a google.protobuf.Any."""
    return _field(1, f"type.googleapis.com/{type_name}".encode()) + _field(2, message)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
