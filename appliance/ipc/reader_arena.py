"""An acceptor's mapping of a log-reader's memory, and the parts of it that are in use until their
last reference is gone.

A released part adds its slot to `released`, which the proxy sends in its next turn. The memory of a
dead log-reader stays mapped as long as one of its parts is in use. Owned by one `LogReaderProxy`.
Weak: a leaked reference keeps a slot of the log-reader.
"""

from __future__ import annotations

from appliance.base.invariants import InvariantViolation
from appliance.base.layout import BoxLayout
from appliance.ipc.log_reader_messages import ReadAnswer
from appliance.shm.mapping import LayoutMismatch, SharedObject, SharedObjectAbsent
from appliance.shm.piece_memory import attach_pieces


class ArenaPart:
    """Bytes that a log-reader has read. They do not change before this object is deleted."""

    __slots__ = ("_incarnation", "_released", "_slot", "memory")

    def __init__(self, memory: memoryview, released: list[tuple[int, int]], incarnation: int, slot: int) -> None:
        self.memory = memory
        self._released = released
        self._incarnation = incarnation
        self._slot = slot

    def __del__(self) -> None:
        self._released.append((self._incarnation, self._slot))


class ReaderArena:
    """The memory of one disk's log-reader, of the incarnation that answers."""

    def __init__(self, layout: BoxLayout, disk: str) -> None:
        self._layout = layout
        self._owner = f"log-reader@{disk}"
        self._mapped: SharedObject | None = None
        self.released: list[tuple[int, int]] = []
        """(incarnation, slot) of each released part"""

    def take(self, answer: ReadAnswer) -> list[ArenaPart]:
        """Return the parts of an answer; none if the log-reader died meanwhile."""
        mapped = self._mapped
        if mapped is None or mapped.incarnation != answer.incarnation:
            self.close()
            try:
                mapped = self._mapped = attach_pieces(self._layout.shared_memory_name("arena", self._owner, answer.incarnation))
            except (SharedObjectAbsent, LayoutMismatch):
                self.give_back(answer)
                return []
        memory = mapped.memory
        if any(at + count > len(memory) for _, at, count in answer.parts):
            raise InvariantViolation(f"{self._owner} names bytes outside its memory: {answer.parts}")
        return [ArenaPart(memory[at : at + count], self.released, answer.incarnation, slot) for slot, at, count in answer.parts]

    def give_back(self, answer: ReadAnswer) -> None:
        """Release the parts of an answer that no request waits for."""
        self.released += ((answer.incarnation, slot) for slot, _, _ in answer.parts)

    def take_released(self) -> dict[int, list[int]]:
        """Return the slots that were released since the last call, by incarnation."""
        found: dict[int, list[int]] = {}
        while self.released:
            incarnation, slot = self.released.pop()
            found.setdefault(incarnation, []).append(slot)
        return found

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None
