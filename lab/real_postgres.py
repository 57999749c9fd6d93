"""A real PostgreSQL server in a directory of its own, reached by a Unix socket: Debian's package as `./install.sh test` unpacks it, or as it is installed.

PostgreSQL refuses to run as root; it runs as `nobody` then. Weak spot: a directory of mode 700 above it would keep that user out, so it is made below /tmp.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from appliance.runtime.parent_death import die_with_parent
from lab.running_box import eventually

FOLDERS = "/usr/lib/postgresql/*/bin"


def find_postgres() -> str | None:
    """The directory with initdb and postgres."""
    if found := shutil.which("initdb"):
        return os.path.dirname(found)
    candidates = sorted(
        path for folder in FOLDERS for path in glob.glob(folder) if os.access(f"{path}/initdb", os.X_OK) and os.access(f"{path}/postgres", os.X_OK)
    )
    return candidates[-1] if candidates else None


class RealPostgres:
    """`url` names the database `postgres`, as its superuser."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self.process = process
        self.url = f"postgresql://postgres@/postgres?host={directory}"

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url) as connection:
            return connection.execute(query).fetchall()

    def tell(self, command: str) -> None:
        import psycopg

        with psycopg.connect(self.url) as connection:
            connection.execute(command)

    def answers(self) -> bool:
        import psycopg

        assert self.process.poll() is None, (self.directory / "log").read_text()
        try:
            return self.ask("select 1") == [(1,)]
        except psycopg.OperationalError:
            return False


@contextmanager
def running_postgres() -> Iterator[RealPostgres]:
    """Started, answering, and gone at the end."""
    binaries = find_postgres()
    if binaries is None:
        pytest.skip("PostgreSQL is not there (./install.sh test unpacks it)")
    directory = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))
    user: dict[str, Any] = {}
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC", "HOME": str(directory)}
    try:
        subprocess.run([f"{binaries}/initdb", "--version"], cwd=directory, capture_output=True, check=True, **user)
    except PermissionError:
        shutil.rmtree(directory)
        pytest.skip(f"PostgreSQL does not run as root, and nobody else may look into {binaries}")
    try:
        initdb = [f"{binaries}/initdb", "-D", f"{directory}/data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions"]
        subprocess.run(initdb, env=environment, cwd=directory, check=True, capture_output=True, timeout=60, **user)
        command = [f"{binaries}/postgres", "-D", f"{directory}/data", "-k", str(directory), "-c", "listen_addresses=", "-c", "fsync=off"]
        with open(directory / "log", "wb") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=directory, stdout=log, stderr=log, preexec_fn=partial(die_with_parent, os.getpid()), **user
            )
        postgres = RealPostgres(directory, process)
        try:
            eventually(postgres.answers, "PostgreSQL answers", 20)
            yield postgres
        finally:
            process.send_signal(2)  # SIGINT: a fast shutdown
            process.wait(20)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
