"""Literals that a matching record must contain, and their search in raw bytes, before any record is
parsed.

Pure but for memmem of the C library, which searches several GB/s and releases the interpreter's
lock. Case is folded by setting the bit 0x20 in each byte of literal and data: no match is missed, a
few wrong ones are sorted out later. Literals contain only characters that no JSON encoder in use
escapes. Weak: a text whose encoder escapes ordinary letters (\\u0061) is not found; each literal of
an alternative costs one more pass; regular expressions are read by a private module of `re`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.senders.record_query import And, Compare, Contains, Equals, Node, Not, Or, Regex, names_of
from services.search.matching import OPERATORS

FOLD_BIT = 0x20
_FOLDED = bytes(byte | FOLD_BIT for byte in range(256))
PIECE_BYTES = 256 << 10
"""Folded at a time: it stays in the cache of a core."""
LITERALS_MAX = 12
_NAMES = '{"time":"host":"app":"proc_id":"msg_id":null,"severity":"severity_name":"facility":"facility_name":"structured_data":{},"message":"'
_SAFE_RUN = re.compile(r"[A-Za-z0-9 _.:,;()\[\]{}@#%*!?|~^$-]+")

_memmem = ctypes.CDLL(None).memmem
_memmem.restype = ctypes.c_void_p
_memmem.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]


class SeverityIn(NamedTuple):
    """A field `severity` that may have one of these digits, or is not one digit alone."""

    digits: frozenset[int]

    @property
    def weight(self) -> float:
        """Return the weight beside texts: errors are rare, others are in most records."""
        return 3.5 if all(digit <= 3 for digit in self.digits) else 0.5

    def positions(self, whole: NDArray[np.uint8], start: int, end: int) -> list[int]:
        """Return where the name of such a field ends, with end in whole[start:end]."""
        found = []
        for first in (start, start + 1):
            pairs = whole[first : first + (min(end + 1, whole.size) - first) // 2 * 2].view("<u2")
            found.append(np.flatnonzero(pairs == _END_OF_NAME) * 2 + first)
        at = np.sort(np.concatenate(found))
        at = at[at >= 3]
        at = at[whole[at - 3] == ord("r")]  # severity, not facility
        colon, digit, behind = (whole[np.minimum(at + distance, whole.size - 1)] for distance in (2, 3, 4))
        other = ~np.isin(digit, [ord("0") + each for each in self.digits]) & (digit >= ord("0")) & (digit <= ord("9"))
        is_other = (colon == ord(":")) & other & ((behind == ord(",")) | (behind == ord("}"))) & (at + 4 < whole.size)
        positions: list[int] = at[~is_other].tolist()
        return positions


Literals = tuple[bytes | SeverityIn, ...]
_END_OF_NAME = ord("y") | ord('"') << 8


def literals_of(node: Node) -> Literals | None:
    """Return folded literals, one of which is in the value of each matching record; None if the
    query names none."""
    match node:
        case And(parts):
            every = [literals for part in parts if (literals := literals_of(part)) is not None]
            return max(every, key=_selectivity) if every else None
        case Or(parts):
            joined: Literals = ()
            for part in parts:
                literals = literals_of(part)
                if literals is None:
                    return None
                joined += literals
            return tuple(dict.fromkeys(joined)) if len(joined) <= LITERALS_MAX else None
        case Contains(_, pieces):
            return _of_texts(pieces)
        case Regex(_, pattern):
            texts = regex_texts(pattern)
            found: list[Literals | None] = [_of_texts((text,)) for text in texts or ()]
            usable = tuple(literal for literals in found if literals is not None for literal in literals)
            return usable if found and len(usable) == len(found) <= LITERALS_MAX else None
        case Equals("severity", _, int(number)):
            return (SeverityIn(frozenset({number})),)
        case Equals(_, pieces) if not is_number("".join(pieces)) or node.number is not None:
            named = [_of_texts((name,)) for name in names_of(node.field, node.number)]
            whole = _of_texts(pieces)
            return whole and sum((literals for literals in named if literals), whole)
        case Compare("severity", operator, float(value)):
            return (SeverityIn(frozenset(number for number in range(10) if OPERATORS[operator](number, value))),)
    return None


def _selectivity(literals: Literals) -> tuple[float, int]:
    return min((each.weight if isinstance(each, SeverityIn) else _weight(each.decode("latin-1")) for each in literals), default=99), -len(literals)


def _of_texts(texts: tuple[str, ...]) -> Literals | None:
    runs = [run.strip() or run for text in texts for run in _SAFE_RUN.findall(text)]
    longest = max(runs, key=len, default="")
    return (folded(longest.encode()),) if longest.strip() else None


def is_number(text: str) -> bool:
    """Return whether JSON may have written this number in another way."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def regex_texts(pattern: str) -> tuple[str, ...] | None:
    """Return texts, one of which is in each match of an RE2 expression; None if there are none.

    Python's own parser reads the expression. What it refuses, or reads in another way than RE2, has
    none.
    """
    if "[:" in pattern or "\\Q" in pattern:
        return None
    open_letters = _OF_OTHER_LETTERS if _IGNORES_CASE.search(pattern) else ""
    try:
        return _texts_of_sequence(_parser.parse(pattern), open_letters)
    except (re.error, OverflowError, RecursionError):
        return None


