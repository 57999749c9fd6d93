"""The set of stored ordinals of an identity: mostly runs, growing upwards.

A value owned by `ReplayMemory`. One integer with a bit for each number from `base` on: a thousand
records cost 125 bytes. Weak: a number far below the base costs the bits between; `NUMBERS_MAX`
bounds that by forgetting the lowest.
"""

from __future__ import annotations

from typing import Final

NUMBERS_MAX: Final = 1 << 20
"""Numbers from the lowest to the highest of one set: 128 KiB."""
KEPT_BY_STREAMS: Final = 8192
"""What a stream's set keeps below its highest number."""


class Ordinals:
    """A set of ordinals."""

    __slots__ = ("base", "bits")

    def __init__(self, base: int = 0, bits: int = 0) -> None:
        self.base = base
        self.bits = bits

    def __contains__(self, number: int) -> bool:
        return number >= self.base and bool(self.bits >> (number - self.base) & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    @property
    def end(self) -> int:
        """One above the highest."""
        return self.base + self.bits.bit_length()

    def add(self, first: int, count: int) -> None:
        if count > NUMBERS_MAX:  # a damaged journal may contain any count
            first, count = first + count - NUMBERS_MAX, NUMBERS_MAX
        self.forget_below(first + count - NUMBERS_MAX)
        if not self.bits:
            self.base = first
        elif first < self.base:
            if self.end - first > NUMBERS_MAX:
                return
            self.bits <<= self.base - first
            self.base = first
        self.bits |= ((1 << count) - 1) << (first - self.base)
        if self.bits.bit_length() > NUMBERS_MAX:
            self.forget_below(self.end - NUMBERS_MAX)

    def forget_below(self, number: int) -> None:
        if number > self.base:
            self.bits >>= number - self.base
            self.base = number

    def runs(self) -> list[tuple[int, int]]:
        """Return (first, count) of each run, ascending."""
        found = []
        number, bits = self.base, self.bits
        while bits:
            gap = (bits & -bits).bit_length() - 1
            bits >>= gap
            count = (~bits & (bits + 1)).bit_length() - 1
            found.append((number + gap, count))
            bits >>= count
            number += gap + count
        return found
