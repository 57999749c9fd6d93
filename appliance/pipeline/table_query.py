"""SQL over tables of Delta and Iceberg by DuckDB, each a view that has the name of its topic.

DuckDB itself reads and writes no file: external access and its local file system are off, and settings are locked. Tables come through
deltalake or pyiceberg as Arrow datasets, which take columns and filters, so that files and row groups that cannot match are not read; a file is left out
only by bounds of `partition`, `offset` and `timestamp` that the table has of it. Every value becomes
text in DuckDB: a record's time may be any number, and Python's has no year 100,000. Weak: `memory_bytes` bounds DuckDB's memory, not what
Arrow reads ahead of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from appliance.base.errors import MillraceError
from appliance.pipeline.object_stores import for_pyiceberg

_ROWS = 1_000
_NUMBERS = frozenset(
    ("tinyint", "smallint", "integer", "bigint", "hugeint", "utinyint", "usmallint", "uinteger", "ubigint", "uhugeint", "decimal", "float", "double")
)
_NESTED = frozenset(("list", "struct", "map", "array", "union"))
_BOUNDED = ("partition", "offset", "timestamp")
_NAMED_MAX = 50
_PARQUET = ds.ParquetFileFormat()
ICEBERG_METADATA = ".metadata.json"
_READING = frozenset((duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN))


class QueryFailed(MillraceError):
    """The query failed: DuckDB's words."""


class QueryRefused(MillraceError):
    """It is no query, or a table cannot be meant."""


class ResultColumn(NamedTuple):
    """A column of the result. Its values are text: of a number, JSON of a `nested` value, or else."""

    title: str
    is_number: bool
    is_nested: bool
    is_boolean: bool


class TableQuery:
    """One connection. `directories` are those of the tables, by topic; of an Iceberg table its last metadata file."""

    def __init__(self, directories: Mapping[str, str], memory_bytes: int, threads: int) -> None:
        self._directories = directories
        pa.set_cpu_count(threads)
        limits = {"memory_limit": f"{memory_bytes}B", "threads": str(threads), "temp_directory": "", "python_enable_replacements": "false"}
        extensions = dict.fromkeys(("autoinstall_known_extensions", "autoload_known_extensions", "allow_community_extensions"), "false")
        self._columns: dict[str, list[str]] = {}
        self._connection = duckdb.connect(config={**limits, **extensions, "allow_persistent_secrets": "false"})
        for setting in ("disabled_filesystems = 'LocalFileSystem'", "enable_external_access = false", "TimeZone = 'UTC'", "lock_configuration = true"):
            self._connection.execute(f"SET {setting}")

    def start(self, sql: str) -> tuple[list[ResultColumn], Iterator[list[tuple[str | None, ...]]]]:
        """Return the columns of the result, and its rows by the thousand. Raises QueryFailed, QueryRefused, here and while rows are read."""
        with _as_problem():
            statements = self._connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type not in _READING:
                raise QueryRefused("write one query: SELECT, FROM, WITH, DESCRIBE, SUMMARIZE, or EXPLAIN of one; tables are read only")
            self._make_views(sql)
            try:
                found = self._connection.sql(sql)
            except duckdb.BinderException as error:
                raise QueryFailed(self._with_columns(str(error).rstrip())) from error
            kinds = [_kind(kind) for kind in found.types]
            columns = [
                ResultColumn(title, kind in _NUMBERS, kind in _NESTED, kind == "boolean")
                for title, kind in zip(_different(found.columns), kinds)
            ]  # fmt: skip
            reader = found.project(", ".join(f"{_as_text(number, kind)} AS c{number}" for number, kind in enumerate(kinds, 1))).to_arrow_reader(_ROWS)
        return columns, self._rows(reader)

    def _rows(self, reader: Any) -> Iterator[list[tuple[str | None, ...]]]:
        with _as_problem():
            for batch in reader:
                yield list(zip(*(column.to_pylist() for column in batch.columns)))

    def interrupt(self) -> None:
        """End what another thread runs."""
        self._connection.interrupt()

    def _make_views(self, sql: str) -> None:
        """Register the tables that the query names."""
        try:
            named = self._connection.get_table_names(sql)
            is_sure = True
        except duckdb.Error:  # it has a join with USING of tables that are not there yet, or is wrong, which its run says
            named, is_sure = {name for name in self._directories if name.lower() in sql.lower()}, False
        found: dict[str, str] = {}
        for name in sorted(named):
            topic = self._topic(name)
            if topic is None:
                continue
            if (other := found.setdefault(topic.lower(), topic)) != topic and is_sure:
                raise QueryRefused(f"tables {other} and {topic} differ by capitals only, which SQL does not see; query one of them at a time")
            try:
                dataset = open_files(self._directories[topic])
                self._connection.register(name, dataset)
                self._columns[name] = dataset.schema.names
            except (DeltaError, OSError, ImportError, pa.ArrowException) as error:
                if is_sure:
                    raise QueryFailed(f"could not open the table {self._directories[topic]}: {error}") from error

    def _with_columns(self, problem: str) -> str:
        """Add the columns that there are, if the problem is one that is not: DuckDB names those alike only."""
        if not any(words in problem for words in ("Referenced column", "have a column named", "does not exist on")):
            return problem
        for name, columns in self._columns.items():
            more = f" and {len(columns) - _NAMED_MAX} more" if len(columns) > _NAMED_MAX else ""
            problem += f"\n\nColumns of {name}: {', '.join(columns[:_NAMED_MAX])}{more}"
        return problem

    def _topic(self, name: str) -> str | None:
        if name in self._directories:
            return name
        alike = [topic for topic in self._directories if topic.lower() == name.lower()]
        if len(alike) > 1:
            raise QueryRefused(f"tables {' and '.join(sorted(alike))} differ by capitals only; write the name as one of them is written")
        return alike[0] if alike else None


