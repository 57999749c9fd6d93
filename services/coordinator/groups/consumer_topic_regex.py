"""Topics that consumers subscribe to by a regular expression (KIP-848), resolved by the coordinator.

The expressions are RE2's: Kafka uses RE2/J, this module the C++ library. A match takes at most
(instructions of the compiled expression) x (bytes of the name) steps, whatever the expression. Four
bounds hold for what clients send: the memory of a compiled expression, the number of expressions in
use, the topics in all results, and the steps in each interval of time. An expression is resolved
once for each set of topic names, and only the names that are new are matched.
Owned by the group coordinator. Weak spot: a large expression over thousands of long topic names is
resolved some seconds after its member joined, as in Kafka, which resolves them in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from appliance.runtime.timers import Timer, Timers
from services.coordinator.groups.ports import Topics

PATTERN_SIZE_MAX: Final = 1_000
"""Characters of an expression."""
COMPILED_BYTES_MAX: Final = 64 << 10
"""Memory of a compiled expression. `re2.compile` keeps the 128 that were used last."""
RESULT_TOPICS_MAX: Final = 1_000_000
"""Topics in the results of all expressions, about 50 bytes each. An unresolved one counts as if it matched all topics."""
STEPS_A_SLICE: Final = 2_000_000
"""Instructions times bytes in one interval: at most 6 ms."""
SLICE_INTERVAL_MS: Final = 20
STEPS_A_NAME: Final = 500
"""The fixed cost of one match, in steps."""
SWEEP_INTERVAL_MS: Final = 1_000
"""Unused expressions are looked for no more often than this."""


class CompiledRegex(Protocol):
    """As google-re2 compiles it."""

    @property
    def programsize(self) -> int:
        """Its instructions."""

    def fullmatch(self, name: str) -> object | None: ...


class UnusableRegex(ValueError):
    """The expression is not RE2's, or too large."""


class TooManyRegexes(UnusableRegex):
    """The expressions in use leave no space for another one."""


