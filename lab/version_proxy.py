"""A proxy before a box that offers older versions than the box does: clients that ask which versions there are then speak those.

Everything passes through it as it is, but for two answers: ApiVersions is cut to the highest versions that the test names, and where an answer names
the box's port, the proxy's stands there, so that clients stay with it. Owned by the test that made it, which closes it. Weak spot: a thread for each
direction of each connection.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

from appliance.protocol import api_versions
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.framing import FrameSplitter, frame
from appliance.protocol.schema import response_frame

LARGEST_FRAME = 1 << 26
KAFKA_0_10_2 = {
    ApiKey.PRODUCE: 2,
    ApiKey.FETCH: 3,
    ApiKey.LIST_OFFSETS: 1,
    ApiKey.METADATA: 2,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.CREATE_TOPICS: 1,
    ApiKey.DELETE_TOPICS: 1,
}
"""The last release before magic 2; clients also guess a broker's age from Metadata. Its ApiVersions 0 is left out: clients would have to ask twice."""
NEWER_FOR = {"kafka-clients": {ApiKey.METADATA: 4}}
"""Apache's Java client of today speaks message sets, but no Metadata of their time."""
_HEADER = struct.Struct(">hhi")
_WHERE_BROKERS_ARE = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER)


class VersionProxy:
    """`highest`: the highest versions of the APIs that are offered, beside the box's own of ApiVersions. `spoken` says what clients used."""

    def __init__(self, box: tuple[str, int], highest: dict[ApiKey, int]) -> None:
        self._box = box
        self._highest = highest | {ApiKey.API_VERSIONS: SERVED_APIS[ApiKey.API_VERSIONS].version_max}
        self.spoken: set[tuple[ApiKey, int]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def close(self) -> None:
        _hang_up(self._listener)
        self._accepting.join()  # it may have a connection in its hands that `_sockets` does not know yet
        for one in self._sockets:
            _hang_up(one)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                box = socket.create_connection(self._box)
                self._sockets.append(box)
                asked: dict[int, tuple[int, int]] = {}
                threading.Thread(target=self._pass_requests, args=(client, box, asked), daemon=True).start()
                threading.Thread(target=self._pass_answers, args=(box, client, asked), daemon=True).start()

    def _pass_requests(self, client: socket.socket, box: socket.socket, asked: dict[int, tuple[int, int]]) -> None:
        splitter = FrameSplitter(LARGEST_FRAME)
        with suppress(OSError):
            while received := client.recv(1 << 20):
                for request in splitter.feed(received):
                    api_key, version, correlation_id = _HEADER.unpack_from(request)
                    asked[correlation_id] = (api_key, version)
                    self.spoken.add((ApiKey(api_key), version))
                    box.sendall(frame(request))
            box.shutdown(socket.SHUT_WR)

    def _pass_answers(self, box: socket.socket, client: socket.socket, asked: dict[int, tuple[int, int]]) -> None:
        splitter = FrameSplitter(LARGEST_FRAME)
        with suppress(OSError):
            while received := box.recv(1 << 20):
                for answer in splitter.feed(received):
                    (correlation_id,) = struct.unpack_from(">i", answer)
                    client.sendall(self._changed(answer, correlation_id, *asked.pop(correlation_id)))
            client.shutdown(socket.SHUT_WR)

    def _changed(self, answer: bytes, correlation_id: int, api_key: int, version: int) -> bytes:
        """The whole frame that the client gets."""
        if api_key == ApiKey.API_VERSIONS and SERVED_APIS[api_key].serves(version):
            ranges = tuple(api_versions.ApiRange(key, SERVED_APIS[key].version_min, highest) for key, highest in self._highest.items())
            return response_frame(False, correlation_id, api_versions.RESPONSE.encode(version, api_versions.ApiVersionsResponse(0, ranges)))
        if api_key in _WHERE_BROKERS_ARE:
            host, port = self._box
            answer = answer.replace(host.encode() + struct.pack(">i", port), host.encode() + struct.pack(">i", self._port))
        return frame(answer)


def _hang_up(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
