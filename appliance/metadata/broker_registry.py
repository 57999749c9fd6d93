"""The registration of this broker, the cluster's id, the roots of the tree, and the list of all brokers: operations on ZooKeeper.

Owned by the controller process. Every operation may be started again after any step. Which box a broker id belongs to is told by the
box's identity in `/millrace/brokers/N`: it lets a box that lost its session (a reboot, a killed process without its saved session) take
its own registration back at once instead of waiting for the time-out, and keeps two boxes with one id apart. Weak spot: a box whose
state directory was lost is a stranger to its old registration and waits until that has timed out.
"""

from __future__ import annotations

from typing import Any

from appliance.metadata.operation import Operation, all_of
from appliance.metadata.requests import Create, Delete, Get, GetChildren, Multi, MultiFailed, Node, NodeExists, NoNode, SetData, Write, ZooKeeperFailed
from appliance.metadata.znodes import (
    BROKER_IDS,
    CLUSTER,
    CLUSTER_ID,
    PERSISTENT_PATHS,
    BoxRecord,
    BrokerRegistration,
    box_path,
    broker_path,
    decode_cluster_id,
    encode_cluster_id,
    parents_first,
    placements_path,
)


class BrokerIdTaken(ZooKeeperFailed):
    """The broker id, or the address, is registered by somebody else who may still live."""


def read(path: str, watch: bool = False) -> Operation[Node | None]:
    """A node, or None when there is none."""
    try:
        node: Node = yield Get(path, watch)
    except NoNode:
        return None
    return node


def create_roots(broker_id: int) -> Operation[None]:
    """Kafka's empty root paths and ours. Costs one round trip per missing path, one in all when none is missing."""
    paths = parents_first((*PERSISTENT_PATHS, placements_path(broker_id), CLUSTER))
    found: list[Any] = yield from all_of([GetChildren(path) for path in paths])
    for path, children in zip(paths, found, strict=True):
        if isinstance(children, NoNode):
            try:
                yield Create(path)
            except NodeExists:
                pass  # another broker was quicker
        elif isinstance(children, Exception):
            raise children


def take_cluster_id(candidate: str) -> Operation[str]:
    """The cluster's id: what stands in ZooKeeper, else `candidate`, which then stands there."""
    node = yield from read(CLUSTER_ID)
    if node is None:
        try:
            yield Create(CLUSTER_ID, encode_cluster_id(candidate))
            return candidate
        except NodeExists:
            node = yield from read(CLUSTER_ID)
            assert node is not None
    return decode_cluster_id(node.data)


def register_broker(registration: BrokerRegistration, box: BoxRecord, session_id: int) -> Operation[int]:
    """Register under `session_id`; returns the broker epoch (the node's czxid). `BrokerIdTaken` says who is in the way."""
    broker_id = registration.broker_id
    path = broker_path(broker_id)
    record = yield from read(box_path(broker_id))
    former = BoxRecord.decode(box_path(broker_id), record.data) if record is not None and record.data else None
    existing = yield from read(path)
    if existing is not None and existing.owner != session_id and (former is None or former.box_id != box.box_id):
        owner = f"box {former.box_id}" if former else "a broker that is not ours"
        raise BrokerIdTaken(f"broker id {broker_id} is registered by {owner}; give this box another one, or wait until that registration has timed out")
    yield from _refuse_address_taken(registration)
    if former is None or former.box_id != box.box_id:
        yield SetData(box_path(broker_id), box.encode(), -1)
    if existing is not None and existing.owner == session_id:
        if not _same_content(existing.data, registration):
            yield SetData(path, registration.encode(), -1)
        return existing.czxid
    writes: list[Write] = [] if existing is None else [Delete(path, existing.version)]
    writes += [Create(path, b"", ephemeral=True), SetData(path, registration.encode(), 0)]
    try:
        yield Multi(tuple(writes))
    except MultiFailed as refused:
        raise BrokerIdTaken(f"broker id {broker_id} was registered by somebody else at the same time") from refused
    node = yield from read(path)
    return node.czxid if node is not None else -1


def record_directories(broker_id: int, box: BoxRecord) -> Operation[BoxRecord]:
    """Add the box's directories to what is recorded of it → all that are recorded. A disk has one directory, the one told last; which directories are
    being drained stays as it is recorded."""
    node = yield from read(box_path(broker_id))
    former = BoxRecord.decode(box_path(broker_id), node.data) if node is not None and node.data else box
    kept = {directory: disk for directory, disk in former.directories.items() if disk not in box.directories.values()}
    merged = BoxRecord(box.box_id, dict(sorted({**kept, **box.directories}.items())), former.draining)
    if merged != former or node is None or not node.data:
        yield SetData(box_path(broker_id), merged.encode(), -1)
    return merged


def _same_content(data: bytes, registration: BrokerRegistration) -> bool:
    """Whether the registered node says what we would say, its time apart; a node without data is one whose second write is missing."""
    return bool(data) and BrokerRegistration.decode(registration.broker_id, data)._replace(timestamp_ms=0) == registration._replace(timestamp_ms=0)


def _refuse_address_taken(registration: BrokerRegistration) -> Operation[None]:
    others = yield from read_brokers(watch=False)
    ours = {(host, port) for _, host, port in registration.endpoints}
    for other in others.values():
        taken = ours & {(host, port) for _, host, port in other.endpoints}
        if other.broker_id != registration.broker_id and taken:
            host, port = sorted(taken)[0]
            raise BrokerIdTaken(f"address {host}:{port} is registered by broker {other.broker_id}; advertise another one")


def read_brokers(watch: bool) -> Operation[dict[int, BrokerRegistration]]:
    """All registered brokers; with `watch`, changes under `/brokers/ids` are told."""
    children = yield GetChildren(BROKER_IDS, watch)
    ids = sorted(int(child) for child in children if child.isdigit())
    nodes = yield from all_of([Get(broker_path(broker_id)) for broker_id in ids])
    brokers = {}
    for broker_id, node in zip(ids, nodes, strict=True):
        if isinstance(node, Node) and node.data:
            brokers[broker_id] = BrokerRegistration.decode(broker_id, node.data)
        elif isinstance(node, Exception) and not isinstance(node, NoNode):
            raise node
    return brokers
