"""Lines of the ingest table as words. Pure.

A word ends at a blank; quotes hold blanks and `#` (`shared-key="a # b"`; a quote or a backslash inside stands behind a backslash). `#` at the start of a word
begins a comment. Weak: quotes do not hold a comma that would separate two values.
"""

from __future__ import annotations

import re

_WORD = re.compile(r'\s*((?:[^\s"]|"(?:[^"\\]|\\.)*")+)')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def words_of(line: str) -> list[str] | None:
    """The words, without quotes; None if a quote has no end."""
    words = []
    position = 0
    while line[position:].strip():
        match = _WORD.match(line, position)
        if match is None or line[match.end() : match.end() + 1] == '"':
            return None
        if match[1].startswith("#"):
            break
        words.append(_QUOTED.sub(lambda quoted: _ESCAPED.sub(r"\1", quoted[1]), match[1]))
        position = match.end()
    return words


def nearest(word: str, known: list[str]) -> str:
    """`; did you mean …?` if a known word is close."""
    best = min(known, key=lambda other: _distance(word, other), default="")
    return f"; did you mean {best}?" if best and _distance(word, best) <= max(1, len(word) // 3) else ""


def _distance(one: str, other: str) -> int:
    """Letters to change (Levenshtein)."""
    row = list(range(len(other) + 1))
    for index, letter in enumerate(one[:64]):
        previous, row = row, [index + 1]
        for place, other_letter in enumerate(other):
            row.append(min(previous[place + 1] + 1, row[place] + 1, previous[place] + (letter != other_letter)))
    return row[-1]
