"""The directory that a streaming job fills: its owner, the rows of each micro-batch, and the repair after a crash.

Only this module writes its metadata.

    DIR/TABLE/[date=2026-11-22/]part-*.parquet    rows; a plain listing of these is correct at any moment
    DIR/_millrace/table.json                      what this directory is; written once, and again if it lacks ids
    DIR/_millrace/lock                            held while a driver or its JVM runs
    DIR/_millrace/checkpoint/                     Spark's: offsets, state
    DIR/_millrace/commits/N.json                  what micro-batch N added, and the state of the job after it
    DIR/_millrace/staging/N-INCARNATION/          files that the tasks of one driver wrote

Spark repeats a micro-batch if it did not record its end. A batch is in when its commit exists, which link(2) publishes in
one step. Its files are then renamed to names with the batch's number. A batch that is in is never added again.

    tasks write staging/N-INCARNATION/* (synced) ▸ link commits/N.json ▸ rename every file ▸ remove staging
    killed before the link: the replay writes its own files, and the old ones are removed
    killed after the link: the next incarnation renames the remaining files, and the replay adds nothing
    killed before the topic has the rows: the replay reads them from the files (`txnAppId`, `txnVersion`: what the topic has)
    only the driver killed: the lock is a descriptor of driver and JVM, so the next run waits for the JVM's end
    only the JVM killed: the driver starts another; after three in a row without a finished batch it gives up

The ids of the cluster and its topics are compared if both sides know them; a directory that was started without them gets
them from its next run.

Weak spots: between the link and the last rename, a crash leaves rows invisible until the next incarnation. Spark does not
sync its checkpoint: after a power cut a job may have to start again in another directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from appliance.base.model import TopicId
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.problems import ConcurrentStream, StreamProblem
from appliance.pipeline.topic_offsets import TopicOffsets
from appliance.storage import file_io

CLUSTER_ID, TOPIC_IDS = "cluster_id", "topic_ids"


def ask_source(access: ClusterAccess, topics: Iterable[str]) -> dict[str, Any]:
    """Return the ids. Raises SourceProblem for an unknown topic, and if the cluster does not answer."""
    with TopicOffsets(access) as offsets:
        names = sorted(set(topics))
        offsets.partitions_of(names)
        known = offsets.access_for(names)
    return {CLUSTER_ID: known.cluster_id, TOPIC_IDS: {name: str(TopicId(number)) for name, number in known.topic_ids}}


def difference(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return why a run does not fit the directory's job, or an empty text."""
    other = [name for name in wanted if name not in (CLUSTER_ID, TOPIC_IDS) and kept.get(name) != wanted[name]]
    if other:
        said = "; ".join(f"{name} was {kept.get(name)}, and is {wanted[name]} now" for name in other)
        return f"was begun by another job ({said}): its offsets and state would not fit"
    before, now = kept.get(CLUSTER_ID), wanted.get(CLUSTER_ID)
    if before and now and before != now:
        return f"was begun with topics of cluster {before}, and this one is {now}: its offsets mean other records here"
    ids = wanted.get(TOPIC_IDS, {})
    for topic, topic_id in sorted(kept.get(TOPIC_IDS, {}).items()):
        if ids.get(topic, topic_id) != topic_id:
            return f"has the records of an earlier topic {topic}, which was deleted and made anew: its offsets mean other records now"
    return ""


