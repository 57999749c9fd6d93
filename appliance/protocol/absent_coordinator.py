"""What a client hears while the coordinator of the box is away, or died with his request: COORDINATOR_NOT_AVAILABLE, upon which clients look for their
coordinator and ask again.

Owned by one acceptor, which opens the request only now. Whether it was carried out nobody knows; every request of these APIs may be repeated.
"""

from __future__ import annotations

from typing import Any

from appliance.base.errors import ErrorCode, ProtocolViolation
from appliance.ipc.request_frames import unpack_kafka_request

_CODE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def absent_answer(payload: bytes) -> bytes | None:
    """The body of the answer to a request as it was packed for the coordinator; None where there is none to give."""
    from appliance.protocol.coordinated_apis import COORDINATED_APIS  # no acceptor needs to read these otherwise

    api_key, version, _client_id, _client_host, body = unpack_kafka_request(payload)
    api = COORDINATED_APIS[api_key]
    try:
        request = api.request.decode(body, 0, len(body), version)
    except ProtocolViolation:
        return None
    return api.response.encode(version, _response(api_key, version, request))


def _response(api_key: int, version: int, request: Any) -> Any:
    from appliance.protocol import (
        add_offsets_to_txn,
        consumer_group_describe,
        consumer_group_heartbeat,
        delete_groups,
        describe_groups,
        describe_transactions,
        end_txn,
        heartbeat,
        init_producer_id,
        join_group,
        leave_group,
        list_groups,
        list_transactions,
        offset_delete,
        offset_fetch,
        sync_group,
    )
    from appliance.protocol.apis import ApiKey

    plain: dict[int, type[Any]] = {
        ApiKey.JOIN_GROUP: join_group.JoinGroupResponse,
        ApiKey.HEARTBEAT: heartbeat.HeartbeatResponse,
        ApiKey.LEAVE_GROUP: leave_group.LeaveGroupResponse,
        ApiKey.SYNC_GROUP: sync_group.SyncGroupResponse,
        ApiKey.LIST_GROUPS: list_groups.ListGroupsResponse,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat.ConsumerGroupHeartbeatResponse,
        ApiKey.OFFSET_DELETE: offset_delete.OffsetDeleteResponse,
        ApiKey.INIT_PRODUCER_ID: init_producer_id.InitProducerIdResponse,
        ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn.AddOffsetsToTxnResponse,
        ApiKey.END_TXN: end_txn.EndTxnResponse,
        ApiKey.LIST_TRANSACTIONS: list_transactions.ListTransactionsResponse,
    }
    if api_key in plain:
        return plain[api_key](error_code=_CODE)
    if api_key == ApiKey.DESCRIBE_GROUPS:
        groups = tuple(describe_groups.DescribedGroup(_CODE, group_id=group_id) for group_id in request.group_ids)
        return describe_groups.DescribeGroupsResponse(groups=groups)
    if api_key == ApiKey.CONSUMER_GROUP_DESCRIBE:
        described_groups = tuple(consumer_group_describe.ConsumerGroup(_CODE, group_id=group_id) for group_id in request.group_ids)
        return consumer_group_describe.ConsumerGroupDescribeResponse(groups=described_groups)
    if api_key == ApiKey.DELETE_GROUPS:
        return delete_groups.DeleteGroupsResponse(groups=tuple(delete_groups.DeletedGroup(group_id, _CODE) for group_id in request.group_ids))
    if api_key == ApiKey.DESCRIBE_TRANSACTIONS:
        described = tuple(describe_transactions.DescribedTransaction(_CODE, name) for name in request.transactional_ids)
        return describe_transactions.DescribeTransactionsResponse(0, described)
    if api_key == ApiKey.OFFSET_FETCH:
        return offset_fetch.OffsetFetchResponse(groups=tuple(offset_fetch.failed_group(version, group, _CODE) for group in request.groups))
    return _by_partition(api_key, request)


def _by_partition(api_key: int, request: Any) -> Any:
    """Of those that have an error for each partition."""
    from appliance.protocol import add_partitions_to_txn, offset_commit, txn_offset_commit
    from appliance.protocol.apis import ApiKey
    from appliance.protocol.topic_partitions import PartitionResult, TopicResult, same_result

    if api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
        extended = tuple(add_partitions_to_txn.ExtendedTransaction(one.transactional_id, same_result(one.topics, _CODE)) for one in request.transactions)
        return add_partitions_to_txn.AddPartitionsToTxnResponse(transactions=extended)
    topics = tuple(TopicResult(topic.topic, tuple(PartitionResult(each.partition, _CODE) for each in topic.partitions)) for topic in request.topics)
    response = offset_commit.OffsetCommitResponse if api_key == ApiKey.OFFSET_COMMIT else txn_offset_commit.TxnOffsetCommitResponse
    return response(topics=topics)
