"""What one task of a load does, on whatever machine Spark runs it: read a range, decode it, write files, say which. Changes nothing that a reader sees.

A task may be run twice, and two runs of it at once: each writes under names of its own, and the loader takes the files of one. What is for good (deleted
records, a damaged batch, a directory that is not there) is told as `problem` and not tried again; anything else is raised, and Spark tries again where it may.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from appliance.base.errors import MillraceError
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.load_manifest import SkippedRange, StagedFile
from appliance.pipeline.offset_range import OffsetRange
from appliance.pipeline.source_problem import CorruptRange, DataLoss
from appliance.pipeline.table_kind import TopicFormat


class LoadJob(NamedTuple):
    """The same for all tasks of a commit; pickled into each."""

    access: ClusterAccess
    staging: str
    formats: Mapping[str, TopicFormat]
    by_arrival: bool


class TaskResult(NamedTuple):
    """What a task did with `range`."""

    range: OffsetRange
    files: tuple[StagedFile, ...] = ()
    bad_files: tuple[StagedFile, ...] = ()
    skipped: tuple[SkippedRange, ...] = ()
    record_bytes: int = 0
    """keys and values that were read"""
    problem: str | None = None


class TaskRunner(Protocol):
    """Runs tasks somewhere and returns all results, in any order."""

    def __call__(self, job: LoadJob, ranges: Iterable[OffsetRange]) -> list[TaskResult]: ...


class Skips:
    """What the reader could not give. The loader decides whether that may be."""

    def __init__(self) -> None:
        self.found: list[SkippedRange] = []

    def lost(self, loss: DataLoss) -> None:
        self.found.append(SkippedRange(loss.topic, loss.partition, loss.start, loss.end, "lost"))

    def corrupt(self, found: CorruptRange) -> None:
        self.found.append(SkippedRange(found.topic, found.partition, found.offset, found.end, f"corrupt: {found.reason}"))


Read = Callable[[LoadJob, OffsetRange, Sequence[str], Skips], Iterable[Any]]
"""Batches of a range with the columns asked for; what cannot be read goes to the skips."""


def read_records(job: LoadJob, wanted: OffsetRange, columns: Sequence[str], skips: Skips) -> Iterable[Any]:
    from appliance.pipeline.record_reader import read_range

    return read_range(job.access, wanted, columns, on_data_loss=skips.lost, on_corrupt=skips.corrupt)


def run_task(job: LoadJob, wanted: OffsetRange, attempt: str, read: Read = read_records) -> TaskResult:
    """`attempt` makes file names unique."""
    try:
        return _load(job, wanted, attempt, read)
    except MillraceError as error:
        return TaskResult(wanted, problem=str(error))
    except FileNotFoundError as error:
        if os.path.isdir(job.staging):
            raise
        words = "either another loader has taken over, or this machine does not see the directory: it must be shared by all machines that load into it"
        return TaskResult(wanted, problem=f"{error.filename} is not there on {socket.gethostname()}; {words}")


def _load(job: LoadJob, wanted: OffsetRange, attempt: str, read: Read) -> TaskResult:
    from appliance.pipeline.hour_files import FileNames, HourFiles
    from appliance.pipeline.load_directory import BAD_RECORDS
    from appliance.pipeline.record_decoder import BAD_SCHEMA, make_decoder

    decoder = make_decoder(job.formats[wanted.topic], by_arrival=job.by_arrival)
    name = f"part-{wanted.partition:05d}-{wanted.start:020d}-{wanted.end:020d}"
    base = f"topic={wanted.topic}"
    staged = f"{attempt}-{wanted.partition}-{wanted.start}"
    rows = HourFiles(FileNames(job.staging, staged, base, name), decoder.schema)
    bad_rows = HourFiles(FileNames(job.staging, f"bad-{staged}", f"{BAD_RECORDS}/{base}", name), BAD_SCHEMA)
    skips = Skips()
    record_bytes = 0
    for batch in read(job, wanted, decoder.source_columns, skips):
        record_bytes += batch.column("key").nbytes + batch.column("value").nbytes
        decoded = decoder.decode(batch)
        rows.add(decoded.rows, decoded.hours)
        if decoded.bad is not None and decoded.bad_hours is not None:
            bad_rows.add(decoded.bad, decoded.bad_hours)
    return TaskResult(wanted, rows.finish(), bad_rows.finish(), tuple(skips.found), record_bytes)
