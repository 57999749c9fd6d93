"""Makes `tests/golden/CLIENT/*.hex` again: requests as clients send them, recorded by a broker that knows just enough to be asked.

Run by hand: `python -m tests.golden.capture [CLIENT…]`. One file a request, `SCENARIO-API-vN[-CODEC].hex`, the whole frame with its size. The
scenarios advertise different ranges of versions, because a client uses the highest that both know; librdkafka goes through all of them, the
others through "newest". A client that is not installed (`lab/client_packages.py`) is left as it is.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from appliance.base.model import TopicId
from appliance.protocol import api_versions, offset_apis, topic_apis
from appliance.protocol.apis import SERVED_APIS, ApiKey
from appliance.protocol.cluster_apis import Coordinator, decode_find_coordinator, encode_find_coordinator_response
from appliance.protocol.fetch import FetchPartitionResult, decode_fetch, encode_fetch_response
from appliance.protocol.framing import FrameSplitter, RequestHeader, frame, parse_request_header
from appliance.protocol.metadata import MetadataBroker, MetadataPartition, MetadataTopic, encode_metadata_response
from appliance.protocol.produce import ProduceResult, decode_produce, encode_produce_response
from appliance.protocol.schema import response_frame
from lab.foreign_clients import CLIENTS, CODECS, CONSUMERS, Refused, Sent, open_client

GOLDEN = Path(__file__).parent
TOPIC = "golden"
TOPIC_ID = TopicId(bytes(range(16)))

SCENARIOS: dict[str, dict[ApiKey, int]] = {
    "newest": {},
    "plain": {
        ApiKey.PRODUCE: 8,
        ApiKey.FETCH: 11,
        ApiKey.LIST_OFFSETS: 5,
        ApiKey.METADATA: 8,
        ApiKey.FIND_COORDINATOR: 2,
        ApiKey.API_VERSIONS: 2,
        ApiKey.CREATE_TOPICS: 4,
        ApiKey.DELETE_TOPICS: 3,
    },
    "oldest": {
        ApiKey.PRODUCE: 3,
        ApiKey.FETCH: 4,
        ApiKey.LIST_OFFSETS: 1,
        ApiKey.METADATA: 2,
        ApiKey.FIND_COORDINATOR: 0,
        ApiKey.API_VERSIONS: 0,
        ApiKey.CREATE_TOPICS: 2,
        ApiKey.DELETE_TOPICS: 1,
    },
}
"""Highest versions advertised, where they are not ours."""


class RecordingBroker:
    """Answers one topic of one partition; keeps the first request of each kind."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.highest = SCENARIOS[scenario]
        self.codec = ""
        self.requests: dict[str, bytes] = {}
        self.records = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        splitter = FrameSplitter(1 << 26)
        with suppress(OSError), connection:
            while received := connection.recv(1 << 20):
                for request in splitter.feed(received):
                    connection.sendall(self._answer(request))

    def _answer(self, request: bytes) -> bytes:
        header = parse_request_header(request, 0, len(request))
        api = SERVED_APIS[header.api_key]
        if header.api_key == ApiKey.API_VERSIONS and header.api_version > self.highest.get(api.key, api.version_max):
            self._keep(f"{api.name}-v{header.api_version}", request)
            return api_versions.encode_unsupported_version(header.correlation_id)
        codec = f"-{self.codec}" if header.api_key == ApiKey.PRODUCE else ""
        self._keep(f"{api.name}-v{header.api_version}{codec}", request)
        answer = getattr(self, f"_on_{api.key.name.lower()}")
        encoded: bytes = answer(header, request)
        return encoded

    def _keep(self, name: str, request: bytes) -> None:
        self.requests.setdefault(f"{self.scenario}-{name}", frame(request))

    def _on_api_versions(self, header: RequestHeader, _request: bytes) -> bytes:
        ranges = tuple(api_versions.ApiRange(api.key, api.version_min, self.highest.get(api.key, api.version_max)) for api in SERVED_APIS.values())
        body = api_versions.RESPONSE.encode(header.api_version, api_versions.ApiVersionsResponse(0, ranges))
        return response_frame(False, header.correlation_id, body)

    def _on_metadata(self, header: RequestHeader, _request: bytes) -> bytes:
        topics = [MetadataTopic(TOPIC, [MetadataPartition(0, 1, 0, (1,), (1,))], TOPIC_ID)]
        return encode_metadata_response(header.api_version, header.correlation_id, [MetadataBroker(1, "127.0.0.1", self.port)], "golden", 1, topics)

    def _on_produce(self, header: RequestHeader, request: bytes) -> bytes:
        partitions = decode_produce(request, header.body_position, len(request), header.api_version).partitions
        for _topic, _partition, position, size in partitions:
            self.records = request[position : position + size]
        return encode_produce_response(header.api_version, header.correlation_id, [ProduceResult(part.topic, part.partition, 0, 0) for part in partitions])

    def _on_fetch(self, header: RequestHeader, request: bytes) -> bytes:
        fetch = decode_fetch(request, header.body_position, len(request), header.api_version)
        results = [FetchPartitionResult(TOPIC, TOPIC_ID, 0, 0, 1, 1, 0, self.records if part.fetch_offset == 0 else None) for part in fetch.partitions]
        return b"".join(encode_fetch_response(header.api_version, header.correlation_id, 0, 0, results))  # type: ignore[arg-type]

    def _on_list_offsets(self, header: RequestHeader, _request: bytes) -> bytes:
        result = offset_apis.ListOffsetsTopicResult(TOPIC, (offset_apis.ListOffsetsPartitionResult(0, 0, -1, 0, 0),))
        return offset_apis.encode_list_offsets_response(header.api_version, header.correlation_id, (result,))

    def _on_find_coordinator(self, header: RequestHeader, request: bytes) -> bytes:
        keys = decode_find_coordinator(request, header.body_position, len(request), header.api_version).keys
        return encode_find_coordinator_response(header.api_version, header.correlation_id, [Coordinator(key, error_code=15) for key in keys])

    def _on_create_topics(self, header: RequestHeader, _request: bytes) -> bytes:
        body = topic_apis.encode_create_topics_body(header.api_version, (topic_apis.CreatedTopic("made", TOPIC_ID, 0, None, 2, 1, ()),))
        return response_frame(SERVED_APIS[header.api_key].is_flexible(header.api_version), header.correlation_id, body)

    def _on_delete_topics(self, header: RequestHeader, _request: bytes) -> bytes:
        body = topic_apis.encode_delete_topics_body(header.api_version, (topic_apis.DeletedTopic("made"),))
        return response_frame(SERVED_APIS[header.api_key].is_flexible(header.api_version), header.correlation_id, body)


