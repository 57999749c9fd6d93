"""Where boxes are whose runtime directory lies in their state directory: `$XDG_STATE_HOME/millrace/boxes` (default ~/.local/state) has a link for each.

Without XDG_RUNTIME_DIR a box of a user other than root keeps its runtime directory in `STATE/run`; by these links the commands find it. The directory has
mode 0700 and one owner; what a link names is checked like every other runtime directory. Written by the supervisor. Weak spot: a box that was killed
and never started again keeps its link until the user starts another one.
"""

from __future__ import annotations

import os

from appliance.base.trusted_files import open_directory


def registry_directory() -> str:
    base = os.environ.get("XDG_STATE_HOME", "")
    return f"{base if base.startswith('/') else os.path.expanduser('~/.local/state')}/millrace/boxes"


def registered_roots() -> list[str]:
    """What the links name, in the order of their names."""
    try:
        descriptor = open_directory(registry_directory(), owners={os.geteuid()})
    except OSError:
        return []
    try:
        return [root for name in sorted(os.listdir(descriptor)) if (root := _target(name, descriptor))]
    finally:
        os.close(descriptor)


def register_box(box: str, root: str) -> None:
    """Link to `root`, in which the box's runtime directory is; links to what is gone are removed. Raises OSError."""
    directory = registry_directory()
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    descriptor = open_directory(directory, owners={os.geteuid()})
    try:
        for name in os.listdir(descriptor):
            if name == box or not os.path.isdir(_target(name, descriptor)):
                os.unlink(name, dir_fd=descriptor)
        os.symlink(root, box, dir_fd=descriptor)
    finally:
        os.close(descriptor)


def forget_box(box: str) -> None:
    """Remove the link, if there is one."""
    try:
        descriptor = open_directory(registry_directory(), owners={os.geteuid()})
    except OSError:
        return
    try:
        os.unlink(box, dir_fd=descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _target(name: str, descriptor: int) -> str:
    """'' for what is no link."""
    try:
        return os.readlink(name, dir_fd=descriptor)
    except OSError:
        return ""
