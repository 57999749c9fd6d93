"""The APIs that an acceptor forwards to the coordinator or the controller, and their error responses.

The coordinator uses the table too. An acceptor imports this module only when one of the two is away.
"""

from typing import Any, Final, NamedTuple

from appliance.base.errors import ProtocolViolation
from appliance.ipc.request_frames import unpack_kafka_request
from appliance.protocol import acl_apis, cluster_apis, config_apis, log_dir_apis, quota_apis, reassignment_apis, sasl_apis, token_apis, topic_apis
from appliance.protocol import consumer_group_apis as newer
from appliance.protocol import group_apis as groups
from appliance.protocol import group_offset_apis as offsets
from appliance.protocol import share_apis as shares
from appliance.protocol import share_state_apis as states
from appliance.protocol import streams_apis as streams
from appliance.protocol import transaction_apis as transactions
from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import Message


class CoordinatedApi(NamedTuple):
    """`rule` is a method of `GroupCoordinator`; where `is_transactional` of `TransactionCoordinator`, where `is_shared` of `CoordinatedShares`."""

    request: Message[Any]
    response: Message[Any]
    rule: str
    is_transactional: bool = False
    is_shared: bool = False


COORDINATED_APIS: Final[dict[int, CoordinatedApi]] = {
    ApiKey.OFFSET_COMMIT: CoordinatedApi(offsets.OFFSET_COMMIT_REQUEST, offsets.OFFSET_COMMIT_RESPONSE, "offset_commit"),
    ApiKey.OFFSET_FETCH: CoordinatedApi(offsets.OFFSET_FETCH_REQUEST, offsets.OFFSET_FETCH_RESPONSE, "offset_fetch"),
    ApiKey.JOIN_GROUP: CoordinatedApi(groups.JOIN_GROUP_REQUEST, groups.JOIN_GROUP_RESPONSE, "join_group"),
    ApiKey.HEARTBEAT: CoordinatedApi(groups.HEARTBEAT_REQUEST, groups.HEARTBEAT_RESPONSE, "heartbeat"),
    ApiKey.LEAVE_GROUP: CoordinatedApi(groups.LEAVE_GROUP_REQUEST, groups.LEAVE_GROUP_RESPONSE, "leave_group"),
    ApiKey.SYNC_GROUP: CoordinatedApi(groups.SYNC_GROUP_REQUEST, groups.SYNC_GROUP_RESPONSE, "sync_group"),
    ApiKey.DESCRIBE_GROUPS: CoordinatedApi(groups.DESCRIBE_GROUPS_REQUEST, groups.DESCRIBE_GROUPS_RESPONSE, "describe_groups"),
    ApiKey.LIST_GROUPS: CoordinatedApi(groups.LIST_GROUPS_REQUEST, groups.LIST_GROUPS_RESPONSE, "list_groups"),
    ApiKey.DELETE_GROUPS: CoordinatedApi(groups.DELETE_GROUPS_REQUEST, groups.DELETE_GROUPS_RESPONSE, "delete_groups"),
    ApiKey.OFFSET_DELETE: CoordinatedApi(offsets.OFFSET_DELETE_REQUEST, offsets.OFFSET_DELETE_RESPONSE, "offset_delete"),
    ApiKey.TXN_OFFSET_COMMIT: CoordinatedApi(transactions.TXN_OFFSET_COMMIT_REQUEST, transactions.TXN_OFFSET_COMMIT_RESPONSE, "txn_offset_commit"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: CoordinatedApi(
        newer.CONSUMER_GROUP_HEARTBEAT_REQUEST, newer.CONSUMER_GROUP_HEARTBEAT_RESPONSE, "consumer_group_heartbeat"
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: CoordinatedApi(newer.CONSUMER_GROUP_DESCRIBE_REQUEST, newer.CONSUMER_GROUP_DESCRIBE_RESPONSE, "consumer_group_describe"),
    ApiKey.STREAMS_GROUP_HEARTBEAT: CoordinatedApi(
        streams.STREAMS_GROUP_HEARTBEAT_REQUEST, streams.STREAMS_GROUP_HEARTBEAT_RESPONSE, "streams_group_heartbeat"
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: CoordinatedApi(streams.STREAMS_GROUP_DESCRIBE_REQUEST, streams.STREAMS_GROUP_DESCRIBE_RESPONSE, "streams_group_describe"),
    ApiKey.SHARE_GROUP_HEARTBEAT: CoordinatedApi(
        shares.SHARE_GROUP_HEARTBEAT_REQUEST, shares.SHARE_GROUP_HEARTBEAT_RESPONSE, "share_group_heartbeat", is_shared=True
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: CoordinatedApi(
        shares.SHARE_GROUP_DESCRIBE_REQUEST, shares.SHARE_GROUP_DESCRIBE_RESPONSE, "share_group_describe", is_shared=True
    ),
    ApiKey.SHARE_FETCH: CoordinatedApi(shares.SHARE_FETCH_REQUEST, shares.SHARE_FETCH_RESPONSE, "share_fetch", is_shared=True),
    ApiKey.SHARE_ACKNOWLEDGE: CoordinatedApi(shares.SHARE_ACKNOWLEDGE_REQUEST, shares.SHARE_ACKNOWLEDGE_RESPONSE, "share_acknowledge", is_shared=True),
    **{
        ApiKey(request.api.key): CoordinatedApi(request, response, rule, is_shared=True)
        for request, response, rule in (
            (states.INITIALIZE_SHARE_GROUP_STATE_REQUEST, states.INITIALIZE_SHARE_GROUP_STATE_RESPONSE, "initialize_share_group_state"),
            (states.READ_SHARE_GROUP_STATE_REQUEST, states.READ_SHARE_GROUP_STATE_RESPONSE, "read_share_group_state"),
            (states.WRITE_SHARE_GROUP_STATE_REQUEST, states.WRITE_SHARE_GROUP_STATE_RESPONSE, "write_share_group_state"),
            (states.DELETE_SHARE_GROUP_STATE_REQUEST, states.DELETE_SHARE_GROUP_STATE_RESPONSE, "delete_share_group_state"),
            (states.READ_SHARE_GROUP_STATE_SUMMARY_REQUEST, states.READ_SHARE_GROUP_STATE_SUMMARY_RESPONSE, "read_share_group_state_summary"),
        )
    },
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: CoordinatedApi(
        shares.DESCRIBE_SHARE_GROUP_OFFSETS_REQUEST, shares.DESCRIBE_SHARE_GROUP_OFFSETS_RESPONSE, "describe_share_group_offsets", is_shared=True
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: CoordinatedApi(
        shares.ALTER_SHARE_GROUP_OFFSETS_REQUEST, shares.ALTER_SHARE_GROUP_OFFSETS_RESPONSE, "alter_share_group_offsets", is_shared=True
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: CoordinatedApi(
        shares.DELETE_SHARE_GROUP_OFFSETS_REQUEST, shares.DELETE_SHARE_GROUP_OFFSETS_RESPONSE, "delete_share_group_offsets", is_shared=True
    ),
    ApiKey.INIT_PRODUCER_ID: CoordinatedApi(transactions.INIT_PRODUCER_ID_REQUEST, transactions.INIT_PRODUCER_ID_RESPONSE, "init_producer_id", True),
    ApiKey.ADD_PARTITIONS_TO_TXN: CoordinatedApi(
        transactions.ADD_PARTITIONS_TO_TXN_REQUEST, transactions.ADD_PARTITIONS_TO_TXN_RESPONSE, "add_partitions", True
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: CoordinatedApi(transactions.ADD_OFFSETS_TO_TXN_REQUEST, transactions.ADD_OFFSETS_TO_TXN_RESPONSE, "add_offsets", True),
    ApiKey.END_TXN: CoordinatedApi(transactions.END_TXN_REQUEST, transactions.END_TXN_RESPONSE, "end_transaction", True),
    ApiKey.DESCRIBE_TRANSACTIONS: CoordinatedApi(transactions.DESCRIBE_TRANSACTIONS_REQUEST, transactions.DESCRIBE_TRANSACTIONS_RESPONSE, "describe", True),
    ApiKey.LIST_TRANSACTIONS: CoordinatedApi(transactions.LIST_TRANSACTIONS_REQUEST, transactions.LIST_TRANSACTIONS_RESPONSE, "list_all", True),
}

CONTROLLER_APIS: Final[dict[int, tuple[Message[Any], Message[Any]]]] = {
    ApiKey.CREATE_TOPICS: (topic_apis.CREATE_TOPICS_REQUEST, topic_apis.CREATE_TOPICS_RESPONSE),
    ApiKey.DELETE_TOPICS: (topic_apis.DELETE_TOPICS_REQUEST, topic_apis.DELETE_TOPICS_RESPONSE),
    ApiKey.CREATE_PARTITIONS: (topic_apis.CREATE_PARTITIONS_REQUEST, topic_apis.CREATE_PARTITIONS_RESPONSE),
    ApiKey.DESCRIBE_CONFIGS: (config_apis.DESCRIBE_CONFIGS_REQUEST, config_apis.DESCRIBE_CONFIGS_RESPONSE),
    ApiKey.ALTER_CONFIGS: (config_apis.ALTER_CONFIGS_REQUEST, config_apis.ALTER_CONFIGS_RESPONSE),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST, config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (log_dir_apis.ALTER_REPLICA_LOG_DIRS_REQUEST, log_dir_apis.ALTER_REPLICA_LOG_DIRS_RESPONSE),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_REQUEST, reassignment_apis.ALTER_PARTITION_REASSIGNMENTS_RESPONSE),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (reassignment_apis.LIST_PARTITION_REASSIGNMENTS_REQUEST, reassignment_apis.LIST_PARTITION_REASSIGNMENTS_RESPONSE),
    ApiKey.ELECT_LEADERS: (reassignment_apis.ELECT_LEADERS_REQUEST, reassignment_apis.ELECT_LEADERS_RESPONSE),
    ApiKey.DESCRIBE_ACLS: (acl_apis.DESCRIBE_ACLS_REQUEST, acl_apis.DESCRIBE_ACLS_RESPONSE),
    ApiKey.CREATE_ACLS: (acl_apis.CREATE_ACLS_REQUEST, acl_apis.CREATE_ACLS_RESPONSE),
    ApiKey.DELETE_ACLS: (acl_apis.DELETE_ACLS_REQUEST, acl_apis.DELETE_ACLS_RESPONSE),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (quota_apis.DESCRIBE_CLIENT_QUOTAS_REQUEST, quota_apis.DESCRIBE_CLIENT_QUOTAS_RESPONSE),
    ApiKey.ALTER_CLIENT_QUOTAS: (quota_apis.ALTER_CLIENT_QUOTAS_REQUEST, quota_apis.ALTER_CLIENT_QUOTAS_RESPONSE),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST,
        sasl_apis.DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE,
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_REQUEST, sasl_apis.ALTER_USER_SCRAM_CREDENTIALS_RESPONSE),
    ApiKey.CREATE_DELEGATION_TOKEN: (token_apis.CREATE_DELEGATION_TOKEN_REQUEST, token_apis.CREATE_DELEGATION_TOKEN_RESPONSE),
    ApiKey.RENEW_DELEGATION_TOKEN: (token_apis.RENEW_DELEGATION_TOKEN_REQUEST, token_apis.RENEW_DELEGATION_TOKEN_RESPONSE),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (token_apis.EXPIRE_DELEGATION_TOKEN_REQUEST, token_apis.EXPIRE_DELEGATION_TOKEN_RESPONSE),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (token_apis.DESCRIBE_DELEGATION_TOKEN_REQUEST, token_apis.DESCRIBE_DELEGATION_TOKEN_RESPONSE),
    ApiKey.UNREGISTER_BROKER: (cluster_apis.UNREGISTER_BROKER_REQUEST, cluster_apis.UNREGISTER_BROKER_RESPONSE),
}


ANSWER_BYTES_MAX = 32 << 20
"""Largest answer that is made. A request may name a group or transactional id 100,000 times."""


class AnswerBudget:
    """What the parts of one answer may have together. `take` a part's size before it is made."""

    def __init__(self, size_bytes: int = ANSWER_BYTES_MAX) -> None:
        self._left = size_bytes

    @property
    def is_spent(self) -> bool:
        return self._left < 0

    def take(self, size_bytes: int) -> bool:
        """Return False if the answer is too large with this part: then nothing more fits."""
        self._left -= size_bytes
        return self._left >= 0


def error_answer(payload: bytes, error_code: int, message: str | None = None) -> bytes | None:
    """The body of an error response to a forwarded request; None if it cannot be decoded."""
    request = unpack_kafka_request(payload)
    api_key, version, body = request.api_key, request.api_version, request.body
    api = COORDINATED_APIS.get(api_key) or CONTROLLER_APIS.get(api_key)
    if api is None:
        return None
    try:
        request = api[0].decode(body, 0, len(body), version)
    except ProtocolViolation:
        return None
    return api[1].encode(version, api[1].error_response(version, request, error_code, message))
