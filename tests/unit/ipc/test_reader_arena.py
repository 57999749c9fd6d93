"""An acceptor's map of a log-reader's memory."""

from __future__ import annotations

import pytest

from appliance.base.invariants import InvariantViolation
from appliance.base.layout import BoxLayout
from appliance.ipc.log_reader_messages import ReadAnswer
from appliance.ipc.log_reader_proxy import ReaderArena
from appliance.shm.arena import PIECE_BYTES, PieceMemory


def test_a_part_outside_the_memory_is_refused_instead_of_shortened(layout: BoxLayout) -> None:
    memory = PieceMemory.create(layout.shared_memory_name("arena", "log-reader@d0", 7), PIECE_BYTES, 7)
    arena = ReaderArena(layout, "d0")
    end = len(memory.shared.memory)
    assert [len(part.memory) for part in arena.take(ReadAnswer(7, -1, 0, ((0, end - 100, 100),)))] == [100]
    with pytest.raises(InvariantViolation, match="log-reader@d0 names bytes outside its memory"):
        arena.take(ReadAnswer(7, -1, 0, ((0, end - 100, 101),)))
    arena.close()
    memory.close()