def compile_regex(pattern: str) -> CompiledRegex:
    """Return the compiled expression.

    Raises `UnusableRegex`. The library is imported by the first call: it takes 3 MB, and most
    boxes have no such consumers.
    """
    import re2

    if len(pattern) > PATTERN_SIZE_MAX:
        raise UnusableRegex(f"SubscribedTopicRegex has {len(pattern)} characters; {PATTERN_SIZE_MAX} are allowed.")
    options = re2.Options()
    options.max_mem = COMPILED_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        compiled: CompiledRegex = re2.compile(pattern, options)
        return compiled
    except re2.error as problem:
        text = problem.args[0].decode(errors="replace")
    except UnicodeEncodeError:
        text = "invalid UTF-8"
    raise UnusableRegex(f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {text}.")


class _Resolution:
    """One expression and the topics that it matches."""

    __slots__ = ("_decided", "matched", "names", "pattern", "size")

    def __init__(self, pattern: str, size: int) -> None:
        self.pattern = pattern
        self.size = size
        """Instructions of the compiled expression."""
        self.matched: frozenset[str] = frozenset()
        self.names: frozenset[str] | None = None
        """The topic names for which `matched` is complete."""
        self._decided: frozenset[str] = frozenset()

    def resolve(self, names: frozenset[str], steps: int) -> int:
        """Match names until `steps` are used up; returns the steps that are left, which may be below 0."""
        regex = compile_regex(self.pattern)
        missing = names - self._decided
        tried, found = [], []
        for name in missing:
            if steps <= 0:
                break
            steps -= STEPS_A_NAME + self.size * len(name)
            tried.append(name)
            if regex.fullmatch(name):
                found.append(name)
        self.matched = self.matched.union(found)
        if len(tried) == len(missing):
            self.matched &= names
            self.names = self._decided = names
        else:
            self._decided = self._decided.union(tried)
        return steps


class TopicRegexes:
    """The expressions of all members, and the topics that each matches.

    `in_use` returns the expressions of members, `refused` is called for each that a bound refuses.
    """

    def __init__(self, topics: Topics, timers: Timers, patterns_max: int, in_use: Callable[[], set[str]], on_refused: Callable[[], None]) -> None:
        self._topics = topics
        self._timers = timers
        self._patterns_max = patterns_max
        self._in_use = in_use
        self._on_refused = on_refused
        self._known: dict[str, _Resolution] = {}
        self._unresolved: dict[str, None] = {}
        self._generation: int | None = None
        self._names: frozenset[str] = frozenset()
        self._steps = STEPS_A_SLICE
        self._slice_began_ms = 0
        self._swept_ms: int | None = None
        self._timer: Timer | None = None

    def admit(self, pattern: str, now_ms: int) -> None:
        """Take an expression into use, compiling it if it is new.

        Raises `UnusableRegex` if it is invalid or too large, or if the expressions of all members
        leave no space for it.
        """
        if pattern in self._known:
            return
        self._look_at_topics()
        compiled = compile_regex(pattern)
        if not self._has_space():
            self._maybe_sweep(now_ms)
        if not self._has_space():
            self._on_refused()
            raise TooManyRegexes(f"The coordinator resolves no more than {self._patterns_max} regular expressions over {len(self._names)} topics.")
        self._known[pattern] = _Resolution(pattern, compiled.programsize)

    def matching(self, pattern: str, now_ms: int) -> frozenset[str] | None:
        """Return the topics that the expression matches, or None while it is not resolved.

        An invalid expression matches no topic: its member got the error when it sent it, or
        another release accepted it.
        """
        self._look_at_topics()
        try:
            self.admit(pattern, now_ms)
        except TooManyRegexes:
            return None
        except UnusableRegex:
            return frozenset()
        resolution = self._known[pattern]
        if resolution.names is not self._names:
            self._unresolved[pattern] = None
            self._resolve(now_ms)
        return resolution.matched if resolution.names is self._names else None

    def last_matching(self, pattern: str) -> frozenset[str] | None:
        """Return the topics that it matched when it was resolved last, or None if it never was. Costs no match."""
        resolution = self._known.get(pattern)
        return resolution.matched if resolution is not None and resolution.names is not None else None

    def _has_space(self) -> bool:
        topics = sum(len(self._names if each.names is None else each.matched) for each in self._known.values())
        return len(self._known) < self._patterns_max and topics + len(self._names) <= RESULT_TOPICS_MAX

    def _maybe_sweep(self, now_ms: int) -> None:
        """Forget expressions that no member has any more."""
        if self._swept_ms is None or now_ms - self._swept_ms >= SWEEP_INTERVAL_MS:
            self._swept_ms = now_ms
            for unused in self._known.keys() - self._in_use():
                del self._known[unused]
                self._unresolved.pop(unused, None)

    def _look_at_topics(self) -> None:
        """Keep the set of names as long as it has the same names: results are for a set."""
        generation = self._topics.generation
        if generation != self._generation:
            self._generation = generation
            names = frozenset(self._topics.names())
            if names != self._names:
                self._names = names

    def _resolve(self, now_ms: int) -> None:
        """Resolve small expressions first, so that a large one does not delay them."""
        if now_ms - self._slice_began_ms >= SLICE_INTERVAL_MS:
            self._slice_began_ms = now_ms
            self._steps = STEPS_A_SLICE
        while self._unresolved and self._steps > 0:
            resolution = min(self._resolutions(), key=lambda each: each.size)
            self._steps = resolution.resolve(self._names, self._steps)
            if resolution.names is self._names:
                del self._unresolved[resolution.pattern]
        if self._unresolved and (self._timer is None or not self._timer.is_live):
            self._timer = self._timers.schedule(self._slice_began_ms + SLICE_INTERVAL_MS, self._on_slice_due)

    def _on_slice_due(self, now_ms: int) -> None:
        self._maybe_sweep(now_ms)
        self._resolve(now_ms)

    def _resolutions(self) -> Iterator[_Resolution]:
        return (self._known[pattern] for pattern in self._unresolved)
