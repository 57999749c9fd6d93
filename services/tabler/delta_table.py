"""One Delta table on disk: open, create, append. Owned by one run; all of the format is done by `deltalake`.

An append is: a Parquet file in `_millrace_staging`, synced; renamed into the table; one commit with the file and the offsets of all
partitions in it (`txn` actions); the commit synced. A commit fails if another one changed the offset of one of these partitions since the table was
opened, so two writers of a partition never both succeed. Weak: a power cut between a commit and its sync may leave a commit
file that is empty, which no reader takes; remove it. A kill between rename and commit leaves a file that no commit names; `vacuum` removes it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from appliance.base.errors import MillraceError
from appliance.base.model import TopicId
from appliance.storage import file_io
from services.tabler.table_rules import MissingRange, application_id

DELTA_LOG = "_delta_log"
STAGING = "_millrace_staging"
BAD = "_bad"
"""Directory in a table, which readers and vacuum pass over: the table of its bad records."""
TOPIC_ID_KEY = "millrace.topic.id"
STATISTICS = {"delta.dataSkippingStatsColumns": "partition,offset,timestamp"}
"""The columns that have statistics. Unless the table says so, deltalake 1.6 finds no row by a filter of another column."""
LOST_KEY = "millrace.lost"
LOST_SHOWN_MAX = 100
SMALL_BYTES, COMPACTED_BYTES = 32 << 20, 128 << 20
Step = Callable[[str], None]
"""Called before each step of an append, for tests that end the process there."""


class TableTrouble(MillraceError):
    """The table cannot be written now; the text says why and what to do. It is tried again."""


class TableConflict(TableTrouble):
    """Another writer committed the offset of one of these partitions first. Nothing of this commit is in the table."""


class TableFile(NamedTuple):
    """A Parquet file of a commit, in the staging directory. `stats` as Delta's log has them."""

    name: str
    rows: int
    stats: dict[str, Any]


