"""The segments that a log-reader has open for cold reads, and their pieces in its memory.

A piece is the n-th MiB of a file, up to `end`. It is being read, or ready. Requests that wait for it
and acceptors that send from it hold it. A piece that is held or being read is never evicted; of the
others the least recently used goes first. If a piece does not reach far enough because the segment
grew, a new one in another slot replaces it, and the old one stays while it is held. A consumer that
continues is recognized by the position at which its last answer ended. Weak spot: all pieces count the
same, so one backfill with many readers can evict another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from appliance.base.invariants import check
from appliance.storage.cold_file import ACTIVE_WAYS, ColdFile

Waiter = TypeVar("Waiter")

PieceKey = tuple[int, int]
"""(number of the open file, number of the piece in it)"""


class Piece(Generic[Waiter]):
    """The content of one slot.

    `end`: a position in the file, exclusive; bytes behind it must not be sent.
    """

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
    """All slots of one log-reader. `Waiter` is a request that waits for a piece."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots - 1, -1, -1))
        self._slots: dict[int, Piece[Waiter]] = {}
        self._current: dict[PieceKey, Piece[Waiter]] = {}
        self._unheld: OrderedDict[int, Piece[Waiter]] = OrderedDict()
        """Ready pieces that are not held, by slot, the least recently used first."""
        self.slots = slots

    def find(self, key: PieceKey, end: int) -> Piece[Waiter] | None:
        """Return the piece that reaches to `end`, ready or being read; None if there is none."""
        piece = self._current.get(key)
        return piece if piece is not None and piece.end >= end else None

    def begin(self, key: PieceKey, end: int) -> Piece[Waiter] | None:
        """Return a slot for a piece that is read next, None if all slots are in use.

        `find` no longer returns an older piece of that key.
        """
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
        """Add a hold: a held piece is never evicted."""
        piece.holds += 1
        self._unheld.pop(piece.slot, None)

    def release(self, slot: int) -> None:
        """End one hold of a slot. A release without a hold is an invariant violation."""
        piece = self._slots.get(slot)
        if piece is None or piece.holds <= 0:
            check(False, f"slot {slot} was released and not held")
            return
        piece.holds -= 1
        self._maybe_forget(piece)

    def forget_file(self, number: int) -> None:
        """Evict the pieces of a file that was closed."""
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
        """The number of slots that are free or can be evicted now."""
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


SEGMENTS_MAX = 64
SEQUELS_MAX = 256


class ColdSegment:
    """An open segment, the number of its reads in flight, and the positions at which readers are
    expected next.
    """

    __slots__ = ("cold", "number", "reads", "sequels")

    def __init__(self, number: int, cold: ColdFile) -> None:
        self.number = number
        """Unique among all files that this process has opened."""
        self.cold = cold
        self.reads = 0
        self.sequels: OrderedDict[int, None] = OrderedDict()

    def is_sequel(self, position: int) -> bool:
        """Return whether an answer ended at `position`, and forget it."""
        return self.sequels.pop(position, self) is None

    def expect(self, position: int) -> None:
        """Record that an answer ended at `position`."""
        self.sequels[position] = None
        if len(self.sequels) > SEQUELS_MAX:
            self.sequels.popitem(last=False)


class ColdSegments:
    """The open segments, at most `SEGMENTS_MAX`; the least recently used is closed.

    `on_retired(number)`: pieces of that file must not be found any more.
    """

    def __init__(self, ways: tuple[str, ...], on_retired: Callable[[int], None]) -> None:
        """`ways`: how files are read, the preferred way first."""
        self._ways = ways
        self._active_ways = tuple(way for way in ways if way in ACTIVE_WAYS) or ways
        self._on_retired = on_retired
        self._open: OrderedDict[tuple[int, bool], ColdSegment] = OrderedDict()
        self._retired: list[ColdSegment] = []
        self._next_number = 0

    def open(self, path: str, inode: int, is_active: bool) -> ColdSegment | None:
        """Return the open segment with this inode.

        None: another file has its name now. Raises OSError.
        """
        segment = self._open.get((inode, is_active))
        if segment is not None:
            self._open.move_to_end((inode, is_active))
            return segment
        cold = ColdFile(path, self._active_ways if is_active else self._ways)
        if cold.inode != inode:
            cold.close()
            return None
        self._next_number += 1
        segment = self._open[(inode, is_active)] = ColdSegment(self._next_number, cold)
        if len(self._open) > SEGMENTS_MAX:
            self._retire(next(iter(self._open)))
        return segment

    def retire_deleted(self) -> None:
        """Close files that were deleted, because an open file keeps its space."""
        for key in [key for key, segment in self._open.items() if segment.cold.is_deleted()]:
            self._retire(key)
        self._close_retired()

    def retire_all(self) -> None:
        """Close all files that are not being read, the others when their reads end."""
        for key in list(self._open):
            self._retire(key)

    def _retire(self, key: tuple[int, bool]) -> None:
        """Close a file, at once or when the reads in it are over."""
        segment = self._open.pop(key)
        self._on_retired(segment.number)
        self._retired.append(segment)
        self._close_retired()

    def _close_retired(self) -> None:
        for segment in self._retired:
            if not segment.reads:
                segment.cold.close()
        self._retired = [segment for segment in self._retired if segment.reads]
