"""Pieces of segments in a log-reader's slots, against a model that only remembers which read holds
what.
"""

from __future__ import annotations

from collections import Counter as Tally

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.base.invariants import InvariantViolation
from services.log_reader.cold_pieces import ColdPieces, Piece

SLOTS = 4


class PiecesAgainstHolds(RuleBasedStateMachine):
    """The model: what each slot was filled for, and how often it is held. A slot with a hold, or one that is being read, must never change hands."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: ColdPieces[None] = ColdPieces(SLOTS)
        self.reading: list[Piece[None]] = []
        self.ready: list[Piece[None]] = []
        self.holds: Tally[int] = Tally()

    def needed_slots(self) -> set[int]:
        return {piece.slot for piece in self.reading} | {slot for slot, count in self.holds.items() if count}

    @rule(file=st.integers(0, 1), number=st.integers(0, 3), end=st.integers(1, 3))
    def ask(self, file: int, number: int, end: int) -> None:
        found = self.pieces.find((file, number), end)
        if found is not None:
            assert found.key == (file, number) and found.end >= end
            assert found in self.ready or found in self.reading
            self.pieces.hold(found)
            self.holds[found.slot] += 1
            return
        needed = self.needed_slots()
        begun = self.pieces.begin((file, number), end)
        assert (begun is None) == (len(needed) == SLOTS)
        if begun is not None:
            assert begun.slot not in needed, "a read needs the piece in this slot"
            self.ready = [piece for piece in self.ready if piece.slot != begun.slot]
            self.reading.append(begun)
            assert self.pieces.find((file, number), end) is begun
            self.pieces.hold(begun)
            self.holds[begun.slot] += 1

    @precondition(lambda self: self.reading)
    @rule(choice=st.integers(0, 9), fails=st.booleans())
    def end_of_read(self, choice: int, fails: bool) -> None:
        piece = self.reading.pop(choice % len(self.reading))
        if fails:
            self.pieces.on_failed(piece)
            assert self.pieces.find(piece.key, piece.end) is not piece
        else:
            self.pieces.on_read(piece)
        self.ready.append(piece)

    @precondition(lambda self: +self.holds)
    @rule(choice=st.integers(0, 99))
    def release(self, choice: int) -> None:
        slots = sorted(+self.holds)
        slot = slots[choice % len(slots)]
        self.pieces.release(slot)
        self.holds[slot] -= 1

    @rule(file=st.integers(0, 1))
    def forget(self, file: int) -> None:
        self.pieces.forget_file(file)
        assert all(self.pieces.find((file, number), 1) is None for number in range(4))

    @rule()
    def give_up(self) -> None:
        assert set(self.pieces.give_up_unheld()) == set(range(SLOTS)) - self.needed_slots()

    @rule(slot=st.integers(0, SLOTS - 1))
    def release_unheld_pieces(self, slot: int) -> None:
        if not self.holds[slot]:
            with pytest.raises(InvariantViolation):
                self.pieces.release(slot)

    @invariant()
    def unneeded_slots_are_available(self) -> None:
        assert self.pieces.available == SLOTS - len(self.needed_slots())


TestPiecesAgainstHolds = pytest.mark.slow(PiecesAgainstHolds.TestCase)


def test_the_least_recently_used_piece_goes_first() -> None:
    pieces: ColdPieces[None] = ColdPieces(2)
    for number in (0, 1):
        begun = pieces.begin((0, number), 1)
        assert begun is not None
        pieces.on_read(begun)
    again = pieces.find((0, 0), 1)
    assert again is not None
    pieces.hold(again)
    pieces.release(again.slot)
    assert pieces.begin((0, 2), 1) is not None
    assert pieces.find((0, 0), 1) is again and pieces.find((0, 1), 1) is None