@contextmanager
def trouble(action: str, directory: str) -> Iterator[None]:
    """Turn what the file system and the library raise into TableTrouble."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except MillraceError as error:
        raise error if isinstance(error, TableTrouble) else TableTrouble(f"could not {action} {directory}: {error}") from error
    except OSError as error:
        raise TableTrouble(f"could not {action} {directory}: {_os_words(error)}") from error
    except (DeltaError, pa.ArrowException) as error:
        raise TableTrouble(f"could not {action} {directory}: {' '.join(str(error).split())[:500]}") from error


def _os_words(error: OSError) -> str:
    hints = {errno.ENOSPC: "free space there", errno.EROFS: "mount it writable", errno.EACCES: "give it to the user of the box"}
    words = os.strerror(error.errno).lower() if error.errno else " ".join(str(error).split())[:500]
    return f"{words}; {hints[error.errno]}" if error.errno in hints else words


def location_problem(location: str, allowed: Sequence[str]) -> str | None:
    """Return why no table can be in this directory now, or None. Creates nothing: it may be a mount point without its file system."""
    try:
        real = os.path.realpath(location, strict=True)
        if not os.path.isdir(real):
            return f"{location} is no directory; name one in millrace.table.location"
        if not any(real == each or real.startswith(f"{each}/") for each in map(os.path.realpath, allowed)):
            return f"{location} is {real}, which is not below a directory of the setting tables.locations"
    except FileNotFoundError:
        return f"{location} does not exist; mount its file system, or create it for the user of the box. The tabler creates no location"
    except OSError as error:
        return f"{location}: {(error.strerror or str(error)).lower()}"
    above = real
    while True:
        if os.path.exists(f"{above}/meta.properties"):
            return f"{location} lies in a log directory of a box ({above}); name another directory"
        if os.path.isdir(f"{above}/{DELTA_LOG}"):
            return f"{location} lies in another table ({above}); name another directory"
        if above == (parent := os.path.dirname(above)):
            return None
        above = parent


def has_commit(directory: str) -> bool:
    """Return whether there is a table; a kill during its creation leaves a log without a commit."""
    try:
        return any(name.endswith((".json", ".parquet")) for name in os.listdir(f"{directory}/{DELTA_LOG}"))
    except (FileNotFoundError, NotADirectoryError):
        return False


class DeltaTopicTable:
    """The table of one topic. `open` first; `expected_id` is the table that was there before, "" for none."""

    def __init__(self, directory: str, topic: str, topic_id: TopicId, writer: str) -> None:
        """`writer` is BOX-INCARNATION: files of two boxes, and of two incarnations, have different names."""
        self._directory = directory
        self._topic = topic
        self._topic_id = topic_id
        self._writer = writer
        self._table: Any = None

    @property
    def staging(self) -> str:
        return f"{self._directory}/{STAGING}"

    @property
    def exists(self) -> bool:
        return self._table is not None

    @property
    def table_id(self) -> str:
        return str(self._table.metadata().id)

    @property
    def version(self) -> int:
        return int(self._table.version())

    def open(self, expected_id: str) -> None:
        """Open the table if there is one. Raises TableTrouble if it is another's, or the one that was here is gone."""
        from deltalake import DeltaTable

        directory = self._directory
        with trouble("open the table", directory):
            if os.path.islink(directory):
                raise TableTrouble(f"{directory} is a symbolic link; a table is a directory")
            if has_commit(directory):
                self._table = DeltaTable(directory)
                self._check_owner(expected_id)
            elif expected_id:
                raise TableTrouble(
                    f"the table {directory} is gone; bring it back (or mount it). To start a new one, which has only what the log still has: "
                    f"millrace topic alter {self._topic} --table none, and --table delta again"
                )
            elif os.path.isdir(directory) and (others := sorted(set(os.listdir(directory)) - {STAGING, BAD, DELTA_LOG, "lost+found"})):
                raise TableTrouble(f"{directory} is no table and not empty ({', '.join(others[:3])}); move that away")

    def _check_owner(self, expected_id: str) -> None:
        owner = self._table.metadata().configuration.get(TOPIC_ID_KEY)
        if owner != str(self._topic_id):
            whose = f"topic id {owner}: a topic of this name that was deleted" if owner else "another program"
            raise TableTrouble(f"the table {self._directory} is that of {whose}; move it away, or set millrace.table.location to another directory")
        if expected_id and self.table_id != expected_id:
            raise TableTrouble(f"the table {self._directory} is not the one that was here (id {expected_id}); bring that back")

    def schema(self) -> pa.Schema:
        """Return the table's columns as Arrow has them."""
        return pa.schema(self._table.schema().to_arrow())

    def offsets(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return where each partition goes on, without those of which the table has nothing."""
        if self._table is None:
            return {}
        found = {partition: self._table.transaction_version(application_id(self._topic_id, partition)) for partition in partitions}
        return {partition: int(version) for partition, version in found.items() if version is not None}

    def create(self, schema: pa.Schema) -> None:
        """Create the table. Another box may do so at the same time; one of both does."""
        from deltalake import DeltaTable

        with trouble("create the table", self._directory):
            self._table = DeltaTable.create(
                self._directory, schema, mode="ignore", name=self._topic, description=f"topic {self._topic} of millrace",
                configuration={TOPIC_ID_KEY: str(self._topic_id), **STATISTICS}, raise_if_key_not_exists=False,
            )  # fmt: skip
            self._table = DeltaTable(self._directory)
            self._check_owner("")
            file_io.fsync_directory(os.path.dirname(self._directory))

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns, in a commit of their own: a kill after it leaves columns that are null."""
        from deltalake import Schema

        with trouble("add columns to the table", self._directory):
            opened = self.version
            self._table.alter.add_columns(Schema.from_arrow(pa.schema(fields)).fields)
            self._sync_commits(opened)

    def make_staging(self) -> None:
        with trouble("write", self._directory):
            os.makedirs(self.staging, exist_ok=True)

    def sweep(self) -> None:
        """Remove what dead incarnations of this box left in the staging directory."""
        own = f"part-{self._writer.partition('-')[0]}-"
        with suppress(OSError):
            for name in os.listdir(self.staging):
                if name.startswith(own) and not name.startswith(f"part-{self._writer}-"):
                    file_io.unlink_if_there(f"{self.staging}/{name}")

    def append(self, files: Sequence[TableFile], offsets: Mapping[int, int], lost: Sequence[MissingRange], step: Step) -> None:
        """Commit files and the offsets behind them. Raises TableTrouble; TableConflict if another writer was faster."""
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import CommitProperties, Transaction

        transactions = [Transaction(application_id(self._topic_id, partition), offset) for partition, offset in sorted(offsets.items())]
        metadata = {LOST_KEY: [list(each) for each in lost[:LOST_SHOWN_MAX]]} if lost else None
        properties = CommitProperties(app_transactions=transactions, custom_metadata=metadata)
        opened = self.version
        with trouble("write to the table", self._directory):
            try:
                actions = [self._place(file, step) for file in files]
                step("commit")
                self._table.create_write_transaction(actions, "append", self._table.schema(), commit_properties=properties)
            except (DeltaError, OSError, MillraceError) as error:
                self._after_failure(files, offsets, error)
            step("committed")
            self._sync_commits(opened)

    def compact(self, files_min: int) -> int:
        """Merge the small files if there are `files_min`, and remove files that no version of the last week has; return how many were merged.

        Readers of older versions keep their files for a week. Raises TableTrouble.
        """
        from deltalake import WriterProperties

        with trouble("compact the table", self._directory):
            sizes = pa.table(self._table.get_add_actions(flatten=True)).column("size_bytes")
            if sum(size < SMALL_BYTES for size in sizes.to_pylist()) < files_min:
                return 0
            opened = self.version
            merged = self._table.optimize.compact(
                target_size=COMPACTED_BYTES, max_concurrent_tasks=1, writer_properties=WriterProperties(compression="ZSTD")
            )  # fmt: skip
            self._table.vacuum(dry_run=False)
            self._sync_commits(opened)
            return int(merged["numFilesRemoved"])

    def _sync_commits(self, version: int) -> None:
        """Sync every commit after `version`: the last one may be another box's."""
        self._table.update_incremental()
        log = f"{self._directory}/{DELTA_LOG}"
        for each in range(version + 1, self.version + 1):
            file_io.sync_path(f"{log}/{each:020}.json")
        file_io.fsync_directory(log)

    def _place(self, file: TableFile, step: Step) -> Any:
        """Sync a file, move it into the table, and return the action that adds it."""
        from deltalake.transaction import AddAction

        staged = f"{self.staging}/{file.name}"
        step("sync")
        file_io.sync_path(staged)
        figures = file_io.stat(staged)
        step("rename")
        file_io.rename(staged, f"{self._directory}/{file.name}")
        file_io.fsync_directory(self._directory)
        return AddAction(file.name, figures.st_size, {}, figures.st_mtime_ns // 1_000_000, True, orjson.dumps(file.stats).decode())

    def _after_failure(self, files: Sequence[TableFile], offsets: Mapping[int, int], error: Exception) -> None:
        """Find out whether the commit is in the table; if not, remove its files and raise."""
        before = self.offsets(offsets)
        self._table.update_incremental()
        after = self.offsets(offsets)
        names = {path.rpartition("/")[2] for path in self._table.file_uris()} if files else set()
        if any(file.name in names for file in files):
            return  # it is in the table, in spite of the error
        for file in files:
            with suppress(OSError):
                file_io.unlink_if_there(f"{self._directory}/{file.name}")
        if after != before:
            moved = ", ".join(f"{partition}: {after[partition]}" for partition in sorted(after) if after[partition] != before.get(partition))
            raise TableConflict(f"another writer moved the offsets of {self._directory} first ({moved}); reading on from there") from error
        raise error
