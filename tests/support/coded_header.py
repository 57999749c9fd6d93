"""The header of a request of any API that has a codec, served or not."""

from __future__ import annotations

from appliance.protocol.apis import CODED_APIS
from appliance.protocol.framing import REQUEST_HEADER, RequestHeader
from appliance.protocol.wire import skip_tagged_fields


def parse_coded_header(request: bytes) -> RequestHeader:
    """Of a frame without its size."""
    api_key, api_version, correlation_id, client_id_size = REQUEST_HEADER.unpack_from(request)
    position = REQUEST_HEADER.size + max(client_id_size, 0)
    client_id = request[REQUEST_HEADER.size : position].decode()
    if CODED_APIS[api_key].is_flexible(api_version):
        position = skip_tagged_fields(request, position, len(request))
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)
