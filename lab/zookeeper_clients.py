"""Sessions with a box's ZooKeeper, with the box's credentials or with others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kazoo.client import KazooClient

from appliance.base.zookeeper_access import USER, ZooKeeperAccess, read_secret, secret_path
from services.controller.zookeeper.session import authenticated_client

Auth = list[tuple[str, str]]
Credentials = ZooKeeperAccess | Auth
"""Those of a box, or what a stranger sends by ZooKeeper's own schemes."""


def auth_of(state_directory: str) -> Credentials:
    """The credentials that lie in a state directory; none where there is no secret."""
    secret = read_secret(secret_path(state_directory))
    return ZooKeeperAccess(USER, secret, True, True) if secret else []


def zookeeper_client(connect: str, credentials: Credentials, **options: Any) -> KazooClient:
    if isinstance(credentials, ZooKeeperAccess):
        return authenticated_client(credentials, hosts=connect, timeout=5, **options)
    return KazooClient(connect, timeout=5, auth_data=credentials or None, **options)


@contextmanager
def zookeeper_session(connect: str, credentials: Credentials) -> Iterator[KazooClient]:
    session = zookeeper_client(connect, credentials)
    session.start(10)
    try:
        yield session
    finally:
        session.stop()
        session.close()
