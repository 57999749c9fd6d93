"""The answers of Splunk's collector: number, HTTP status and words, as its documentation has them. Values only."""

from __future__ import annotations

from typing import Final, NamedTuple


class Code(NamedTuple):
    """One of the collector's own answers."""

    number: int
    status: int
    text: str


SUCCESS: Final = Code(0, 200, "Success")
TOKEN_REQUIRED: Final = Code(2, 401, "Token is required")
INVALID_TOKEN: Final = Code(4, 403, "Invalid token")
NO_DATA: Final = Code(5, 400, "No data")
INVALID_FORMAT: Final = Code(6, 400, "Invalid data format")
SERVER_BUSY: Final = Code(9, 503, "Server is busy")
CHANNEL_MISSING: Final = Code(10, 400, "Data channel is missing")
INVALID_CHANNEL: Final = Code(11, 400, "Invalid data channel")
EVENT_REQUIRED: Final = Code(12, 400, "Event field is required")
EVENT_BLANK: Final = Code(13, 400, "Event field cannot be blank")
BAD_FIELDS: Final = Code(15, 400, "Error in handling indexed fields")
HEALTHY: Final = Code(17, 200, "HEC is healthy")
UNHEALTHY: Final = Code(18, 503, "HEC is unhealthy, queues are full")
TOO_MANY: Final = Code(27, 413, "Request entity too large")
