"""Forgets old snapshots of an Iceberg table, and removes the files that only they have. pyiceberg 0.12 removes none itself.

Files leave a table only by a merge, so that only the two snapshots around each merge are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot

from appliance.storage import file_io
from services.tabler.topic_table import COMPACTED_BYTES, is_remote

SNAPSHOTS_MAX, SUMMARIES_BYTES_MAX = 500, 1 << 20
"""Each commit writes the list of all snapshots again, each with the offsets of all partitions."""
KEPT = timedelta(days=1)
"""Files that were merged, and the last snapshot that has them, stay so long for readers."""


def file_uri(path: str) -> str:
    return path if is_remote(path) else f"file://{path}"


def expire(table: Table, data: str, writer: str) -> None:
    """Forget snapshots, and remove what only they have: files that were merged more than `KEPT` ago, and what a kill left.

    A snapshot with files that were merged since stays for readers. With branches or tags of other programs no file is removed.
    """
    metadata = table.metadata
    before_ms = metadata.last_updated_ms - KEPT // timedelta(milliseconds=1)
    merges = [each for each in metadata.snapshots if each.summary is not None and each.summary.operation != Operation.APPEND]
    recent = {each.parent_snapshot_id for each in merges if each.timestamp_ms >= before_ms} | {each.snapshot_id for each in merges}
    in_order = sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0)
    summary_bytes = max(1, len(str(in_order[-1].summary))) if in_order else 1
    newest = {each.snapshot_id for each in in_order[-min(SNAPSHOTS_MAX, max(10, SUMMARIES_BYTES_MAX // summary_bytes)) :]}
    heads = {ref.snapshot_id for ref in metadata.refs.values()}
    old = [each for each in metadata.snapshots if each.timestamp_ms < before_ms or each.snapshot_id not in newest | recent]
    old = [each for each in old if each.snapshot_id not in heads]
    removed = _removable(table, old, merges, f"{data}/part-{writer}") if set(metadata.refs) <= {"main"} else set()
    if old:
        table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()
    for uri in removed:
        with suppress(OSError):
            table.io.delete(uri)


def _removable(table: Table, old: Sequence[Snapshot], merges: Sequence[Snapshot], writer: str) -> set[str]:
    """Return the files that only snapshots have that are to be forgotten, and those that a dead incarnation left."""
    head, files_io, forgotten = table.metadata.current_snapshot(), table.io, {each.snapshot_id for each in old}
    if head is None:
        return set()
    by_id = {each.snapshot_id: each for each in table.metadata.snapshots}
    live = {str(task.file.file_path) for task in table.scan().plan_files()} | {each.manifest_path for each in head.manifests(files_io)}
    removed = {each.manifest_list for each in old}
    for merge in merges:
        if merge.snapshot_id in forgotten:
            manifests = merge.manifests(files_io)
            removed |= _dropped_files(merge, files_io)
            removed |= {each.manifest_path for each in manifests if not each.has_added_files() and not each.has_existing_files()}
            if (parent := by_id.get(merge.parent_snapshot_id or 0)) is not None:
                removed |= {each.manifest_path for each in parent.manifests(files_io)} - {each.manifest_path for each in manifests}
    if left := _old_files(writer, table.metadata.last_updated_ms) - live:
        for merge in merges:
            left -= _dropped_files(merge, files_io)  # a reader may still want them
    return (removed | left) - live


def _dropped_files(merge: Snapshot, files_io: FileIO) -> set[str]:
    """Return the data files that this snapshot took out of the table."""
    manifests = [each for each in merge.manifests(files_io) if each.added_snapshot_id == merge.snapshot_id and each.deleted_files_count]
    entries = (entry for each in manifests for entry in each.fetch_manifest_entry(files_io, discard_deleted=False))
    return {str(entry.data_file.file_path) for entry in entries if entry.status == ManifestEntryStatus.DELETED}


def _old_files(writer: str, now_ms: int) -> set[str]:
    """Return the data files of earlier incarnations of this box, not in an object store. `writer`: how the paths of this one begin."""
    if is_remote(writer):
        return set()
    data, _, name = writer.rpartition("/")
    own = f"{name.rpartition('-')[0]}-"
    before = now_ms / 1_000 - KEPT.total_seconds()
    names = [each for each in file_io.listdir(data) if each.startswith(own) and not each.startswith(f"{name}-")]
    return {file_uri(f"{data}/{each}") for each in names if file_io.stat(f"{data}/{each}").st_mtime < before}


def groups(tasks: Iterable[FileScanTask]) -> list[list[FileScanTask]]:
    """Return which files become one: those of a partition, up to `COMPACTED_BYTES`."""
    by_partition: dict[str, list[list[FileScanTask]]] = {}
    for task in sorted(tasks, key=lambda task: str(task.file.file_path)):
        found = by_partition.setdefault(str(task.file.partition), [[]])
        if sum(each.file.file_size_in_bytes for each in found[-1]) + task.file.file_size_in_bytes > COMPACTED_BYTES:
            found.append([])
        found[-1].append(task)
    return [group for found in by_partition.values() for group in found if len(group) > 1]
