"""A broker in a thread, for what a well-behaved one cannot be made to do: refuse, move leadership, hang up, answer nonsense.

Its wire format is kio's, not ours, except for framing. Each API has one answer, a function from kio's request to a dictionary of response
fields; a test replaces the ones it is about. Raising `HangUp` closes the connection, returning `bytes` sends them as they are.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from appliance.client import messages
from appliance.client.address import Address
from appliance.client.cluster import ClusterClient
from lab import kio_adapter

APIS = {
    api.key: api
    for api in (
        messages.PRODUCE,
        messages.FETCH,
        messages.LIST_OFFSETS,
        messages.OFFSET_FETCH,
        messages.METADATA,
        messages.API_VERSIONS,
        messages.CREATE_TOPICS,
        messages.DELETE_TOPICS,
        messages.DELETE_RECORDS,
        messages.CREATE_PARTITIONS,
        messages.DESCRIBE_CONFIGS,
        messages.INCREMENTAL_ALTER_CONFIGS,
        messages.INIT_PRODUCER_ID,
        messages.DESCRIBE_PRODUCERS,
        messages.DESCRIBE_USER_SCRAM_CREDENTIALS,
        messages.DESCRIBE_ACLS,
        messages.LIST_GROUPS,
    )
}
TOPIC = "numbers"
ClientApi = messages.ClientApi[Any, Any]
Client = TypeVar("Client")
Answer = Callable[[Any], "dict[str, Any] | bytes | None"]


class HangUp(Exception):
    """Raised by an answer: close this connection."""


class FakeKafkaBroker:
    """Broker 1, and at the same address every other id that `brokers` names. One topic, `partitions` partitions, all led by broker 1."""

    def __init__(self, partitions: int = 1) -> None:
        self.leaders = dict.fromkeys(range(partitions), 1)
        self.appended: dict[int, list[bytes]] = {partition: [] for partition in self.leaders}
        self.requests: list[tuple[str, Any]] = []
        self.settings: dict[str, str] = {}
        self.answers: dict[ClientApi, Answer] = {
            messages.API_VERSIONS: self.versions,
            messages.METADATA: self.metadata,
            messages.PRODUCE: self.produce,
            messages.LIST_OFFSETS: self.list_offsets,
            messages.DESCRIBE_CONFIGS: self.describe_configs,
            messages.INIT_PRODUCER_ID: lambda request: {"throttle_time": 0, "error_code": 0, "producer_id": 77, "producer_epoch": 0},
        }
        self.max_versions = {api: api.version_max for api in APIS.values()}
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._kept: list[Any] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self._listening.getsockname()[1])

    def cluster(self, **options: Any) -> ClusterClient:
        """A client of this broker that never sleeps."""
        return self.keep(ClusterClient([self.address], sleep=lambda seconds: None, **options))

    def keep(self, client: Client) -> Client:
        """Close `client` when the broker is closed for good."""
        self._kept.append(client)
        return client

    def close(self) -> None:
        for client in self._kept:
            client.close()
        self.stop()

    def stop(self) -> None:
        """Be gone, as a broker that died."""
        if self._listening.fileno() < 0:
            return
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.hang_up_all()
        for thread in self._threads:
            thread.join(5)

    def hang_up_all(self) -> None:
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def count_of(self, name: str) -> int:
        return sum(asked == name for asked, _ in self.requests)

    # --- ordinary answers

    def versions(self, request: Any) -> dict[str, Any]:
        keys = [{"api_key": api.key, "min_version": api.version_min, "max_version": version} for api, version in self.max_versions.items()]
        return {"error_code": 0, "api_keys": keys, "throttle_time": 0}

    def metadata(self, request: Any) -> dict[str, Any]:
        partitions = [
            {
                "error_code": 0,
                "partition_index": partition,
                "leader_id": leader,
                "leader_epoch": 0,
                "replica_nodes": [1],
                "isr_nodes": [1],
                "offline_replicas": [],
            }
            for partition, leader in self.leaders.items()
        ]
        names = [TOPIC] if request.topics is None else [topic.name for topic in request.topics]
        topics = [
            {"error_code": 0 if name == TOPIC else 3, "name": name, "topic_id": None, "is_internal": False, "partitions": partitions if name == TOPIC else []}
            for name in names
        ]
        brokers = [{"node_id": broker, "host": self.address.host, "port": self.address.port, "rack": None} for broker in (1, 2)]
        return {"throttle_time": 0, "brokers": brokers, "cluster_id": "fake", "controller_id": 1, "topics": topics}

    def describe_configs(self, request: Any) -> dict[str, Any]:
        """`settings` are those of the topic itself."""
        configs = [
            {
                "name": name,
                "value": value,
                "read_only": False,
                "config_source": 1,
                "is_sensitive": False,
                "synonyms": [],
                "config_type": 0,
                "documentation": None,
            }
            for name, value in self.settings.items()
        ]
        results = [{"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": TOPIC, "configs": configs}]
        return {"throttle_time": 0, "results": results}

    def produce(self, request: Any) -> dict[str, Any] | None:
        answers = []
        for topic in request.topic_data:
            for data in topic.partition_data:
                self.appended[data.index].append(bytes(data.records))
                answers.append(produced(data.index))
        return None if request.acks == 0 else {"responses": [{"name": TOPIC, "partition_responses": answers}], "throttle_time": 0}

    def list_offsets(self, request: Any) -> dict[str, Any]:
        answers = [
            {"partition_index": asked.partition_index, "error_code": 0, "timestamp": -1, "offset": 0, "leader_epoch": 0}
            for topic in request.topics
            for asked in topic.partitions
        ]
        return {"throttle_time": 0, "topics": [{"name": TOPIC, "partitions": answers}]}

    # --- the wire

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        received = connection.makefile("rb")
        try:
            while len(size := received.read(4)) == 4:
                frame = received.read(struct.unpack(">i", size)[0])
                reply = self._reply(frame)
                if reply is not None:
                    connection.sendall(reply)
        except (HangUp, OSError):
            pass
        finally:
            received.close()
            connection.close()

    def _reply(self, frame: bytes) -> bytes | None:
        key, version, correlation_id, client_length = struct.unpack_from(">hhih", frame)
        api = APIS[key]
        if version > self.max_versions[api]:
            assert api is messages.API_VERSIONS, "a client must not ask what was not offered"
            answered = 0
            fields: Any = {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": self.max_versions[api]}]}
        else:
            answered = version
            position = 10 + client_length + (1 if api.is_flexible(version) else 0)
            request = kio_adapter.decode_request(key, version, frame[position:])
            self.requests.append((snake_case(api.name), request))
            fields = self.answers[api](request)
        if fields is None or isinstance(fields, bytes):
            return fields
        return encode_response(api, answered, correlation_id, fields)


def encode_response(api: ClientApi, version: int, correlation_id: int, fields: dict[str, Any]) -> bytes:
    return kio_adapter.encode_response_frame(correlation_id, kio_adapter.build(kio_adapter.response_class(api.key, version), fields))


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def produced(partition: int, code: int = 0, message: str | None = None) -> dict[str, Any]:
    return {
        "index": partition,
        "error_code": code,
        "base_offset": 0,
        "log_append_time": None,
        "log_start_offset": 0,
        "record_errors": [],
        "error_message": message,
    }


def fetched(partition: int, records: bytes = b"", code: int = 0) -> dict[str, Any]:
    """A Fetch response that holds one partition."""
    answer = {
        "partition_index": partition,
        "error_code": code,
        "high_watermark": 0,
        "last_stable_offset": 0,
        "log_start_offset": 0,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": records,
    }
    return {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": [{"topic": TOPIC, "partitions": [answer]}]}
