"""One face for every client that tests drive: produce, fetch, look up an offset, create and delete a topic, each on partition 0.

Python clients are called in this process, JavaScript and Java ones run beside it and take a line of JSON a command (`lab/clients`). A broker's
refusal is `Refused` with Kafka's error code, whatever the client calls it. Owned by the test that made it, which closes it. Weak spot: producers
are made anew for each call where the codec is theirs, so these clients say nothing about long-lived producers.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import select
import shutil
import subprocess
import time
from typing import Any, NamedTuple, Protocol

import pytest

from lab import client_packages

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LARGEST_REQUEST = 8 << 20
ANSWER_SECONDS = 30.0

Header = tuple[str, bytes | None]


class Sent(NamedTuple):
    """A record as it is handed to a client; a timestamp of None is the client's own clock."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp: int | None = None


class Read(NamedTuple):
    """A record as a client gave it. `timestamp_type`: 0 CreateTime, 1 LogAppendTime; None where the client does not tell."""

    offset: int
    value: bytes | None
    key: bytes | None
    headers: tuple[Header, ...]
    timestamp: int
    timestamp_type: int | None


class Refused(Exception):
    """The client said that the broker refused; `code` is Kafka's, -1 where the client gave none."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"error {code}: {text}")
        self.code = code


class Client(Protocol):
    """What tests ask of a client."""

    name: str

    def produce(self, topic: str, records: list[Sent], codec: str = "none") -> None: ...
    def fetch(self, topic: str, count: int, offset: int = 0) -> list[Read]: ...
    def offset(self, topic: str, at: str | int) -> int | None:
        """Of "earliest", "latest", or the first record at or after a time in milliseconds; None where there is none."""

    def create(self, topic: str, **config: str) -> None: ...
    def delete(self, topic: str) -> None: ...
    def close(self) -> None: ...


class KafkaPython:
    """kafka-python 3."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        from kafka import KafkaAdminClient, KafkaConsumer

        self._options: dict[str, Any] = {"bootstrap_servers": bootstrap, "client_id": "golden"}
        self._consumer = KafkaConsumer(**self._options, enable_auto_commit=False, max_partition_fetch_bytes=LARGEST_REQUEST)
        self._admin = KafkaAdminClient(**self._options)

    def produce(self, topic: str, records: list[Sent], codec: str = "none") -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            **self._options,
            enable_idempotence=False,
            acks="all",
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            max_request_size=LARGEST_REQUEST,
        )
        try:
            futures = [producer.send(topic, record.value, record.key, list(record.headers), partition=0, timestamp_ms=record.timestamp) for record in records]
            for future in futures:
                _refusing(lambda future=future: future.get(20))
        finally:
            producer.close()

    def _assign(self, topic: str) -> Any:
        from kafka import TopicPartition

        partition = TopicPartition(topic, 0)
        self._consumer.assign([partition])
        return partition

    def fetch(self, topic: str, count: int, offset: int = 0) -> list[Read]:
        self._consumer.seek(self._assign(topic), offset)
        found: list[Read] = []
        deadline = time.monotonic() + ANSWER_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            for records in self._consumer.poll(timeout_ms=500).values():
                found += [_read_of(record) for record in records]
        return found

    def offset(self, topic: str, at: str | int) -> int | None:
        partition = self._assign(topic)
        if isinstance(at, int):
            found = self._consumer.offsets_for_times({partition: at})[partition]
            return None if found is None else int(found.offset)
        look_up = self._consumer.beginning_offsets if at == "earliest" else self._consumer.end_offsets
        return int(look_up([partition])[partition])

    def create(self, topic: str, **config: str) -> None:
        from kafka.admin import NewTopic

        _refusing(lambda: self._admin.create_topics([NewTopic(topic, 1, 1, topic_configs=_kafka_names(config))]))

    def delete(self, topic: str) -> None:
        _refusing(lambda: self._admin.delete_topics([topic]))

    def close(self) -> None:
        self._consumer.close()
        self._admin.close()


