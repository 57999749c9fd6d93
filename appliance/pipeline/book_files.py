"""How a load gives a name to a file in one step or not at all: written aside, synced, linked. Functions only; every call goes through `file_io`.

Weak spot: hard links are needed; file systems without them are refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress

from appliance.pipeline.load_problem import LoadProblem
from appliance.storage import file_io

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)


def publish_once(temporary: str, path: str, content: bytes) -> bool:
    """Give `path` this content for good, by way of `temporary`; False if it has one already. FileNotFoundError if somebody swept `temporary` meanwhile."""
    if file_io.exists(path):
        return False
    file_io.replace_file(temporary, content)
    published = link_once(temporary, path)
    file_io.fsync_directory(os.path.dirname(path))
    file_io.unlink_if_there(temporary)
    return published


def make_directories(path: str) -> None:
    """Beside another loader, which may make the same ones."""
    for _ in range(path.count("/")):
        with suppress(FileExistsError):
            return file_io.make_directories(path)
    return file_io.make_directories(path)


def link_once(source: str, target: str) -> bool:
    """link(2), which fails when `target` is there: the one step by which a name is given once. False then.

    Over NFS the answer to a link that was made may be lost, and the repeated request fails; the count of links tells.
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
    """Of files called NUMBER.json."""
    return [int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()]
