"""A real PostgreSQL server in a directory of its own, reached by a Unix socket: Debian's package as `./install.sh test` unpacks it, or as it is installed.

PostgreSQL refuses to run as root; it runs as an unprivileged user then, whose directory is made below the system's temporary one.
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

from appliance.runtime.spawning import die_with_parent
from lab.running_box import eventually

FOLDERS = "/usr/lib/postgresql/*/bin"
SEARCH_EVERYWHERE = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--securebits=+no_setuid_fixup"]
"""For setpriv. access(2), by which PostgreSQL looks for its programs, would otherwise ignore the capability of a user that is not root."""


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
    as_user: list[str] = []
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        # The right to search every directory, because the binaries may lie below /root, which is closed to others.
        as_user = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", *SEARCH_EVERYWHERE, "--pdeathsig=KILL"]
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC", "HOME": str(directory)}
    try:
        initdb = [f"{binaries}/initdb", "-D", f"{directory}/data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions"]
        made = subprocess.run([*as_user, *initdb], env=environment, cwd=directory, check=False, capture_output=True, text=True, timeout=60)
        assert made.returncode == 0, made.stderr
        command = [f"{binaries}/postgres", "-D", f"{directory}/data", "-k", str(directory), "-c", "listen_addresses=", "-c", "fsync=off"]
        with open(directory / "log", "wb") as log:
            process = subprocess.Popen(
                [*as_user, *command], env=environment, cwd=directory, stdout=log, stderr=log, preexec_fn=partial(die_with_parent, os.getpid())
            )
        postgres = RealPostgres(directory, process)
        try:
            eventually(postgres.answers, "PostgreSQL answers")
            yield postgres
        finally:
            process.send_signal(2)  # SIGINT: a fast shutdown
            process.wait(20)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
