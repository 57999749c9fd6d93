"""Where a Spark session keeps its files while it lives: a directory under the machine's temporary one, and what killed sessions left there.

A session's process and its JVM hold a lock on the directory, which the kernel takes from them when both are dead. So the next session knows which
directories nobody will ever remove. Weak spot: a directory is only swept by a later session of the same user.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from appliance.base.clock import SystemClock

PREFIX = "millrace-session-"
YOUNG_SECONDS = 60.0
"""One that was just made may not be locked yet."""


class SparkScratch:
    """`lock` is the descriptor that the JVM must inherit."""

    def __init__(self) -> None:
        sweep_scratch(Path(tempfile.gettempdir()), SystemClock().wall_ms() / 1000)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def sweep_scratch(root: Path, now_seconds: float, prefix: str = PREFIX) -> list[Path]:
    """Remove what nobody holds any more, of this user; which those were. What cannot be removed is left."""
    swept = []
    for path in root.glob(f"{prefix}*"):
        try:
            found = path.lstat()
            if found.st_uid != os.getuid() or now_seconds - found.st_mtime < YOUNG_SECONDS:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            swept.append(path)
        except OSError:
            pass  # somebody lives there
        finally:
            os.close(descriptor)
    return swept