_IGNORES_CASE = re.compile(r"\(\?[A-Za-z]*i")
_OF_OTHER_LETTERS = "kKsS"
"""ASCII letters that are the other case of one that is not ASCII (U+212A, U+017F): without case, RE2 finds that, too."""


def _texts_of_sequence(sequence: Any, open_letters: str) -> tuple[str, ...] | None:
    found: list[tuple[str, ...]] = []
    run = ""
    for operation, argument in sequence:
        if operation is _constants.LITERAL and chr(argument) not in open_letters:
            run += chr(argument)
            continue
        found, run = [*found, (run,)], ""
        inner = None
        if operation is _constants.SUBPATTERN:
            inner = _texts_of_sequence(argument[-1], open_letters)
        elif operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and argument[0] > 0:
            inner = _texts_of_sequence(argument[-1], open_letters)
        elif operation is _constants.BRANCH:
            branches = [_texts_of_sequence(branch, open_letters) for branch in argument[1]]
            inner = None if None in branches else tuple(text for branch in branches for text in branch or ())
        found += [inner] if inner is not None else []
    usable = [texts for texts in [*found, (run,)] if all(_SAFE_RUN.search(text) for text in texts)]
    return max(usable, key=lambda texts: min(_weight(text) for text in texts), default=None)


def _weight(text: str) -> int:
    """Return how rare a text probably is: 0 for one that the names of fields contain."""
    return 0 if text.strip().lower() in _NAMES else len(text)


def folded(literal: bytes) -> bytes:
    return bytes(byte | FOLD_BIT for byte in literal)


Verdict = Callable[[bytes], bool | None]
"""Decides by a folded value: True and False are certain, None is open."""


def folded_value(value: bytes) -> bytes:
    """Return a value as `verdict_of` reads it."""
    return value.translate(_FOLDED)


def verdict_of(node: Node) -> Verdict | None:
    """Return a quick decision for one record; None if the query has nothing to decide by.

    A record without the texts of a condition does not fulfil it; one with them may.
    """
    match node:
        case Not(part):
            inner = verdict_of(part)
            return None if inner is None else lambda value: None if (found := inner(value)) is None else not found
        case And(parts) | Or(parts):
            verdicts = [verdict_of(part) for part in parts]
            known = [verdict for verdict in verdicts if verdict is not None]
            decisive, is_whole = isinstance(node, Or), len(known) == len(parts)
            if not known and parts:
                return None

            def joint(value: bytes) -> bool | None:
                is_open = not is_whole
                for verdict in known:
                    found = verdict(value)
                    if found is decisive:
                        return decisive
                    is_open = is_open or found is None
                return None if is_open else not decisive

            return joint
    literals = literals_of(node)
    texts = [literal for literal in literals or () if isinstance(literal, bytes)]
    if literals is None or len(texts) < len(literals):
        return None
    if len(texts) == 1:
        (text,) = texts
        return lambda value: None if text in value else False
    return lambda value: None if any(text in value for text in texts) else False


class Prefilter:
    """Finds the literals of a query in memory. Owned by one thread."""

    def __init__(self, literals: Literals) -> None:
        """Without literals nothing is found: no record can match."""
        self._literals = [literal for literal in literals if isinstance(literal, bytes)]
        self._severities = [literal for literal in literals if isinstance(literal, SeverityIn)]
        self._overlap = max(map(len, self._literals), default=1) - 1
        self._scratch: NDArray[np.uint8] = np.empty(PIECE_BYTES + self._overlap, np.uint8)

    def scan(self, data: memoryview, start: int, end: int, on_hit: Callable[[int], int]) -> None:
        """Call `on_hit(position)` for literals in data[start:end]; it returns where to go on,
        behind the position. Each literal is searched by itself, so a record may be hit again."""
        whole = np.frombuffer(data, np.uint8)[:end]
        address = self._scratch.ctypes.data
        for piece_start in range(start, end, PIECE_BYTES):
            for severity in self._severities:
                passed = 0
                for position in severity.positions(whole, piece_start, min(piece_start + PIECE_BYTES, end)):
                    if position >= passed:
                        passed = on_hit(position)
            if not self._literals:
                continue
            piece = whole[piece_start : piece_start + PIECE_BYTES + self._overlap]
            np.bitwise_or(piece, FOLD_BIT, out=self._scratch[: piece.size])
            for literal in self._literals:
                at = 0
                while at < piece.size and (hit := _memmem(address + at, piece.size - at, literal, len(literal))) is not None:
                    at = on_hit(piece_start + hit - address) - piece_start
