"""What a read_committed consumer may have of a partition: where the last stable offset is, and which transactions before it were aborted.

Both are asked of the disk's log-reader, and only where there is something to ask: while a transaction is open, for the position of the last stable
offset; and where an abort marker lies at or behind the fetch offset (the table says where the newest one is), for the entries of the transaction indexes.
So a topic without transactions costs nothing. What is answered is kept with the placement: an older last stable offset stays true, and entries stay
true until the next abort. Owned by one acceptor. Weak spot: in a backfill each answer of such a topic costs one question.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from appliance.base.errors import ErrorCode
from appliance.cluster.metadata_cache import Bound, KnownAborted, LocalReplica
from appliance.ipc.aborted_answer import read_aborted
from appliance.ipc.log_reader_messages import ABORTED, LOOKUP, Answer, Span
from appliance.ipc.log_reader_proxy import OnAnswer
from appliance.protocol.fetch import AbortedTransaction
from appliance.shm.partition_table import Row
from services.acceptor.arena_range import ArenaRange
from services.acceptor.fetch.pending_fetch import AbortedFound, PendingFetch, Target
from services.acceptor.fetch.segment_files import FileRange


class Ask(Protocol):
    """A question to the log-reader for a pending fetch; an error if it cannot be asked."""

    def __call__(
        self,
        pending: PendingFetch,
        placement: LocalReplica,
        kind: int,
        topic: str,
        row: Row,
        value_a: int,
        value_b: int,
        on_answer: OnAnswer,
        span: Span | None = None,
    ) -> ErrorCode | None: ...


class Answered(Protocol):
    """One question less is under way for a fetch."""

    def __call__(self, pending: PendingFetch) -> None: ...


class CommittedReads:
    """Of one acceptor. `answered` is called for a fetch after each answer."""

    def __init__(self, ask: Ask, answered: Answered) -> None:
        self._ask = ask
        self._answered = answered

    def bound(self, pending: PendingFetch, index: Target, topic: str, fetch_offset: int, placement: LocalReplica, row: Row) -> Bound | ErrorCode | None:
        """Where what may be read from `fetch_offset` on ends; None while the log-reader is asked."""
        known = placement.stable_bound
        if known is not None and known.segment_list_generation == row.segment_list_generation and known.offset > fetch_offset:
            if known.offset == row.last_stable_offset or pending.rounds:  # asked a moment ago, for this fetch
                return known
        failure = pending.found.get(index)
        if isinstance(failure, ErrorCode):
            return failure

        def on_answer(answer: Answer | None, _descriptor: int) -> None:
            if answer is None:
                pending.found[index] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif answer.error_code:
                pending.found[index] = ErrorCode(answer.error_code)
            else:
                placement.stable_bound = Bound(row.last_stable_offset, answer.a, answer.b, row.segment_list_generation)
                placement.remember(row.last_stable_offset, answer.a, answer.b)
            self._answered(pending)

        return self._ask(pending, placement, LOOKUP, topic, row, row.last_stable_offset, row.high_watermark, on_answer)

    def aborted(
        self,
        pending: PendingFetch,
        index: Target,
        topic: str,
        fetch_offset: int,
        segment_base_offset: int,
        end_position: int,
        placement: LocalReplica,
        row: Row,
    ) -> AbortedFound | ErrorCode | None:
        """The aborted transactions among the batches from `fetch_offset` to `end_position` of a segment, or to a lower position that the answer names;
        None while the log-reader is asked."""
        aborted_end_offset = placement.table.aborted_end(placement.row)
        if fetch_offset >= aborted_end_offset:
            return AbortedFound(fetch_offset, segment_base_offset, end_position, ())
        found = pending.aborted.get(index)
        if isinstance(found, ErrorCode):
            return found
        if found is not None and (found.fetch_offset, found.segment_base_offset) == (fetch_offset, segment_base_offset):
            return found
        known = placement.known_aborted
        generation = row.segment_list_generation
        if known is not None and (known.segment_list_generation, known.aborted_end_offset) == (generation, aborted_end_offset):
            if known.first_offset <= fetch_offset and known.end_offset >= row.last_stable_offset:
                return AbortedFound(fetch_offset, segment_base_offset, end_position, _overlapping(known.transactions, fetch_offset))

        def on_answer(answer: Answer | None, descriptor: int) -> None:
            if answer is None or answer.error_code:
                pending.aborted[index] = ErrorCode(answer.error_code) if answer is not None else ErrorCode.NOT_LEADER_OR_FOLLOWER
            else:
                transactions = read_aborted(answer, descriptor)
                placement.known_aborted = KnownAborted(generation, aborted_end_offset, fetch_offset, answer.a, transactions)
                pending.aborted[index] = AbortedFound(fetch_offset, segment_base_offset, end_position, _overlapping(transactions, fetch_offset))
            if descriptor >= 0:
                os.close(descriptor)
            self._answered(pending)

        span = Span(segment_base_offset, end_position)
        return self._ask(pending, placement, ABORTED, topic, row, fetch_offset, row.last_stable_offset, on_answer, span)


def _overlapping(transactions: Sequence[tuple[int, int, int]], fetch_offset: int) -> tuple[AbortedTransaction, ...]:
    return tuple(sorted((AbortedTransaction(*each[:2]) for each in transactions if each[2] >= fetch_offset), key=lambda each: each.first_offset))


def cut(records: FileRange | ArenaRange, position: int, end_position: int) -> FileRange | ArenaRange:
    """`records` up to `end_position`: what came since the question was asked goes with the next answer."""
    if isinstance(records, FileRange) and position + records.size_bytes > end_position:
        return records._replace(size_bytes=end_position - position)
    return records
