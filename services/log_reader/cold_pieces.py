"""The pieces of segments in a log-reader's memory: their readers, and which is evicted next.

A piece is the n-th MiB of a file, up to `end`. It is being read, or ready. Requests that wait for it
and acceptors that send from it hold it. A piece that is held or being read is never evicted; of the
others the least recently used goes first. If a piece does not reach far enough because the segment
grew, a new one in another slot replaces it, and the old one stays while it is held. Pure. Weak spot:
all pieces count the same, so one backfill with many readers can evict another's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from appliance.base.invariants import check

Waiter = TypeVar("Waiter")

PieceKey = tuple[int, int]
"""(number of the open file, number of the piece in it)"""


class Piece(Generic[Waiter]):
    """One slot's content. `end`: a position in the file, exclusive; what lies behind it must not be sent."""

    __slots__ = ("end", "holds", "is_current", "is_ready", "key", "slot", "waiting")

    def __init__(self, key: PieceKey, slot: int, end: int) -> None:
        self.key = key
        self.slot = slot
        self.end = end
        self.holds = 0
        self.is_ready = False
        self.is_current = True
        self.waiting: list[Waiter] = []


class ColdPieces(Generic[Waiter]):
    """All slots of one log-reader."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._slots: dict[int, Piece[Waiter]] = {}
        self._current: dict[PieceKey, Piece[Waiter]] = {}
        self._unheld: OrderedDict[int, Piece[Waiter]] = OrderedDict()
        """Ready pieces that are not held, by slot, the least recently used first."""
        self.slots = slots

    def find(self, key: PieceKey, end: int) -> Piece[Waiter] | None:
        """The piece that reaches to `end`, ready or on its way."""
        piece = self._current.get(key)
        return piece if piece is not None and piece.end >= end else None

    def begin(self, key: PieceKey, end: int) -> Piece[Waiter] | None:
        """A slot for a piece that will be read now; None when all are needed. An older piece of that key is not found any more."""
        if not self._free:
            if not self._unheld:
                return None
            _, oldest = self._unheld.popitem(last=False)
            self._forget(oldest)
        older = self._current.pop(key, None)
        if older is not None:
            older.is_current = False
            self._maybe_forget(older)
        piece: Piece[Waiter] = Piece(key, self._free.pop(), end)
        self._slots[piece.slot] = self._current[key] = piece
        return piece

    def on_read(self, piece: Piece[Waiter]) -> None:
        """The piece is complete. The requests that wait for it hold it already."""
        check(not piece.is_ready, f"piece {piece.key} was read twice")
        piece.is_ready = True
        self._maybe_forget(piece)

    def on_failed(self, piece: Piece[Waiter]) -> None:
        """The piece could not be read: no request finds it, and its slot is free when no request waits."""
        if piece.is_current:
            piece.is_current = False
            del self._current[piece.key]
        piece.is_ready = True
        self._maybe_forget(piece)

    def hold(self, piece: Piece[Waiter]) -> None:
        piece.holds += 1
        self._unheld.pop(piece.slot, None)

    def release(self, slot: int) -> None:
        piece = self._slots.get(slot)
        if piece is None or piece.holds <= 0:
            check(False, f"slot {slot} was released and not held")
            return
        piece.holds -= 1
        self._maybe_forget(piece)

    def forget_file(self, number: int) -> None:
        """Evict the pieces of a file that no request can name any more."""
        for key in [key for key in self._current if key[0] == number]:
            piece = self._current.pop(key)
            piece.is_current = False
            self._maybe_forget(piece)

    def give_up_unheld(self) -> list[int]:
        """Evict all pieces that are not held; return all free slots."""
        while self._unheld:
            self._forget(self._unheld.popitem(last=False)[1])
        return list(self._free)

    @property
    def available(self) -> int:
        """Slots that could be had now."""
        return len(self._free) + len(self._unheld)

    def _maybe_forget(self, piece: Piece[Waiter]) -> None:
        """Keep a ready piece that is not held for the next reader, or evict it if a newer one exists."""
        if piece.holds or not piece.is_ready:
            return
        if piece.is_current:
            self._unheld[piece.slot] = piece
        else:
            self._unheld.pop(piece.slot, None)
            self._forget(piece)

    def _forget(self, piece: Piece[Waiter]) -> None:
        if piece.is_current:
            del self._current[piece.key]
            piece.is_current = False
        del self._slots[piece.slot]
        self._free.append(piece.slot)