class AioKafka:
    """aiokafka, on a loop of its own that runs for as long as a call does."""

    name = "aiokafka"

    def __init__(self, bootstrap: str) -> None:
        pytest.importorskip("aiokafka", reason="aiokafka is not installed (PyPI)")
        self._options: dict[str, Any] = {"bootstrap_servers": bootstrap, "client_id": "golden"}
        self._loop = asyncio.new_event_loop()

    def produce(self, topic: str, records: list[Sent], codec: str = "none") -> None:
        _refusing(lambda: self._loop.run_until_complete(self._produce(topic, records, codec)))

    async def _produce(self, topic: str, records: list[Sent], codec: str) -> None:
        from aiokafka import AIOKafkaProducer

        compression = None if codec == "none" else codec
        producer = AIOKafkaProducer(**self._options, acks="all", compression_type=compression, linger_ms=20, max_request_size=LARGEST_REQUEST)
        await producer.start()
        try:
            futures = [
                await producer.send(topic, record.value, record.key, 0, timestamp_ms=record.timestamp, headers=list(record.headers)) for record in records
            ]
            for future in futures:
                await future
        finally:
            await producer.stop()

    def fetch(self, topic: str, count: int, offset: int = 0) -> list[Read]:
        return self._loop.run_until_complete(self._fetch(topic, count, offset))

    async def _fetch(self, topic: str, count: int, offset: int) -> list[Read]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(**self._options, enable_auto_commit=False, max_partition_fetch_bytes=LARGEST_REQUEST)
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.start()
        try:
            consumer.seek(partition, offset)
            found: list[Read] = []
            deadline = time.monotonic() + ANSWER_SECONDS
            while len(found) < count and time.monotonic() < deadline:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += [_read_of(record) for record in records]
            return found
        finally:
            await consumer.stop()

    def offset(self, topic: str, at: str | int) -> int | None:
        return self._loop.run_until_complete(self._offset(topic, at))

    async def _offset(self, topic: str, at: str | int) -> int | None:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(**self._options, enable_auto_commit=False)
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.start()
        try:
            if isinstance(at, int):
                found = (await consumer.offsets_for_times({partition: at}))[partition]
                return None if found is None else int(found.offset)
            look_up = consumer.beginning_offsets if at == "earliest" else consumer.end_offsets
            return int((await look_up([partition]))[partition])
        finally:
            await consumer.stop()

    def create(self, topic: str, **config: str) -> None:
        from aiokafka.admin import NewTopic

        self._administer(lambda admin: admin.create_topics([NewTopic(topic, 1, 1, topic_configs=_kafka_names(config))]))

    def delete(self, topic: str) -> None:
        self._administer(lambda admin: admin.delete_topics([topic]))

    def _administer(self, ask: Any) -> None:
        async def administer() -> Any:
            from aiokafka.admin import AIOKafkaAdminClient

            admin = AIOKafkaAdminClient(**self._options)
            await admin.start()
            try:
                return await ask(admin)
            finally:
                await admin.close()

        # aiokafka hands error codes of topics over without raising them: (topic, code, …) a topic.
        answer = self._loop.run_until_complete(administer())
        errors = getattr(answer, "topic_errors", None) or getattr(answer, "topic_error_codes", [])
        for _topic, code, *_rest in errors:
            if code:
                raise Refused(code, str(answer))

    def close(self) -> None:
        self._loop.close()


class JsonClient:
    """A client of another language: a process that takes a line of JSON a command and gives a line back."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._received = bytearray()

    def _ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._receive_line())
        if "error" in answer:
            raise Refused(answer["error_code"], answer["error"])
        return answer

    def _receive_line(self) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self._received.endswith(b"\n"):
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{self.name} did not answer in {ANSWER_SECONDS:g} s"
            data = os.read(descriptor, 1 << 20)
            assert data, f"{self.name} ended with {self._process.wait()}"
            self._received += data
        line = bytes(self._received)
        self._received.clear()
        return line

    def produce(self, topic: str, records: list[Sent], codec: str = "none") -> None:
        sent = [
            {"value": _text(value), "key": _text(key), "headers": [[name, _text(content)] for name, content in headers], "timestamp": timestamp}
            for value, key, headers, timestamp in records
        ]
        self._ask(do="produce", topic=topic, codec=codec, records=sent)

    def fetch(self, topic: str, count: int, offset: int = 0) -> list[Read]:
        return [
            Read(
                record["offset"],
                _bytes(record["value"]),
                _bytes(record["key"]),
                tuple((name, _bytes(content)) for name, content in record["headers"]),
                record["timestamp"],
                record["timestamp_type"],
            )
            for record in self._ask(do="fetch", topic=topic, count=count, offset=offset)["records"]
        ]

    def offset(self, topic: str, at: str | int) -> int | None:
        found: int | None = self._ask(do="offset", topic=topic, at=at)["offset"]
        return found

    def create(self, topic: str, **config: str) -> None:
        self._ask(do="create", topic=topic, config=_kafka_names(config))

    def delete(self, topic: str) -> None:
        self._ask(do="delete", topic=topic)

    def delete_records(self, topic: str, before: int) -> int:
        """Java's alone: where the partition begins then; -1 is the high watermark."""
        low_watermark: int = self._ask(do="delete_records", topic=topic, before=before)["low_watermark"]
        return low_watermark

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class LibRdKafka:
    """confluent-kafka: the fifth voice of the matrix; its own tests are `tests/system/test_librdkafka.py`."""

    name = "librdkafka"

    def __init__(self, bootstrap: str) -> None:
        self._options: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": "golden", "log_level": 0}

    def produce(self, topic: str, records: list[Sent], codec: str = "none") -> None:
        from confluent_kafka import Producer

        errors: list[Any] = []
        producer = Producer({**self._options, "compression.codec": codec, "linger.ms": 20, "message.max.bytes": LARGEST_REQUEST})
        for value, key, headers, timestamp in records:
            producer.produce(
                topic, value, key, 0, on_delivery=lambda error, _: errors.append(error) if error else None, timestamp=timestamp or 0, headers=list(headers)
            )
        assert producer.flush(20) == 0
        for error in errors:
            raise Refused(error.code(), str(error))

    def fetch(self, topic: str, count: int, offset: int = 0) -> list[Read]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self._options, "group.id": "golden", "enable.auto.commit": False, "fetch.message.max.bytes": LARGEST_REQUEST})
        consumer.assign([TopicPartition(topic, 0, offset)])
        found: list[Read] = []
        deadline = time.monotonic() + ANSWER_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), 0.5):
                if error := message.error():
                    raise Refused(error.code(), str(error))
                kind, timestamp = message.timestamp()
                headers: Any = message.headers() or ()
                found.append(Read(message.offset() or 0, message.value(), message.key(), tuple(headers), timestamp, kind - 1))
        consumer.close()
        return found

    def offset(self, topic: str, at: str | int) -> int | None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self._options, "group.id": "golden"})
        try:
            if isinstance(at, int):
                return int(consumer.offsets_for_times([TopicPartition(topic, 0, at)], 10)[0].offset)
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)
            return int(low if at == "earliest" else high)
        finally:
            consumer.close()

    def create(self, topic: str, **config: str) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self._options)
        _refusing(lambda: admin.create_topics([NewTopic(topic, 1, 1, config=_kafka_names(config))])[topic].result(20))

    def delete(self, topic: str) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self._options)
        _refusing(lambda: admin.delete_topics([topic])[topic].result(20))

    def close(self) -> None: ...


