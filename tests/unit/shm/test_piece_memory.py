"""Memory for pieces of segments is taken when it is used and given back."""

from __future__ import annotations

import os

from appliance.base.layout import BoxLayout
from appliance.shm.arena import PIECE_BYTES, PieceMemory, attach_pieces


def held(memory: PieceMemory) -> int:
    return os.stat(f"/dev/shm{memory.shared.name}").st_blocks * 512


def test_slots_cost_memory_only_while_they_are_used(layout: BoxLayout) -> None:
    memory = PieceMemory.create(layout.shared_memory_name("arena", "log-reader@d0", 7), 4 * PIECE_BYTES, 7)
    assert memory.slots == 4 and held(memory) < PIECE_BYTES
    assert memory.allocate(2) and memory.allocate(2)
    assert PIECE_BYTES <= held(memory) < 2 * PIECE_BYTES and memory.allocated_slots == 1
    memory.view(2, 5)[:] = b"piece"
    mapped = attach_pieces(memory.shared.name)
    assert bytes(mapped.memory[memory.position(2) :][:5]) == b"piece" and mapped.memory.readonly
    memory.give_back(2)
    assert held(memory) < PIECE_BYTES and memory.allocated_slots == 0
    assert memory.allocate(2) and bytes(memory.view(2, 5)) == bytes(5)
    mapped.close()
    memory.close()
    assert not os.path.exists(f"/dev/shm{memory.shared.name}")
