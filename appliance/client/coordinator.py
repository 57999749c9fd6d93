"""Requests to the coordinator of a group or transactional id, which is looked up again when it moves. One thread, through a ClusterClient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import BrokerId
from appliance.client.cluster import ClusterClient
from appliance.client.errors import (
    COORDINATOR_IS_ELSEWHERE,
    METADATA_IS_STALE,
    BrokerUnreachable,
    ClientFailed,
    ConnectionLost,
    is_retriable,
    refused,
)
from appliance.client.messages import FIND_COORDINATOR, Answered, Asked, ClientApi
from appliance.protocol.cluster_apis import FindCoordinatorRequest, FindCoordinatorResponse
from appliance.protocol.group_offset_apis import OffsetCommitResponse
from appliance.protocol.transaction_apis import TxnOffsetCommitResponse

Item = TypeVar("Item")

GROUP, TRANSACTION = 0, 1
HEALS_BY_ITSELF = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT})
"""Codes of a coordinator that is still ending a transaction."""


class CoordinatorClient:
    """The coordinator of one group or transactional id; its broker is remembered until it answers NOT_COORDINATOR."""

    def __init__(self, cluster: ClusterClient, key_type: int, key: str, *, retry_ms: int | None = None, asks_again: bool = False) -> None:
        """`asks_again`: also after a lost connection, for questions that may come twice."""
        self._cluster = cluster
        self._key_type = key_type
        self._key = key
        self._retry_ms = retry_ms
        self._asks_again = asks_again
        self._broker: BrokerId | None = None

    def ask(self, api: ClientApi[Asked, Answered], request: Asked, doing: str, error_of: Callable[[Answered], tuple[int, str | None]]) -> Answered:
        """Its answer; tried again while it moves, reads its state, or ends this id's last transaction. `error_of` gives an answer's error code and words."""
        backoff = self._cluster.backoff(self._retry_ms)
        while True:
            try:
                if self._broker is None:
                    self._broker = _find(self._cluster, self._key_type, self._key, doing)
                body = self._cluster.ask_broker(self._broker, api, request)
                code, words = error_of(body)
                if code == ErrorCode.NONE:
                    return body
                raise refused(code, doing, words)
            except RequestRefused as error:
                if error.code in COORDINATOR_IS_ELSEWHERE:
                    self._broker = None
                elif error.code not in HEALS_BY_ITSELF and not (self._asks_again and error.code in METADATA_IS_STALE):
                    raise
                backoff.pause_or_raise(error)
            except ClientFailed as error:
                if not self._asks_again or not is_retriable(error):
                    raise
                self._broker = None
                backoff.pause_or_raise(error)


def _find(cluster: ClusterClient, key_type: int, key: str, doing: str) -> BrokerId:
    """Any broker knows; one that has just died is registered for a while yet."""
    brokers = cluster.metadata([]).brokers
    if not brokers:
        raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"could not {doing}: no broker is registered at the moment")
    *others, last = sorted(brokers)
    question = FindCoordinatorRequest(key_type=key_type, keys=(key,))
    for broker in others:
        try:
            return _coordinator(cluster.ask_broker(broker, FIND_COORDINATOR, question), doing)
        except (BrokerUnreachable, ConnectionLost):
            pass
    return _coordinator(cluster.ask_broker(last, FIND_COORDINATOR, question), doing)


def _coordinator(body: FindCoordinatorResponse, doing: str) -> BrokerId:
    found = body.coordinators[0]
    if found.error_code != ErrorCode.NONE:
        raise refused(found.error_code, doing)
    return BrokerId(found.node_id)


def ask_every_broker(cluster: ClusterClient, api: ClientApi[Asked, Answered], request: Asked, doing: str) -> dict[BrokerId, Answered]:
    """Ask all brokers, each with retries while its coordinator loads. If a broker leaves the cluster meanwhile, all are asked again:
    another one may coordinate now what it did."""
    while True:
        brokers = sorted(cluster.metadata([]).brokers)
        answers = {broker: body for broker in brokers if (body := _ask_one(cluster, broker, api, request, doing)) is not None}
        if len(answers) == len(brokers):
            return answers


def _ask_one(cluster: ClusterClient, broker: BrokerId, api: ClientApi[Asked, Answered], request: Asked, doing: str) -> Answered | None:
    """None: it is no part of the cluster any more."""
    backoff = cluster.backoff()
    while True:
        try:
            body: Any = cluster.ask_broker(broker, api, request)
        except (BrokerUnreachable, ConnectionLost) as error:
            backoff.pause_or_raise(error)
            if broker not in cluster.metadata([]).brokers:
                return None
            continue
        if body.error_code == ErrorCode.NONE:
            answered: Answered = body
            return answered
        refusal = refused(body.error_code, doing)
        if refusal.code not in COORDINATOR_IS_ELSEWHERE:
            raise refusal
        backoff.pause_or_raise(refusal)


def by_topic(partitions: Iterable[tuple[str, Item]]) -> list[tuple[str, tuple[Item, ...]]]:
    """Group (topic, item) pairs by topic, as requests name them; the order of both stays."""
    found: dict[str, list[Item]] = {}
    for topic, item in partitions:
        found.setdefault(topic, []).append(item)
    return [(topic, tuple(items)) for topic, items in found.items()]


def first_error(body: OffsetCommitResponse | TxnOffsetCommitResponse) -> tuple[int, str | None]:
    """Return the first error of a partition, for `CoordinatorClient.ask`."""
    return next((partition.error_code for topic in body.topics for partition in topic.partitions if partition.error_code), 0), None
