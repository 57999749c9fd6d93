"""Users beside root, for tests of what one user can do to another: user ids that no account has, and programs that run as them.

Weak spot: an interpreter or a checkout that only root reaches (below /root, say) is shown to them by a mount namespace, which needs root's full rights.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lab.loop_disks import FOLLOWING
from lab.running_box import ROOT, environment

VICTIM, STRANGER = 61_234, 61_235
_COMMANDS = ("setpriv", "unshare", "mount")
_missing = next((command for command in _COMMANDS if shutil.which(command) is None), None)
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or _missing is not None,
    reason="only root can start processes as other users" if os.geteuid() else f"{_missing} is not installed",
)


def as_user(user: int, group: int | None = None) -> list[str]:
    """What becomes the command behind it, as that user, with the group of the same number if no other is named. It ends with the process that starts it."""
    becoming = ["setpriv", f"--reuid={user}", f"--regid={user if group is None else group}", "--clear-groups", "--pdeathsig=KILL", "--"]
    closed = next((place for base in _PLACES for place in (*reversed(base.parents), base) if not place.stat().st_mode & 0o001), None)
    if closed is None:
        return becoming
    places = [shlex.quote(str(place)) for place in _PLACES if place.is_relative_to(closed)]
    script = ["set -e", "mount -t tmpfs none /mnt"]
    script += [f"mkdir /mnt/{number}; mount --bind {place} /mnt/{number}" for number, place in enumerate(places)]
    script += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed))}"]
    script += [f"mkdir -p {place}; mount --bind /mnt/{number} {place}" for number, place in enumerate(places)]
    return ["unshare", "--mount", *FOLLOWING, "sh", "-c", "\n".join([*script, 'exec "$@"']), "sh", *becoming]


_PLACES = (Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), Path(ROOT).resolve())


def new_directory(owner: int, mode: int = 0o700) -> Path:
    """Of that user, where all users can reach it (which `tmp_path` is not), with a short name. The caller removes it."""
    directory = Path(tempfile.mkdtemp(prefix="mr-"))
    directory.chmod(mode)
    os.chown(directory, owner, owner)
    return directory


def run_python(user: int, code: str, *arguments: str, group: int | None = None) -> str:
    """What the program prints. It must end well."""
    command = [*as_user(user, group), sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment(), cwd="/", capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running_python(user: int, code: str, *arguments: str, group: int | None = None) -> Iterator[None]:
    """The program runs meanwhile; it has printed a line before this begins."""
    process = subprocess.Popen([*as_user(user, group), sys.executable, "-c", code, *arguments], env=environment(), cwd="/", stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline(), "the program ended"
        yield
    finally:
        process.kill()
        process.communicate()


def shared_memory_of(box: str) -> dict[str, int]:
    """Names of a box's objects → the user id of their owner, whichever it is."""
    found = {}
    for name in os.listdir("/dev/shm"):
        if name.startswith(f"millrace.{box}."):
            with suppress(FileNotFoundError):
                found[name] = os.stat(f"/dev/shm/{name}", follow_symlinks=False).st_uid
    return found
