"""Which boxes of this machine run, for those who look from outside (commands, Spark).

Reads runtime directories and shared memory only: paths are compared as text, no log disk is touched, so a disk that hangs cannot hang who asks.
Weak spot: a box counts as running as long as one of its processes lives, also when that one alone is left and about to end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from appliance.base.layout import BoxLayout
from appliance.runtime.directories import known_boxes
from appliance.runtime.leftovers import living_processes


class KnownBox(NamedTuple):
    """A box that has a runtime directory, and what its box.json says (see `appliance.base.settings.Box`)."""

    layout: BoxLayout
    box: dict[str, Any]

    @property
    def data_directories(self) -> list[str]:
        return [str(disk["path"]) for disk in self.box.get("disks", [])]

    @property
    def is_running(self) -> bool:
        """Whether any of its processes lives: what a killed box left behind looks like a box until it is started again or cleared."""
        return bool(living_processes(self.layout))

    def has(self, directory: str) -> bool:
        """Whether this is one of its data directories, or the directory that they lie in."""
        wanted = os.path.abspath(directory)
        return any(wanted in (path, os.path.dirname(path)) for path in self.data_directories)


def boxes_with(data_directory: str | None) -> list[KnownBox]:
    """The running boxes that have this directory (all running ones if None). A directory that only dead boxes have finds those: what they left still tells."""
    known = [box for box in _readable_boxes() if data_directory is None or box.has(data_directory)]
    running = [box for box in known if box.is_running]
    return running if running or data_directory is None else known


def find_box(data_directory: str | None) -> BoxLayout | None:
    """The box that has this directory (the only running one if None); None if there is no such box, or nobody said which of several."""
    found = boxes_with(data_directory)
    return found[0].layout if len(found) == 1 or (found and data_directory) else None


def _readable_boxes() -> Iterator[KnownBox]:
    for layout in known_boxes():
        try:
            yield KnownBox(layout, layout.read_box())
        except (OSError, ValueError):
            continue
