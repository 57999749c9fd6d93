"""Boxes over one ZooKeeper in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.stepped_cluster import SteppedCluster


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
