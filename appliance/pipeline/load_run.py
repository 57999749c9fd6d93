"""Run `millrace load` into a directory: survey, lock the directory, start Spark, load, survey again.

All mistakes in the options are found before Spark starts, which takes ten seconds. Owned by one process.

`delta` tables: each published commit becomes a commit of Delta's log, written by the Rust library `deltalake`. Our
manifests are the source. Delta's log stores the number of the last manifest that it contains (`Transaction`), so the next
run adds what a crash left out.

Weak spots: formats of new topics are stored before their first commit, so a run that dies between the two has chosen them;
a Delta table has one schema, so all its topics must decode into the same columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson
import pyarrow as pa

from appliance.base.clock import Clock
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.hour_files import UNKNOWN
from appliance.pipeline.load_directory import LoadDirectory
from appliance.pipeline.load_manifest import CommitDone, Manifest, Positions
from appliance.pipeline.load_survey import LoadRequest, Survey, choose_format, find_due, survey_topics
from appliance.pipeline.load_task import LoadProgress, SparkTasks, TaskRunner
from appliance.pipeline.loader import Loader, LoadRules
from appliance.pipeline.problems import LoadProblem, SourceProblem
from appliance.pipeline.record_decoder import make_decoder
from appliance.pipeline.spark_session import SessionOptions, start_spark
from appliance.pipeline.table_kind import TableKind, TopicFormat
from appliance.pipeline.topic_offsets import TopicOffsets

APPLICATION = "millrace-load"
PARTITIONED_BY = [pa.field("topic", pa.string()), pa.field("date", pa.date32()), pa.field("hour", pa.int32())]
DELTA_LOG = "_delta_log"


class DeltaLog:
    """The Delta table in `directory`; its first commit creates it."""

    def __init__(self, directory: LoadDirectory, formats: Mapping[str, TopicFormat], *, by_arrival: bool) -> None:
        self._directory = directory
        schemas = {topic: make_decoder(chosen, by_arrival=by_arrival).schema for topic, chosen in sorted(formats.items())}
        topics = list(schemas)
        for topic in topics[1:]:
            if schemas[topic] != schemas[topics[0]]:
                raise LoadProblem(
                    f"topics {topics[0]} and {topic} become different columns, and a Delta table has one form: load them into tables of their own"
                )
        self._schema = pa.schema([*schemas[topics[0]], *PARTITIONED_BY])

    def follow(self, last: Manifest | None) -> int:
        """Add all commits up to `last` to Delta's log; return how many were added. Idempotent."""
        if last is None:
            return 0
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import CommitProperties, PostCommitHookProperties, Transaction

        path = self._directory.path
        names = [field.name for field in PARTITIONED_BY]
        try:
            table = DeltaTable(path) if os.path.isdir(f"{path}/{DELTA_LOG}") else DeltaTable.create(path, self._schema, partition_by=names, mode="ignore")
            first = (table.transaction_version(APPLICATION) or 0) + 1
            for number in range(first, last.number + 1):
                manifest = last if number == last.number else self._directory.manifest(number)
                properties = CommitProperties(app_transactions=[Transaction(APPLICATION, number)], max_commit_retries=0)
                hooks = PostCommitHookProperties(cleanup_expired_logs=False)
                actions = _added(manifest)
                table.create_write_transaction(actions, "append", self._schema, names, commit_properties=properties, post_commithook_properties=hooks)
                table = DeltaTable(path)
        except DeltaError as error:
            raise LoadProblem(f"the Delta table {path} did not take a commit: {error}; run again, and what is missing is added") from error
        return last.number + 1 - first


def _added(manifest: Manifest) -> list[Any]:
    from deltalake.transaction import AddAction

    return [
        AddAction(file.path, file.size_bytes, partition_values(file.path), manifest.published_ms, True, orjson.dumps({"numRecords": file.rows}).decode())
        for file in manifest.files
    ]


def partition_values(path: str) -> dict[str, str | None]:
    """Return topic, date and hour from a file's path."""
    pairs = [part.partition("=") for part in path.split("/")[:-1]]
    return {name: None if value == UNKNOWN else unquote(value) for name, _, value in pairs}


