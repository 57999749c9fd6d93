"""ApiVersions 0-4: the first request of a client, which is answered in unknown versions too.

The response header is always version 0, because the client does not know yet what the broker supports. A
version above ours gets a body of version 0 with UNSUPPORTED_VERSION and our range of ApiVersions, so that the
client can retry (kafka-python 3 disconnects on anything else). Two features are reported as finalized,
because Java clients depend on them: `transaction.version` 2 (KIP-890: each end of a transaction raises the
producer epoch) and `group.version` 1 (KIP-848). A Kafka with ZooKeeper has neither. Weak spot: they are
always on.
"""

import re
from functools import cache
from struct import Struct
from typing import Annotated, Final, NamedTuple

from appliance.base.errors import ErrorCode
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.schema import INT16, INT32, INT64, STRING, ArrayOf, Field, Message, struct_codec
from appliance.protocol.wire import Buffer

_SOFTWARE_WORD: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")
_HEAD: Final = Struct(">ii")
"""size, correlation id: the response header of version 0"""


class ApiVersionsRequest(NamedTuple):
    """What the client says of itself (v3+; empty before)."""

    client_software_name: Annotated[str, Field(STRING, since=3)] = ""
    client_software_version: Annotated[str, Field(STRING, since=3)] = ""


class ApiRange(NamedTuple):
    """One API and its versions, inclusive."""

    api_key: Annotated[int, Field(INT16)]
    version_min: Annotated[int, Field(INT16)]
    version_max: Annotated[int, Field(INT16)]


class SupportedFeature(NamedTuple):
    """A feature and the levels that could be chosen."""

    name: Annotated[str, Field(STRING)]
    version_min: Annotated[int, Field(INT16)]
    version_max: Annotated[int, Field(INT16)]


class FinalizedFeature(NamedTuple):
    """A feature and the level that is in force; both numbers are the same."""

    name: Annotated[str, Field(STRING)]
    level_max: Annotated[int, Field(INT16)]
    level_min: Annotated[int, Field(INT16)]


class ApiVersionsResponse(NamedTuple):
    """The served APIs and the finalized features; epoch −1: no features are reported."""

    error_code: Annotated[int, Field(INT16)]
    apis: Annotated[tuple[ApiRange, ...], Field(ArrayOf(ApiRange))]
    throttle_time_ms: Annotated[int, Field(INT32, since=1)] = 0
    supported_features: Annotated[tuple[SupportedFeature, ...], Field(ArrayOf(SupportedFeature), since=3, tag=0)] = ()
    finalized_features_epoch: Annotated[int, Field(INT64, since=3, tag=1)] = -1
    finalized_features: Annotated[tuple[FinalizedFeature, ...], Field(ArrayOf(FinalizedFeature), since=3, tag=2)] = ()


FEATURES: Final = (("group.version", 1), ("transaction.version", 2))
_FEATURES_SINCE: Final = 3
_SERVED: Final = tuple(ApiRange(api.key, api.version_min, api.version_max) for api in SERVED_APIS.values())

REQUEST: Final = Message(ApiKey.API_VERSIONS, "ApiVersions request", ApiVersionsRequest)
RESPONSE: Final = Message(ApiKey.API_VERSIONS, "ApiVersions response", ApiVersionsResponse)


def decode_api_versions(buffer: Buffer, position: int, limit: int, version: int) -> ApiVersionsRequest:
    """The request; `version` must be one that is served."""
    return REQUEST.decode(buffer, position, limit, version)


def api_versions_problem(request: ApiVersionsRequest, version: int) -> ErrorCode | None:
    """INVALID_REQUEST if the client's name or version is not a word of Kafka's alphabet."""
    words = (request.client_software_name, request.client_software_version)
    return ErrorCode.INVALID_REQUEST if version >= 3 and not all(_SOFTWARE_WORD.match(word) for word in words) else None


def encode_api_versions_response(version: int, correlation_id: int, error_code: int = 0) -> bytes:
    """The whole frame, for a request of a version that is served. An error comes without the list, as in Kafka."""
    body = _body(version, error_code)
    return _HEAD.pack(4 + len(body), correlation_id) + body


def encode_unsupported_version(correlation_id: int) -> bytes:
    """The whole frame, for an ApiVersions request of a version that is not served."""
    body = _unsupported_body()
    return _HEAD.pack(4 + len(body), correlation_id) + body


@cache
def _body(version: int, error_code: int) -> bytes:
    if error_code or version < _FEATURES_SINCE:
        served = () if error_code else _SERVED
        return RESPONSE.encode(version, ApiVersionsResponse(error_code, served))
    # Clients before version 4 stumble over levels that begin at 0 (KIP-1022).
    supported = tuple(SupportedFeature(name, 0, level) for name, level in FEATURES) if version > _FEATURES_SINCE else ()
    finalized = tuple(FinalizedFeature(name, level, level) for name, level in FEATURES)
    return RESPONSE.encode(version, ApiVersionsResponse(error_code, _SERVED, 0, supported, 0, finalized))


@cache
def _unsupported_body() -> bytes:
    api = SERVED_APIS[ApiKey.API_VERSIONS]
    own_range = ApiRange(api.key, api.version_min, api.version_max)
    return struct_codec(ApiVersionsResponse, 0, False).write(ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, (own_range,)))
