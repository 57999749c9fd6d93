"""Lease blocks of producer ids: `/latest_producer_id_block` holds the last block, and a conditional
write takes the next one.

`{"version": 1, "broker": 1, "block_start": "0", "block_end": "999"}`: numbers as texts, the end
inclusive, as Kafka writes it. Ids that a broker had not used when it died are lost. Id 0 is never
issued: a later API uses it for "off". Source: Kafka's `ZkProducerIdManager`.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from appliance.base.errors import ErrorCode, RequestRefused
from services.controller.zookeeper.operation import Operation
from services.controller.zookeeper.requests import BadVersion, Get, NoNode, SetData

PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
ATTEMPTS_MAX = 10
LARGEST_PRODUCER_ID: Final = 2**63 - 1


def encode_block(broker_id: int, start: int, end: int) -> bytes:
    return orjson.dumps({"version": 1, "broker": broker_id, "block_start": str(start), "block_end": str(end)})


def decode_block(data: bytes) -> tuple[int, int]:
    """Return (first, last) of the newest block, (0, -1) before the first one. Raises ValueError."""
    if not data:
        return 0, -1
    try:
        document: Any = orjson.loads(data)
        return int(document["block_start"]), int(document["block_end"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{PRODUCER_ID_BLOCK} holds {data[:200]!r}, not a block of producer ids") from error


def lease_block(broker_id: int, size: int) -> Operation[tuple[int, int]]:
    """Return (first, last) of a block for this broker alone.

    Raises RequestRefused if other brokers wrote first too often, or if no ids are left.
    """
    for _attempt in range(ATTEMPTS_MAX):
        node = yield Get(PRODUCER_ID_BLOCK)
        start = decode_block(node.data)[1] + 1
        end = start + size - 1
        if end > LARGEST_PRODUCER_ID:
            raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, f"there are no producer ids behind {start}")
        try:
            yield SetData(PRODUCER_ID_BLOCK, encode_block(broker_id, start, end), node.version)
        except (BadVersion, NoNode):
            continue
        return max(start, 1), end
    raise RequestRefused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "other brokers took producer ids at the same time; try again")
