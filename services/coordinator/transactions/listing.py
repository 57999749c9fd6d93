"""What people may know of transactions: ListTransactions and DescribeTransactions (KIP-664, KIP-994).

Owned by the coordinator process. Weak spot: a listing looks at every transactional id of the box, 1 µs each.
"""

from __future__ import annotations

from collections import defaultdict

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.protocol.topic_partitions import TopicPartitions
from appliance.protocol.transaction_apis import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from services.coordinator.transactions.transaction import NO_PRODUCER_EPOCH, STATE_NAMES, Transaction, TransactionState
from services.coordinator.transactions.transactional_ids import TransactionalIds


def list_transactions(ids: TransactionalIds, request: ListTransactionsRequest, wall_ms: int) -> ListTransactionsResponse:
    """List the transactions that pass every filter; an unknown state is reported and matches none."""
    known = set(STATE_NAMES.values())
    unknown = tuple(state for state in request.state_filters if state not in known)
    if ids.is_loading:
        return ListTransactionsResponse(0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, unknown)
    listed = tuple(
        ListedTransaction(transactional.name, transactional.current.producer_id, STATE_NAMES[transactional.current.state])
        for transactional in ids
        if _passes(transactional.current, request, wall_ms)
    )
    return ListTransactionsResponse(0, 0, unknown, listed)


def _passes(transaction: Transaction, request: ListTransactionsRequest, wall_ms: int) -> bool:
    if transaction.producer_epoch == NO_PRODUCER_EPOCH:
        return False  # nothing of it is in the log
    if request.state_filters and STATE_NAMES[transaction.state] not in request.state_filters:
        return False
    if request.producer_id_filters and transaction.producer_id not in request.producer_id_filters:
        return False
    if request.duration_filter_ms < 0:
        return True
    return transaction.state is TransactionState.ONGOING and wall_ms - transaction.start_ms > request.duration_filter_ms


def describe_transactions(ids: TransactionalIds, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(0, tuple(_describe(ids, name) for name in request.transactional_ids))


def _describe(ids: TransactionalIds, name: str) -> DescribedTransaction:
    if not name:
        return DescribedTransaction(ErrorCode.INVALID_REQUEST, name)
    try:
        transactional = ids.find(name)
    except RequestRefused as refused:
        return DescribedTransaction(refused.code, name)
    if transactional is None or transactional.current.producer_epoch == NO_PRODUCER_EPOCH:
        return DescribedTransaction(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, name)
    current = transactional.current
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(current.partitions):
        topics[topic].append(partition)
    listed = tuple(TopicPartitions(topic, tuple(partitions)) for topic, partitions in topics.items())
    start_ms = current.start_ms if current.state is not TransactionState.EMPTY else -1
    return DescribedTransaction(0, name, STATE_NAMES[current.state], current.timeout_ms, start_ms, current.producer_id, current.producer_epoch, listed)
