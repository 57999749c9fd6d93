"""Trees in the one real ZooKeeper for all files that step controllers; each test has its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from lab.real_zookeeper import RealZooKeeper

_trees = itertools.count()


@pytest.fixture
def chroot(zookeeper: RealZooKeeper) -> str:
    """A connect string with a tree of this test's own, which does not exist yet."""
    return f"{zookeeper.connect}/tree-{next(_trees)}"


@pytest.fixture
def tree(zookeeper: RealZooKeeper) -> Iterator[KazooClient]:
    """A second client of the tree of this test."""
    client = KazooClient(zookeeper.connect)
    client.start()
    root = f"/tree-{next(_trees)}"
    client.ensure_path(root)
    client.chroot = root
    yield client
    client.stop()
    client.close()
