"""Where other projects' test suites come from: pinned archives out of PyPI and npm's registry, unpacked under `judges` of the environment that runs.

Nothing of theirs is kept in this repository. Owned by `python -m tests.judges`; tests only look. Weak spot: pip and npm are asked with the machine's own
configuration, so a mirror that is down looks like a registry out of reach.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TARGET = Path(sys.prefix) / "judges"
SECONDS = 300


class Archive(NamedTuple):
    """One file of a registry, and how it is fetched into the current directory."""

    name: str
    sha256: str
    command: tuple[str, ...]


KAFKA_PYTHON = Archive(
    "kafka_python-3.0.12.tar.gz",
    "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65",
    (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "kafka-python==3.0.12"),
)
LIBRDKAFKA = Archive(
    "node-rdkafka-3.6.1.tgz",  # Node's binding carries librdkafka's sources whole
    "148f7e7b65c510314c70762d8f1be052c8fe1fdf03a128e6c78083a729a57a30",
    ("npm", "pack", "--silent", "node-rdkafka@3.6.1"),
)


class SuiteMissing(Exception):
    """Why a suite cannot be had here; the text is for people."""


def fetch(archive: Archive) -> Path:
    """The archive, held against its checksum; downloaded if it is not there."""
    TARGET.mkdir(parents=True, exist_ok=True)
    path = TARGET / archive.name
    if not path.exists():
        if shutil.which(archive.command[0]) is None:
            raise SuiteMissing(f"{archive.name} is fetched by {archive.command[0]}, which is not on this machine")
        run(archive.command, TARGET)
    if hashlib.sha256(path.read_bytes()).hexdigest() != archive.sha256:
        path.unlink()
        raise SuiteMissing(f"{archive.name}: the checksum is not the one that is pinned")
    return path


def unpack(archive: Archive, directory: Path, only: str) -> None:
    """What lies below `only` in the archive, into `directory`, which is made anew."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with tarfile.open(fetch(archive)) as tar:
        if hasattr(tarfile, "data_filter"):  # not before Python 3.11.4; the checksum says already whose names these are
            tar.extraction_filter = tarfile.data_filter
        for member in tar.getmembers():
            if member.name.startswith(only):
                member.name = member.name.removeprefix(only)
                tar.extract(member, directory)


def run(command: Sequence[str], directory: Path, seconds: float = SECONDS, environment: Mapping[str, str] | None = None) -> None:
    """A step of an installation; SuiteMissing with the end of what it said when it fails."""
    try:
        ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SuiteMissing(f"{command[0]}: {error}") from error
    if ended.returncode:
        raise SuiteMissing(f"{Path(command[0]).name} ended with {ended.returncode}: {(ended.stderr or ended.stdout).strip()[-2000:]}")