@contextmanager
def recording(scenario: str) -> Iterator[RecordingBroker]:
    broker = RecordingBroker(scenario)
    try:
        yield broker
    finally:
        broker.close()


def run_librdkafka(broker: RecordingBroker) -> None:
    """Produce with every codec, consume, ask for offsets, create and delete a topic."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    base: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "client.id": "golden", "log_level": 0}
    for codec in CODECS:
        broker.codec = codec
        producer = Producer({**base, "compression.codec": codec, "linger.ms": 50})
        for number in range(10):
            producer.produce(TOPIC, value=b"line %d " % number * 10, key=b"key", headers=[("source", b"127.0.0.1")], timestamp=1_700_000_000_000 + number)
        producer.flush(10)
    consumer = Consumer({**base, "group.id": "golden", "enable.auto.commit": False})
    consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=10)
    consumer.offsets_for_times([TopicPartition(TOPIC, 0, 1_700_000_000_000)], timeout=10)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    consumer.consume(10, timeout=10)
    with suppress(Exception):
        consumer.committed([TopicPartition(TOPIC, 0)], timeout=1)
    consumer.close()
    admin = AdminClient(base)
    for future in admin.create_topics([NewTopic("made", 2, 1, config={"retention.ms": "1000"})]).values():
        future.result(10)
    for future in admin.delete_topics(["made"]).values():
        future.result(10)


def run_foreign(broker: RecordingBroker, name: str) -> None:
    """The same with a client of `lab/foreign_clients.py`. What this broker answers may be more than the client can do with; what it
    asked is kept all the same."""
    client = open_client(name, f"127.0.0.1:{broker.port}")
    records = [Sent(b"line %d " % number * 10, b"key", (("source", b"127.0.0.1"),), 1_700_000_000_000 + number) for number in range(10)]
    try:
        for codec in CODECS:
            broker.codec = codec
            client.produce(TOPIC, records, codec)
        for at in ("earliest", "latest", 1_700_000_000_000):
            with suppress(Refused):
                client.offset(TOPIC, at)
        if name in CONSUMERS:
            client.fetch(TOPIC, 10)
        client.create("made", retention_ms="1000")
        client.delete("made")
    finally:
        client.close()


def write(client: str, requests: dict[str, bytes]) -> None:
    directory = GOLDEN / client
    directory.mkdir(exist_ok=True)
    for name, request in sorted(requests.items()):
        (directory / f"{name}.hex").write_text("\n".join(request.hex()[i : i + 128] for i in range(0, len(request) * 2, 128)) + "\n")
        print(f"{client} {name}: {len(request)} bytes")


def main() -> None:
    for client in sys.argv[1:] or ("librdkafka", *CLIENTS):
        for scenario in SCENARIOS if client == "librdkafka" else ("newest",):
            with recording(scenario) as broker:
                if client == "librdkafka":
                    run_librdkafka(broker)
                else:
                    try:
                        run_foreign(broker, client)
                    except pytest.skip.Exception as reason:
                        print(f"{client}: {reason}")
            write(client, broker.requests)


if __name__ == "__main__":
    main()
