"""A whole run into a PostgreSQL table: rounds of tasks, one range of each partition at a time, up to the initial ends.

Each task moves its partition's position in the transaction that adds its rows, so there is nothing to plan, publish or
remove. Owned by one process. Weak spot: a partition is loaded by one task at a time, so a topic with one partition uses one
core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from appliance.pipeline.load_manifest import CommitDone, Positions
from appliance.pipeline.load_run import LoadOrder, LoadView
from appliance.pipeline.load_survey import choose_format, find_due, survey_topics
from appliance.pipeline.load_task import collected
from appliance.pipeline.loader import LoadRules
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.postgres_table import PostgresTable, TableAddress, table_address
from appliance.pipeline.problems import ConcurrentLoader, LoadProblem
from appliance.pipeline.record_decoder import make_decoder
from appliance.pipeline.spark_session import SessionOptions, start_spark
from appliance.pipeline.table_copy import CopyJob, CopyResult, copy_range
from appliance.pipeline.topic_offsets import TopicOffsets

MOVED_ROUNDS_MAX = 3
"""Rounds in which another process moved a position: a task that outlived its driver does so once, another loader again and again."""
CopyRunner = Callable[[CopyJob, Iterable[OffsetRange]], list[CopyResult]]


def only_topic(order: LoadOrder) -> str:
    if len(order.topics) != 1:
        raise LoadProblem("a table of PostgreSQL holds one topic; load each with a command of its own")
    return order.topics[0]


def address_of(order: LoadOrder) -> TableAddress:
    return table_address(order.path, only_topic(order))


def look_at_table(order: LoadOrder) -> LoadView:
    """Return log ends and loaded positions. Changes nothing."""
    topic = only_topic(order)
    with TopicOffsets(order.access) as offsets:
        survey = survey_topics(offsets, [topic])
    with PostgresTable(address_of(order)) as table:
        kept = table.look(topic, order.kind(survey))
        if kept is not None or order.wish.fields is not None or order.wish.decode != "json":
            choose_format(topic, survey, order.wish, kept)
        return LoadView(survey, table.positions(topic) if kept is not None else {}, None)


def load_table(order: LoadOrder, session: SessionOptions, on_round: Callable[[CommitDone], None]) -> Positions:
    """Load up to the current ends; return the new positions."""
    topic = only_topic(order)
    with TopicOffsets(order.access) as offsets:
        survey = survey_topics(offsets, [topic])
    kind = order.kind(survey)
    with PostgresTable(address_of(order)) as table:
        chosen = choose_format(topic, survey, order.wish, table.look(topic, kind))
        table.open(topic, kind, chosen, make_decoder(chosen, by_arrival=order.rules.by_arrival).schema)
        table.keep_positions({partition: extent.start for partition, extent in survey.extents.items()})
        if find_due(survey.extents, table.positions(topic)).is_nothing:
            return table.positions(topic)
        job = CopyJob(survey.access, table.address, chosen, order.rules.by_arrival, order.rules.accept_loss, order.rules.skip_corrupt)
        with start_spark(session) as spark:
            return TableLoad(table, job, order.rules, partial(_on_spark, spark.session.sparkContext)).run(topic, survey.extents, on_round)


def _on_spark(context: Any, job: CopyJob, ranges: Iterable[OffsetRange]) -> list[CopyResult]:
    return collected(context, partial(copy_range, job), ranges)


class TableLoad:
    """Load up to the ends into `table`, which is open."""

    def __init__(self, table: PostgresTable, job: CopyJob, rules: LoadRules, run_tasks: CopyRunner) -> None:
        self._table = table
        self._job = job
        self._rules = rules
        self._run_tasks = run_tasks

    def run(self, topic: str, extents: Any, on_round: Callable[[CommitDone], None]) -> Positions:
        number = moved_rounds = 0
        while True:
            positions = self._table.positions(topic)
            due = find_due(extents, positions)
            if due.is_nothing:
                return positions
            ranges = [OffsetRange(*each[:2], positions.get(each.topic_partition, each.start), each.end) for each in due.ranges]
            passed = {(skip.topic, skip.partition) for skip in due.lost} - {each.topic_partition for each in due.ranges}
            ranges += [OffsetRange(skip.topic, skip.partition, skip.start, skip.end) for skip in due.lost if (skip.topic, skip.partition) in passed]
            number += 1
            results = self._run_tasks(self._job, [each._replace(end=min(each.end, each.start + self._rules.task_records)) for each in ranges])
            if problems := sorted({result.problem for result in results if result.problem}):
                raise LoadProblem("\n".join(problems[:5]))
            moved_rounds += any(result.moved for result in results)
            if moved_rounds > MOVED_ROUNDS_MAX:
                raise ConcurrentLoader(f"another loader is running for {self._table.address}; stop it first")
            on_round(_summed(number, results))


def _summed(number: int, results: list[CopyResult]) -> CommitDone:
    done = [result for result in results if not result.moved]
    return CommitDone(
        number,
        sum(result.rows for result in done),
        sum(result.bad_rows for result in done),
        sum(result.record_bytes for result in done),
        sum(result.range.size for result in done),
        tuple(skip for result in done for skip in result.skipped),
    )
