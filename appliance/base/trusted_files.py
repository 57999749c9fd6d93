"""Opens directories and files only if no other user could have written them. All access to runtime
directories uses this module.

A process trusts its own user and root; root also trusts the user of the installed box. Files are
opened without following links and checked by descriptor, so that a later change of the path has no
effect. Weak: the parents of an opened directory are not checked.

The installed box has two users with one group: `millrace` owns logs and secrets, and `millrace-net`
runs the processes that face the network. Those trust what belongs to the group, because in their
user namespaces the other user has the number of each stranger; the others trust nothing of theirs.
A process whose group is not `millrace` (of `millrace run`) has one user.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Collection
from functools import cache

SYSTEM_USER = "millrace"
"""The user of the installed box, and the group of its processes (systemd/sysusers.conf)."""
NETWORK_USER = "millrace-net"
"""The user of its processes that face the network."""
UNMAPPED_USER = 65_534
"""What the kernel shows of a user that a user namespace does not have (overflowuid)."""
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
    return frozenset({user}) if user else frozenset({0, *_user_ids(SYSTEM_USER)})


def _user_ids(*names: str) -> list[int]:
    found = []
    for name in names:
        try:
            found.append(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue
    return found


@cache
def box_group() -> int | None:
    """Return the group that the two users of the installed box share, if this process has it; None
    for a box of one user."""
    group = _system_group()
    return group if group == os.getegid() else None


@cache
def _system_group() -> int | None:
    try:
        return grp.getgrnam(SYSTEM_USER).gr_gid
    except KeyError:
        return None


@cache
def faces_network() -> bool:
    """Return whether this process runs as the user that faces the network."""
    return box_group() is not None and os.geteuid() not in (0, *_user_ids(SYSTEM_USER))


def runs_box(user: int, group: int) -> bool:
    """Return whether a peer with these credentials is the user that owns the logs of this box.

    In the user namespace of a process that faces the network that user has the number of each
    stranger, but it alone has the group of the box.
    """
    if not faces_network():
        return user == os.geteuid()
    return user in _user_ids(SYSTEM_USER) or (user == UNMAPPED_USER and group == box_group())


def shared_mode() -> int:
    """Return the mode of a file or object that the processes of the box read, and no other user."""
    return 0o600 if box_group() is None else 0o640


def network_user_problem(path: str) -> str | None:
    """Return why the processes of this box that face the network cannot read a file, such as a key;
    None if they can, or there is no such file. Root checks it for the installed box. Weak:
    directories above it are not checked."""
    group = box_group() if os.geteuid() else _system_group()
    try:
        status = os.stat(path)
    except OSError:
        return None
    is_readable = status.st_mode & stat.S_IROTH or (status.st_mode & stat.S_IRGRP and status.st_gid == group)
    if group is None or faces_network() or is_readable:
        return None
    return f"user {NETWORK_USER} cannot read {path} (mode {stat.S_IMODE(status.st_mode):04o}); run chgrp {SYSTEM_USER} {path}; chmod g+r {path}"


def storage_user_problem(path: str) -> str | None:
    """As `network_user_problem`, for a file that the controller alone needs: its user or group must be that of the box."""
    group = _system_group()
    try:
        status = os.stat(path)
    except OSError:
        return None
    if os.geteuid() or group is None:
        is_readable = os.access(path, os.R_OK)
    else:
        is_own = bool(status.st_mode & stat.S_IRUSR) and status.st_uid in _user_ids(SYSTEM_USER)
        is_readable = is_own or bool(status.st_mode & stat.S_IRGRP and status.st_gid == group)
    if is_readable:
        return None
    return f"the user of the box cannot read {path} (mode {stat.S_IMODE(status.st_mode):04o}); run chown {SYSTEM_USER} {path}"


def may_observe(status: os.stat_result) -> bool:
    """Return whether only processes of this user's box could have written an object, so that it may
    be read: what another one counts, for example."""
    if status.st_mode & stat.S_IRWXO:
        return False
    user = os.geteuid()
    group = box_group() if user else _system_group()
    if status.st_mode & stat.S_IRWXG and status.st_gid != group:
        return False
    if status.st_uid == user:
        return True
    return status.st_uid in {*own_users(), *_user_ids(NETWORK_USER)} if user == 0 else group is not None and status.st_gid == group


def may_trust(status: os.stat_result) -> bool:
    """Return whether no process with less rights could have written an object: one that faces the
    network trusts its whole box, another one its own user, root what it observes."""
    return may_observe(status) and (status.st_uid == os.geteuid() or faces_network() or os.geteuid() == 0)


def open_directory(path: str, dir_fd: int | None = None, owners: Collection[int] | None = None) -> int:
    """Return a descriptor of the directory, which must belong to one of `owners` (default:
    `trusted_users`) and be writable by its owner alone. Raises OSError."""
    descriptor = os.open(path, _ONLY_THERE | os.O_DIRECTORY, dir_fd=dir_fd)
    try:
        _check(os.fstat(descriptor), path, owners)
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
        _check(status, path, None)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(size_bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(content) > size_bytes_max:
        raise OSError(errno.EFBIG, f"is longer than {size_bytes_max} bytes", path)
    return content


def _check(status: os.stat_result, path: str, owners: Collection[int] | None) -> None:
    is_of_box = owners is None and faces_network() and status.st_gid == box_group()
    if not is_of_box and status.st_uid not in (trusted_users() if owners is None else owners):
        raise PermissionError(errno.EPERM, f"belongs to user {status.st_uid}", path)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(errno.EPERM, f"can be written to by other users (mode {stat.S_IMODE(status.st_mode):04o}; chmod go-w)", path)
