"""Sessions with a box's ZooKeeper, with the box's credentials or with others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient

from appliance.base.zookeeper_access import USER, read_secret, secret_path

Auth = list[tuple[str, str]]


def auth_of(state_directory: str) -> Auth:
    """The credentials that lie in a state directory; none where there is no secret."""
    secret = read_secret(secret_path(state_directory))
    return [("digest", f"{USER}:{secret}")] if secret else []


@contextmanager
def zookeeper_session(connect: str, auth: Auth) -> Iterator[KazooClient]:
    session = KazooClient(connect, timeout=5, auth_data=auth or None)
    session.start(10)
    try:
        yield session
    finally:
        session.stop()
        session.close()
