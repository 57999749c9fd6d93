"""The header before every request, versions 1 and 2.

Owned by nobody; one function. A request this broker does not serve is a `ProtocolViolation` here already, as in Kafka, so
that no dispatcher ever sees one; the one exception is ApiVersions, which is answered in every version
(`appliance.protocol.api_versions.encode_unsupported_version`). Weak spot: header version 0 (ControlledShutdown 0) is not known.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from appliance.base.errors import ProtocolViolation
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.wire import MALFORMED, Buffer, malformed, skip_tagged_fields, truncated

REQUEST_HEADER: Final = Struct(">hhih")
"""api key, api version, correlation id, length of the client id (−1 null; the old form even in header version 2)."""

API_KEY_OFFSET: Final = 0
API_VERSION_OFFSET: Final = API_KEY_OFFSET + 2
CORRELATION_ID_OFFSET: Final = API_VERSION_OFFSET + 2
CLIENT_ID_LENGTH_OFFSET: Final = CORRELATION_ID_OFFSET + 4
CLIENT_ID_OFFSET: Final = CLIENT_ID_LENGTH_OFFSET + 2
assert CLIENT_ID_OFFSET == REQUEST_HEADER.size

_unpack_header = REQUEST_HEADER.unpack_from
_FLEXIBLE_SINCE: Final = {key: api.flexible_since for key, api in SERVED_APIS.items()}
_VERSIONS: Final = {key: (api.version_min, api.version_max) for key, api in SERVED_APIS.items()}


class RequestHeader(NamedTuple):
    """Who asks what; `body_position` is where the request's own fields start."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body_position: int


def parse_request_header(buffer: Buffer, position: int, limit: int) -> RequestHeader:
    """The header at `position` of a frame that ends at `limit` (both without the frame's size)."""
    try:
        api_key, api_version, correlation_id, client_id_length = _unpack_header(buffer, position)
        position += CLIENT_ID_OFFSET
        client_id = ""
        if client_id_length > 0:
            end = position + client_id_length
            client_id = str(buffer[position:end], "utf-8", "replace") if end <= limit else ""
            position = end
        elif client_id_length < -1:
            raise ProtocolViolation("lying-length", f"client id of length {client_id_length} in the header of API {api_key} v{api_version}")
        versions = _VERSIONS.get(api_key)
        if versions is None:
            raise ProtocolViolation("unknown-api", f"API {api_key} v{api_version} of client {client_id!r} is not served")
        if not versions[0] <= api_version <= versions[1]:
            if api_key != ApiKey.API_VERSIONS:
                raise ProtocolViolation(
                    "unsupported-version", f"{SERVED_APIS[api_key].name} v{api_version} of client {client_id!r} is not in {versions[0]}..{versions[1]}"
                )
        elif api_version >= _FLEXIBLE_SINCE[api_key]:
            position = position + 1 if not buffer[position] else skip_tagged_fields(buffer, position, limit)
    except MALFORMED as error:
        raise malformed("request header", 2, error) from error
    if position > limit:
        raise truncated("request header", 2, position, limit)
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)
