"""What precedes a body: the frame's size (int32) and the request header, versions 1 and 2.

The acceptor reads the size of each frame from its scratch buffer and receives the body where it belongs
(`read_frame_size`). Clients and tests use `FrameSplitter`, which keeps the bytes of one incomplete frame and
copies each byte once, which is why the acceptor does not use it. A request that this broker does not serve is
a `ProtocolViolation` in the header parser, as in Kafka, so no dispatcher sees one. ApiVersions is the
exception: it is answered in each version (`appliance.protocol.api_versions.encode_unsupported_version`).
Weak spot: header version 0 (ControlledShutdown 0) is unknown.
"""

from struct import Struct
from typing import Final, NamedTuple

from appliance.base.errors import ProtocolViolation
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.wire import INT32, MALFORMED, Buffer, malformed, skip_tagged_fields, truncated

SIZE_PREFIX: Final = INT32
SIZE_PREFIX_BYTES: Final = SIZE_PREFIX.size
REQUEST_SIZE_MIN: Final = 2 + 2 + 4 + 2
"""api key, api version, correlation id and the length of a client id: no request this broker serves is shorter."""

assert SIZE_PREFIX_BYTES == 4


def read_frame_size(buffer: Buffer, position: int, size_bytes_max: int, size_bytes_min: int = REQUEST_SIZE_MIN) -> int:
    """The size of the frame whose prefix lies at `position`; a size outside the bounds is a `ProtocolViolation`."""
    size_bytes: int = SIZE_PREFIX.unpack_from(buffer, position)[0]
    if size_bytes > size_bytes_max:
        raise ProtocolViolation("frame-too-large", f"frame of {size_bytes} bytes is larger than the {size_bytes_max} bytes allowed")
    if size_bytes < size_bytes_min:
        raise ProtocolViolation("frame-too-small", f"frame of {size_bytes} bytes is smaller than the {size_bytes_min} bytes of a header")
    return size_bytes


def frame(body: bytes) -> bytes:
    """`body` with its size before it."""
    return SIZE_PREFIX.pack(len(body)) + body


class FrameSplitter:
    """Frames out of a byte stream. Holds at most one incomplete frame, of a size that was checked before its bytes are kept."""

    def __init__(self, size_bytes_max: int, size_bytes_min: int = REQUEST_SIZE_MIN) -> None:
        self._size_bytes_max = size_bytes_max
        self._size_bytes_min = size_bytes_min
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of the incomplete frame that were received."""
        return len(self._pending)

    def feed(self, received: Buffer) -> list[bytes]:
        """The frames (without their size) that `received` completes, in order."""
        pending = self._pending
        pending += received
        frames: list[bytes] = []
        position = 0
        while len(pending) - position >= SIZE_PREFIX_BYTES:
            body_position = position + SIZE_PREFIX_BYTES
            end = body_position + read_frame_size(pending, position, self._size_bytes_max, self._size_bytes_min)
            if end > len(pending):
                break
            frames.append(bytes(pending[body_position:end]))
            position = end
        if position:
            del pending[:position]
        return frames


# -- the request header

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
    """`body_position` is where the request's own fields start."""

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
