"""Delta's log behind a load: each published commit becomes one of Delta's, by the Rust library `deltalake`. Owned by the loader, which holds the lock.

Our manifests are the truth and Delta's log follows them: it keeps the number of the last manifest it has (`Transaction`), so a death between the two costs
nothing, the next run adds what is missing. Weak spot: a table has one form, so all topics in it must become the same columns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow as pa

from appliance.pipeline.hour_files import UNKNOWN
from appliance.pipeline.load_directory import LoadDirectory
from appliance.pipeline.load_manifest import Manifest
from appliance.pipeline.load_problem import LoadProblem
from appliance.pipeline.record_decoder import make_decoder
from appliance.pipeline.table_kind import TopicFormat

APPLICATION = "millrace-load"
PARTITIONED_BY = [pa.field("topic", pa.string()), pa.field("date", pa.date32()), pa.field("hour", pa.int32())]
DELTA_LOG = "_delta_log"


class DeltaLog:
    """The Delta table in `directory`, made at its first commit."""

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
        """Bring Delta's log up to `last`; returns how many commits that took. Any number of times, with the same result."""
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
    """topic, date, hour out of a file's path."""
    pairs = [part.partition("=") for part in path.split("/")[:-1]]
    return {name: None if value == UNKNOWN else unquote(value) for name, _, value in pairs}
