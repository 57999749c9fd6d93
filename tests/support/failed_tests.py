"""A failed test harms no other: what it left open is let go of at once, and silently.

A test that fails in its middle leaves sockets, files and processes behind, and pytest keeps its frames for a debugger. Where the garbage
collector finds them later, each is a ResourceWarning, which is an error here, of whatever test runs at that moment. Owned by conftest.py, which
has these hooks. Weak spot: what a module's fixture holds on to stays.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Generator

import pytest

_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if item.nodeid in _failed:
        _failed.discard(item.nodeid)
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            sys.__dict__.pop(name, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    return result
