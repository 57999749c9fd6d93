"""Which APIs the coordinator answers, how their bodies are read and written, and which rule of which coordinator takes them.

Used by the coordinator process, and by an acceptor that has to answer for one that is away. Owned by nobody.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from appliance.protocol import consumer_group_apis, group_apis, group_offset_apis, transaction_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import Message


class CoordinatedApi(NamedTuple):
    """`rule` is a method of `GroupCoordinator`, or where `is_transactional` of `TransactionCoordinator`."""

    request: Message[Any]
    response: Message[Any]
    rule: str
    is_transactional: bool = False


COORDINATED_APIS: Final[dict[int, CoordinatedApi]] = {
    ApiKey.OFFSET_COMMIT: CoordinatedApi(group_offset_apis.OFFSET_COMMIT_REQUEST, group_offset_apis.OFFSET_COMMIT_RESPONSE, "offset_commit"),
    ApiKey.OFFSET_FETCH: CoordinatedApi(group_offset_apis.OFFSET_FETCH_REQUEST, group_offset_apis.OFFSET_FETCH_RESPONSE, "offset_fetch"),
    ApiKey.JOIN_GROUP: CoordinatedApi(group_apis.JOIN_GROUP_REQUEST, group_apis.JOIN_GROUP_RESPONSE, "join_group"),
    ApiKey.HEARTBEAT: CoordinatedApi(group_apis.HEARTBEAT_REQUEST, group_apis.HEARTBEAT_RESPONSE, "heartbeat"),
    ApiKey.LEAVE_GROUP: CoordinatedApi(group_apis.LEAVE_GROUP_REQUEST, group_apis.LEAVE_GROUP_RESPONSE, "leave_group"),
    ApiKey.SYNC_GROUP: CoordinatedApi(group_apis.SYNC_GROUP_REQUEST, group_apis.SYNC_GROUP_RESPONSE, "sync_group"),
    ApiKey.DESCRIBE_GROUPS: CoordinatedApi(group_apis.DESCRIBE_GROUPS_REQUEST, group_apis.DESCRIBE_GROUPS_RESPONSE, "describe_groups"),
    ApiKey.LIST_GROUPS: CoordinatedApi(group_apis.LIST_GROUPS_REQUEST, group_apis.LIST_GROUPS_RESPONSE, "list_groups"),
    ApiKey.DELETE_GROUPS: CoordinatedApi(group_apis.DELETE_GROUPS_REQUEST, group_apis.DELETE_GROUPS_RESPONSE, "delete_groups"),
    ApiKey.OFFSET_DELETE: CoordinatedApi(group_offset_apis.OFFSET_DELETE_REQUEST, group_offset_apis.OFFSET_DELETE_RESPONSE, "offset_delete"),
    ApiKey.TXN_OFFSET_COMMIT: CoordinatedApi(transaction_apis.TXN_OFFSET_COMMIT_REQUEST, transaction_apis.TXN_OFFSET_COMMIT_RESPONSE, "txn_offset_commit"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: CoordinatedApi(
        consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_REQUEST, consumer_group_apis.CONSUMER_GROUP_HEARTBEAT_RESPONSE, "consumer_group_heartbeat"
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: CoordinatedApi(
        consumer_group_apis.CONSUMER_GROUP_DESCRIBE_REQUEST, consumer_group_apis.CONSUMER_GROUP_DESCRIBE_RESPONSE, "consumer_group_describe"
    ),
    ApiKey.INIT_PRODUCER_ID: CoordinatedApi(transaction_apis.INIT_PRODUCER_ID_REQUEST, transaction_apis.INIT_PRODUCER_ID_RESPONSE, "init_producer_id", True),
    ApiKey.ADD_PARTITIONS_TO_TXN: CoordinatedApi(
        transaction_apis.ADD_PARTITIONS_TO_TXN_REQUEST, transaction_apis.ADD_PARTITIONS_TO_TXN_RESPONSE, "add_partitions", True
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: CoordinatedApi(transaction_apis.ADD_OFFSETS_TO_TXN_REQUEST, transaction_apis.ADD_OFFSETS_TO_TXN_RESPONSE, "add_offsets", True),
    ApiKey.END_TXN: CoordinatedApi(transaction_apis.END_TXN_REQUEST, transaction_apis.END_TXN_RESPONSE, "end_transaction", True),
    ApiKey.DESCRIBE_TRANSACTIONS: CoordinatedApi(
        transaction_apis.DESCRIBE_TRANSACTIONS_REQUEST, transaction_apis.DESCRIBE_TRANSACTIONS_RESPONSE, "describe", True
    ),
    ApiKey.LIST_TRANSACTIONS: CoordinatedApi(transaction_apis.LIST_TRANSACTIONS_REQUEST, transaction_apis.LIST_TRANSACTIONS_RESPONSE, "list_all", True),
}