def open_files(path: str) -> ds.FileSystemDataset:
    """Return the files of a table. Raises DeltaError, OSError, ImportError."""
    return _iceberg_files(path) if path.endswith(ICEBERG_METADATA) else _files(DeltaTable(path))


def _iceberg_files(path: str) -> ds.FileSystemDataset:
    """Return the files of an Iceberg table, each with what its manifests say of the columns of `_BOUNDED`."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
    from pyiceberg.table import StaticTable
    from pyiceberg.types import PrimitiveType

    table = StaticTable.from_metadata(path, for_pyiceberg(os.environ))
    assert isinstance(table.io, PyArrowFileIO)
    files = table.io.fs_by_scheme(*PyArrowFileIO.parse_location(table.location())[:2])
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    kinds = {field.name: (field.field_id, field.field_type) for field in table.schema().fields}
    known = [(schema.field(name), *kinds[name]) for name in _BOUNDED if name in kinds]
    fragments = []
    for task in table.scan().plan_files():
        if task.delete_files:
            raise DeltaError("another program deleted rows of it by files of their own; query it by a program that reads Iceberg")
        within = None
        for field, number, kind in known:
            low, high = (bounds.get(number) for bounds in (task.file.lower_bounds or {}, task.file.upper_bounds or {}))
            if not isinstance(kind, PrimitiveType) or low is None or high is None or (task.file.null_value_counts or {}).get(number) != 0:
                continue
            one, other = (pa.scalar(from_bytes(kind, bound), field.type) for bound in (low, high))
            bounds = (ds.field(field.name) >= one) & (ds.field(field.name) <= other)
            within = bounds if within is None else within & bounds
        fragments.append(_PARQUET.make_fragment(PyArrowFileIO.parse_location(task.file.file_path)[2], files, within))
    return ds.FileSystemDataset(fragments, schema, _PARQUET, files)


def _files(table: DeltaTable) -> ds.FileSystemDataset:
    """Return the files of a table, each with what Delta's log says of the columns of `_BOUNDED`.

    What deltalake 1.6 says of a file compares each column without statistics with null, and a filter of such a column then leaves out the file.
    """
    dataset = table.to_pyarrow_dataset()
    if table.metadata().partition_columns:
        raise DeltaError("it has partition columns, as no table of a box has")
    actions = pa.table(table.get_add_actions(flatten=True))
    bounds = {path: _bounds(actions, row) for row, path in enumerate(actions.column("path").to_pylist())}
    fragments = [
        dataset.format.make_fragment(fragment.path, filesystem=dataset.filesystem, partition_expression=bounds.get(fragment.path))
        for fragment in dataset.get_fragments()
    ]  # fmt: skip
    return ds.FileSystemDataset(fragments, dataset.schema, dataset.format, dataset.filesystem)


def _bounds(actions: pa.Table, row: int) -> pc.Expression | None:
    """Return what is true of each row of a file. A largest time is cut to milliseconds in the log."""
    known = None
    for name in _BOUNDED:
        if not {f"min.{name}", f"max.{name}", f"null_count.{name}"} <= set(actions.column_names):
            continue
        low, high = actions.column(f"min.{name}")[row], actions.column(f"max.{name}")[row]
        if not low.is_valid or not high.is_valid or actions.column(f"null_count.{name}")[row].as_py() != 0:
            continue
        if pa.types.is_timestamp(high.type):
            high = pc.add(high, pa.scalar(timedelta(milliseconds=1)))
        within = (ds.field(name) >= low) & (ds.field(name) <= high)
        known = within if known is None else known & within
    return known


@contextmanager
def _as_problem() -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, OSError, pa.ArrowException) as error:
        raise QueryFailed(str(error).rstrip()) from error


def _kind(kind: Any) -> str:
    return "list" if str(kind) == "JSON" else str(kind.id)


def _as_text(number: int, kind: str) -> str:
    """Return SQL for the text of a column. Bytes are text if they are UTF-8."""
    if kind in _NESTED:
        return f"CAST(to_json(#{number}) AS VARCHAR)"
    return f"coalesce(TRY(decode(#{number})), CAST(#{number} AS VARCHAR))" if kind == "blob" else f"CAST(#{number} AS VARCHAR)"


def _different(titles: list[str]) -> list[str]:
    """Return titles that are different: objects of JSON have each name once."""
    different: dict[str, None] = {}
    for title in titles:
        number = 0
        while (name := f"{title}_{number}" if number else title) in different:
            number += 1
        different[name] = None
    return list(different)