def completed(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return `kept` with the ids that it lacks."""
    ids = {**wanted.get(TOPIC_IDS, {}), **kept.get(TOPIC_IDS, {})}
    cluster_id = kept.get(CLUSTER_ID) or wanted.get(CLUSTER_ID)
    return {**kept, **({CLUSTER_ID: cluster_id} if cluster_id else {}), **({TOPIC_IDS: ids} if ids else {})}


BOOKS = "_millrace"
FORMAT = "millrace stream"
VERSION = 1
COMMITS_KEPT = 100


class StagedPart(NamedTuple):
    """One Parquet file: its name in the staging directory, its path below DIR, rows, bytes."""

    staged: str
    path: str
    rows: int
    size_bytes: int


class BatchCommit(NamedTuple):
    """The files that one micro-batch added."""

    number: int
    life: str
    parts: tuple[StagedPart, ...] = ()
    state: Mapping[str, Any] = {}

    def encode(self) -> bytes:
        return orjson.dumps({**self._asdict(), "parts": [list(part) for part in self.parts]})


def decode_commit(content: bytes, path: str) -> BatchCommit:
    try:
        document = orjson.loads(content)
        parts = tuple(StagedPart(*part) for part in document["parts"])
        return BatchCommit(int(document["number"]), str(document["life"]), parts, document["state"])
    except (ValueError, KeyError, TypeError) as error:
        raise StreamProblem(f"{path} is damaged ({error}); start the job in another directory") from error


class StreamDirectory:
    """One destination, filled by one incarnation of the driver. `open` takes the lock, `close` releases it."""

    def __init__(self, path: str, life: str) -> None:
        self.path = os.path.abspath(path)
        self.life = life
        self.id = ""
        """of the new table; a topic identifies its batches by it"""
        self.last: BatchCommit | None = None
        self._books = f"{self.path}/{BOOKS}"
        self._commits, self._staging = f"{self._books}/commits", f"{self._books}/staging"
        self.lock_fd: int | None = None
        """Inherited by the JVM, so that the lock is free only when both have ended."""

    @property
    def checkpoint(self) -> str:
        return f"{self._books}/checkpoint"

    # --- whose it is

    def open(self, identity: Mapping[str, Any]) -> None:
        """Create the directory if it is missing, lock it, and repair it after a crash. Raises StreamProblem for another job's, and ConcurrentStream."""
        self.look()
        for directory in (self._commits, self._staging):
            file_io.make_directories(directory)
        self._take_lock()
        self._keep_identity(identity)
        self._recover()

    def look(self) -> None:
        """Raises StreamProblem if the directory is not a stream's. Changes nothing."""
        if file_io.exists(f"{self._books}/table.json"):
            self._kept_identity()
        if file_io.exists(self._books) or not file_io.exists(self.path):
            return
        if not file_io.is_directory(self.path):
            raise StreamProblem(f"--to {self.path} is a file; name a directory")
        if names := sorted(file_io.listdir(self.path))[:3]:
            raise StreamProblem(f"--to {self.path} is not empty ({', '.join(names)} …) and no job of millrace stream has written it; name another directory")

    def _take_lock(self) -> None:
        fd = file_io.open_path(f"{self._books}/lock", file_io.READ_WRITE_CREATE)
        if not file_io.lock_exclusively(fd):
            holder = file_io.pread_all(fd, 0, file_io.size_of(fd)).decode(errors="replace").strip()
            file_io.close(fd)
            lives = not holder.isdecimal() or file_io.exists(f"/proc/{holder}")
            raise ConcurrentStream(f"another job is at work in {self.path} ({'process' if lives else 'the JVM of process'} {holder or 'unknown'})", lives)
        self.lock_fd = fd
        file_io.ftruncate(fd, 0)
        content = f"{file_io.process_id()}\n".encode()
        file_io.write_all(fd, (content,), 0, len(content))

    def _keep_identity(self, identity: Mapping[str, Any]) -> None:
        path = f"{self._books}/table.json"
        wanted = {"format": FORMAT, "version": VERSION, **identity}
        if not file_io.exists(path):
            file_io.replace_file(path, orjson.dumps({**wanted, "id": self.life}, option=orjson.OPT_INDENT_2))
        found = self._kept_identity()
        if other := difference(found, wanted):
            raise StreamProblem(f"--to {self.path} {other}; name another directory")
        if (whole := completed(found, wanted)) != found:
            file_io.replace_file(path, orjson.dumps(whole, option=orjson.OPT_INDENT_2))
        self.id = str(found.get("id"))

    def _kept_identity(self) -> dict[str, Any]:
        path = f"{self._books}/table.json"
        try:
            found = dict(orjson.loads(file_io.read_file(path)))
        except (ValueError, TypeError) as error:
            raise StreamProblem(f"{path} is damaged ({error}); name another directory") from error
        if found.get("format") != FORMAT:
            raise StreamProblem(f"--to {self.path} belongs to {found.get('format', 'something else')}; name another directory")
        return found

    def reopen(self) -> None:
        """Repair the directory after the death of a JVM; the lock stays."""
        self._recover()

    def close(self) -> None:
        if self.lock_fd is not None:
            file_io.close_all([self.lock_fd])
            self.lock_fd = None

    # --- a micro-batch

    def is_in(self, number: int) -> bool:
        return self.last is not None and number <= self.last.number

    def commit_of(self, number: int) -> BatchCommit | None:
        """Return what a committed batch added; None if it added nothing, or its commit is no longer stored."""
        path = self._commit_path(number)
        return decode_commit(file_io.read_file(path), path) if file_io.exists(path) else None

    def begin(self, number: int) -> str:
        """Return an empty staging directory for batch `number`."""
        path = f"{self._staging}/{number:08d}-{self.life}"
        self._remove(path)
        file_io.mkdir(path)
        file_io.fsync_directory(self._staging)
        return path

    def publish(self, number: int, parts: Iterable[StagedPart], state: Mapping[str, Any]) -> BatchCommit:
        """Commit batch `number`. Its files must be synced."""
        commit = BatchCommit(number, self.life, tuple(parts), state)
        staging = self._staging_of(commit)
        for part in commit.parts:
            if not file_io.exists(f"{staging}/{part.staged}"):
                raise StreamProblem(f"{staging}/{part.staged}, which a task has written, is not there: the directory must be shared by all machines of the job")
        file_io.fsync_directory(staging)
        file_io.replace_file(f"{staging}/commit", commit.encode())
        try:
            file_io.link(f"{staging}/commit", self._commit_path(number))
        except FileExistsError:
            raise ConcurrentStream(f"another job has published batch {number} in {self.path} meanwhile") from None
        file_io.fsync_directory(self._commits)
        self.last = commit
        self._place(commit)
        if number >= COMMITS_KEPT:
            file_io.unlink_if_there(self._commit_path(number - COMMITS_KEPT))
        return commit

    def drop(self, number: int) -> None:
        """Commit batch `number` without files."""
        self._remove(f"{self._staging}/{number:08d}-{self.life}")

    def _place(self, commit: BatchCommit) -> None:
        staging = self._staging_of(commit)
        touched = set()
        for part in commit.parts:
            target = f"{self.path}/{part.path}"
            file_io.make_directories(os.path.dirname(target))
            touched.add(os.path.dirname(target))
            try:
                file_io.rename(f"{staging}/{part.staged}", target)
            except FileNotFoundError:
                if not file_io.exists(target):
                    raise StreamProblem(f"{target}, which batch {commit.number} has added, is not there, nor what it should be made of") from None
        for directory in sorted(touched):
            file_io.fsync_directory(directory)
        self._remove(staging)

    # --- after a death

    def _recover(self) -> None:
        numbers = sorted(int(name[:-5]) for name in file_io.listdir(self._commits) if name.endswith(".json"))
        self.last = self.commit_of(numbers[-1]) if numbers else None
        if self.last is not None and not file_io.exists(f"{self.checkpoint}/offsets/{self.last.number}"):
            # Spark would begin at batch 0 again, and all of it would be taken for replays.
            raise StreamProblem(f"{self.checkpoint} knows nothing of batch {self.last.number}, which is in {self.path}: begin anew in another directory")
        if self.last is not None and file_io.exists(self._staging_of(self.last)):
            self._place(self.last)
        for name in file_io.listdir(self._staging):
            self._remove(f"{self._staging}/{name}")
        for number in numbers[:-COMMITS_KEPT]:
            file_io.unlink_if_there(self._commit_path(number))

    def _commit_path(self, number: int) -> str:
        return f"{self._commits}/{number:08d}.json"

    def _staging_of(self, commit: BatchCommit) -> str:
        return f"{self._staging}/{commit.number:08d}-{commit.life}"

    @staticmethod
    def _remove(staging: str) -> None:
        """Remove a staging directory, which has no subdirectories."""
        with suppress(FileNotFoundError):
            for name in file_io.listdir(staging):
                file_io.unlink_if_there(f"{staging}/{name}")
            file_io.rmdir(staging)
