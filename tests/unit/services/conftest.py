"""Fixtures for one stepped agent, boxes over one ZooKeeper in memory, and files without syncs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.base.layout import BoxLayout
from appliance.storage import file_io
from lab.scratch_layout import scratch_layout
from tests.support.stepped_cluster import SteppedCluster


@pytest.fixture
def layout() -> Iterator[BoxLayout]:
    with scratch_layout() as made:
        yield made


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., SteppedCluster]]:
    made: list[SteppedCluster] = []

    def make(count: int = 3, **options: object) -> SteppedCluster:
        made.append(SteppedCluster(tmp_path, count, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def three(make_cluster: Callable[..., SteppedCluster]) -> SteppedCluster:
    cluster = make_cluster(3)
    cluster.until_quiet()
    return cluster


@pytest.fixture
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """For modules that cut no power: syncing has to be called with a good descriptor, not to be waited for."""
    for name in ("fsync", "fdatasync", "syncfs"):
        monkeypatch.setattr(file_io, name, os.fstat)
