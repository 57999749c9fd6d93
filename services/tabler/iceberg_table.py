"""One Iceberg table: open, create, append. Owned by one run; all of the format and the catalog is done by `pyiceberg`.

An append is: Parquet files in `_millrace_staging`, synced; renamed into `data/`; manifests, synced; one commit in the catalog of a snapshot whose
summary has the offsets of all partitions (`millrace.offsets`). The commit requires that the snapshot before it is the one that was opened, so
two writers never both succeed; if the other one moved no offset of our partitions, the same files are committed behind it. pyiceberg's
own repetitions are off: they would add the files behind a writer that had the same records.

Files with rows of one hour each go into the partition of that hour; a commit of more hours than `HOURS_MAX` (a backfill) goes into the table
without partitions, as the format allows. Weak: the default catalog, SQLite in the state directory, is known to this box alone.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import (
    PyArrowFile,
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    match_metrics_mode,
    parquet_path_to_id_mapping,
)  # fmt: skip
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import HourTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)  # fmt: skip
from requests import RequestException
from sqlalchemy.exc import SQLAlchemyError

from appliance.base.errors import MillraceError
from appliance.base.model import TopicId
from appliance.pipeline.object_stores import for_pyiceberg
from appliance.storage import file_io
from services.tabler.iceberg_upkeep import expire, file_uri, groups
from services.tabler.table_rules import MissingRange
from services.tabler.topic_table import (
    BAD,
    CONNECT_SECONDS,
    ICEBERG_METADATA,
    LOST_KEY,
    LOST_SHOWN_MAX,
    REQUEST_SECONDS,
    ROW_GROUP_BYTES,
    SMALL_BYTES,
    TOPIC_ID_KEY,
    Step,
    TableConflict,
    TableFile,
    TableTrouble,
    TopicTable,
    object_store,
    trouble,
)  # fmt: skip

OFFSETS_KEY = "millrace.offsets"
FIELD_ID = b"PARQUET:field_id"
CREATOR_KEY = "millrace.created.by"
"""Topic id and broker id: what such a table lacks in the catalog was left by a kill of this box."""
NAMESPACE_KEY, NAMESPACE = "namespace", "millrace"
HOUR = "timestamp_hour"
COMMIT_TRIES = 5
TIMES = {"s3.connect-timeout": str(CONNECT_SECONDS), "s3.request-timeout": str(REQUEST_SECONDS)}
PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_SIMPLE: dict[pa.DataType, IcebergType] = {
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
}
_ARROW = {kind: arrow for arrow, kind in _SIMPLE.items()}


class PlacedFile(NamedTuple):
    """A Parquet file in the table's directory, of which no commit is yet."""

    path: str
    footer: pq.FileMetaData
    size_bytes: int


