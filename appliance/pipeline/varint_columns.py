"""Zig-zag integers of many records at once, as numpy computes them. Pure; `records/varint.py` is the same for one.

Weak spot: an integer of more than four bytes costs ten times as much; only times far from their batch's first, and huge values, have so many.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.records.corrupt_batch import CorruptBatch

Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_WORD_BYTES = 4


class Varints:
    """Zig-zag integers anywhere in some bytes, many at a time: those of up to four bytes out of one look at each place."""

    def __init__(self, data: Bytes) -> None:
        if data.size < _WORD_BYTES:
            raise CorruptBatch(f"{data.size} bytes are too few for a record")
        self._data = data
        self._words: NDArray[np.uint32] = np.ndarray(data.size - _WORD_BYTES + 1, np.dtype("<u4"), data, strides=(1,))

    def at(self, positions: Longs) -> tuple[Longs, Longs]:
        """(values, positions behind them). What reaches beyond the bytes ends behind them, or raises CorruptBatch."""
        words = self._look(positions)
        more = words >> 7 & 1
        if not more.any():
            return _unzigzag(words & 0x7F), positions + 1
        values = words & 0x7F | (words >> 1 & 0x3F80) * more
        behind = positions + 1 + more
        more &= words >> 15
        if more.any():
            values |= (words >> 2 & 0x1FC000) * more
            behind += more
            more &= words >> 23
            values |= (words >> 3 & 0xFE00000) * more
            behind += more
            longer = np.flatnonzero(more & words >> 31)
            if longer.size:
                found = _unzigzag(values)
                found[longer], behind[longer] = _long_varints(self._data, positions[longer])
                return found, behind
        return _unzigzag(values), behind

    def _look(self, positions: Longs) -> NDArray[np.uint32]:
        """The four bytes from each place on; zeros stand for those behind the end."""
        last = self._words.size - 1
        if positions.max() <= last:
            return self._words[positions]
        beyond = np.maximum(positions - last, 0)
        if beyond.max() >= _WORD_BYTES:
            raise CorruptBatch("a record ends too early")
        return self._words[positions - beyond] >> (8 * beyond).astype(np.uint32)


def _unzigzag(values: NDArray[np.integer[Any]]) -> Longs:
    signed = values.astype(np.int64)
    return signed >> 1 ^ -(signed & 1)


def _long_varints(data: Bytes, positions: Longs) -> tuple[Longs, Longs]:
    """The same byte by byte, up to ten of them."""
    values = np.zeros(positions.size, np.uint64)
    behind = positions.copy()
    more = np.arange(positions.size)
    for shift in range(0, 64, 7):
        byte = data[behind[more]]
        if shift == 63 and (byte > 1).any():
            break
        values[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[more] += 1
        more = more[byte >= 0x80]
        if not more.size:
            return (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64), behind
    raise CorruptBatch("an integer has more than 64 bits")
