"""A box that is nothing but names: a short runtime directory for its sockets, and a prefix in /dev/shm; both are removed afterwards.

All tests make theirs here; `left_behind` lists those that are not removed.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from appliance.base.layout import BoxLayout
from appliance.shm.counters import unlink_all
from appliance.shm.mapping import list_names


def make_layout() -> BoxLayout:
    """Not below pytest's `tmp_path`: Unix socket paths end at 107 bytes, and a test's name is no name for a box, another run may have it, too."""
    layout = BoxLayout(tempfile.mkdtemp(prefix="mr-"))
    os.mkdir(layout.network_directory)
    return layout


def remove_layout(layout: BoxLayout) -> None:
    """With all its shared memory. The test may have removed the directory."""
    unlink_all(layout)
    if os.path.exists(layout.runtime_directory):
        shutil.rmtree(layout.runtime_directory)


@contextmanager
def scratch_layout() -> Iterator[BoxLayout]:
    layout = make_layout()
    try:
        yield layout
    finally:
        remove_layout(layout)


def purposes_left(layout: BoxLayout) -> list[str]:
    """Names in /dev/shm without the box's prefix: `arena.acceptor@0.1f`."""
    prefix = layout.shared_memory_prefix
    return [name[len(prefix) :] for name in list_names(prefix)]


def open_descriptors() -> set[int]:
    """Descriptors of this process, to see what a test leaves open; what only waits for the garbage collector is not counted."""
    gc.collect()
    return {descriptor for descriptor in map(int, os.listdir("/proc/self/fd")) if _is_open(descriptor)}


def _is_open(descriptor: int) -> bool:
    """Whether it is still open now that the listing's own descriptor is closed again."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
