"""The directory that a load fills: its lock, its commits, and the repair after a crash. Only this module writes its metadata.

    DIR/topic=NAME/date=2026-11-22/hour=05/part-*.parquet     rows; a plain listing of these is correct at any moment
    DIR/_bad_records/topic=NAME/…                             records that could not be decoded
    DIR/_millrace/table.json, topics/NAME.json                what this directory is; written once
    DIR/_millrace/lock                                        held while a loader runs
    DIR/_millrace/plans/N.json, manifests/N.json              the planned and the actual contents of commit N
    DIR/_millrace/staging/N-INCARNATION/                      files that the tasks of one loader wrote

A file is renamed to its place only after the manifest of its commit is published. Each has rows that no other file has.
A metadata file is written aside, synced, and named by link(2), so it exists whole or not at all; every call goes through
`file_io`. The steps, with what repairs a crash after each:

    lock (flock)                     the kernel releases it; a second loader is refused while the first runs
    sweep what a dead loader left    the next run sweeps on
    plan N                           the next run loads the same offsets from the same positions
    tasks write and sync files       the next run removes them
    manifest N linked: committed     the next run renames its files to their places
    rename, sync directories         the next run renames the others
    Delta: a commit with N in it     the next run adds what is missing
    remove staging and plan          the next run removes them

Manifests are kept for ever. One task's files are used however often Spark ran it. Where the lock
does not work (some NFS mounts) the link decides: a second loader renames the staging directory
first, and the first one's manifest can no longer be published.

Weak spots: after a crash between a manifest and its
last rename, the remaining rows become visible with the next run; file systems without hard links are refused.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from contextlib import suppress

from appliance.pipeline.load_manifest import Manifest, Plan, StagedFile, decode_manifest, decode_plan
from appliance.pipeline.problems import ConcurrentLoader, DamagedTable, LoadProblem
from appliance.pipeline.table_kind import TableKind, TopicFormat, decode_table_kind, decode_topic_format, foreign_owner
from appliance.storage import file_io

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)


def publish_once(temporary: str, path: str, content: bytes) -> bool:
    """Create `path` with this content, through `temporary`; False if it exists. FileNotFoundError if another loader removed `temporary`."""
    if file_io.exists(path):
        return False
    file_io.replace_file(temporary, content)
    published = link_once(temporary, path)
    file_io.fsync_directory(os.path.dirname(path))
    file_io.unlink_if_there(temporary)
    return published


def make_directories(path: str) -> None:
    """Create directories; another loader may create the same ones at the same time."""
    for _ in range(path.count("/")):
        with suppress(FileExistsError):
            return file_io.make_directories(path)
    return file_io.make_directories(path)


def link_once(source: str, target: str) -> bool:
    """link(2): False if `target` exists. The single step that gives a name at most once.

    Over NFS the answer to a successful link may be lost, so that its repetition fails; the number of links shows which.
    """
    try:
        file_io.link(source, target)
    except FileExistsError:
        return bool(file_io.stat(source).st_nlink > 1)
    except OSError as error:
        if error.errno in _NO_LINKS:
            words = "a load becomes part of a directory by a link, which is made in one step or not at all; name a directory on another file system"
            raise LoadProblem(f"the file system of {target} has no hard links ({(error.strerror or '').lower()}): {words}") from error
        raise
    return True


def numbers_of(names: Iterable[str]) -> list[int]:
    """Return the numbers of the files called NUMBER.json."""
    return [int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()]


BOOKS = "_millrace"
BAD_RECORDS = "_bad_records"
NEW = "new-"
"""Prefix of a metadata file before it is linked to its name."""
SWEPT = ".swept"
"""Suffix that a later incarnation appends to a staging directory. Its owner, if it still runs, can no longer publish from it."""


class LoadDirectory:
    """One destination, owned by one incarnation of the loader. `open` takes the lock, `close` releases it."""

    def __init__(self, path: str, life: str) -> None:
        self.path = os.path.abspath(path)
        self.life = life
        self._books = f"{self.path}/{BOOKS}"
        self._manifests, self._plans, self._staging, self._topics = (f"{self._books}/{name}" for name in ("manifests", "plans", "staging", "topics"))
        self._lock_fd: int | None = None

    # --- whose it is

    def look(self) -> TableKind | None:
        """Return the kind of the existing table, or None. Raises LoadProblem for other contents. Changes nothing."""
        if owner := foreign_owner(self.path, BOOKS):
            raise LoadProblem(owner)
        file = f"{self._books}/table.json"
        return decode_table_kind(file_io.read_file(file), file) if file_io.exists(file) else None

    def open(self, kind: TableKind) -> None:
        """Create the directory if it is missing, and lock it. Raises LoadProblem if it is not of `kind`, and ConcurrentLoader."""
        self.look()
        for directory in (self._manifests, self._plans, self._staging, self._topics):
            make_directories(directory)
        self._take_lock()
        self._publish_once(f"{self._books}/table.json", kind.encode())
        self.check_kind(kind)

    def check_kind(self, wanted: TableKind) -> None:
        """Raises LoadProblem for another kind of table."""
        found = self.look()
        if found is not None and (problem := found.difference(wanted)):
            raise LoadProblem(f"{self.path} {problem}")

    def _take_lock(self) -> None:
        fd = file_io.open_path(f"{self._books}/lock", file_io.READ_WRITE_CREATE)
        if not file_io.lock_exclusively(fd):
            holder = file_io.pread_all(fd, 0, file_io.size_of(fd)).decode(errors="replace").strip()
            file_io.close(fd)
            raise ConcurrentLoader(f"another loader is at work in {self.path} ({holder or 'it has not said which'}); wait for it, or end it")
        self._lock_fd = fd
        file_io.ftruncate(fd, 0)
        content = f"process {file_io.process_id()} on {socket.gethostname()}\n".encode()
        file_io.write_all(fd, (content,), 0, len(content))

    def close(self) -> None:
        if self._lock_fd is not None:
            file_io.close_all([self._lock_fd])
            self._lock_fd = None

    def topic_format(self, topic: str) -> TopicFormat | None:
        file = f"{self._topics}/{topic}.json"
        return decode_topic_format(file_io.read_file(file), file) if file_io.exists(file) else None

    def topic_formats(self) -> dict[str, TopicFormat]:
        """Return the format of each loaded topic."""
        found = {name: self.topic_format(name) for name in sorted(name.removesuffix(".json") for name in file_io.listdir(self._topics))}
        return {name: chosen for name, chosen in found.items() if chosen is not None}

    def keep_topic_format(self, topic: str, chosen: TopicFormat) -> TopicFormat:
        """Store a topic's format at its first load; a stored one wins."""
        self._publish_once(f"{self._topics}/{topic}.json", chosen.encode())
        kept = self.topic_format(topic)
        assert kept is not None
        return kept

    # --- how far it is

    def last_manifest(self) -> Manifest | None:
        if not file_io.exists(self._manifests):
            return None
        numbers = numbers_of(file_io.listdir(self._manifests))
        if not numbers:
            return None
        path = self._manifest_path(max(numbers))
        return decode_manifest(file_io.read_file(path), path)

    def manifest(self, number: int) -> Manifest:
        path = self._manifest_path(number)
        try:
            return decode_manifest(file_io.read_file(path), path)
        except FileNotFoundError:
            raise DamagedTable(f"manifest {number} of {self.path} is not there, though later ones are") from None

    def plan(self, number: int) -> Plan | None:
        """Return the plan that an earlier run stored for commit `number`."""
        path = f"{self._plans}/{number:08d}.json"
        return decode_plan(file_io.read_file(path), path) if file_io.exists(path) else None

    def keep_plan(self, plan: Plan) -> None:
        if not self._publish_once(f"{self._plans}/{plan.number:08d}.json", plan.encode()):
            raise ConcurrentLoader(f"another loader has planned commit {plan.number} in {self.path} meanwhile")

    def drop_plan(self, number: int) -> None:
        file_io.unlink_if_there(f"{self._plans}/{number:08d}.json")

    # --- a commit

    def staging(self, number: int) -> str:
        """Return the staging directory of commit `number`."""
        return f"{self._staging}/{number:08d}-{self.life}"

    def begin(self, number: int) -> str:
        path = self.staging(number)
        file_io.mkdir(path)
        file_io.fsync_directory(self._staging)
        return path

    def abandon(self, number: int) -> None:
        """Remove the files of a commit that failed before it was published. The next run removes what this one cannot."""
        staging = self.staging(number)
        with suppress(OSError):
            file_io.rename(staging, staging + SWEPT)
            self._remove(staging + SWEPT)

    def publish(self, manifest: Manifest) -> None:
        """Publish `manifest` in one step. Its files must be synced. Raises ConcurrentLoader if another loader was first or has taken over."""
        staging = self.staging(manifest.number)
        self._check_files(staging, (*manifest.files, *manifest.bad_files))
        try:
            file_io.replace_file(f"{staging}/manifest", manifest.encode())  # linked from the staging directory, so a loader that removes it stops this one
            published = link_once(f"{staging}/manifest", self._manifest_path(manifest.number))
        except FileNotFoundError as error:
            raise ConcurrentLoader(f"another loader has taken over {self.path}; commit {manifest.number} of this run is not part of it") from error
        if not published:
            raise ConcurrentLoader(f"another loader has published commit {manifest.number} in {self.path} meanwhile; that of this run is not part of it")
        file_io.fsync_directory(self._manifests)

    @staticmethod
    def _check_files(staging: str, files: Iterable[StagedFile]) -> None:
        for file in files:
            path = f"{staging}/{file.staged}"
            try:
                size_bytes = file_io.stat(path).st_size
            except FileNotFoundError:
                raise LoadProblem(f"{path}, which a task has written, is not there: the directory must be shared by all machines that load into it") from None
            if size_bytes != file.size_bytes:
                raise LoadProblem(f"{path} has {size_bytes} bytes, its task wrote {file.size_bytes}")

    def place(self, manifest: Manifest) -> None:
        """Rename the files of a published manifest to their places; idempotent. The end of a commit."""
        staging = self.staging_of(manifest)
        touched = set()
        for file in (*manifest.files, *manifest.bad_files):
            target = f"{self.path}/{file.path}"
            directory = os.path.dirname(target)
            make_directories(directory)
            touched.add(directory)
            for source in (f"{staging}/{file.staged}", f"{staging}{SWEPT}/{file.staged}"):
                try:
                    file_io.rename(source, target)
                    break
                except FileNotFoundError:
                    continue
            else:
                if not file_io.exists(target):
                    raise DamagedTable(f"{target}, which manifest {manifest.number} of {self.path} names, is not there, nor what it should be made of")
        for directory in sorted(touched):
            file_io.fsync_directory(directory)
        self._remove(staging)
        self._remove(staging + SWEPT)
        self.drop_plan(manifest.number)

    def staging_of(self, manifest: Manifest) -> str:
        return f"{self._staging}/{manifest.number:08d}-{manifest.life}"

    # --- after a death

    def recover(self) -> Manifest | None:
        """Finish the last commit and remove what was never published. Return the last manifest."""
        last = self.last_manifest()
        kept = None if last is None else os.path.basename(self.staging_of(last))
        leftovers = file_io.listdir(self._staging)
        if last is not None and {kept, f"{kept}{SWEPT}"} & set(leftovers):
            self.place(last)
        swept = []
        for name in leftovers:
            if name.removesuffix(SWEPT) == kept:
                continue
            path = f"{self._staging}/{name}"
            if not name.endswith(SWEPT):
                with suppress(FileNotFoundError):
                    file_io.rename(path, path + SWEPT)
                path += SWEPT
            swept.append(path)
        now = self.last_manifest()
        if (now and now.number) != (last and last.number):
            raise ConcurrentLoader(f"another loader has published a commit in {self.path} meanwhile")
        for path in swept:
            self._remove(path)
        self._sweep_files(last.number if last else 0)
        return last

    def _sweep_files(self, last_number: int) -> None:
        for name in file_io.listdir(self._books):
            if name.startswith(NEW):
                file_io.unlink_if_there(f"{self._books}/{name}")
        for number in numbers_of(file_io.listdir(self._plans)):
            if number <= last_number:
                self.drop_plan(number)

    def _remove(self, staging: str) -> None:
        """Remove a staging directory, which has no subdirectories."""
        with suppress(FileNotFoundError):
            for name in file_io.listdir(staging):
                file_io.unlink_if_there(f"{staging}/{name}")
            file_io.rmdir(staging)

    # --- metadata files

    def _manifest_path(self, number: int) -> str:
        return f"{self._manifests}/{number:08d}.json"

    def _publish_once(self, path: str, content: bytes) -> bool:
        """Create `path` with this content; False if it exists."""
        try:
            return publish_once(f"{self._books}/{NEW}{self.life}", path, content)
        except FileNotFoundError as error:
            raise ConcurrentLoader(f"another loader has taken over {self.path}") from error
