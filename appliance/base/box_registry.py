"""Finds boxes whose runtime directory is in their state directory, by links in
`$XDG_STATE_HOME/millrace/boxes` (default ~/.local/state).

Without XDG_RUNTIME_DIR, a box of a user other than root has its runtime directory in `STATE/run`;
commands find it by these links. The registry has mode 0700 and one owner; the target of a link is
checked like each other runtime directory. Written by the supervisor. Weak: a box that was killed
and never restarted keeps its link until the user starts another box.
"""

from __future__ import annotations

import os

from appliance.base.trusted_files import open_directory


def registry_directory() -> str:
    """Return the directory of the links."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return f"{base if base.startswith('/') else os.path.expanduser('~/.local/state')}/millrace/boxes"


def registered_roots() -> list[str]:
    """Return the targets of the links, in the order of their names."""
    try:
        descriptor = open_directory(registry_directory(), owners={os.geteuid()})
    except OSError:
        return []
    try:
        return [root for name in sorted(os.listdir(descriptor)) if (root := _target(name, descriptor))]
    finally:
        os.close(descriptor)


def register_box(box: str, root: str) -> None:
    """Link to `root`, the parent of the box's runtime directory; remove links whose target is gone.
    Raises OSError."""
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
    """Remove the link of the box, if it exists."""
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
    """Return the target of a link; '' if it is no link."""
    try:
        return os.readlink(name, dir_fd=descriptor)
    except OSError:
        return ""
