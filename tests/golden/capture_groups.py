"""Makes `tests/golden/groups/CLIENT/*.hex` again: what clients send to be members of a group, to commit offsets and to write in transactions.

Run by hand: `python -m tests.golden.capture_groups [CLIENT…]`. One file a request, `SCENARIO-API-vN.hex`, the whole frame with its size. The broker of
`capture.py` plays a coordinator that everything works with: one member, which is the leader, one generation, one producer id.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from appliance.protocol import (
    api_versions,
    cluster_apis,
    consumer_group_apis,
    group_apis,
    group_offset_apis,
    transaction_apis,
)
from appliance.protocol.apis import CODED_APIS, ApiKey
from appliance.protocol.framing import RequestHeader
from appliance.protocol.schema import Message, response_frame
from appliance.protocol.topic_partitions import PartitionResult, TopicIdPartitions, TopicPartitions, TopicResult, same_result
from lab.client_packages import kafka_jars
from tests.golden.capture import GOLDEN, TOPIC, TOPIC_ID, RecordingBroker
from tests.support.coded_header import parse_coded_header

GROUP, MEMBER, TRANSACTIONAL_ID = "golden-group", "golden-member", "golden-transaction"
CLIENTS = ("librdkafka", "kafka-python", "aiokafka", "kafka-clients")
OLDER: dict[ApiKey, int] = {
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.OFFSET_FETCH: 1,
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.JOIN_GROUP: 2,
    ApiKey.HEARTBEAT: 1,
    ApiKey.LEAVE_GROUP: 1,
    ApiKey.SYNC_GROUP: 1,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
}
SCENARIOS: dict[str, dict[ApiKey, int]] = {"newest": {}, "older": OLDER}
_UP_TO_3 = 3


def _join(request: Any, _version: int) -> Any:
    first = request.protocols[0]
    members = (group_apis.JoinGroupMember(MEMBER, request.group_instance_id, first.metadata),)
    return group_apis.JoinGroupResponse(0, 0, 1, request.protocol_type, first.name, MEMBER, False, MEMBER, members)


def _sync(request: Any, _version: int) -> Any:
    return group_apis.SyncGroupResponse(0, 0, request.protocol_type, request.protocol_name, request.assignments[0].assignment)


def _commit_results(request: Any) -> tuple[TopicResult, ...]:
    return tuple(TopicResult(topic.topic, tuple(PartitionResult(part.partition) for part in topic.partitions)) for topic in request.topics)


def _fetch_offsets(request: Any, _version: int) -> Any:
    def topics(asked: tuple[TopicPartitions, ...] | None) -> tuple[group_offset_apis.OffsetFetchTopicResult, ...]:
        found = (TopicPartitions(TOPIC, (0,)),) if asked is None else asked
        return tuple(
            group_offset_apis.OffsetFetchTopicResult(topic, tuple(map(group_offset_apis.OffsetFetchPartitionResult, partitions))) for topic, partitions in found
        )

    return group_offset_apis.OffsetFetchResponse(
        groups=tuple(group_offset_apis.OffsetFetchGroupResult(group.group_id, topics(group.topics)) for group in request.groups)
    )


def _add_partitions(request: Any, _version: int) -> Any:
    results = tuple(transaction_apis.ExtendedTransaction(each.transactional_id, same_result(each.topics, 0)) for each in request.transactions)
    return transaction_apis.AddPartitionsToTxnResponse(transactions=results)


def _next_generation(request: Any, _version: int) -> Any:
    assignment = consumer_group_apis.MemberAssignment((TopicIdPartitions(TOPIC_ID, (0,)),)) if request.member_epoch == 0 else None
    return consumer_group_apis.ConsumerGroupHeartbeatResponse(0, 0, None, request.member_id or MEMBER, max(request.member_epoch, 1), 100, assignment)


def _producers(request: Any, _version: int) -> Any:
    topics = tuple(
        transaction_apis.ProducersOfTopic(topic, tuple(map(transaction_apis.ProducersOfPartition, partitions))) for topic, partitions in request.topics
    )
    return transaction_apis.DescribeProducersResponse(topics=topics)


def _describe_transactions(request: Any, _version: int) -> Any:
    described = (transaction_apis.DescribedTransaction(0, name, "Empty", 60_000, -1, 4_000, 0) for name in request.transactional_ids)
    return transaction_apis.DescribeTransactionsResponse(0, tuple(described))


Answer = Callable[[Any, int], Any]
ANSWERS: dict[ApiKey, tuple[Message[Any], Message[Any], Answer]] = {
    ApiKey.JOIN_GROUP: (group_apis.JOIN_GROUP_REQUEST, group_apis.JOIN_GROUP_RESPONSE, _join),
    ApiKey.SYNC_GROUP: (group_apis.SYNC_GROUP_REQUEST, group_apis.SYNC_GROUP_RESPONSE, _sync),
    ApiKey.HEARTBEAT: (group_apis.HEARTBEAT_REQUEST, group_apis.HEARTBEAT_RESPONSE, lambda _request, _version: group_apis.HeartbeatResponse()),
    ApiKey.LEAVE_GROUP: (
        group_apis.LEAVE_GROUP_REQUEST,
        group_apis.LEAVE_GROUP_RESPONSE,
        lambda request, _version: group_apis.LeaveGroupResponse(0, 0, tuple(group_apis.LeftMember(*member[:2]) for member in request.members)),
    ),
    ApiKey.OFFSET_COMMIT: (
        group_offset_apis.OFFSET_COMMIT_REQUEST,
        group_offset_apis.OFFSET_COMMIT_RESPONSE,
        lambda request, _version: group_offset_apis.OffsetCommitResponse(0, _commit_results(request)),
    ),
    ApiKey.OFFSET_FETCH: (group_offset_apis.OFFSET_FETCH_REQUEST, group_offset_apis.OFFSET_FETCH_RESPONSE, _fetch_offsets),
    ApiKey.DESCRIBE_GROUPS: (
        group_apis.DESCRIBE_GROUPS_REQUEST,
        group_apis.DESCRIBE_GROUPS_RESPONSE,
        lambda request, _version: group_apis.DescribeGroupsResponse(
            0, tuple(group_apis.DescribedGroup(0, None, group_id, "Empty", "consumer") for group_id in request.group_ids)
        ),
    ),
    ApiKey.LIST_GROUPS: (
        group_apis.LIST_GROUPS_REQUEST,
        group_apis.LIST_GROUPS_RESPONSE,
        lambda _request, _version: group_apis.ListGroupsResponse(0, 0, (group_apis.ListedGroup(GROUP, "consumer", "Empty", "classic"),)),
    ),
    ApiKey.DELETE_GROUPS: (
        group_apis.DELETE_GROUPS_REQUEST,
        group_apis.DELETE_GROUPS_RESPONSE,
        lambda request, _version: group_apis.DeleteGroupsResponse(0, tuple(map(group_apis.DeletedGroup, request.group_ids))),
    ),
    ApiKey.OFFSET_DELETE: (
        group_offset_apis.OFFSET_DELETE_REQUEST,
        group_offset_apis.OFFSET_DELETE_RESPONSE,
        lambda request, _version: group_offset_apis.OffsetDeleteResponse(0, 0, _commit_results(request)),
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_REQUEST,
        consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_RESPONSE,
        _next_generation,
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        consumer_group_apis.CONSUMER_GROUP_DESCRIBE_REQUEST,
        consumer_group_apis.CONSUMER_GROUP_DESCRIBE_RESPONSE,
        lambda request, _version: consumer_group_apis.ConsumerGroupDescribeResponse(
            0, tuple(consumer_group_apis.DescribedConsumerGroup(0, None, group_id, "Empty") for group_id in request.group_ids)
        ),
    ),
    ApiKey.INIT_PRODUCER_ID: (
        transaction_apis.INIT_PRODUCER_ID_REQUEST,
        transaction_apis.INIT_PRODUCER_ID_RESPONSE,
        lambda _request, _version: transaction_apis.InitProducerIdResponse(0, 0, 4_000, 0),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST, transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE, _add_partitions),
    ApiKey.ADD_OFFSETS_TO_TXN: (
        transaction_apis.ADD_OFFSETS_TO_TXN_REQUEST,
        transaction_apis.ADD_OFFSETS_TO_TXN_RESPONSE,
        lambda _request, _version: transaction_apis.AddOffsetsToTxnResponse(),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        transaction_apis.TXN_OFFSET_COMMIT_REQUEST,
        transaction_apis.TXN_OFFSET_COMMIT_RESPONSE,
        lambda request, _version: transaction_apis.TxnOffsetCommitResponse(0, _commit_results(request)),
    ),
    ApiKey.END_TXN: (transaction_apis.END_TXN_REQUEST, transaction_apis.END_TXN_RESPONSE, lambda _request, _version: transaction_apis.EndTxnResponse()),
    ApiKey.DESCRIBE_PRODUCERS: (transaction_apis.DESCRIBE_PRODUCERS_REQUEST, transaction_apis.DESCRIBE_PRODUCERS_RESPONSE, _producers),
    ApiKey.DESCRIBE_TRANSACTIONS: (transaction_apis.DESCRIBE_TRANSACTIONS_REQUEST, transaction_apis.DESCRIBE_TRANSACTIONS_RESPONSE, _describe_transactions),
    ApiKey.LIST_TRANSACTIONS: (
        transaction_apis.LIST_TRANSACTIONS_REQUEST,
        transaction_apis.LIST_TRANSACTIONS_RESPONSE,
        lambda _request, _version: transaction_apis.ListTransactionsResponse(),
    ),
}


class RecordingCoordinator(RecordingBroker):
    """Answers the APIs of groups and transactions too, whether a box serves them or not."""

    def __init__(self, scenario: str) -> None:
        super().__init__("newest")
        self.scenario = scenario
        self.highest = SCENARIOS[scenario]
        self.failure: Exception | None = None

    def _answer(self, request: bytes) -> bytes:
        header = parse_coded_header(request)
        api = CODED_APIS[header.api_key]
        if api.key not in ANSWERS:
            return super()._answer(request)
        self._keep(f"{api.name}-v{header.api_version}", request)
        decoder, encoder, answer = ANSWERS[api.key]
        try:
            asked = decoder.decode(request, header.body_position, len(request), header.api_version)
            return encoder.encode_response(header.api_version, header.correlation_id, answer(asked, header.api_version))
        except Exception as failure:
            self.failure = failure
            raise

    def _on_api_versions(self, header: RequestHeader, _request: bytes) -> bytes:
        apis = [api for api in CODED_APIS.values() if api.key in ANSWERS or hasattr(self, f"_on_{api.key.name.lower()}")]
        highest = {ApiKey.ADD_PARTITIONS_TO_TXN: _UP_TO_3} | self.highest
        ranges = tuple(api_versions.ApiRange(api.key, api.version_min, highest.get(api.key, api.version_max)) for api in apis)
        body = api_versions.RESPONSE.encode(header.api_version, api_versions.ApiVersionsResponse(0, ranges))
        return response_frame(False, header.correlation_id, body)

    def _on_find_coordinator(self, header: RequestHeader, request: bytes) -> bytes:
        keys = cluster_apis.decode_find_coordinator(request, header.body_position, len(request), header.api_version).keys
        found = [cluster_apis.Coordinator(key, 1, "127.0.0.1", self.port) for key in keys]
        return cluster_apis.encode_find_coordinator_response(header.api_version, header.correlation_id, found)


def run_librdkafka(broker: RecordingCoordinator) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

    base: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "client.id": "golden", "log_level": 0}
    producer = Producer({**base, "transactional.id": TRANSACTIONAL_ID})
    consumer = Consumer({**base, "group.id": GROUP, "enable.auto.commit": False, "heartbeat.interval.ms": 100, "auto.offset.reset": "earliest"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(TOPIC, b"line", b"key")
    producer.flush(10)
    consumer.subscribe([TOPIC])
    consumer.poll(5)
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1, "note")], asynchronous=False)
    producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, 1)], consumer.consumer_group_metadata(), 10)
    producer.commit_transaction(10)
    consumer.poll(1)
    consumer.close()
    admin = AdminClient(base)
    with suppress(Exception):
        admin.list_consumer_groups(request_timeout=5).result(5)
    for future in (*admin.describe_consumer_groups([GROUP]).values(), *admin.delete_consumer_groups([GROUP]).values()):
        with suppress(Exception):
            future.result(5)


def run_kafka_python(broker: RecordingCoordinator) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.structs import OffsetAndMetadata

    base: dict[str, Any] = {"bootstrap_servers": [f"127.0.0.1:{broker.port}"], "client_id": "golden"}
    producer = KafkaProducer(**base, transactional_id=TRANSACTIONAL_ID)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(TOPIC, b"line", b"key").get(10)
    offsets = {TopicPartition(TOPIC, 0): OffsetAndMetadata(1, "note", -1)}
    consumer = KafkaConsumer(TOPIC, **base, group_id=GROUP, enable_auto_commit=False, heartbeat_interval_ms=100, auto_offset_reset="earliest")
    for _ in range(10):
        consumer.poll(500)
    consumer.commit(offsets)
    producer.send_offsets_to_transaction(offsets, GROUP)
    producer.commit_transaction()
    producer.close()
    consumer.close()


def run_aiokafka(broker: RecordingCoordinator) -> None:
    import asyncio

    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    async def run() -> None:
        base: dict[str, Any] = {"bootstrap_servers": f"127.0.0.1:{broker.port}", "client_id": "golden"}
        producer = AIOKafkaProducer(**base, transactional_id=TRANSACTIONAL_ID)
        consumer = AIOKafkaConsumer(TOPIC, **base, group_id=GROUP, enable_auto_commit=False, heartbeat_interval_ms=100, auto_offset_reset="earliest")
        await producer.start()
        await consumer.start()
        async with producer.transaction():
            await producer.send_and_wait(TOPIC, b"line", b"key")
            await consumer.getmany(timeout_ms=1_000)
            await consumer.commit({TopicPartition(TOPIC, 0): (1, "note")})
            await producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): 1}, GROUP)
        await consumer.stop()
        await producer.stop()

    asyncio.run(run())


def run_kafka_clients(broker: RecordingCoordinator) -> None:
    source = GOLDEN / "groups" / "GroupClient.java"
    command = ["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", ":".join(map(str, kafka_jars())), str(source)]
    subprocess.run([*command, f"127.0.0.1:{broker.port}", TOPIC, GROUP, TRANSACTIONAL_ID], check=True, timeout=120)


RUNS = {"librdkafka": run_librdkafka, "kafka-python": run_kafka_python, "aiokafka": run_aiokafka, "kafka-clients": run_kafka_clients}


def write(directory: Path, requests: dict[str, bytes]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, request in sorted(requests.items()):
        (directory / f"{name}.hex").write_text("\n".join(request.hex()[i : i + 128] for i in range(0, len(request) * 2, 128)) + "\n")
        print(f"{directory.name} {name}: {len(request)} bytes")


def main() -> None:
    coordinated = {CODED_APIS[key].name for key in ANSWERS}
    for client in sys.argv[1:] or CLIENTS:
        for scenario in SCENARIOS if client == "librdkafka" else ("newest",):
            broker = RecordingCoordinator(scenario)
            try:
                RUNS[client](broker)
            finally:
                broker.close()
            if broker.failure is not None:
                raise broker.failure
            write(GOLDEN / "groups" / client, {name: request for name, request in broker.requests.items() if name.split("-")[1] in coordinated})


if __name__ == "__main__":
    main()