class IcebergTopicTable(TopicTable):
    """The table of one topic, NAMESPACE.TOPIC in the catalog; that of its bad records is NAMESPACE_bad.TOPIC."""

    by_hour = True
    upkeep_commits = 100

    def __init__(self, directory: str, topic: str, topic_id: TopicId, writer: str, properties: Mapping[str, str], staging: str) -> None:
        super().__init__(directory, topic, topic_id, writer, properties, staging)
        namespace = properties.get(NAMESPACE_KEY, NAMESPACE)
        self._namespace = f"{namespace}_bad" if directory.endswith(f"/{BAD}") else namespace
        self._catalog: Catalog | None = None
        self._predicted: dict[str, int] = {}

    @property
    def table_id(self) -> str:
        return str(self._table.metadata.table_uuid)

    @property
    def version(self) -> int:
        return int(self._table.metadata.last_sequence_number)

    @property
    def metadata_file(self) -> str:
        return str(self._table.metadata_location).removeprefix("file://") if self.exists else ""

    @property
    def _data(self) -> str:
        return f"{self._directory}/data"

    @property
    def _name(self) -> tuple[str, str]:
        return self._namespace, self._topic

    @property
    def _is_own_catalog(self) -> bool:
        return self._properties.get("uri", "").startswith("sqlite:")

    def _opened(self) -> Catalog:
        if self._catalog is None:
            own = {"py-io-impl": f"{SyncedFileIO.__module__}.{SyncedFileIO.__name__}", **TIMES}
            self._catalog = load_catalog(
                "millrace", **own, **for_pyiceberg(self._properties), **{name: value for name, value in self._properties.items() if not name.isupper()}
            )
        return self._catalog

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()

    @contextmanager
    def _trouble(self, action: str) -> Iterator[None]:
        """Turn what the library raises into TableTrouble: it has no class of its own for it."""
        try:
            with trouble(action, self._directory, (SQLAlchemyError,)):
                yield
        except MillraceError:
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] != "pyiceberg":
                raise
            words = " ".join(str(error).split())[:500]
            raise TableTrouble(f"could not {action} {self._directory}: {type(error).__name__}: {words}") from error

    def open(self, expected_id: str) -> None:
        with self._trouble("open the table"):
            if not self._is_remote:
                self.check_link()
            try:
                self._table = self._opened().load_table(self._name)
            except (NoSuchTableError, NoSuchNamespaceError):
                if expected_id:
                    raise TableTrouble(f"the catalog has no table {'.'.join(self._name)} any more ({self._directory}); register it again there") from None
                self._check_directory()
            except FileNotFoundError:
                if expected_id or os.path.isdir(self._directory):
                    raise self.is_gone("iceberg") from None
                self._opened().drop_table(self._name)  # it was ordered to begin anew; files are gone already
            else:
                self._check(expected_id)

    def _check_directory(self) -> None:
        try:
            if self._is_remote:
                self._check_store()
                return
            self._remove_unfinished()
            self.check_directory()
        except TableTrouble as found:
            raise TableTrouble(
                f"{found}. If it is the table of another box, or of this one with another state directory: all need one catalog, see tables.properties.file"
            ) from None

    def _check_store(self) -> None:
        """Raise TableTrouble if another catalog has a table there; what a kill of this box left is no table."""
        store, where = object_store(self._properties), f"{self._directory}/{ICEBERG_METADATA}".partition("://")[2]
        for found in store.get_file_info(fs.FileSelector(where, allow_not_found=True)):
            if not found.base_name.startswith("00000-") or not self._is_ours(store.open_input_stream(found.path).readall()):
                raise TableTrouble(f"{self._directory} has metadata of an Iceberg table; move that away")

    def _remove_unfinished(self) -> None:
        """Remove the directory of metadata that a kill left before the catalog had the table."""
        directory = f"{self._directory}/{ICEBERG_METADATA}"
        if not os.path.isdir(directory) or os.path.exists(self._data):
            return
        names = file_io.listdir(directory)
        paths = [f"{directory}/{name}" for name in names]
        if all(name.startswith("00000-") and self._is_ours(file_io.read_file(path)) for name, path in zip(names, paths)):
            for path in paths:
                file_io.unlink_if_there(path)
            file_io.rmdir(directory)

    def _is_ours(self, metadata: bytes) -> bool:
        try:
            return bool(orjson.loads(metadata)["properties"][CREATOR_KEY] == self._creator)
        except (ValueError, KeyError, TypeError):
            return not metadata.strip(b"\0")  # a power cut

    @property
    def _creator(self) -> str:
        return f"{self._topic_id} {self._writer.partition('-')[0]}"

    def _check(self, expected_id: str) -> None:
        self.check_owner(self._table.properties.get(TOPIC_ID_KEY), expected_id)
        if self._table.location() != file_uri(self._directory):
            raise TableTrouble(f"the catalog has the table {'.'.join(self._name)} at {self._table.location()}, not in {self._directory}")
        for field in self._table.spec().fields:
            if field.name != HOUR or not isinstance(field.transform, HourTransform):
                raise TableTrouble(f"the table {self._directory} was partitioned by {field.name}; a box writes tables by {HOUR} or without partitions")

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(field.name, arrow_of(field.field_type)) for field in self._table.schema().fields])

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns with their ids: new ones have those that the table will give them."""
        known = self._table.schema() if self.exists else assign_fresh_schema_ids(iceberg_schema(schema))
        last = self._table.metadata.last_column_id if self.exists else 0
        fields = []
        for field in schema:
            found = known.find_field(field.name) if field.name in known.column_names else None
            if found is None:
                last += 1
                found = NestedField(last, field.name, _SIMPLE[field.type], required=False)
            self._predicted[field.name] = found.field_id
            fields.append(with_ids(field, found))
        return pa.schema(fields)

    def offsets(self, partitions: Iterable[int]) -> dict[int, int]:
        found = self._offsets() if self.exists else {}
        return {partition: found[partition] for partition in partitions if partition in found}

    def _offsets(self) -> dict[int, int]:
        """Return the offsets of the newest snapshot that is ours: other programs may compact and delete."""
        metadata = self._table.metadata
        snapshot = metadata.current_snapshot()
        has_snapshot = snapshot is not None
        while snapshot is not None:
            if snapshot.summary is not None and (text := snapshot.summary.additional_properties.get(OFFSETS_KEY)):
                return _read_offsets(text)
            snapshot = metadata.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None
        # Another program made the last snapshot, and expired ours.
        return _read_offsets(metadata.properties.get(OFFSETS_KEY, "{}")) if has_snapshot else {}

    def create(self, schema: pa.Schema) -> None:
        with self._trouble("create the table"):
            fresh = assign_fresh_schema_ids(iceberg_schema(schema))
            catalog = self._opened()
            catalog.create_namespace_if_not_exists(self._namespace)
            if not self._is_remote:
                file_io.make_directories(f"{self._directory}/{ICEBERG_METADATA}")  # durable; the location itself is there
            spec = PartitionSpec(PartitionField(fresh.find_field("timestamp").field_id, 1000, HourTransform(), HOUR))
            owned = {TOPIC_ID_KEY: str(self._topic_id), CREATOR_KEY: self._creator, **PROPERTIES}
            try:
                self._table = catalog.create_table(self._name, fresh, file_uri(self._directory), spec, properties=owned)
            except TableAlreadyExistsError:
                self._table = catalog.load_table(self._name)
            self._check("")

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        with self._trouble("add columns to the table"), self._table.update_schema() as update:
            for field in fields:
                update.add_column((field.name,), _SIMPLE[field.type])

    def append(self, files: Sequence[TableFile], offsets: Mapping[int, int], lost: Sequence[MissingRange], step: Step) -> None:
        before = self.offsets(offsets)
        with self._trouble("write to the table"):
            try:
                self._check_ids()
                figures = [self._place(file.name, step) for file in files]
                for tries in range(1, COMMIT_TRIES + 1):
                    try:
                        self._commit(files, figures, offsets, lost, step)
                        break
                    except CommitFailedException as failed:
                        self._table.refresh()
                        if (after := self.offsets(offsets)) != before:
                            raise TableConflict(self.moved_words(before, after)) from failed
                        if tries == COMMIT_TRIES:
                            raise
            except Exception as error:
                if self._may_be_committed(files, error):
                    raise
                for file in files:
                    self.withdraw(file.name, self._data)
                raise
            step("committed")

    def _may_be_committed(self, files: Sequence[TableFile], error: Exception) -> bool:
        """Return whether a catalog might still have, or take, a commit that failed: then its files stay, and the next run sees which offsets it has."""
        if isinstance(error, (TableTrouble, CommitFailedException)):
            return False
        if isinstance(error, OSError) and not isinstance(error, RequestException):
            return False  # of a file, before the catalog was asked
        with suppress(Exception):
            before = self._table.metadata.current_snapshot_id
            self._table.refresh()
            return not self._is_own_catalog or self._table.metadata.current_snapshot_id != before
        return True

    def _check_ids(self) -> None:
        schema = self._table.schema()
        for name, number in self._predicted.items():
            if name not in schema.column_names or schema.find_field(name).field_id != number:
                raise TableTrouble(f"the table {self._directory} was changed by another program at the same time; reading on from its offsets")

    def _place(self, name: str, step: Step) -> PlacedFile:
        if not self._is_remote and not os.path.isdir(self._data):
            file_io.make_directories(self._data)
        footer = pq.read_metadata(f"{self.staging}/{name}")
        return PlacedFile(f"{self._data}/{name}", footer, self.place(name, self._data, step).st_size)

    def _commit(self, files: Sequence[TableFile], placed: Sequence[PlacedFile], offsets: Mapping[int, int], lost: Sequence[MissingRange], step: Step) -> None:
        self._set_spec(all(file.hour is not None for file in files))
        text = orjson.dumps({str(partition): offset for partition, offset in {**self._offsets(), **offsets}.items()}).decode()
        summary = {OFFSETS_KEY: text}
        if lost:
            summary[LOST_KEY] = orjson.dumps([list(each) for each in lost[:LOST_SHOWN_MAX]]).decode()
        transaction = self._without_retries().transaction()
        transaction.set_properties({OFFSETS_KEY: text})
        with transaction.update_snapshot(summary).fast_append() as snapshot:
            for file, found in zip(files, placed):
                snapshot.append_data_file(self._data_file(found, file.hour))
        step("commit")
        transaction.commit_transaction()
        self._table.refresh()

    def _without_retries(self) -> Table:
        """Return the table as opened, for one attempt to commit; the catalog's properties stay as they are."""
        table: Table = self._table
        properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return table

    def _set_spec(self, by_hour: bool) -> None:
        """Change whether new files are in partitions, if need be, in a commit of its own."""
        if by_hour == bool(self._table.spec().fields):
            return
        with self._table.update_spec() as update:
            if by_hour:
                update.add_field("timestamp", HourTransform(), HOUR)
            else:
                update.remove_field(HOUR)
        self._table.refresh()

    def _data_file(self, placed: PlacedFile, hour: int | None) -> DataFile:
        metadata = self._table.metadata
        schema = metadata.schema()
        plan = compute_statistics_plan(schema, metadata.properties)
        statistics = partial(data_file_statistics_from_parquet_metadata, placed.footer, parquet_column_mapping=parquet_path_to_id_mapping(schema))
        try:
            found = statistics(stats_columns=plan).to_serialized_dict()
        except (OverflowError, ValueError):  # a time without a calendar: no bounds for times
            for field in schema.fields:
                if isinstance(field.field_type, TimestamptzType):
                    plan[field.field_id] = replace(plan[field.field_id], mode=match_metrics_mode("counts"))
            found = statistics(stats_columns=plan).to_serialized_dict()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file_uri(placed.path),
            file_format=FileFormat.PARQUET,
            partition=Record(hour) if metadata.spec().fields else Record(),
            file_size_in_bytes=placed.size_bytes,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **found,
        )

    def compact(self, files_min: int) -> int:
        """Merge files of the same hour. Only files of the partitioning that the table has now: pyiceberg commits no others together."""
        with self._trouble("compact the table"):
            tasks = [task for task in self._table.scan().plan_files() if task.file.file_size_in_bytes < SMALL_BYTES and not task.delete_files]
            tasks = [task for task in tasks if task.file.spec_id == self._table.metadata.default_spec_id and "/part-" in task.file.file_path]  # ours
            merged = 0
            with suppress(CommitFailedException):  # another box committed: later
                merged = self._merge(groups(tasks)) if len(tasks) >= files_min else 0
            self._table.refresh()
            expire(self._table, self._data, self._writer)
            self._table.refresh()
            return merged

    def _merge(self, found: Sequence[Sequence[FileScanTask]]) -> int:
        if not found:
            return 0
        names: list[str] = []
        snapshot = self._table.metadata.current_snapshot()
        assert snapshot is not None
        transaction = self._without_retries().transaction()
        try:
            with transaction.update_snapshot({OFFSETS_KEY: orjson.dumps({str(p): o for p, o in self._offsets().items()}).decode()}).overwrite() as update:
                for number, tasks in enumerate(found):
                    names.append(f"part-{self._writer}-{snapshot.snapshot_id}-{number}-merged.zstd.parquet")
                    hour = tasks[0].file.partition[0] if self._table.spec().fields else None
                    self._rewrite(tasks, names[-1])
                    update.append_data_file(self._data_file(self._place(names[-1], lambda _step: None), hour))
                    for task in tasks:
                        update.delete_data_file(task.file)
            transaction.commit_transaction()
            self._table.refresh()
        except Exception as error:
            if not self._may_be_committed((), error):
                for name in names:
                    self.withdraw(name, self._data)
            raise
        return sum(map(len, found))

    def _rewrite(self, tasks: Sequence[FileScanTask], name: str) -> None:
        """Write the rows of small files into a staged one, in large row groups. pyiceberg's scan makes null lists empty."""
        self.make_staging()
        schema = self.file_schema(self.schema())
        waiting: list[pa.Table] = []
        with pq.ParquetWriter(f"{self.staging}/{name}", schema, compression="zstd") as writer:
            for task in tasks:
                with self._table.io.new_input(task.file.file_path).open() as stream, pq.ParquetFile(stream) as file:
                    there = {(field.metadata or {}).get(FIELD_ID): field.name for field in file.schema_arrow}
                    for number in range(file.num_row_groups):  # none is larger than ROW_GROUP_BYTES
                        group = file.read_row_group(number)
                        found = ((there.get(field.metadata[FIELD_ID]), field.type) for field in schema)
                        columns = [pa.nulls(len(group), kind) if name is None else group.column(name).cast(kind) for name, kind in found]
                        waiting.append(pa.Table.from_arrays(columns, schema=schema))
                        if sum(each.nbytes for each in waiting) >= ROW_GROUP_BYTES:
                            writer.write_table(pa.concat_tables(waiting))
                            waiting.clear()
            if waiting:
                writer.write_table(pa.concat_tables(waiting))


