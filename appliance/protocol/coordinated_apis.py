"""Which APIs the coordinator answers, how their bodies are read and written, and which rule of which coordinator takes them.

Used by the coordinator process, and by an acceptor that has to answer for one that is away. Owned by nobody.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from appliance.protocol import (
    add_offsets_to_txn,
    add_partitions_to_txn,
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
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
    txn_offset_commit,
)
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import Message


class CoordinatedApi(NamedTuple):
    """`rule` is a method of `GroupCoordinator`, or where `is_transactional` of `TransactionCoordinator`."""

    request: Message[Any]
    response: Message[Any]
    rule: str
    is_transactional: bool = False


COORDINATED_APIS: Final[dict[int, CoordinatedApi]] = {
    ApiKey.OFFSET_COMMIT: CoordinatedApi(offset_commit.REQUEST, offset_commit.RESPONSE, "offset_commit"),
    ApiKey.OFFSET_FETCH: CoordinatedApi(offset_fetch.REQUEST, offset_fetch.RESPONSE, "offset_fetch"),
    ApiKey.JOIN_GROUP: CoordinatedApi(join_group.REQUEST, join_group.RESPONSE, "join_group"),
    ApiKey.HEARTBEAT: CoordinatedApi(heartbeat.REQUEST, heartbeat.RESPONSE, "heartbeat"),
    ApiKey.LEAVE_GROUP: CoordinatedApi(leave_group.REQUEST, leave_group.RESPONSE, "leave_group"),
    ApiKey.SYNC_GROUP: CoordinatedApi(sync_group.REQUEST, sync_group.RESPONSE, "sync_group"),
    ApiKey.DESCRIBE_GROUPS: CoordinatedApi(describe_groups.REQUEST, describe_groups.RESPONSE, "describe_groups"),
    ApiKey.LIST_GROUPS: CoordinatedApi(list_groups.REQUEST, list_groups.RESPONSE, "list_groups"),
    ApiKey.DELETE_GROUPS: CoordinatedApi(delete_groups.REQUEST, delete_groups.RESPONSE, "delete_groups"),
    ApiKey.OFFSET_DELETE: CoordinatedApi(offset_delete.REQUEST, offset_delete.RESPONSE, "offset_delete"),
    ApiKey.TXN_OFFSET_COMMIT: CoordinatedApi(txn_offset_commit.REQUEST, txn_offset_commit.RESPONSE, "txn_offset_commit"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: CoordinatedApi(consumer_group_heartbeat.REQUEST, consumer_group_heartbeat.RESPONSE, "consumer_group_heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: CoordinatedApi(consumer_group_describe.REQUEST, consumer_group_describe.RESPONSE, "consumer_group_describe"),
    ApiKey.INIT_PRODUCER_ID: CoordinatedApi(init_producer_id.REQUEST, init_producer_id.RESPONSE, "init_producer_id", True),
    ApiKey.ADD_PARTITIONS_TO_TXN: CoordinatedApi(add_partitions_to_txn.REQUEST, add_partitions_to_txn.RESPONSE, "add_partitions", True),
    ApiKey.ADD_OFFSETS_TO_TXN: CoordinatedApi(add_offsets_to_txn.REQUEST, add_offsets_to_txn.RESPONSE, "add_offsets", True),
    ApiKey.END_TXN: CoordinatedApi(end_txn.REQUEST, end_txn.RESPONSE, "end_transaction", True),
    ApiKey.DESCRIBE_TRANSACTIONS: CoordinatedApi(describe_transactions.REQUEST, describe_transactions.RESPONSE, "describe", True),
    ApiKey.LIST_TRANSACTIONS: CoordinatedApi(list_transactions.REQUEST, list_transactions.RESPONSE, "list_all", True),
}
