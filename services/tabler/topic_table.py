"""What the tables of both formats have in common: where one may be, whose it is, and its staging directory.

A run writes Parquet files into `_millrace_staging`, in the table's directory; `append` syncs them, moves them into the table, and commits
them with the offsets behind them. Owned by one run.
"""

from __future__ import annotations

import errno
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as fs

from appliance.base.errors import MillraceError
from appliance.base.model import TopicId
from appliance.storage import file_io
from services.tabler.table_rules import MissingRange

DELTA_LOG = "_delta_log"
ICEBERG_METADATA = "metadata"
STAGING = "_millrace_staging"
UPLOAD_BYTES = 4 << 20
ROW_GROUP_BYTES = 16 << 20
CONNECT_SECONDS, REQUEST_SECONDS = 5, 10
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_REFUSED = re.compile(r"\b40[13]\b|ACCESS_DENIED|Expired|EXPIRED|InvalidAccessKey|INVALID_ACCESS", re.ASCII)
BAD = "_bad"
"""Directory in a table, which readers and vacuum pass over: the table of its bad records."""
TOPIC_ID_KEY = "millrace.topic.id"
LOST_KEY = "millrace.lost"
LOST_SHOWN_MAX = 100
PROPERTIES_BYTES_MAX = 1 << 16
SMALL_BYTES, COMPACTED_BYTES = 32 << 20, 128 << 20
Step = Callable[[str], None]
"""Called before each step of an append, for tests that end the process there."""


class TableTrouble(MillraceError):
    """The table cannot be written now; the text says why and what to do. It is tried again."""


class TableConflict(TableTrouble):
    """Another writer committed the offset of one of these partitions first. Nothing of this commit is in the table."""


class TableFile(NamedTuple):
    """A Parquet file of a commit, in the staging directory. `stats` as Delta's log has them. `hour`: that of all its rows, if there is one."""

    name: str
    rows: int
    stats: dict[str, Any]
    hour: int | None = None