def iceberg_schema(schema: pa.Schema) -> Schema:
    """Return the columns as Iceberg has them, with ids that are to be assigned."""
    return Schema(*(NestedField(number, field.name, _iceberg_type(field.type), required=False) for number, field in enumerate(schema, 1)))


def _iceberg_type(kind: pa.DataType) -> IcebergType:
    if pa.types.is_list(kind):
        return ListType(element_id=-1, element_type=_iceberg_type(kind.value_type), element_required=False)
    if pa.types.is_struct(kind):
        return StructType(*(NestedField(-1, field.name, _iceberg_type(field.type), required=False) for field in kind))
    return _SIMPLE[kind]


def arrow_of(kind: IcebergType) -> pa.DataType:
    """Return a type as rows have it; null for one that no row of ours has."""
    if isinstance(kind, ListType):
        return pa.list_(pa.field("element", arrow_of(kind.element_type)))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, arrow_of(field.field_type)) for field in kind.fields])
    return _ARROW.get(kind, pa.null())


def with_ids(field: pa.Field, known: NestedField) -> pa.Field:
    """Return a column as Parquet has it, with the ids by which Iceberg's readers find it."""
    kind, of = field.type, known.field_type
    if isinstance(of, ListType):
        kind = pa.list_(with_ids(pa.field("element", kind.value_type), of.element_field))
    elif isinstance(of, StructType):
        kind = pa.struct([with_ids(each, found) for each, found in zip(kind, of.fields)])
    return pa.field(field.name, kind, metadata={FIELD_ID: str(known.field_id).encode()})


def _read_offsets(text: str) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in orjson.loads(text).items()}


class SyncedFileIO(PyArrowFileIO):
    """Syncs metadata on a local file system before the catalog has it."""

    def new_output(self, location: str) -> PyArrowFile:
        output = super().new_output(location)
        return output if "://" in location and not location.startswith("file:") else _SyncedFile(output, self.parse_location(location)[2])


class _SyncedFile(PyArrowFile):
    def __init__(self, output: PyArrowFile, path: str) -> None:
        vars(self).update(vars(output))
        self._local = path

    def create(self, overwrite: bool = False) -> Any:
        file_io.make_directories(os.path.dirname(self._local))
        return _SyncedStream(self._local, overwrite)


class _SyncedStream(io.BufferedWriter):
    def __init__(self, path: str, overwrite: bool) -> None:
        super().__init__(open(path, "wb" if overwrite else "xb", buffering=0))
        self._path = path

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
                file_io.sync_all(self.fileno())
            finally:
                super().close()
            file_io.fsync_directory(os.path.dirname(self._path))
