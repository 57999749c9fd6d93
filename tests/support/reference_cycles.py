"""Finds reference cycles that a process with a disabled garbage collector would never free."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def leaves_none_of(*classes: type) -> Iterator[None]:
    """Assert that no object of `classes` outlives the block, which runs with the garbage collector disabled."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        before = _count(classes)
        yield
        left = _count(classes) - before
        assert not left, f"in reference cycles: {dict(left)}"
    finally:
        if was_enabled:
            gc.enable()


def _count(classes: tuple[type, ...]) -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, classes))
