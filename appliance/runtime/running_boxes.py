"""Finds the running boxes of this machine, for commands and Spark.

Reads runtime directories and shared memory only. Paths are compared as text: no log disk is
touched, so a disk that hangs blocks no command. Weak: a box counts as running while one of its
processes runs, even if that is about to end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from appliance.base.layout import BoxLayout
from appliance.runtime.directories import known_boxes
from appliance.runtime.leftovers import living_processes


class KnownBox(NamedTuple):
    """A box with a runtime directory, and the content of its box.json
    (`appliance.base.settings.Box`)."""

    layout: BoxLayout
    box: dict[str, Any]

    @property
    def data_directories(self) -> list[str]:
        return [str(disk["path"]) for disk in self.box.get("disks", [])]

    @property
    def is_running(self) -> bool:
        """Whether any of its processes runs. The files of a killed box stay until it restarts or
        they are removed."""
        return bool(living_processes(self.layout))

    def has(self, directory: str) -> bool:
        """Return whether this is one of its data directories, or their parent."""
        wanted = os.path.abspath(directory)
        return any(wanted in (path, os.path.dirname(path)) for path in self.data_directories)


def boxes_with(data_directory: str | None) -> list[KnownBox]:
    """Return the running boxes with this directory (None: all running ones), or the dead ones if
    only those have it."""
    known = [box for box in _readable_boxes() if data_directory is None or box.has(data_directory)]
    running = [box for box in known if box.is_running]
    return running if running or data_directory is None else known


def find_box(data_directory: str | None) -> BoxLayout | None:
    """Return the box with this directory (None: the only running one); None if there is none, or
    several match."""
    found = boxes_with(data_directory)
    return found[0].layout if len(found) == 1 or (found and data_directory) else None


def _readable_boxes() -> Iterator[KnownBox]:
    for layout in known_boxes():
        try:
            yield KnownBox(layout, layout.read_box())
        except (OSError, ValueError):
            continue
