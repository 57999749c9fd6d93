"""Literals that a matching record must contain, and their search in raw bytes, before any record is
parsed.

Pure but for memmem of the C library, which searches several GB/s and releases the interpreter's
lock. Case is folded by setting the bit 0x20 in each byte of literal and data: no match is missed, a
few wrong ones are sorted out later. Literals contain only characters that no JSON encoder in use
escapes. Weak: a text whose encoder escapes ordinary letters (\\u0061) or puts a line break between
a name and its number is not found; each literal of an alternative costs one more pass.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from services.search.query import And, Compare, Equals, Node, Or, Regex, Text

FOLD_BIT = 0x20
PIECE_BYTES = 256 << 10
"""Folded at a time: it stays in the cache of a core."""
LITERALS_MAX = 12
SEVERITIES = 8
_SAFE_RUN = re.compile(r"[A-Za-z0-9 _.:,;()\[\]{}@#%*!?|~^$-]+")

_memmem = ctypes.CDLL(None).memmem
_memmem.restype = ctypes.c_void_p
_memmem.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]


def literals_of(node: Node) -> tuple[bytes, ...] | None:
    """Return folded literals, one of which is in the value of each matching record; None if the
    query names none."""
    match node:
        case And(parts):
            found = [literals for part in parts if (literals := literals_of(part)) is not None]
            return max(found, key=_selectivity) if found else None
        case Or(parts):
            joined: tuple[bytes, ...] = ()
            for part in parts:
                literals = literals_of(part)
                if literals is None:
                    return None
                joined += literals
            return tuple(dict.fromkeys(joined)) if len(joined) <= LITERALS_MAX else None
        case Text(_, pieces):
            return _of_texts(pieces)
        case Regex(_, pattern):
            return _of_texts(plain_runs(pattern))
        case Equals("severity", _, int(number)) if 0 <= number < SEVERITIES:
            return _severities([number])
        case Equals(_, pieces) if not _is_number("".join(pieces)) or node.number is not None:
            return _of_texts(pieces)
        case Compare("severity", operator, float(value)):
            numbers = {"<": lambda each: each < value, "<=": lambda each: each <= value, ">": lambda each: each > value, ">=": lambda each: each >= value}
            return _severities([each for each in range(SEVERITIES) if numbers[operator](each)])
    return None


def _selectivity(literals: tuple[bytes, ...]) -> tuple[int, int]:
    return min(map(len, literals), default=99), -len(literals)


def _of_texts(texts: tuple[str, ...]) -> tuple[bytes, ...] | None:
    runs = [run.strip() or run for text in texts for run in _SAFE_RUN.findall(text)]
    longest = max(runs, key=len, default="")
    return (folded(longest.encode()),) if longest.strip() else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _severities(numbers: list[int]) -> tuple[bytes, ...] | None:
    """All ways to write them: other numbers than 0 to 7 may match, too, after a sign or a quote."""
    if len(numbers) > SEVERITIES // 2:
        return None
    name = b'"severity"'
    return tuple(folded(name + rest) for rest in (*(b":%d" % number for number in numbers), b":-", b": ", b':"', b":[", b" "))


def plain_runs(pattern: str) -> tuple[str, ...]:
    """Return texts that each match of an expression contains, as far as a simple reader sees."""
    if "|" in pattern or "\\Q" in pattern:
        return ()
    runs = [""]
    depth, at = 0, 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "\\":
            character = pattern[at : at + 1]
            at += 1
            if character.isalnum() or depth:
                runs.append("")
                if character in "pPx":
                    return ()
                continue
        elif character == "[":
            at = _class_end(pattern, at)
            runs.append("")
            continue
        elif character in "()":
            depth += 1 if character == "(" else -1
            runs.append("")
            continue
        elif character in "?*{+":
            if character != "+":
                runs[-1] = runs[-1][:-1]
            if character == "{":
                at = pattern.find("}", at) + 1 or len(pattern)
            runs.append("")
            continue
        elif character in ".^$" or depth:
            runs.append("")
            continue
        runs[-1] += character
    return tuple(filter(None, runs))


def _class_end(pattern: str, at: int) -> int:
    at += pattern[at : at + 1] == "^"
    at += 1  # a first ] belongs to the class
    while at < len(pattern) and pattern[at] != "]":
        if pattern[at] == "[" and pattern[at + 1 : at + 2] == ":":
            at = max(pattern.find(":]", at), at) + 1
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def folded(literal: bytes) -> bytes:
    return bytes(byte | FOLD_BIT for byte in literal)


class Prefilter:
    """Finds the literals of a query in memory. Owned by one thread."""

    def __init__(self, literals: tuple[bytes, ...]) -> None:
        """Without literals nothing is found: no record can match."""
        self._literals = literals
        self._overlap = max(map(len, literals), default=1) - 1
        self._scratch: NDArray[np.uint8] = np.empty(PIECE_BYTES + self._overlap, np.uint8)

    def scan(self, data: memoryview, start: int, end: int, on_hit: Callable[[int], int]) -> None:
        """Call `on_hit(position)` for literals in data[start:end]; it returns where to go on,
        behind the position. Each literal is searched by itself, so a record may be hit again."""
        whole = np.frombuffer(data, np.uint8)[:end]
        address = self._scratch.ctypes.data
        for piece_start in range(start, end, PIECE_BYTES):
            piece = whole[piece_start : piece_start + PIECE_BYTES + self._overlap]
            np.bitwise_or(piece, FOLD_BIT, out=self._scratch[: piece.size])
            for literal in self._literals:
                at = 0
                while at < piece.size and (hit := _memmem(address + at, piece.size - at, literal, len(literal))) is not None:
                    at = on_hit(piece_start + hit - address) - piece_start
