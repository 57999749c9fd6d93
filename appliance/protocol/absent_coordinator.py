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
    from appliance.protocol import consumer_group_apis, group_apis, group_offset_apis, transaction_apis
    from appliance.protocol.apis import ApiKey

    plain: dict[int, type[Any]] = {
        ApiKey.JOIN_GROUP: group_apis.JoinGroupResponse,
        ApiKey.HEARTBEAT: group_apis.HeartbeatResponse,
        ApiKey.LEAVE_GROUP: group_apis.LeaveGroupResponse,
        ApiKey.SYNC_GROUP: group_apis.SyncGroupResponse,
        ApiKey.LIST_GROUPS: group_apis.ListGroupsResponse,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_apis.ConsumerGroupHeartbeatResponse,
        ApiKey.OFFSET_DELETE: group_offset_apis.OffsetDeleteResponse,
        ApiKey.INIT_PRODUCER_ID: transaction_apis.InitProducerIdResponse,
        ApiKey.ADD_OFFSETS_TO_TXN: transaction_apis.AddOffsetsToTxnResponse,
        ApiKey.END_TXN: transaction_apis.EndTxnResponse,
        ApiKey.LIST_TRANSACTIONS: transaction_apis.ListTransactionsResponse,
    }
    if api_key in plain:
        return plain[api_key](error_code=_CODE)
    if api_key == ApiKey.DESCRIBE_GROUPS:
        groups = tuple(group_apis.DescribedGroup(_CODE, group_id=group_id) for group_id in request.group_ids)
        return group_apis.DescribeGroupsResponse(groups=groups)
    if api_key == ApiKey.CONSUMER_GROUP_DESCRIBE:
        described_groups = tuple(consumer_group_apis.ConsumerGroup(_CODE, group_id=group_id) for group_id in request.group_ids)
        return consumer_group_apis.ConsumerGroupDescribeResponse(groups=described_groups)
    if api_key == ApiKey.DELETE_GROUPS:
        return group_apis.DeleteGroupsResponse(groups=tuple(group_apis.DeletedGroup(group_id, _CODE) for group_id in request.group_ids))
    if api_key == ApiKey.DESCRIBE_TRANSACTIONS:
        described = tuple(transaction_apis.DescribedTransaction(_CODE, name) for name in request.transactional_ids)
        return transaction_apis.DescribeTransactionsResponse(0, described)
    if api_key == ApiKey.OFFSET_FETCH:
        return group_offset_apis.OffsetFetchResponse(groups=tuple(group_offset_apis.failed_group(version, group, _CODE) for group in request.groups))
    return _by_partition(api_key, request)


def _by_partition(api_key: int, request: Any) -> Any:
    """Of those that have an error for each partition."""
    from appliance.protocol import group_offset_apis, transaction_apis
    from appliance.protocol.apis import ApiKey
    from appliance.protocol.topic_partitions import PartitionResult, TopicResult, same_result

    if api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
        extended = tuple(transaction_apis.ExtendedTransaction(one.transactional_id, same_result(one.topics, _CODE)) for one in request.transactions)
        return transaction_apis.AddPartitionsToTxnResponse(transactions=extended)
    topics = tuple(TopicResult(topic.topic, tuple(PartitionResult(each.partition, _CODE) for each in topic.partitions)) for topic in request.topics)
    response = group_offset_apis.OffsetCommitResponse if api_key == ApiKey.OFFSET_COMMIT else transaction_apis.TxnOffsetCommitResponse
    return response(topics=topics)
