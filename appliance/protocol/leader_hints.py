"""Current leaders: the tagged fields that Produce (v10+) and Fetch (v12+, endpoints v16+) add to an error.

The layouts are the same in both APIs (KIP-951).
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from appliance.base.model import LeaderEpoch
from appliance.protocol.wire import NO_TAGGED_FIELDS, write_compact_count, write_compact_nullable_string, write_compact_string

_LEADER: Final = Struct(">iiB")
_INT32: Final = Struct(">i")


class CurrentLeader(NamedTuple):
    """The leader a client should ask instead."""

    leader_id: int
    leader_epoch: LeaderEpoch


class NodeEndpoint(NamedTuple):
    """How to reach a node that a `CurrentLeader` names."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def write_current_leader(leader: CurrentLeader) -> bytes:
    return _LEADER.pack(leader.leader_id, leader.leader_epoch, 0)


def write_node_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    parts = [write_compact_count(len(endpoints))]
    for node_id, host, port, rack in endpoints:
        parts += (_INT32.pack(node_id), write_compact_string(host), _INT32.pack(port), write_compact_nullable_string(rack), NO_TAGGED_FIELDS)
    return b"".join(parts)
