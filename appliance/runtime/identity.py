"""The identity of a box: lock of the state directory, broker id, cluster id, and the port of its
ZooKeeper.

`STATE/identity.json` is written once and replaced atomically. The supervisor holds the lock on
`STATE/.lock`. The controller writes `STATE/cluster.id` when the box has joined a cluster: from the
next start on it can join no other one. Weak: in the first incarnation of a box with a shared
ZooKeeper, only the controller knows the cluster id; it is '' here.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import socket
from typing import NamedTuple

from appliance.base.errors import ConfigurationProblems
from appliance.runtime.directories import LOCK_FILE, META_PROPERTIES, in_use_problem

DEFAULT_BROKER_ID = 1
_FILE = "identity.json"
_CLUSTER_FILE = "cluster.id"
_GENERATION_FILE = "generation"


class Identity(NamedTuple):
    """`cluster_id` may be '' (see the module); `zookeeper_port` is 0 before one was chosen."""

    broker_id: int
    cluster_id: str = ""
    zookeeper_port: int = 0


def read_identity(state: str) -> Identity | None:
    """Return the identity in a state directory; None in a new one. Raises ConfigurationProblems if
    it is damaged."""
    try:
        with open(f"{state}/{_FILE}", "rb") as file:
            return Identity(**json.load(file))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationProblems([f"--state {state}: cannot read {_FILE} in it: {error}; restore it from a copy, or choose another with --state"]) from error


def write_identity(state: str, identity: Identity) -> None:
    """Replace the identity atomically."""
    _write_through(f"{state}/{_FILE}", json.dumps(identity._asdict()))


def read_joined_cluster(state: str) -> str:
    """Return the cluster that this box has joined; '' for none."""
    try:
        with open(f"{state}/{_CLUSTER_FILE}") as file:
            return file.read().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def write_joined_cluster(state: str, cluster_id: str) -> None:
    os.makedirs(state, exist_ok=True)
    _write_through(f"{state}/{_CLUSTER_FILE}", cluster_id)


def read_generation(state: str) -> int | None:
    """Return the box's generation (`BoxRecord.generation`), None if it has none, or it cannot be read."""
    try:
        with open(f"{state}/{_GENERATION_FILE}", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def write_generation(state: str, number: int) -> bool:
    """Replace the box's generation, synced: in place, so that a power cut cannot bring the former
    file back. Return whether the file is new: then its name is not synced yet. Raises OSError."""
    path = f"{state}/{_GENERATION_FILE}"
    is_new = not os.path.exists(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_SYNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"%020d\n" % number)
    finally:
        os.close(descriptor)
    return is_new


def _write_through(path: str, text: str) -> None:
    """Replace a file with O_SYNC. After a power cut, a lost identity would make the disks of the
    box look foreign."""
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, text.encode() + b"\n")
    finally:
        os.close(descriptor)
    os.rename(f"{path}.new", path)


def plan_identity(state: str, owners: dict[str, dict[str, str]], broker_id: int | None, embedded: bool) -> tuple[Identity, list[str]]:
    """Return which broker of which cluster this box is, and each contradiction.

    `owners`: the meta.properties of the log directories, by path.
    """
    try:
        kept = read_identity(state)
    except ConfigurationProblems as error:
        return Identity(DEFAULT_BROKER_ID), error.problems
    problems = []
    if kept is not None and broker_id is not None and kept.broker_id != broker_id:
        problems.append(
            f"--broker-id is {broker_id}, but the state directory {state} is of broker {kept.broker_id}; leave the option out, or choose another --state"
        )
    cluster_ids = {properties["cluster.id"]: path for path, properties in owners.items() if properties.get("cluster.id")}
    cluster_id = (kept.cluster_id if kept is not None else "") or read_joined_cluster(state)
    identity = Identity(
        broker_id=kept.broker_id if kept is not None else DEFAULT_BROKER_ID if broker_id is None else broker_id,
        cluster_id=cluster_id or ("" if embedded else next(iter(cluster_ids), "")),
        zookeeper_port=kept.zookeeper_port if kept is not None else 0,
    )
    if embedded and not identity.cluster_id and cluster_ids:
        paths = ", ".join(owners)
        problems.append(
            f"{paths}: written by a box of cluster {next(iter(cluster_ids))}, but the state directory {state} is new and knows none of its topics;"
            " name the state directory that belongs to it with --state, or give empty directories with --data"
        )
        return identity, problems
    for path, properties in owners.items():
        problems += _owner_problems(path, properties, identity)
    if embedded and not identity.cluster_id:
        identity = identity._replace(cluster_id=new_cluster_id())
    return identity, problems


def _owner_problems(path: str, properties: dict[str, str], identity: Identity) -> list[str]:
    problems = []
    cluster_id, broker_id = properties.get("cluster.id", ""), properties.get("broker.id", properties.get("node.id", ""))
    if identity.cluster_id and cluster_id and cluster_id != identity.cluster_id:
        problems.append(
            f"--data {path} belongs to another box: its {META_PROPERTIES} says cluster {cluster_id}, this box is of cluster {identity.cluster_id};"
            " give this box's own directory, or an empty one"
        )
    if broker_id and broker_id != str(identity.broker_id):
        problems.append(
            f"--data {path} belongs to another box: its {META_PROPERTIES} says broker {broker_id}, this is broker {identity.broker_id};"
            " give this box's own directory, or an empty one"
        )
    return problems


def new_cluster_id() -> str:
    """Return a random id in Kafka's form: 22 characters of base64url. It does not begin with a
    dash, which starts an option."""
    while True:
        text = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def lock_state(state: str) -> int:
    """Lock the state directory until the process ends; returns the descriptor. Raises
    ConfigurationProblems if another process has it."""
    descriptor = os.open(f"{state}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ConfigurationProblems([in_use_problem(state, "--state") or f"--state {state} is locked; choose another with --state"]) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def choose_zookeeper_port(kept: int) -> int:
    """Return the loopback port of the embedded ZooKeeper: `kept` if that is free, otherwise any
    free port."""
    for port in (kept, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(sock.getsockname()[1])
    raise ConfigurationProblems(["no free TCP port on 127.0.0.1 for the embedded ZooKeeper; see `ss -s`, or name a server with --zookeeper HOST:PORT"])
