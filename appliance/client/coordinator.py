"""Asking a coordinator: found by the name of a group or transactional id, and again when it has moved. One thread, through a ClusterClient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import BrokerId
from appliance.client.cluster import ClusterClient
from appliance.client.errors import COORDINATOR_IS_ELSEWHERE, refused
from appliance.client.messages import FIND_COORDINATOR, Api

GROUP, TRANSACTION = 0, 1


def ask_coordinator(
    cluster: ClusterClient, key_type: int, key: str, api: Api, values: dict[str, Any], doing: str, error_of: Callable[[Any], tuple[int, str | None]]
) -> Any:
    """The answer of the coordinator of `key`; tried again while it moves or reads its state. `error_of` gives an answer's error code and words."""
    backoff = cluster.backoff()
    while True:
        try:
            body = cluster.ask_broker(_find(cluster, key_type, key, doing), api, values)
            code, words = error_of(body)
            if code == ErrorCode.NONE:
                return body
            raise refused(code, doing, words)
        except RequestRefused as error:
            if error.code not in COORDINATOR_IS_ELSEWHERE and error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                raise
            backoff.pause_or_raise(error)


def _find(cluster: ClusterClient, key_type: int, key: str, doing: str) -> BrokerId:
    brokers = cluster.metadata([]).brokers
    if not brokers:
        raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"could not {doing}: no broker is registered at the moment")
    body = cluster.ask_broker(min(brokers), FIND_COORDINATOR, {"key_type": key_type, "coordinator_keys": [key]})
    found = body.coordinators[0]
    if found.error_code != ErrorCode.NONE:
        raise refused(int(found.error_code), doing)
    return BrokerId(int(found.node_id))


def ask_every_broker(cluster: ClusterClient, api: Api, values: dict[str, Any], doing: str) -> list[Any]:
    """Everybody's answer, each tried again while its coordinator reads its state."""
    return [_ask_one(cluster, broker, api, values, doing) for broker in sorted(cluster.metadata([]).brokers)]


def _ask_one(cluster: ClusterClient, broker: BrokerId, api: Api, values: dict[str, Any], doing: str) -> Any:
    backoff = cluster.backoff()
    while True:
        body = cluster.ask_broker(broker, api, values)
        if body.error_code == ErrorCode.NONE:
            return body
        error = refused(int(body.error_code), doing)
        if error.code not in COORDINATOR_IS_ELSEWHERE:
            raise error
        backoff.pause_or_raise(error)
