"""What a loaded table is: its source, partitioning and decoder. Written once, then compared. Values, and one directory check.

The metadata files of a table are JSON objects with the version of their layout.
Weak spot: `foreign_owner` recognises tables and log directories by the names of their files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from appliance.pipeline.problems import DamagedTable

VERSION = 1


def encode_document(fields: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"version": VERSION, **fields}, option=orjson.OPT_INDENT_2)


def decode_document(content: bytes, path: str) -> dict[str, Any]:
    """Decode a metadata file; `path` is for the message. Raises DamagedTable if it is no JSON object, or of another version."""
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise DamagedTable(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise DamagedTable(f"{path} is of another release: it is not version {VERSION}")
    return document


_FORMAT = "millrace load"


class TableKind(NamedTuple):
    """The properties of a whole table."""

    cluster_id: str
    partitioned_by: str
    """`record` or `arrival`: the time that gives date and hour"""
    file_format: str
    """`parquet` or `delta`"""

    def encode(self) -> bytes:
        return encode_document({"format": _FORMAT, **self._asdict()})

    def difference(self, wanted: TableKind) -> str | None:
        """Return why the existing table (self) cannot store what is `wanted`."""
        if self.cluster_id != wanted.cluster_id:
            return f"holds records of cluster {self.cluster_id}; these are of cluster {wanted.cluster_id}: their offsets have nothing to do with each other"
        if self.partitioned_by != wanted.partitioned_by:
            return (
                f"is partitioned by the time of {self.partitioned_by}, not of {wanted.partitioned_by}; "
                f"say --by {self.partitioned_by}, or name another directory"
            )
        if self.file_format != wanted.file_format:
            return f"is a table of format {self.file_format}, not {wanted.file_format}; say --format {self.file_format}, or name another directory"
        return None


class JsonField(NamedTuple):
    """A field of a JSON record: its name, and its type as Spark writes it."""

    name: str
    type: str


class TopicFormat(NamedTuple):
    """How the records of one topic become rows."""

    topic_id: str | None
    decode: str
    """`raw`, `syslog` or `json`"""
    fields: tuple[JsonField, ...] = ()
    """for `json` only"""
    headers: bool = False
    """whether rows have a column `headers`"""

    def encode(self) -> bytes:
        return encode_document({**self._asdict(), "fields": [list(field) for field in self.fields]})


def decode_table_kind(content: bytes, path: str) -> TableKind:
    document = decode_document(content, path)
    if document.get("format") != _FORMAT:
        raise DamagedTable(f"{path} does not describe a table of millrace load")
    return TableKind(*(str(document.get(name)) for name in TableKind._fields))


def decode_topic_format(content: bytes, path: str) -> TopicFormat:
    document = decode_document(content, path)
    try:
        fields = tuple(JsonField(*each) for each in document["fields"])
        return TopicFormat(document["topic_id"], document["decode"], fields, document["headers"])
    except (KeyError, TypeError) as error:
        raise DamagedTable(f"{path} does not describe a topic of a load: {error!r}") from error


_OWNERS = {
    "_delta_log": "is a foreign Delta table",
    "_spark_metadata": "is filled by a streaming query of Spark",
    "metadata": "holds something else (an Iceberg table?)",
    "meta.properties": "is a log directory of a box",
}


def foreign_owner(path: str, books: str) -> str | None:
    """Return why `path` cannot be loaded into; None if it is a table of a load, empty, or missing."""
    above = path
    while True:
        if os.path.exists(f"{above}/meta.properties"):
            return f"{path} lies in a log directory of a box ({above}), where only that box may write; name another directory"
        if above == (parent := os.path.dirname(above)):
            break
        above = parent
    try:
        names = set(os.listdir(path))
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return f"{path} is a file; name a directory"
    if os.path.exists(f"{path}/{books}/table.json"):
        return None
    others = sorted(names - {books, "lost+found"})
    if not others:
        return None
    for name, words in _OWNERS.items():
        if name in names:
            return f"{path} {words}; name another directory"
    return f"{path} is not empty, and nothing in it says that millrace load filled it ({', '.join(others[:3])}); name another directory"
