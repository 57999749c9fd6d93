"""A PostgreSQL table that a load fills: its source, columns and positions. Owned by the driver, which holds an advisory lock.

    millrace_load_tables       the source of each table: cluster, topic, format
    millrace_load_positions    the next offset of each partition; moved in the transaction that adds the rows
    millrace_bad_records       records of all tables that could not be decoded

Weak spot: the advisory lock ends with the connection; the conditional update of the positions stops a loader that lost it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
import pyarrow as pa
from psycopg import sql

from appliance.base.model import TopicPartition
from appliance.pipeline.load_manifest import Positions
from appliance.pipeline.problems import ConcurrentLoader, LoadProblem
from appliance.pipeline.table_kind import TableKind, TopicFormat, decode_topic_format

NAME_BYTES_MAX = 63
POSTGRESQL = "postgresql"
"""The format of these tables."""
_SYSTEM_COLUMNS = frozenset(("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"))
TABLES, POSITIONS, BAD_RECORDS = "millrace_load_tables", "millrace_load_positions", "millrace_bad_records"
_BOOKS = f"""
create table if not exists {TABLES} (
    table_name text primary key, topic text not null, cluster_id text not null, partitioned_by text not null, form jsonb not null);
create table if not exists {POSITIONS} (
    table_name text not null references {TABLES}, partition integer not null, next_offset bigint not null, primary key (table_name, partition));
create table if not exists {BAD_RECORDS} (
    table_name text not null, partition integer not null, "offset" bigint not null, "timestamp" timestamptz, key bytea, value bytea, problem text not null,
    primary key (table_name, partition, "offset"));
