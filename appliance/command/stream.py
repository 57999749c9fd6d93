"""`millrace stream`: what a log does, minute by minute, into Parquet and a topic, each row once; or a job of the user's own in the same harness.

Killed anywhere and started again it goes on where it was. Everything of the pipeline (Spark, Arrow) is imported when it is needed, and only here.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from appliance.base.clock import SystemClock
from appliance.command.failures import UsageProblem
from appliance.command.kafka import require_topic_name, spark_options
from appliance.command.options import BootstrapOption, ConfigOption, DataOption, argument, option
from appliance.command.output import count_text, plural, say
from appliance.command.pipeline_extra import named_values, pipeline_extra, spark_settings

if TYPE_CHECKING:
    from appliance.pipeline.stream_directory import StreamDirectory
    from appliance.pipeline.stream_job import StreamJob
    from appliance.pipeline.stream_runner import BatchReport, StreamOptions

LOCK_WAIT_MS = 30_000
LOCK_RETRY_SECONDS = 0.1


def stream(
    topics: Annotated[list[str], argument("TOPIC", "The topics.")],
    to: Annotated[str, option("--to", metavar="DIR", help="A directory of this job's own, local or shared by POSIX: its rows as Parquet, and its progress.")],
    to_topic: Annotated[str | None, option("--to-topic", metavar="TOPIC", help="Write the rows into this topic, too, as JSON.")] = None,
    job: Annotated[
        str | None, option("--job", metavar="MODULE:FUNCTION", help="Your own: DataFrame in, DataFrame out. [default: minutes of a log, by host]")
    ] = None,
    every: Annotated[str, option("--every", metavar="TIME", help="How often new records are looked for. [default: 10 seconds]")] = "10 seconds",
    late: Annotated[
        str, option("--late", metavar="TIME", help="How far a record's own time may be from its arrival; minutes wait so long. [default: 2 minutes]")
    ] = "2 minutes",
    silent: Annotated[int, option("--silent", metavar="MINUTES", min=1, help="Minutes without a record after which a host is silent. [default: 5]")] = 5,
    latest: Annotated[bool, option("--latest", help="Begin with what comes from now on; otherwise with all there is. Counts at the first start only.")] = False,
    once: Annotated[bool, option("--once", help="Do what there is, then end.")] = False,
    master: Annotated[str | None, option("--master", metavar="URL", help="A Spark cluster. [default: this machine]")] = None,
    memory: Annotated[str, option("--memory", metavar="SIZE", help="Heap of Spark's driver. [default: 1g]")] = "1g",
    source: Annotated[list[str] | None, option("--source", metavar="NAME=VALUE", help="An option of the reader, such as includeHeaders=true.")] = None,
    settings: Annotated[list[str] | None, option("--spark", metavar="NAME=VALUE", help="A setting of Spark; may be given several times.")] = None,
    bootstrap: BootstrapOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
) -> None:
    """Count what a log does per minute and host, as it comes; run again it goes on where it was."""
    for name in [*topics, *([to_topic] if to_topic else [])]:
        require_topic_name(name)
    if to_topic in topics:
        raise UsageProblem(f"--to-topic {to_topic} is read by the job: its rows would come back to it; name another topic")
    with pipeline_extra():
        from appliance.pipeline.cluster_access import access_from
        from appliance.pipeline.stream_directory import StreamDirectory, ask_source
        from appliance.pipeline.stream_runner import StreamOptions

        chosen = _job(job, late, silent)
        _check_interval("--every", every)
        servers = spark_options(bootstrap, data, config)
        start = {"startingOffsets": "latest" if latest else "earliest", "kafka.isolation.level": "read_committed"}
        options = StreamOptions(
            topics=tuple(dict.fromkeys(topics)),
            to_topic=to_topic,
            every=every,
            once=once,
            master=master or "local[*]",
            memory=memory,
            source={**servers, **start, **_source_options(source or [])},
            sink=servers,
            settings=spark_settings(settings or []),
        )
        directory = StreamDirectory(to, uuid.uuid4().hex[:12])
        directory.look()
        ids = ask_source(access_from(options.source), options.topics)
        identity = {"job": chosen.name, "topics": sorted(options.topics), "to_topic": to_topic, **ids}
        with _opened(directory, identity):
            _run(options, chosen, directory)


def _job(name: str | None, late: str, silent_minutes: int) -> StreamJob:
    from appliance.pipeline.stream_job import built_in_job, load_job

    _check_interval("--late", late)
    return built_in_job(late, silent_minutes) if name is None else load_job(name)


def _source_options(texts: list[str]) -> dict[str, str]:
    """Of `--source`; what is read is said by the topics alone."""
    values = named_values("--source", texts)
    for name in values:
        if name.lower() in ("subscribe", "subscribepattern", "assign"):
            raise UsageProblem(f"--source {name}: name the topics as arguments, as in 'millrace stream TOPIC… --to DIR'")
    return values


def _check_interval(option_name: str, text: str) -> None:
    from appliance.pipeline.log_minutes import is_interval

    if not is_interval(text):
        raise UsageProblem(f"{option_name} {text}: write '30 seconds', '2 minutes' or '1 hour'")


@contextmanager
def _opened(directory: StreamDirectory, identity: dict[str, Any]) -> Iterator[None]:
    """A driver that was killed may leave its JVM for a moment, which still holds the lock; a living driver does not go away by waiting."""
    from threading import Event

    from appliance.pipeline.problems import ConcurrentStream

    clock, said = SystemClock(), False
    deadline_ms = clock.monotonic_ms() + LOCK_WAIT_MS
    while True:
        try:
            directory.open(identity)
            break
        except ConcurrentStream as error:
            if error.holder_lives or clock.monotonic_ms() > deadline_ms:
                raise
            if not said:
                say(f"millrace: {error}; waiting until it has ended")
                said = True
            Event().wait(LOCK_RETRY_SECONDS)
    try:
        yield
    finally:
        directory.close()


def _run(options: StreamOptions, job: StreamJob, directory: StreamDirectory) -> None:
    from appliance.pipeline.stream_runner import StreamRun

    totals = StreamTotals()
    run = StreamRun(options, job, directory, totals.on_report, lambda text: say(f"millrace: {text}"))

    def on_signal(number: int, _: object) -> None:
        say(f"millrace: {signal.Signals(number).name}: the micro-batch that is under way ends first")
        run.stop()

    run.signals = dict.fromkeys((signal.SIGINT, signal.SIGTERM), on_signal)
    places = f"{directory.path} and topic {options.to_topic}" if options.to_topic else directory.path
    say(f"millrace: {job.name} of {', '.join(options.topics)} into {places}; Spark starts …")
    run.run()
    say(totals.words())


class StreamTotals:
    """What this run has done; each micro-batch is a line."""

    def __init__(self) -> None:
        self.batches = self.records = self.rows = self.late_groups = 0

    def on_report(self, report: BatchReport) -> None:
        self.batches += 1
        self.records += report.records
        self.rows += report.rows
        self.late_groups += report.late_groups
        late = f"; {plural(report.late_groups, 'group')} came too late and count nowhere (--late)" if report.late_groups else ""
        say(f"batch {report.number}: {plural(report.records, 'record')} read, {plural(report.rows, 'row')} added, {count_text(report.milliseconds)} ms{late}")

    def words(self) -> str:
        late = f"; {plural(self.late_groups, 'group')} came too late" if self.late_groups else ""
        return f"{plural(self.batches, 'batch').replace('batchs', 'batches')}: {plural(self.records, 'record')} read, {plural(self.rows, 'row')} added{late}"