@contextmanager
def trouble(action: str, directory: str, errors: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn what the file system, Arrow and the library (`errors`) raise into TableTrouble."""
    try:
        yield
    except MillraceError as error:
        raise error if isinstance(error, TableTrouble) else TableTrouble(f"could not {action} {directory}: {error}") from error
    except OSError as error:
        raise TableTrouble(f"could not {action} {directory}: {_os_words(error)}") from error
    except (pa.ArrowException, *errors) as error:
        raise TableTrouble(f"could not {action} {directory}: {words_of(error)}") from error


def words_of(error: Exception) -> str:
    """Return what a library says in one line, without colours; what to do if credentials are the reason."""
    words = " ".join(_COLOUR.sub("", str(error)).split())[:500]
    return f"{words}; check the credentials in tables.properties.file" if _REFUSED.search(words) else words


def _os_words(error: OSError) -> str:
    hints = {errno.ENOSPC: "free space there", errno.EROFS: "mount it writable", errno.EACCES: "give it to the user of the box"}
    words = os.strerror(error.errno).lower() if error.errno else words_of(error)
    return f"{words}; {hints[error.errno]}" if error.errno in hints else words


def location_problem(location: str, allowed: Sequence[str]) -> str | None:
    """Return why no table can be in this directory now, or None. Creates nothing: it may be a mount point without its file system."""
    if is_remote(location):
        return None  # the config of the topic was compared with `allowed`
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
        if os.path.isdir(f"{above}/{DELTA_LOG}") or has_metadata(above):
            return f"{location} lies in another table ({above}); name another directory"
        if above == (parent := os.path.dirname(above)):
            return None
        above = parent


def has_commit(directory: str) -> bool:
    """Return whether there is a Delta table; a kill during its creation leaves a log without a commit."""
    try:
        return any(name.endswith((".json", ".parquet")) for name in os.listdir(f"{directory}/{DELTA_LOG}"))
    except (FileNotFoundError, NotADirectoryError):
        return False


def has_metadata(directory: str) -> bool:
    """Return whether there are files of an Iceberg table."""
    try:
        return any(name.endswith(".metadata.json") for name in os.listdir(f"{directory}/{ICEBERG_METADATA}"))
    except OSError:
        return False


def read_properties(path: str) -> dict[str, str]:
    """Return the lines NAME=VALUE of the file `tables.properties.file`. Raises TableTrouble."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise TableTrouble(f"other users may read {path} (mode {mode & 0o777:04o}), which has credentials; run chmod 600 {path}")
            lines = [line.strip() for line in file.read(PROPERTIES_BYTES_MAX).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        words = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it is no UTF-8"
        raise TableTrouble(f"could not read {path} (tables.properties.file): {words}") from error
    pairs = {number: line.partition("=") for number, line in enumerate(lines, 1) if line and not line.startswith("#")}
    if wrong := [number for number, (name, equals, _) in pairs.items() if not name.strip() or not equals]:
        raise TableTrouble(f"{path} (tables.properties.file), line {wrong[0]}: write NAME=VALUE, and # before remarks")
    return {name.strip(): value.strip() for name, _, value in pairs.values()}


def is_remote(location: str) -> bool:
    """Return whether this is in an object store."""
    return "://" in location


def object_store(properties: Mapping[str, str]) -> fs.FileSystem:
    """Return S3 as `properties` say, by the names of its own tools (AWS_ACCESS_KEY_ID, …)."""
    names = {"AWS_ACCESS_KEY_ID": "access_key", "AWS_SECRET_ACCESS_KEY": "secret_key", "AWS_SESSION_TOKEN": "session_token", "AWS_REGION": "region"}
    values: dict[str, Any] = {argument: properties[name] for name, argument in names.items() if name in properties}
    if "AWS_ENDPOINT_URL" in properties:
        values["endpoint_override"] = properties["AWS_ENDPOINT_URL"]
    seconds = {"connect_timeout": CONNECT_SECONDS, "request_timeout": REQUEST_SECONDS}
    return fs.S3FileSystem(**values, **seconds, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=2))


class TopicTable(ABC):
    """The table of one topic. `open` first; `expected_id` is the table that was there before, "" for none."""

    by_hour = False
    """Whether the rows of each hour go into files of their own."""
    upkeep_commits = 0
    """Commits after which `compact` is called even if nothing is to be merged."""

    def __init__(self, directory: str, topic: str, topic_id: TopicId, writer: str, properties: Mapping[str, str], staging: str) -> None:
        """`writer` is BOX-INCARNATION: files of two boxes, and of two incarnations, have different names. `properties` of `read_properties`.
        `staging`: the directory in which files wait if the table is in an object store."""
        self._directory = directory
        self._is_remote = is_remote(directory)
        self._properties = properties
        self._staging = staging
        self._topic = topic
        self._topic_id = topic_id
        self._writer = writer
        self._table: Any = None

    @property
    def staging(self) -> str:
        return self._staging if self._is_remote else f"{self._directory}/{STAGING}"

    @property
    def exists(self) -> bool:
        return self._table is not None

    @property
    @abstractmethod
    def table_id(self) -> str: ...

    @property
    @abstractmethod
    def version(self) -> int:
        """A number that grows with each commit."""

    @property
    def metadata_file(self) -> str:
        """What readers without the catalog open; "" if it is the directory."""
        return ""

    @abstractmethod
    def open(self, expected_id: str) -> None:
        """Open the table if there is one. Raises TableTrouble if it is another's, or the one that was here is gone."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the table's columns as Arrow has them."""

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return what a file with these columns has as its schema."""
        return schema

    @abstractmethod
    def offsets(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return where each partition goes on, without those of which the table has nothing."""

    @abstractmethod
    def create(self, schema: pa.Schema) -> None:
        """Create the table. Another box may do so at the same time; one of both does."""

    @abstractmethod
    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns, in a commit of their own: a kill after it leaves columns that are null."""

    @abstractmethod
    def append(self, files: Sequence[TableFile], offsets: Mapping[int, int], lost: Sequence[MissingRange], step: Step) -> None:
        """Commit files and the offsets behind them. Raises TableTrouble; TableConflict if another writer was faster."""

    @abstractmethod
    def compact(self, files_min: int) -> int:
        """Merge the small files if there are `files_min`, and remove what no version that is kept has; return how many were merged.

        Raises TableTrouble.
        """

    def close(self) -> None:  # noqa: B027  a Delta table holds nothing
        """Give back what the table holds."""

    def check_directory(self, also: str = "") -> None:
        """Raise TableTrouble if something lies in the way of a new table, except `also`."""
        directory = self._directory
        if not os.path.isdir(directory):
            return
        if others := sorted(set(os.listdir(directory)) - {STAGING, BAD, also, "lost+found"}):
            raise TableTrouble(f"{directory} is no table and not empty ({', '.join(others[:3])}); move that away")

    def check_link(self) -> None:
        """Raise TableTrouble if the directory is a symbolic link."""
        if os.path.islink(self._directory):
            raise TableTrouble(f"{self._directory} is a symbolic link; a table is a directory")

    def is_gone(self, file_format: str) -> TableTrouble:
        return TableTrouble(
            f"the table {self._directory} is gone; bring it back (or mount it). To start a new one, which has only what the log still has: "
            f"millrace topic alter {self._topic} --table none, and --table {file_format} again"
        )

    def check_owner(self, owner: str | None, expected_id: str) -> None:
        """Raise TableTrouble if the table is that of another topic, or another one than before."""
        if owner != str(self._topic_id):
            whose = f"topic id {owner}: a topic of this name that was deleted" if owner else "another program"
            raise TableTrouble(f"the table {self._directory} is that of {whose}; move it away, or set millrace.table.location to another directory")
        if expected_id and self.table_id != expected_id:
            raise TableTrouble(f"the table {self._directory} is not the one that was here (id {expected_id}); bring that back")

    def make_staging(self) -> None:
        with trouble("write", self.staging):
            os.makedirs(self.staging, exist_ok=True)

    def sweep(self) -> None:
        """Remove what dead incarnations of this box left in the staging directory."""
        own = f"part-{self._writer.partition('-')[0]}-"
        with suppress(OSError):
            for name in os.listdir(self.staging):
                if name.startswith(own) and not name.startswith(f"part-{self._writer}-"):
                    file_io.unlink_if_there(f"{self.staging}/{name}")

    def place(self, name: str, directory: str, step: Step) -> os.stat_result:
        """Sync a staged file, move it into `directory`, and return its figures."""
        staged = f"{self.staging}/{name}"
        step("sync")
        file_io.sync_path(staged)
        figures = file_io.stat(staged)
        step("rename")
        if self._is_remote:
            with pa.OSFile(staged) as file, object_store(self._properties).open_output_stream(_key(directory, name)) as stream:
                while chunk := file.read(UPLOAD_BYTES):
                    stream.write(chunk)
            file_io.unlink_if_there(staged)
        else:
            file_io.rename(staged, f"{directory}/{name}")
            file_io.fsync_directory(directory)
        return figures

    def withdraw(self, name: str, directory: str) -> None:
        """Remove a file that was placed, of which no commit is."""
        with suppress(OSError):
            if self._is_remote:
                object_store(self._properties).delete_file(_key(directory, name))
            else:
                file_io.unlink_if_there(f"{directory}/{name}")

    def moved_words(self, before: Mapping[int, int], after: Mapping[int, int]) -> str:
        moved = ", ".join(f"{partition}: {after[partition]}" for partition in sorted(after) if after[partition] != before.get(partition))
        return f"another writer moved the offsets of {self._directory} first ({moved}); reading on from there"


def _key(directory: str, name: str) -> str:
    return f"{directory.partition('://')[2]}/{name}"
