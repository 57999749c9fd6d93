"""Opens directories and files only if no other user could have written them. All access to runtime
directories uses this module.

A process trusts its own user and root; root also trusts the user of the installed box. Files are
opened without following links and checked by descriptor, so that a later change of the path has no
effect. Weak: the parents of an opened directory are not checked.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Collection
from functools import cache

SYSTEM_USER = "millrace"
"""The user of the installed box (systemd/sysusers.conf)."""
_ONLY_THERE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def own_users() -> frozenset[int]:
    """Return the user ids whose boxes this process may remove: its own; for root also that of the
    installed box."""
    return _own_users(os.geteuid())


def trusted_users() -> frozenset[int]:
    """Return the user ids whose files this process trusts."""
    return own_users() | {0}


@cache
def _own_users(user: int) -> frozenset[int]:
    if user:
        return frozenset({user})
    try:
        return frozenset({0, pwd.getpwnam(SYSTEM_USER).pw_uid})
    except KeyError:
        return frozenset({0})


def open_directory(path: str, dir_fd: int | None = None, owners: Collection[int] | None = None) -> int:
    """Return a descriptor of the directory, which must belong to one of `owners` (default:
    `trusted_users`) and be writable by its owner alone. Raises OSError."""
    descriptor = os.open(path, _ONLY_THERE | os.O_DIRECTORY, dir_fd=dir_fd)
    try:
        _check(os.fstat(descriptor), path, trusted_users() if owners is None else owners)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def directory_problem(path: str) -> str | None:
    """Return why the directory cannot be trusted, or None, also if it does not exist."""
    try:
        os.close(open_directory(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        if os.path.islink(path):
            return f"{path} is a link; name the directory itself ({os.path.realpath(path)})"
        return f"{path} {error.strerror}" if error.errno == errno.EPERM else f"{path}: {error.strerror}"
    return None


def own_directories(path: str) -> list[str]:
    """Return the names of the trusted directories in `path`, sorted; none if `path` is not trusted."""
    try:
        descriptor = open_directory(path)
    except OSError:
        return []
    try:
        return [name for name in sorted(os.listdir(descriptor)) if _is_trusted_directory(name, descriptor)]
    finally:
        os.close(descriptor)


def _is_trusted_directory(name: str, dir_fd: int) -> bool:
    try:
        os.close(open_directory(name, dir_fd))
    except OSError:
        return False
    return True


def read_file(path: str, size_bytes_max: int, dir_fd: int | None = None) -> bytes:
    """Return the content of a regular file that only trusted users can have written. Raises
    OSError; does not block on a FIFO."""
    descriptor = os.open(path, _ONLY_THERE, dir_fd=dir_fd)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError(errno.EPERM, "is no regular file", path)
        _check(status, path, trusted_users())
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(size_bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(content) > size_bytes_max:
        raise OSError(errno.EFBIG, f"is longer than {size_bytes_max} bytes", path)
    return content


def _check(status: os.stat_result, path: str, owners: Collection[int]) -> None:
    if status.st_uid not in owners:
        raise PermissionError(errno.EPERM, f"belongs to user {status.st_uid}", path)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, f"can be written to by other users (mode {stat.S_IMODE(status.st_mode):04o}; chmod go-w)", path)
