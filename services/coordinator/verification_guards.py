"""Guards for appends about which another box is asked first: so that what ends here meanwhile is not taken for what begins (KIP-890).

Owned by one state topic. A guard is asked of the log-writer, kept while the other box is asked, and given to the append that follows. Weak: a guard that is
not used is the log-writer's to forget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import ProducerIdentity
from appliance.ipc.descriptors import ACKS_ALL_FLAG, DescriptorKind
from appliance.shm.partition_table import ISR_AND_CONFIG, ROLE_AND_EPOCH
from services.coordinator.state.state_partition import StatePartition

_HALF = (1 << 32) - 1

OnGuard = Callable[[ErrorCode, int], None]
"""Called with NONE and a guard for the coming append; guard 0: a transaction of the producer is open, so no verification is needed."""


class GuardQuestion:
    """A guard that a log-writer is asked for, before another box is asked about a transaction."""

    __slots__ = ("deadline_ns", "guards", "is_answered", "on_guard")

    def __init__(self, guards: VerificationGuards, deadline_ns: int, on_guard: OnGuard) -> None:
        self.guards = guards
        self.deadline_ns = deadline_ns
        self.on_guard = on_guard
        self.is_answered = False

    def answer(self, code: ErrorCode, guard: int = 0) -> None:
        if not self.is_answered:
            self.is_answered = True
            self.on_guard(code, guard)


class VerificationGuards:
    """`ask` for one, `guarded` while it is used."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._questions: set[GuardQuestion] = set()
        self._guards: dict[tuple[int, ProducerIdentity], int] = {}

    def ask(self, found: StatePartition | None, producer: ProducerIdentity, on_guard: OnGuard, timeout_ms: int) -> None:
        """Of the log-writer of a partition that this box leads; None: it leads it no more."""
        question = GuardQuestion(self, self._clock.monotonic_ns() + timeout_ms * 1_000_000, on_guard)
        words = found.led_words() if found is not None else None
        if found is None or words is None:
            on_guard(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
            return
        placement = found.placement
        descriptor = (
            DescriptorKind.BEGIN_VERIFICATION, ACKS_ALL_FLAG, 0, placement.row, placement.row_generation, words[ROLE_AND_EPOCH] & _HALF,
            words[ISR_AND_CONFIG] & _HALF, 0, 0, 0, producer.producer_id, 0, producer.producer_epoch & 0xFFFF, 0,
        )  # fmt: skip
        if placement.proxy.offer_or_queue(descriptor, 0, question):
            self._questions.add(question)
        else:
            on_guard(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)

    def on_answer(self, question: GuardQuestion, entry: tuple[Any, ...]) -> None:
        """Fields of `entry` as in `ipc.descriptors.Completion`."""
        self._questions.discard(question)
        question.answer(ErrorCode(entry[2]), entry[11])

    def on_lost(self, question: GuardQuestion) -> None:
        """Its log-writer died first."""
        self._questions.discard(question)
        question.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def expire(self, now_ns: int) -> int:
        """Answer those that wait too long; how many."""
        late = [question for question in self._questions if question.deadline_ns <= now_ns]
        for question in late:
            self._questions.discard(question)
            question.answer(ErrorCode.REQUEST_TIMED_OUT)
        return len(late)

    @contextmanager
    def guarded(self, partition: int, producer: ProducerIdentity, guard: int) -> Iterator[None]:
        """What is appended for `producer` meanwhile comes with the guard."""
        self._guards[partition, producer] = guard
        try:
            yield
        finally:
            self._guards.pop((partition, producer), None)

    def take(self, partition: int, producer: ProducerIdentity) -> int | None:
        """The guard of an append that is made now."""
        return self._guards.pop((partition, producer), None)
