"""Topics by a regular expression that the coordinator resolves: RE2's syntax, in the part of it that names of topics need.

A name is matched whole, and in time that grows with its length only, whatever the expression: it becomes a set of states that are followed side by side,
and sets that were met before are remembered. Understood are characters, `.`, classes, groups, `|`, `*`, `+`, `?`, counted repetition, `^` and `$`, `(?i)`
in front, `\\d \\w \\s` and what takes their meaning from signs. Back references and looking around are not RE2's; Unicode classes are not here.
Owned by the group coordinator. Weak spot: an expression of many counted repetitions is refused at `STATES_MAX` although RE2 might take it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

PATTERN_SIZE_MAX: Final = 1_000
STATES_MAX: Final = 5_000
REPEAT_MAX: Final = 1_000
CACHED_SETS_MAX: Final = 2_000
DEPTH_MAX: Final = 50

_DIGITS: Final = frozenset("0123456789")
_WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") | _DIGITS
_SPACE: Final = frozenset(" \t\n\f\r")
_EVERY: Final = frozenset(chr(code) for code in range(128))
"""Names of topics are ASCII."""
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE, "D": _EVERY - _DIGITS, "W": _EVERY - _WORD, "S": _EVERY - _SPACE}
_POSIX: Final = {
    "alpha": frozenset(each for each in _WORD if each.isalpha()),
    "digit": _DIGITS,
    "alnum": _WORD - {"_"},
    "word": _WORD,
    "lower": frozenset(each for each in _WORD if each.islower()),
    "upper": frozenset(each for each in _WORD if each.isupper()),
    "space": _SPACE | {"\v"},
    "xdigit": _DIGITS | frozenset("abcdefABCDEF"),
}
_ESCAPES: Final = {"t": "\t", "n": "\n", "f": "\f", "r": "\r", "v": "\v", "a": "\a"}
_AT_START, _AT_END = "^", "$"

Fragment = tuple[int, int]
"""A first state and a last one, from which nothing leads on yet."""


class UnusableRegex(ValueError):
    """Not RE2's, or beyond what is understood here."""


class TopicRegex:
    """One expression; `matches` takes whole names."""

    def __init__(self, pattern: str) -> None:
        self._steps: list[list[tuple[frozenset[str], int]]] = []
        self._free: list[list[tuple[str, int]]] = []
        first, self._last = _Compiler(pattern, self._steps, self._free).compile()
        self._first = self._closure({first}, is_start=True)
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        states = self._first
        for sign in name:
            states = self._next(states, sign)
            if not states:
                return False
        return self._last in states or self._last in self._closure(set(states), is_start=not name, is_end=True)

    def _next(self, states: frozenset[int], sign: str) -> frozenset[int]:
        found = self._known.get((states, sign))
        if found is None:
            reached = {target for state in states for signs, target in self._steps[state] if sign in signs}
            found = self._closure(reached)
            if len(self._known) >= CACHED_SETS_MAX:
                self._known.clear()
            self._known[states, sign] = found
        return found

    def _closure(self, states: set[int], is_start: bool = False, is_end: bool = False) -> frozenset[int]:
        """What can be reached without a sign, here."""
        waiting = list(states)
        while waiting:
            for anchor, target in self._free[waiting.pop()]:
                if (anchor == _AT_START and not is_start) or (anchor == _AT_END and not is_end) or target in states:
                    continue
                states.add(target)
                waiting.append(target)
        return frozenset(states)