"""
_TYPES = {
    "string": "text", "binary": "bytea", "bool": "boolean", "int8": "smallint", "int16": "smallint", "int32": "integer", "int64": "bigint", "float": "real",
    "double": "double precision", "date32[day]": "date", "timestamp[us, tz=UTC]": "timestamptz",
}  # fmt: skip


_PASSWORD, _WITHOUT = re.compile(r"(//[^/@:]*):[^@/]*@"), r"\1@"


class TableAddress(NamedTuple):
    """The address of a table. Printed without a password."""

    connection: str
    table: str

    def __str__(self) -> str:
        return f"{_PASSWORD.sub(_WITHOUT, self.connection)} table {self.table}"


def _is_this_machine(host: str) -> bool:
    if not host or host == "localhost" or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def table_address(database: str, topic: str) -> TableAddress:
    """Parse `postgresql://USER@HOST/DATABASE?table=NAME`; the default name is the topic's.

    Another machine must prove its name (`sslmode=verify-full`), unless the address or PGSSLMODE says otherwise.
    """
    parts = urlsplit(database)
    options = parse_qsl(parts.query, keep_blank_values=True)
    table = next((value for name, value in options if name == "table"), topic)
    if not table or len(table.encode()) > NAME_BYTES_MAX or table in (TABLES, POSITIONS, BAD_RECORDS):
        raise LoadProblem(f"no table can be called {table!r} (PostgreSQL's names have up to {NAME_BYTES_MAX} bytes); add ?table=NAME to --to")
    chosen = dict(options)
    hosts = chosen.get("host") or parts.hostname or os.environ.get("PGHOST", "")
    addresses = chosen.get("hostaddr") or os.environ.get("PGHOSTADDR", "")
    is_elsewhere = "service" in chosen or "PGSERVICE" in os.environ or not all(map(_is_this_machine, [*hosts.split(","), *addresses.split(",")]))
    if "sslmode" not in chosen and "PGSSLMODE" not in os.environ and is_elsewhere:
        options.append(("sslmode", "verify-full"))
    query = urlencode([(name, value) for name, value in options if name != "table"])
    return TableAddress(urlunsplit(parts._replace(query=query)), table)


def column_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return "jsonb" if pa.types.is_struct(kind.value_type) else f"{column_type(kind.value_type)}[]"
    return _TYPES[str(kind)]


def check_columns(names: Sequence[str]) -> None:
    """Raises LoadProblem for names above NAME_BYTES_MAX bytes, which PostgreSQL would cut."""
    cut: dict[str, str] = {}
    for name in names:
        short = name.encode()[:NAME_BYTES_MAX].decode(errors="ignore")
        if not name or "\0" in name or name in _SYSTEM_COLUMNS:
            problem = f"no column of PostgreSQL's can be called {name!r}"
        elif short in cut:
            problem = f"fields {cut[short]} and {name} are the same column in PostgreSQL, whose names have up to {NAME_BYTES_MAX} bytes"
        else:
            cut[short] = name
            continue
        raise LoadProblem(f"{problem}; name the fields that are to be columns with --schema, and the others are kept in other_fields")


class PostgresTable:
    """A context manager. `open` locks the table; `look` changes nothing."""

    def __init__(self, address: TableAddress) -> None:
        self.address = address
        try:
            self._connection = psycopg.connect(address.connection, autocommit=True, connect_timeout=10)
        except psycopg.Error as error:
            raise LoadProblem(f"{address}: {str(error).strip()}") from error

    def __enter__(self) -> PostgresTable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Release the lock first: the server notices a closed connection later, perhaps after the start of the next load."""
        with suppress(psycopg.Error):  # it is broken, and the lock goes with it
            self._connection.rollback()
            self._one("select pg_advisory_unlock_all()")
        self._connection.close()

    def kind(self) -> TableKind | None:
        """Return the source of the table; None if the load did not create one."""
        if self._one("select to_regclass(%s)", TABLES) is None:
            return None
        query = f"select cluster_id, partitioned_by from {TABLES} where table_name = %s"
        found = self._connection.execute(query, (self.address.table,)).fetchone()
        return None if found is None else TableKind(found[0], found[1], POSTGRESQL)

    def look(self, topic: str, kind: TableKind) -> TopicFormat | None:
        """Return how the table was loaded so far; None if there is none. Raises LoadProblem for a foreign table."""
        table = self.address.table
        if self._one("select to_regclass(%s)", TABLES) is not None:
            query = f"select topic, cluster_id, partitioned_by, form::text from {TABLES} where table_name = %s"
            found = self._connection.execute(query, (table,)).fetchone()
            if found is not None:
                if found[0] != topic:
                    raise LoadProblem(f"{self.address} holds topic {found[0]}, not {topic}; name another with ?table=NAME")
                if problem := TableKind(found[1], found[2], kind.file_format).difference(kind):
                    raise LoadProblem(f"{self.address} {problem}")
                return decode_topic_format(found[3].encode(), f"the form of {table}")
        if self._one("select to_regclass(%s)", sql.Identifier(table).as_string(self._connection)) is not None:
            raise LoadProblem(f"{self.address} is there, and millrace load did not make it; name another with ?table=NAME")
        return None

    def open(self, topic: str, kind: TableKind, chosen: TopicFormat, schema: pa.Schema) -> None:
        """Lock the table; create it if it is missing."""
        check_columns(schema.names)
        table = self.address.table
        if not self._one("select pg_try_advisory_lock(hashtextextended(%s, 0))", f"millrace load {table}"):
            raise ConcurrentLoader(f"another loader is at work in {self.address}; wait for it, or end it")
        self._connection.execute(_BOOKS)
        if self.look(topic, kind) is not None:
            return
        columns = sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(column_type(field.type))) for field in schema)
        with self._connection.transaction():
            self._connection.execute(sql.SQL('create table {} ({}, primary key ("partition", "offset"))').format(sql.Identifier(table), columns))
            row = (table, topic, kind.cluster_id, kind.partitioned_by, chosen.encode().decode())
            self._connection.execute(f"insert into {TABLES} values (%s, %s, %s, %s, %s)", row)

    def positions(self, topic: str) -> Positions:
        if self._one("select to_regclass(%s)", POSITIONS) is None:
            return {}
        found = self._connection.execute(f"select partition, next_offset from {POSITIONS} where table_name = %s", (self.address.table,))
        return {TopicPartition(topic, partition): next_offset for partition, next_offset in found}

    def keep_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store the start of partitions without a position."""
        for partition, offset in positions.items():
            query = f"insert into {POSITIONS} values (%s, %s, %s) on conflict do nothing"
            self._connection.execute(query, (self.address.table, partition.partition, offset))

    def _one(self, query: str, *parameters: Any) -> Any:
        found = self._connection.execute(query, parameters).fetchone()
        return None if found is None else found[0]
