"""Where the first frames of a session may begin among the last frames of an earlier one, and which of these places is to be believed.

Pure functions over digests of `DIGEST_BYTES` each, one behind the other. Weak spot: two frames with the same 8 bytes of digest are taken for one (2^-64 by
chance).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

DIGEST_BYTES: Final = 8
PLACES_MAX: Final = 2048


class FramePosition(NamedTuple):
    """The session's first frame is the remembered one at index `first`. `is_whole`: all that is remembered from there on has come."""

    first: int
    is_whole: bool


def places_of(remembered: bytes, frames: bytes) -> list[FramePosition]:
    """Every place that what has come agrees with, the last first."""
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
    """The index at which the session begins; None: its frames are all new. `counts`: how often each digest was seen.

    `answered_end`: frames from this index on were not answered, so their sender must send them again, and with them all behind. Then a session
    that has nothing to repeat is out of the question. `is_late`: nothing more is awaited, so places whose rest has not come count, too."""
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
