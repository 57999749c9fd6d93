"""Offsets of the oldest consumers, by way of the controller, which alone speaks to ZooKeeper. Implements `groups.ports.LegacyOffsets`.

Owned by the coordinator process. Weak spot: while ZooKeeper is away commits wait, and end with COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.ipc.controller_frames import COMMIT_LEGACY_OFFSETS, FETCH_LEGACY_OFFSETS
from appliance.ipc.controller_link import ControllerLink
from services.coordinator.groups.ports import LegacyCommitted, LegacyFetched

TIMEOUT_MS = 6_000


class LegacyOffsetRequests:
    """Requests to the controller."""

    def __init__(self, controller: ControllerLink) -> None:
        self._controller = controller

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], on_committed: LegacyCommitted) -> None:
        document = {"group": group_id, "offsets": [[*key, offset] for key, offset in offsets.items()]}

        def on_answer(payload: bytes | None) -> None:
            answer = _read(payload)
            if answer["error"]:
                on_committed(dict.fromkeys(offsets, ErrorCode(answer["error"])))
            else:
                on_committed({TopicPartition(topic, partition): ErrorCode(code) for topic, partition, code in answer["errors"]})

        self._controller.request(COMMIT_LEGACY_OFFSETS, orjson.dumps(document), TIMEOUT_MS, on_answer)

    def fetch(self, group_id: str, partitions: Sequence[TopicPartition], on_fetched: LegacyFetched) -> None:
        document = {"group": group_id, "partitions": [list(key) for key in partitions]}

        def on_answer(payload: bytes | None) -> None:
            answer = _read(payload)
            found = answer["offsets"] if not answer["error"] else []
            on_fetched({TopicPartition(topic, partition): offset for topic, partition, offset in found})

        self._controller.request(FETCH_LEGACY_OFFSETS, orjson.dumps(document), TIMEOUT_MS, on_answer)


def _read(payload: bytes | None) -> dict[str, Any]:
    return orjson.loads(payload) if payload else {"error": int(ErrorCode.COORDINATOR_NOT_AVAILABLE)}
