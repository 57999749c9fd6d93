"""A whole run into a directory: look, take the directory, start Spark, load, look again. What `millrace load` calls for directories.

Everything that can be wrong with what was asked is found before Spark is started, which takes ten seconds. Owned by one process.
Weak spot: formats of new topics are kept before their first commit; a run that dies between has chosen them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.load_directory import LoadDirectory
from appliance.pipeline.load_manifest import CommitDone, Manifest, Positions
from appliance.pipeline.load_plan import find_due
from appliance.pipeline.load_problem import LoadProblem
from appliance.pipeline.load_survey import LoadRequest, Survey, choose_format, survey_topics
from appliance.pipeline.load_task import TaskRunner
from appliance.pipeline.loader import Loader, LoadRules
from appliance.pipeline.source_problem import SourceProblem
from appliance.pipeline.spark_session import SessionOptions, start_spark
from appliance.pipeline.spark_tasks import Progress, SparkTasks
from appliance.pipeline.table_kind import TableKind, TopicFormat
from appliance.pipeline.topic_offsets import TopicOffsets


class LoadOrder(NamedTuple):
    """What the user asked for."""

    topics: Sequence[str]
    path: str
    access: ClusterAccess
    wish: LoadRequest
    rules: LoadRules
    file_format: str = "parquet"

    def kind(self, survey: Survey) -> TableKind:
        return TableKind(survey.access.cluster_id, "arrival" if self.rules.by_arrival else "record", self.file_format)


class LoadView(NamedTuple):
    """How things stand: the logs, and how far they are loaded."""

    survey: Survey
    positions: Positions
    last: Manifest | None


def look(order: LoadOrder) -> LoadView:
    """Nothing is changed. Raises LoadProblem, SourceProblem and what the client raises."""
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
def spark_runner(options: SessionOptions, on_progress: Callable[[Progress], None] | None) -> Iterator[TaskRunner]:
    with start_spark(options) as spark:
        yield SparkTasks(spark.session.sparkContext, on_progress)


def _planned_topics(order: LoadOrder, directory: LoadDirectory, offsets: TopicOffsets, number: int) -> set[str]:
    """Those that the plan of a dead run takes along. A plan with a topic that is gone, or another one now, is dropped: nothing of it was published."""
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
    """What else must learn of a commit that is in sight. Raises LoadProblem when that is not possible with these topics."""
    if order.file_format != "delta":
        return lambda manifest: None
    from appliance.pipeline.delta_log import DeltaLog

    return DeltaLog(directory, {**directory.topic_formats(), **formats}, by_arrival=order.rules.by_arrival).follow


def load_directory(
    order: LoadOrder, life: str, clock: Clock, open_runner: Callable[[], AbstractContextManager[TaskRunner]], on_commit: Callable[[CommitDone], None]
) -> Positions:
    """Load what there is now; returns the positions then. `open_runner` starts Spark, when there is something to do."""
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
