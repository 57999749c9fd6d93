"""An acceptor's map of one log-reader's memory, and the parts of it that it holds: each until the last reference to it is gone.

A part tells nobody that it goes; it writes its slot into `released`, which the proxy sends on with its next turn. What a dead log-reader's life had
written stays mapped for as long as a part of it is held. Owned by one `LogReaderProxy`. Weak spot: a reference that is kept by mistake keeps a
slot of the log-reader.
"""

from __future__ import annotations

from appliance.base.invariants import InvariantViolation
from appliance.base.layout import BoxLayout
from appliance.ipc.log_reader_messages import ReadAnswer
from appliance.shm.mapping import LayoutMismatch, SharedObject, SharedObjectAbsent
from appliance.shm.piece_memory import attach_pieces


class ArenaPart:
    """Bytes that a log-reader read for us. They do not change before this object is gone."""

    __slots__ = ("_incarnation", "_released", "_slot", "memory")

    def __init__(self, memory: memoryview, released: list[tuple[int, int]], incarnation: int, slot: int) -> None:
        self.memory = memory
        self._released = released
        self._incarnation = incarnation
        self._slot = slot

    def __del__(self) -> None:
        self._released.append((self._incarnation, self._slot))


class ReaderArena:
    """The memory of one disk's log-reader, of whichever life answers."""

    def __init__(self, layout: BoxLayout, disk: str) -> None:
        self._layout = layout
        self._owner = f"log-reader@{disk}"
        self._mapped: SharedObject | None = None
        self.released: list[tuple[int, int]] = []
        """(life, slot), once for each part that was let go"""

    def take(self, answer: ReadAnswer) -> list[ArenaPart]:
        """The parts of an answer; none when the log-reader died meanwhile."""
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
        """Nobody waits for it any more."""
        self.released += ((answer.incarnation, slot) for slot, _, _ in answer.parts)

    def take_released(self) -> dict[int, list[int]]:
        """What was let go since: life → slots."""
        found: dict[int, list[int]] = {}
        while self.released:
            incarnation, slot = self.released.pop()
            found.setdefault(incarnation, []).append(slot)
        return found

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None
