"""The figures of the last 30 days: a point a minute for two days, one for 15 minutes before that.

Two rings of slots of fixed size, in memory and in a file that `StateFiles` keeps: a slot is written
where its time says, so the file never grows, and each slot has a CRC. Owned by the console's loop; time
is an argument. Weak: a percentile of 15 minutes is the highest of its minutes; where the console did
not run there is a gap.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Sequence
from math import isnan, nan
from typing import Any, Final, NamedTuple

from services.console.activity import SERIES, Between, measured
from services.console.state_files import Change, DamagedFile

KEPT_SERIES: Final = (*SERIES, "fullest_disk_percent", "lag_records")
HIGHEST: Final = frozenset({"produce_p99_ms", "fetch_p99_ms", "syslog_p99_ms", "fullest_disk_percent"})
"""Of several points the highest is shown; of the others the mean."""
SLOT: Final = struct.Struct(f"<I{len(KEPT_SERIES)}f")
CRC: Final = struct.Struct("<I")
SLOT_BYTES: Final = SLOT.size + CRC.size
HEAD: Final = b"millrace figures, 1".ljust(SLOT_BYTES, b"\0")
assert SLOT_BYTES == 48
POINTS_MAX: Final = 720
"""Of an answer."""
DAY_MS: Final = 86_400_000


class Ring:
    """The last `count` points, one each `seconds`; of a time its place is `number % count`."""

    def __init__(self, seconds: int, count: int) -> None:
        self.seconds = seconds
        self.count = count
        self._numbers = array("I", bytes(4 * count))
        """`time // seconds` of each slot; 0 is empty."""
        self._values = {name: array("f", [nan]) * count for name in KEPT_SERIES}

    def put(self, number: int, values: Sequence[float]) -> int:
        """Store the point of a time; return its place."""
        place = number % self.count
        self._numbers[place] = number
        for name, value in zip(KEPT_SERIES, values, strict=True):
            self._values[name][place] = value
        return place

    def get(self, number: int) -> tuple[float, ...] | None:
        place = number % self.count
        return tuple(self._values[name][place] for name in KEPT_SERIES) if self._numbers[place] == number else None

    def packed(self, place: int) -> bytes:
        """Return a slot as it is in the file; an empty one is zeros."""
        if not self._numbers[place]:
            return bytes(SLOT_BYTES)
        slot = SLOT.pack(self._numbers[place], *(points[place] for points in self._values.values()))
        return slot + CRC.pack(zlib.crc32(slot))

    def load(self, content: memoryview) -> int:
        """Fill the slots that are empty; return how many are damaged."""
        damaged = 0
        for place in range(self.count):
            slot = content[place * SLOT_BYTES : (place + 1) * SLOT_BYTES]
            if not any(slot):
                continue
            number, *values = SLOT.unpack(slot[: SLOT.size])
            if CRC.unpack(slot[SLOT.size :]) != (zlib.crc32(slot[: SLOT.size]),) or number % self.count != place:
                damaged += 1
            elif not self._numbers[place]:
                self.put(number, values)
        return damaged


class HistorySpan(NamedTuple):
    """From and to in ms since 1970, `end_ms` exclusive."""

    start_ms: int
    end_ms: int


class FigureHistory:
    """`add` with each sample; `document` is what the page asks for."""

    name = "figures"

    def __init__(self) -> None:
        self.minutes, self.quarters = Ring(60, 2_880), Ring(900, 2_880)
        self._rings = (self.minutes, self.quarters)
        self.bytes_max = SLOT_BYTES * (1 + sum(ring.count for ring in self._rings))
        self._changed: set[tuple[int, int]] = set()
        """Ring and place of what is not in the file yet."""
        self._is_whole = True
        self._minute = 0

    def minute_ended(self, wall_ms: int) -> bool:
        """Whether a minute has ended since this was last true; the first call begins one."""
        minute, before = wall_ms // 60_000, self._minute
        self._minute = minute
        return before not in (0, minute)

    def add(self, between: Between, fullest_disk_percent: float, lag_records: float) -> None:
        """Store the point of the minute that `between` covers, named by its beginning."""
        values = (*measured(between), fullest_disk_percent, lag_records)
        minute = between.before.wall_ms // 60_000
        self._changed.add((0, self.minutes.put(minute, values)))
        quarter = minute // 15
        known = [point for number in range(15 * quarter, 15 * quarter + 15) if (point := self.minutes.get(number)) is not None]
        self._changed.add((1, self.quarters.put(quarter, _together(known))))

    def document(self, span: HistorySpan, now_ms: int) -> dict[str, Any]:
        """Return at most `POINTS_MAX` points of a span, at even distances, null where nothing is known."""
        ring = self.minutes if span.start_ms >= now_ms - 1_000 * ring_seconds(self.minutes) else self.quarters
        first, end = span.start_ms // 1000 // ring.seconds, -(-span.end_ms // 1000 // ring.seconds)
        first = max(first, end - ring.count)
        each = max(1, -(-(end - first) // POINTS_MAX))
        times, points = [], []
        for start in range(first, end, each):
            known = [point for number in range(start, min(start + each, end)) if (point := ring.get(number)) is not None]
            times.append(start * ring.seconds * 1000)
            points.append(_together(known))
        columns = zip(*points, strict=True) if points else ([] for _ in KEPT_SERIES)
        series = {name: [_rounded(value) for value in column] for name, column in zip(KEPT_SERIES, columns, strict=True)}
        return {"time_ms": times, "step_ms": each * ring.seconds * 1000, **series, "disks": {}}

    # ---- the file

    def load(self, content: bytes | None) -> None:
        """Take the points of an earlier incarnation. Raises DamagedFile."""
        if content is None:
            return
        if len(content) != self.bytes_max or content[:SLOT_BYTES] != HEAD:
            raise DamagedFile(f"it has no figures of this release in {self.bytes_max} bytes")
        view, damaged, at = memoryview(content), 0, SLOT_BYTES
        for ring in self._rings:
            damaged += ring.load(view[at : at + ring.count * SLOT_BYTES])
            at += ring.count * SLOT_BYTES
        self._is_whole = bool(damaged)
        if damaged:
            raise DamagedFile(f"{damaged} of its points cannot be read, and are left out")

    def take(self) -> list[Change]:
        """Return the slots that changed, or the whole file if it has to be made."""
        changed, self._changed = self._changed, set()
        if self._is_whole:
            self._is_whole = False
            return [Change(None, HEAD + b"".join(ring.packed(place) for ring in self._rings for place in range(ring.count)))]
        return [Change(self._position(ring, place), self._rings[ring].packed(place)) for ring, place in sorted(changed)]

    def repeat(self) -> None:
        self._is_whole = True

    def _position(self, ring: int, place: int) -> int:
        return SLOT_BYTES * (1 + sum(each.count for each in self._rings[:ring]) + place)


def ring_seconds(ring: Ring) -> int:
    return ring.seconds * ring.count


def _together(points: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """Return one point for several: means, and of `HIGHEST` the highest; NaN is not counted."""
    found = []
    columns = list(zip(*points, strict=True)) or [()] * len(KEPT_SERIES)
    for name, column in zip(KEPT_SERIES, columns, strict=True):
        known = [value for value in column if not isnan(value)]
        found.append(nan if not known else max(known) if name in HIGHEST else sum(known) / len(known))
    return tuple(found)


def _rounded(value: float) -> float | None:
    return None if isnan(value) else round(value, 3)
