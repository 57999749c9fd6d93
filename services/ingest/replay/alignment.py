"""Align the first frames of a session with the last frames of an earlier one: find the possible
positions, choose one.

Pure functions over concatenated digests of `DIGEST_BYTES` each. Weak: two frames whose digests have
the same 8 bytes are taken for one (2^-64 by chance).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

DIGEST_BYTES: Final = 8
PLACES_MAX: Final = 2048


class FramePosition(NamedTuple):
    """The session's first frame is the remembered one at index `first`. `is_whole`: everything
    remembered from there on has arrived."""

    first: int
    is_whole: bool


def places_of(remembered: bytes, frames: bytes) -> list[FramePosition]:
    """Return every position that agrees with the frames so far, the last position first."""
    found: list[FramePosition] = []
    first = frames[:DIGEST_BYTES]
    position = len(remembered)
    while first and len(found) < PLACES_MAX:
        position = remembered.rfind(first, 0, position + DIGEST_BYTES - 1 if position < len(remembered) else position)
        if position < 0:
            break
        if position % DIGEST_BYTES == 0:
            rest = len(remembered) - position
            if rest <= len(frames):
                if remembered.endswith(frames[:rest]):
                    found.append(FramePosition(position // DIGEST_BYTES, True))
            elif remembered.startswith(frames, position):
                found.append(FramePosition(position // DIGEST_BYTES, False))
    return found


def begin_of_replay(
    remembered: bytes, frames: bytes, places: Sequence[FramePosition], answered_end: int, is_late: bool, counts: Mapping[bytes, int]
) -> int | None:
    """Return the index at which the session begins; None if its frames are all new. `counts`: how
    often each digest was seen.

    `answered_end`: frames from this index on were not answered, so their sender must repeat them,
    and all after them. A position beyond it is therefore impossible, and so is a session that
    repeats nothing. `is_late`: no more frames are awaited, so positions whose rest has not arrived
    count, too.

    The choice is the position with the fewest repeats. An earlier position is chosen only if a
    frame that would count as new otherwise was sent exactly once before: storing it again would be
    a certain duplicate. A line that may be new is always stored.
    """
    end, came = len(remembered) // DIGEST_BYTES, len(frames) // DIGEST_BYTES
    candidates = [place.first for place in places if place.is_whole or is_late]
    begin = next((index for index in ([end] if answered_end >= end else []) + candidates if index <= answered_end), end)
    seen_once = list(accumulate((counts.get(digest, 0) == 1 for digest in split(remembered)), initial=0))
    for index in candidates:
        if index < begin:
            first_doubted, doubted_end = index + end - begin, min(end, index + came)
            if first_doubted < doubted_end and seen_once[doubted_end] > seen_once[first_doubted]:
                begin = index
    return begin if begin < end else None


def split(digests: bytes) -> list[bytes]:
    return [digests[position : position + DIGEST_BYTES] for position in range(0, len(digests), DIGEST_BYTES)]
