"""A cluster of three boxes for all tests of a module, which run on the clients' machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.cluster import Cluster, running_cluster
from lab.machine import why_not


@pytest.fixture(autouse=True)
def _needs_namespaces() -> None:
    if why := why_not():
        pytest.skip(why)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three boxes that serve; nothing may be left of them after a clean stop."""
    if why := why_not():
        pytest.skip(why)
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster, cluster.clients():
        yield cluster
        cluster.mend()
        assert cluster.stop() == []
