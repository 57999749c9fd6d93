"""One Delta table on disk: open, create, append. Owned by one run; all of the format is done by `deltalake`.

An append is: a Parquet file in `_millrace_staging`, synced; renamed into the table; one commit with the file and the offsets of all
partitions in it (`txn` actions); the commit synced. A commit fails if another one changed the offset of one of these partitions since the table was
opened, so two writers of a partition never both succeed. Weak: a power cut between a commit and its sync may leave a commit
file that is empty, which no reader takes; remove it. A kill between rename and commit leaves a file that no commit names; `vacuum` removes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import orjson
import pyarrow as pa

from appliance.base.errors import MillraceError
from appliance.storage import file_io
from services.tabler.table_rules import MissingRange, application_id
from services.tabler.topic_table import (
    COMPACTED_BYTES,
    CONNECT_SECONDS,
    DELTA_LOG,
    LOST_KEY,
    LOST_SHOWN_MAX,
    REQUEST_SECONDS,
    SMALL_BYTES,
    TOPIC_ID_KEY,
    Step,
    TableConflict,
    TableFile,
    TopicTable,
    has_commit,
    trouble,
)  # fmt: skip

TIMES = {"max_retries": "2", "retry_timeout": "15s", "timeout": f"{REQUEST_SECONDS}s", "connect_timeout": f"{CONNECT_SECONDS}s"}
STATISTICS = {"delta.dataSkippingStatsColumns": "partition,offset,timestamp"}
"""The columns that have statistics. Unless the table says so, deltalake 1.6 finds no row by a filter of another column."""


class DeltaTopicTable(TopicTable):
    """The table of one topic."""

    @property
    def table_id(self) -> str:
        return str(self._table.metadata().id)

    @property
    def version(self) -> int:
        return int(self._table.version())

    def _trouble(self, action: str) -> AbstractContextManager[None]:
        from deltalake.exceptions import DeltaError

        return trouble(action, self._directory, (DeltaError,))

    def open(self, expected_id: str) -> None:
        with self._trouble("open the table"):
            if (table := self._found()) is not None:
                self._table = table
                self._check_owner(expected_id)
            elif expected_id:
                raise self.is_gone("delta")
            elif not self._is_remote:
                self.check_directory(DELTA_LOG)

    def _found(self) -> Any:
        """Return the table that is there, or None. In an object store it is asked for by opening it: `is_deltatable` holds the GIL."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if not self._is_remote:
            self.check_link()
            return DeltaTable(self._directory) if has_commit(self._directory) else None
        try:
            return DeltaTable(self._directory, storage_options=self._options)
        except TableNotFoundError:
            return None

    @property
    def _options(self) -> dict[str, str] | None:
        """Return what deltalake needs for an object store."""
        if not self._is_remote:
            return None
        return {**TIMES, **{name: value for name, value in self._properties.items() if name.isupper()}}

    def _check_owner(self, expected_id: str) -> None:
        self.check_owner(self._table.metadata().configuration.get(TOPIC_ID_KEY), expected_id)

    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    def offsets(self, partitions: Iterable[int]) -> dict[int, int]:
        if self._table is None:
            return {}
        found = {partition: self._table.transaction_version(application_id(self._topic_id, partition)) for partition in partitions}
        return {partition: int(version) for partition, version in found.items() if version is not None}

    def create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        with self._trouble("create the table"):
            self._table = DeltaTable.create(
                self._directory, schema, mode="ignore", name=self._topic, description=f"topic {self._topic} of millrace",
                configuration={TOPIC_ID_KEY: str(self._topic_id), **STATISTICS}, raise_if_key_not_exists=False, storage_options=self._options,
            )  # fmt: skip
            self._table = DeltaTable(self._directory, storage_options=self._options)
            self._check_owner("")
            if not self._is_remote:
                file_io.fsync_directory(os.path.dirname(self._directory))

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        from deltalake import Schema

        with self._trouble("add columns to the table"):
            opened = self.version
            self._table.alter.add_columns(Schema.from_arrow(pa.schema(fields)).fields)
            self._sync_commits(opened)

    def append(self, files: Sequence[TableFile], offsets: Mapping[int, int], lost: Sequence[MissingRange], step: Step) -> None:
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import CommitProperties, Transaction

        transactions = [Transaction(application_id(self._topic_id, partition), offset) for partition, offset in sorted(offsets.items())]
        metadata = {LOST_KEY: [list(each) for each in lost[:LOST_SHOWN_MAX]]} if lost else None
        properties = CommitProperties(app_transactions=transactions, custom_metadata=metadata)
        opened = self.version
        with self._trouble("write to the table"):
            try:
                actions = [self._place(file, step) for file in files]
                step("commit")
                self._table.create_write_transaction(actions, "append", self._table.schema(), commit_properties=properties)
            except (DeltaError, OSError, MillraceError) as error:
                self._after_failure(files, offsets, error)
            step("committed")
            self._sync_commits(opened)

    def compact(self, files_min: int) -> int:
        """Readers of older versions keep their files for a week."""
        from deltalake import WriterProperties

        with self._trouble("compact the table"):
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
        if self._is_remote:
            return
        log = f"{self._directory}/{DELTA_LOG}"
        for each in range(version + 1, self.version + 1):
            file_io.sync_path(f"{log}/{each:020}.json")
        file_io.fsync_directory(log)

    def _place(self, file: TableFile, step: Step) -> Any:
        """Move a file into the table, and return the action that adds it."""
        from deltalake.transaction import AddAction

        figures = self.place(file.name, self._directory, step)
        return AddAction(file.name, figures.st_size, {}, figures.st_mtime_ns // 1_000_000, True, orjson.dumps(file.stats).decode())

    def _after_failure(self, files: Sequence[TableFile], offsets: Mapping[int, int], error: Exception) -> None:
        """Find out whether the commit is in the table; if not, remove its files and raise."""
        before = self.offsets(offsets)
        self._table.update_incremental()
        after = self.offsets(offsets)
        names = {path.rpartition("/")[2] for path in self._table.file_uris()} if files else set()
        if any(file.name in names for file in files):
            return  # it is in the table, in spite of the error
        if not self._is_remote or after != before:  # a store may apply later a commit of which no answer came: its files stay
            for file in files:
                self.withdraw(file.name, self._directory)
        if after != before:
            raise TableConflict(self.moved_words(before, after)) from error
        raise error
