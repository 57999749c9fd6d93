"""Commands of the controller about moves between the disks of its box: MOVE_BEGIN to MOVE_CANCEL.

A command is JSON in the controller's arena, like others. All are idempotent, and answered at once except
MOVE_FINISH. A disk is the source of some moves (`outgoing_moves`) and the target of others
(`incoming_moves`); the two sides share nothing.
"""

from __future__ import annotations

from typing import Any

import orjson

from appliance.base.model import TopicId, TopicPartition
from appliance.ipc.descriptors import DescriptorKind
from appliance.storage.move_record import Complete
from services.log_writer.moves.incoming_moves import IncomingMoves
from services.log_writer.moves.outgoing_moves import MoveAnswer, OutgoingMoves

MOVE_KINDS = frozenset(
    {
        DescriptorKind.MOVE_BEGIN,
        DescriptorKind.MOVE_MARK,
        DescriptorKind.MOVE_FREEZE,
        DescriptorKind.MOVE_FINISH,
        DescriptorKind.MOVE_COMMIT,
        DescriptorKind.MOVE_PROMOTE,
        DescriptorKind.MOVE_CANCEL,
    }
)


class PartitionMoves:
    """Both sides of one disk."""

    def __init__(self, incoming: IncomingMoves, outgoing: OutgoingMoves) -> None:
        self.incoming = incoming
        self.outgoing = outgoing

    def carry_out(self, kind: int, document: bytes, context: Any) -> MoveAnswer | None:
        """None: it is answered later. Raises StorageFailed."""
        command: dict[str, Any] = orjson.loads(document)
        identity = TopicPartition(command["topic"], int(command["partition"])), TopicId.from_text(command["topic_id"])
        if kind == DescriptorKind.MOVE_MARK:
            return self.outgoing.mark(*identity)
        if kind == DescriptorKind.MOVE_FREEZE:
            return self.outgoing.freeze(*identity)
        if kind == DescriptorKind.MOVE_COMMIT:
            return self.outgoing.commit(*identity, int(command["log_end_offset"]))
        if kind == DescriptorKind.MOVE_BEGIN:
            return MoveAnswer(self.incoming.begin(*identity, command))
        if kind == DescriptorKind.MOVE_PROMOTE:
            return MoveAnswer(self.incoming.promote(*identity, command.get("config", {})))
        if kind == DescriptorKind.MOVE_FINISH:
            wanted = Complete(int(command["log_end_offset"]), int(command["high_watermark"]), int(command["log_start_offset"]))
            code = self.incoming.finish(*identity, wanted, command.get("deadline_ms"), context)
            return None if code is None else MoveAnswer(code)
        self.outgoing.cancel(*identity, bool(command.get("keeps_mark")))
        self.incoming.cancel(*identity)
        return MoveAnswer()

    @property
    def goes_on(self) -> bool:
        return self.incoming.goes_on

    def turn(self, now_ns: int) -> None:
        self.outgoing.turn(now_ns)
        self.incoming.turn()