class _Compiler:
    """Recursive descent, straight to states."""

    def __init__(self, pattern: str, steps: list[list[tuple[frozenset[str], int]]], free: list[list[tuple[str, int]]]) -> None:
        if len(pattern) > PATTERN_SIZE_MAX:
            raise UnusableRegex(f"regular expression of {len(pattern)} characters; {PATTERN_SIZE_MAX} are the most")
        self._pattern = pattern
        self._steps = steps
        self._free = free
        self._position = 0
        self._depth = 0
        self._any_case = False

    def compile(self) -> Fragment:
        if self._pattern.startswith("(?i)"):
            self._any_case = True
            self._position = 4
        found = self._alternatives()
        if self._position < len(self._pattern):
            raise self._problem("unexpected )")
        return found

    def _problem(self, what: str) -> UnusableRegex:
        return UnusableRegex(f"regular expression {self._pattern!r}: {what} at character {self._position}")

    def _state(self) -> int:
        if len(self._steps) >= STATES_MAX:
            raise UnusableRegex(f"regular expression {self._pattern!r} is too large")
        self._steps.append([])
        self._free.append([])
        return len(self._steps) - 1

    def _link(self, start: int, end: int, anchor: str = "") -> None:
        self._free[start].append((anchor, end))

    def _peek(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _take(self) -> str:
        sign = self._peek()
        if not sign:
            raise self._problem("it ends too early")
        self._position += 1
        return sign

    def _alternatives(self) -> Fragment:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._problem("too many groups in each other")
        first, last = self._state(), self._state()
        while True:
            start, end = self._sequence()
            self._link(first, start)
            self._link(end, last)
            if self._peek() != "|":
                break
            self._position += 1
        self._depth -= 1
        return first, last

    def _sequence(self) -> Fragment:
        first = last = self._state()
        while self._peek() not in ("", "|", ")"):
            start, end = self._repeated()
            self._link(last, start)
            last = end
        return first, last

    def _repeated(self) -> Fragment:
        begin = self._position
        found = self._atom()
        text_end = self._position
        sign = self._peek()
        if sign not in ("*", "+", "?", "{") or not sign:
            return found
        bounds = self._bounds()
        if bounds is None:
            return found
        if self._peek() == "?":  # as few as possible: the same names match
            self._position += 1
        if self._peek() in ("*", "+", "?") and self._peek():
            raise self._problem("repetition of a repetition")
        return self._copies(begin, text_end, found, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """How often at least and at most; None where a brace stands for itself."""
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        sign = self._take()
        if sign in simple:
            return simple[sign]
        end = self._pattern.find("}", self._position)
        low, comma, high = self._pattern[self._position : end].partition(",") if end >= 0 else ("", "", "")
        if not low.isdecimal() or (high and not high.isdecimal()):
            self._position -= 1
            return None
        self._position = end + 1
        least = int(low)
        most = least if not comma else int(high) if high else None
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise self._problem("bad repetition")
        return least, most

    def _copies(self, begin: int, text_end: int, found: Fragment, least: int, most: int | None) -> Fragment:
        """The text from `begin` on is compiled again for each copy that is needed."""
        behind = self._position

        def another() -> Fragment:
            self._position = begin
            fragment = self._atom()
            assert self._position == text_end
            return fragment

        first = last = self._state()
        copies = max(least, 1) if most is None else most
        fragments = [found, *(another() for _ in range(copies - 1))][:copies]
        final = self._state()
        for index, (start, end) in enumerate(fragments):
            if index >= least:
                self._link(last, final)
            self._link(last, start)
            last = end
        if most is None:
            start, end = fragments[-1]
            self._link(end, start)
        self._link(last, final)
        self._position = behind
        return first, final

    def _atom(self) -> Fragment:
        sign = self._take()
        match sign:
            case "(":
                return self._group()
            case "[":
                return self._one_of(self._class())
            case ".":
                return self._one_of(_EVERY - {"\n"})
            case "^" | "$":
                return self._anchor(sign)
            case "*" | "+" | "?":
                raise self._problem("nothing to repeat")
            case "\\":
                return self._escape()
            case _:
                return self._one_of(frozenset(sign))

    def _group(self) -> Fragment:
        if self._peek() == "?":
            if self._pattern[self._position : self._position + 2] == "?:":
                self._position += 2
            else:
                head, end = self._pattern[self._position :], -1
                for opening in ("?P<", "?<"):
                    if head.startswith(opening) and head[len(opening) : len(opening) + 1] not in ("=", "!", ""):
                        end = head.find(">")
                if end < 0:
                    raise self._problem("unknown kind of group")
                self._position += end + 1
        found = self._alternatives()
        if self._peek() != ")":
            raise self._problem("missing )")
        self._position += 1
        return found

    def _escape(self) -> Fragment:
        sign = self._take()
        if sign == "A":
            return self._anchor(_AT_START)
        if sign == "z":
            return self._anchor(_AT_END)
        return self._one_of(self._escaped(sign))

    def _escaped(self, sign: str) -> frozenset[str]:
        if sign in _CLASSES:
            return _CLASSES[sign]
        if sign in _ESCAPES:
            return frozenset(_ESCAPES[sign])
        if sign.isalnum() or ord(sign) >= len(_EVERY):
            raise self._problem(f"unknown escape \\{sign}")
        return frozenset(sign)

    def _class(self) -> frozenset[str]:
        negated = self._peek() == "^"
        self._position += negated
        signs: set[str] = set()
        is_first = True
        while self._peek() != "]" or is_first:
            is_first = False
            some = self._class_part()
            if self._peek() == "-" and self._pattern[self._position + 1 : self._position + 2] not in ("]", ""):
                self._position += 1
                end = self._class_part()
                if len(some) != 1 or len(end) != 1 or min(some) > min(end):
                    raise self._problem("bad range")
                some = frozenset(chr(code) for code in range(ord(min(some)), min(ord(min(end)), len(_EVERY) - 1) + 1))
            signs |= some
        self._position += 1
        found = self._in_any_case(frozenset(signs))
        return _EVERY - found if negated else found

    def _class_part(self) -> frozenset[str]:
        sign = self._take()
        if sign == "\\":
            return self._escaped(self._take())
        if sign == "[" and self._peek() == ":":
            end = self._pattern.find(":]", self._position)
            name = self._pattern[self._position + 1 : end] if end >= 0 else ""
            signs = _POSIX.get(name.removeprefix("^"))
            if signs is None:
                raise self._problem("unknown class")
            self._position = end + 2
            return _EVERY - signs if name.startswith("^") else signs
        return frozenset(sign)

    def _in_any_case(self, signs: frozenset[str]) -> frozenset[str]:
        return frozenset(each for sign in signs for each in (sign, sign.lower(), sign.upper())) if self._any_case else signs

    def _one_of(self, signs: frozenset[str]) -> Fragment:
        start, end = self._state(), self._state()
        self._steps[start].append((self._in_any_case(signs), end))
        return start, end

    def _anchor(self, sign: str) -> Fragment:
        start, end = self._state(), self._state()
        self._link(start, end, sign)
        return start, end


def compile_regex(pattern: str) -> TopicRegex:
    """`UnusableRegex` says why not."""
    return TopicRegex(pattern)


class TopicRegexes:
    """Which topics every expression in use matches; a name is looked at once for each."""

    def __init__(self, generation: Callable[[], int], names: Callable[[], Iterable[str]]) -> None:
        self._generation = generation
        self._names = names
        self._known: dict[str, tuple[int, TopicRegex, dict[str, bool], frozenset[str]]] = {}

    def matching(self, pattern: str) -> frozenset[str]:
        """Return the matching topics; none if the expression is invalid (it was checked when it arrived, so its member got the error then)."""
        generation = self._generation()
        known = self._known.get(pattern)
        if known is not None and known[0] == generation:
            return known[3]
        if known is None:
            try:
                regex = compile_regex(pattern)
            except UnusableRegex:
                return frozenset()
            seen: dict[str, bool] = {}
        else:
            regex, seen = known[1], known[2]
        verdicts = {name: seen[name] if name in seen else regex.matches(name) for name in self._names()}
        found = frozenset(name for name, matches in verdicts.items() if matches)
        if len(self._known) >= CACHED_SETS_MAX:
            self._known.clear()
        self._known[pattern] = (generation, regex, verdicts, found)
        return found