class LoadOrder(NamedTuple):
    """The parsed options of `millrace load`."""

    topics: Sequence[str]
    path: str
    access: ClusterAccess
    wish: LoadRequest
    rules: LoadRules
    file_format: str = "parquet"

    def kind(self, survey: Survey) -> TableKind:
        return TableKind(survey.access.cluster_id, "arrival" if self.rules.by_arrival else "record", self.file_format)


class LoadView(NamedTuple):
    """The ends of the logs, and the loaded positions."""

    survey: Survey
    positions: Positions
    last: Manifest | None


def look(order: LoadOrder) -> LoadView:
    """Changes nothing. Raises LoadProblem, SourceProblem and the client's errors."""
    directory = LoadDirectory(order.path, "look")
    kind = directory.look()
    with TopicOffsets(order.access) as offsets:
        survey = survey_topics(offsets, order.topics)
    if kind is not None:
        directory.check_kind(order.kind(survey))
    for topic in order.topics:
        if (kept := directory.topic_format(topic)) is not None or order.wish.fields is not None or order.wish.decode != "json":
            choose_format(topic, survey, order.wish, kept)
    last = directory.last_manifest()
    return LoadView(survey, {} if last is None else last.positions, last)


@contextmanager
def spark_runner(options: SessionOptions, on_progress: Callable[[LoadProgress], None] | None) -> Iterator[TaskRunner]:
    with start_spark(options) as spark:
        yield SparkTasks(spark.session.sparkContext, on_progress)


def _planned_topics(order: LoadOrder, directory: LoadDirectory, offsets: TopicOffsets, number: int) -> set[str]:
    """Return the topics of a dead run's plan. A plan with a deleted or re-created topic is dropped: nothing of it was published."""
    plan = directory.plan(number)
    if plan is None:
        return set()
    planned = {each.topic for each in plan.ranges}
    try:
        survey = survey_topics(offsets, planned)
        for topic in planned - set(order.topics):
            choose_format(topic, survey, LoadRequest(), directory.topic_format(topic))
    except (SourceProblem, LoadProblem):
        directory.drop_plan(number)
        return set()
    return planned


def follower(order: LoadOrder, directory: LoadDirectory, formats: Mapping[str, TopicFormat]) -> Callable[[Manifest | None], object]:
    """Return what must follow a published commit (Delta's log). Raises LoadProblem if these topics do not fit one Delta table."""
    if order.file_format != "delta":
        return lambda manifest: None
    from appliance.pipeline.load_run import DeltaLog

    return DeltaLog(directory, {**directory.topic_formats(), **formats}, by_arrival=order.rules.by_arrival).follow


def load_directory(
    order: LoadOrder, life: str, clock: Clock, open_runner: Callable[[], AbstractContextManager[TaskRunner]], on_commit: Callable[[CommitDone], None]
) -> Positions:
    """Load up to the current ends; return the new positions. `open_runner` starts Spark if there is anything to load."""
    view = look(order)
    directory = LoadDirectory(order.path, life)
    directory.open(order.kind(view.survey))
    try:
        last = directory.recover()
        with TopicOffsets(order.access) as offsets:
            planned = _planned_topics(order, directory, offsets, 1 if last is None else last.number + 1)
            survey = survey_topics(offsets, {*order.topics, *planned})
        formats = {}
        for topic in sorted({*order.topics, *planned}):
            wish = order.wish if topic in order.topics else LoadRequest()
            formats[topic] = choose_format(topic, survey, wish, directory.topic_format(topic))
        follow = follower(order, directory, formats)
        formats = {topic: directory.keep_topic_format(topic, chosen) for topic, chosen in formats.items()}
        follow(last)
        positions: Positions = {} if last is None else last.positions
        wanted = {partition: extent for partition, extent in survey.extents.items() if partition.topic in order.topics}
        if not planned and find_due(wanted, positions).is_nothing:
            return positions
        with open_runner() as run_tasks:
            return Loader(directory, survey.access, formats, order.rules, run_tasks, clock, follow).run(wanted, on_commit)
    finally:
        directory.close()