def _javascript(name: str, bootstrap: str) -> JsonClient:
    if reason := client_packages.missing_js():
        pytest.skip(reason)
    source = client_packages.SOURCES / "js" / "test_client.mjs"
    return JsonClient(name, [str(client_packages.NODE), "--no-warnings", str(source), name, bootstrap, str(client_packages.JS)])


def open_java(bootstrap: str, isolation_level: str = "read_uncommitted") -> JsonClient:
    if reason := client_packages.missing_java():
        pytest.skip(reason)
    java = shutil.which("java")
    assert java is not None
    return JsonClient("kafka-clients", [*_java(java), f"-Disolation.level={isolation_level}", "TestClient", bootstrap])


def _java(command: str) -> list[str]:
    """One thread of garbage collection and the first compiler only: this runs for seconds, on a machine that has others to serve."""
    return [command, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", client_packages.class_path()]


class JavaMembers(JsonClient):
    """Consumers of Apache's client in groups, each in a thread of one process."""

    def __init__(self, bootstrap: str) -> None:
        if reason := client_packages.missing_java():
            pytest.skip(reason)
        java = shutil.which("java")
        assert java is not None
        super().__init__("kafka-clients", [*_java(java), "GroupClient", bootstrap])

    def start(self, name: str, topic: str, **options: object) -> None:
        """`options` by their Python names."""
        self._ask(do="start", name=name, topic=topic, options=_kafka_names({key: str(value) for key, value in options.items()}))

    def look(self, name: str) -> tuple[frozenset[int], list[str]]:
        """Its partitions, and the values that came since it was looked at."""
        return self._seen(self._ask(do="look", name=name))

    def stop(self, name: str) -> list[str]:
        """It leaves its group."""
        return self._seen(self._ask(do="stop", name=name))[1]

    def _seen(self, answer: dict[str, Any]) -> tuple[frozenset[int], list[str]]:
        assert "failure" not in answer, answer["failure"]
        return frozenset(answer["partitions"]), answer["values"]


CLIENTS = ("kafka-python", "aiokafka", "platformatic", "kafka-clients", "kafkajs")
CONSUMERS = ("kafka-python", "aiokafka", "platformatic", "kafka-clients")
"""Those that read partitions by assignment; kafkajs consumes in groups only, which takes seconds to begin with."""


def open_client(name: str, bootstrap: str) -> Client:
    """Skips the test where the client is not installed, saying what is missing."""
    match name:
        case "librdkafka":
            return LibRdKafka(bootstrap)
        case "kafka-python":
            return KafkaPython(bootstrap)
        case "aiokafka":
            return AioKafka(bootstrap)
        case "kafka-clients":
            return open_java(bootstrap)
        case _:
            return _javascript(name, bootstrap)


def _kafka_names(config: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in config.items()}


def _read_of(record: Any) -> Read:
    return Read(record.offset, record.value, record.key, tuple(tuple(header) for header in record.headers), record.timestamp, record.timestamp_type)


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _refusing(call: Any) -> Any:
    """Errors of the Python clients: kafka-python and aiokafka have `errno`, librdkafka a KafkaError as its first argument."""
    try:
        return call()
    except Exception as error:
        code = getattr(error, "errno", None)
        if code is None and error.args and hasattr(error.args[0], "code"):
            code = error.args[0].code()
        raise Refused(code if isinstance(code, int) else -1, repr(error)) from error
