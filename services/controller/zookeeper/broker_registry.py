"""The registrations of brokers, what is recorded of their boxes, the cluster's id, the roots of the tree: operations on ZooKeeper.

Owned by the controller process. Every operation may be started again after any step. Which box a broker id belongs to is told by the
box's identity in `/millrace/brokers/N`, which keeps two boxes with one id apart. A registration is never taken from another session: its box may be a
copy of ours (a cloned machine, a restored backup) whose original lives. Every registration writes that record, so its version tells one registration
from the next: who adds a replica to an in-sync set checks it (KIP-903). Weak spot: a box that comes back without its saved session (a reboot) waits
until the old one has timed out; one whose state directory was lost, until its disks have told who they are, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from appliance.cluster.znodes import (
    BROKER_IDS,
    CLUSTER,
    CLUSTER_ID,
    MILLRACE_BROKERS,
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
from services.controller.zookeeper.change_log import CHANGES, Change, change_write
from services.controller.zookeeper.operation import Operation, all_of
from services.controller.zookeeper.requests import (
    BadVersion,
    Create,
    Delete,
    Get,
    GetChildren,
    Multi,
    MultiFailed,
    Node,
    NodeExists,
    NoNode,
    SetData,
    Write,
    ZooKeeperFailed,
)


class BrokerIdTaken(ZooKeeperFailed):
    """The broker id, or the address, is registered by somebody else who may still live, or belongs to another box."""


class RegistrationHeld(BrokerIdTaken):
    """Another session holds the registration of this very box: that of its last life, until it times out, or that of a copy."""

    def __init__(self, broker_id: int, node: Node) -> None:
        endpoints = BrokerRegistration.decode(broker_id, node.data).endpoints if node.data else ()
        self.address = ", ".join(f"{host}:{port}" for _, host, port in endpoints) or "no address"
        self.owner = node.owner
        super().__init__(f"broker id {broker_id} is registered by session {node.owner:#x} of a box with this identity, at {self.address}")


class RegistrationLost(ZooKeeperFailed):
    """The registration under which we work is gone although its session lives, or is another session's. `owner`: that session, 0 when it is gone."""

    def __init__(self, broker_id: int, owner: int) -> None:
        whose = f"belongs to session {owner:#x} now: is there a copy of this box?" if owner else "is gone: somebody else has deleted it"
        super().__init__(f"the registration of broker {broker_id} {whose}")
        self.owner = owner


class DirectoryTaken(ZooKeeperFailed):
    """A disk of this box is recorded as one of another box: one of them is a copy, or it was carried over."""


class BoxesSeen(NamedTuple):
    """All boxes, by broker id: who is registered, under which broker epoch (the registration's czxid); what is recorded, in which version."""

    registrations: dict[int, BrokerRegistration]
    broker_epochs: dict[int, int]
    records: dict[int, BoxRecord]
    record_versions: dict[int, int]


def read(path: str, watch: bool = False) -> Operation[Node | None]:
    """A node, or None when there is none."""
    try:
        node: Node = yield Get(path, watch)
    except NoNode:
        return None
    return node


def create_roots(broker_id: int) -> Operation[None]:
    """Kafka's empty root paths and ours. Costs one round trip per missing path, one in all when none is missing."""
    paths = parents_first((*PERSISTENT_PATHS, placements_path(broker_id), CHANGES, CLUSTER))
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
    """Register under `session_id`, fenced if `box` says so and there are other boxes; returns the broker epoch (the node's czxid).
    `BrokerIdTaken` and `DirectoryTaken` say who is in the way. A new registration, the record that goes with it and the news of it are one transaction.
    What becomes of the registration, or of the one that is in the way, is told by a watch on its node."""
    broker_id = registration.broker_id
    path = broker_path(broker_id)
    seen = yield from read_boxes(watch=False)
    record = yield from read(box_path(broker_id))
    former = seen.records.get(broker_id)
    existing = yield from read(path, watch=True)
    try:
        yield from _refuse_strangers(registration, box, session_id, former, existing)
        _refuse_taken_directories(broker_id, box, seen)
        _refuse_address_taken(registration, seen)
    except (BrokerIdTaken, DirectoryTaken):
        if existing is not None and existing.owner == session_id:
            yield Delete(path, existing.version)  # what we found out since we registered
        raise
    if existing is not None and existing.owner == session_id:
        if not _same_content(existing.data, registration):
            yield Multi((SetData(path, registration.encode(), -1), change_write(Change(broker_id, boxes=(broker_id,)))))
        return existing.czxid
    ours = box if former is None or former.box_id != box.box_id else _merged(former, box)
    ours = ours._replace(is_fenced=box.is_fenced and bool(seen.records.keys() - {broker_id}))
    writes: list[Write] = [Create(path, b"", ephemeral=True), SetData(path, registration.encode(), 0)]
    writes += [SetData(box_path(broker_id), ours.encode(), record.version if record is not None else -1), change_write(Change(broker_id, boxes=(broker_id,)))]
    try:
        yield Multi(tuple(writes))
    except MultiFailed as refused:
        raise BrokerIdTaken(f"broker id {broker_id} was registered by somebody else at the same time") from refused
    return (yield from check_registration(broker_id, session_id))


def check_registration(broker_id: int, session_id: int) -> Operation[int]:
    """Whether the broker's registration is this session's → its broker epoch; `RegistrationLost` if not. Its next change is told."""
    node = yield from read(broker_path(broker_id), watch=True)
    if node is None or node.owner != session_id:
        raise RegistrationLost(broker_id, node.owner if node is not None else 0)
    return node.czxid


def _refuse_strangers(registration: BrokerRegistration, box: BoxRecord, session_id: int, former: BoxRecord | None, existing: Node | None) -> Operation[None]:
    """A broker id is another session's while that lives; another box's while that has partitions: unless one of our disks is one of its (then our state
    directory was lost)."""
    broker_id = registration.broker_id
    is_held = existing is not None and existing.owner != session_id
    if former is not None and former.box_id == box.box_id:
        if existing is not None and is_held:
            raise RegistrationHeld(broker_id, existing)
        return
    if is_held:
        owner = f"box {former.box_id}" if former else "a broker that is not ours"
        raise BrokerIdTaken(f"broker id {broker_id} is registered by {owner}; give this box another one, or wait until that registration has timed out")
    if former is None or not former.directories or former.directories.keys() & box.directories.keys():
        return
    if (yield GetChildren(placements_path(broker_id))):
        disks = ", ".join(sorted(box.directories)) or "none has told yet"
        raise BrokerIdTaken(
            f"broker id {broker_id} belongs to box {former.box_id}, which has partitions on directories {', '.join(sorted(former.directories))};"
            f" this box has others ({disks}). Give it another broker id, or bring those disks; if they are lost: `millrace box remove {broker_id} --lost`"
            " on another box"
        )


def _refuse_taken_directories(broker_id: int, box: BoxRecord, seen: BoxesSeen) -> None:
    ours = {directory: disk for directory, disk in box.directories.items() if directory != disk}  # one without an id goes by its disk's name
    for other_id, record in sorted(seen.records.items()):
        is_another = other_id != broker_id and (record.box_id != box.box_id or other_id in seen.registrations)  # a copy of a whole box has its identity too
        taken = sorted(ours.keys() & record.directories.keys()) if is_another else []
        if taken:
            raise DirectoryTaken(
                f"disk {ours[taken[0]]} (directory id {taken[0]}) is recorded as a disk of broker {other_id}: if it is a copy, empty it;"
                f" if it was carried over, remove it there first"
            )


def _refuse_address_taken(registration: BrokerRegistration, seen: BoxesSeen) -> None:
    ours = {(host, port) for _, host, port in registration.endpoints}
    for other in seen.registrations.values():
        taken = ours & {(host, port) for _, host, port in other.endpoints}
        if other.broker_id != registration.broker_id and taken:
            host, port = sorted(taken)[0]
            raise BrokerIdTaken(f"address {host}:{port} is registered by broker {other.broker_id}; advertise another one")


def record_directories(broker_id: int, box: BoxRecord) -> Operation[tuple[BoxRecord, int]]:
    """Add the box's directories to what is recorded of it → all that are recorded, and the record's version. A disk has one directory, the one told last;
    which directories are being drained stays as it is recorded. `DirectoryTaken`: another box has one of them."""
    while True:
        seen = yield from read_boxes(watch=False)
        _refuse_taken_directories(broker_id, box, seen)
        former, version = seen.records.get(broker_id, box), seen.record_versions.get(broker_id, -1)
        merged = _merged(former, box)._replace(is_fenced=former.is_fenced)
        if merged == former and broker_id in seen.records:
            return merged, version
        try:
            version = yield from write_record(broker_id, merged, version)
        except MultiFailed as refused:
            if isinstance(refused.cause, BadVersion):
                continue  # another disk of this box was recorded at the same time
            raise
        return merged, version


def write_record(broker_id: int, record: BoxRecord, version: int) -> Operation[int]:
    """Write what is recorded of this box if it has this version, and tell everybody → the record's new version."""
    results = yield Multi((SetData(box_path(broker_id), record.encode(), version), change_write(Change(broker_id, boxes=(broker_id,)))))
    return int(results[0])


def change_record(broker_id: int, decide: Callable[[BoxRecord], BoxRecord]) -> Operation[tuple[BoxRecord, int]]:
    """Change what is recorded of this box, whatever else changes it at the same time → the record and its version."""
    path = box_path(broker_id)
    while True:
        node: Node = yield Get(path)
        former = BoxRecord.decode(path, node.data)
        wanted = decide(former)
        if wanted == former:
            return former, node.version
        try:
            version = yield from write_record(broker_id, wanted, node.version)
        except MultiFailed as refused:
            if isinstance(refused.cause, BadVersion):
                continue
            raise
        return wanted, version


def _merged(former: BoxRecord, box: BoxRecord) -> BoxRecord:
    kept = {directory: disk for directory, disk in former.directories.items() if disk not in box.directories.values()}
    return BoxRecord(box.box_id, dict(sorted({**kept, **box.directories}.items())), former.draining)


def _same_content(data: bytes, registration: BrokerRegistration) -> bool:
    """Whether the registered node says what we would say, its time apart; a node without data is one whose second write is missing."""
    return bool(data) and BrokerRegistration.decode(registration.broker_id, data)._replace(timestamp_ms=0) == registration._replace(timestamp_ms=0)


def read_boxes(watch: bool) -> Operation[BoxesSeen]:
    """All boxes; with `watch`, changes under `/brokers/ids` are told. Records are read before registrations: a registration that came in between has
    a version that is not the one read, so that a check of it fails rather than passes for a registration that was not seen."""
    registered = yield GetChildren(BROKER_IDS, watch)
    recorded = yield GetChildren(MILLRACE_BROKERS)
    record_ids, ids = _ids(recorded), _ids(registered)
    paths = [*(box_path(broker_id) for broker_id in record_ids), *(broker_path(broker_id) for broker_id in ids)]
    nodes = yield from all_of([Get(path) for path in paths])
    seen = BoxesSeen({}, {}, {}, {})
    for broker_id, node in zip(record_ids, nodes, strict=False):
        if _is_there(node) and node.data:
            seen.records[broker_id] = BoxRecord.decode(box_path(broker_id), node.data)
            seen.record_versions[broker_id] = node.version
    for broker_id, node in zip(ids, nodes[len(record_ids) :], strict=True):
        if _is_there(node) and node.data:
            seen.registrations[broker_id] = BrokerRegistration.decode(broker_id, node.data)
            seen.broker_epochs[broker_id] = node.czxid
    return seen


def _ids(children: Iterable[str]) -> list[int]:
    return sorted(int(child) for child in children if child.isdigit())


def _is_there(node: Any) -> bool:
    if isinstance(node, Exception) and not isinstance(node, NoNode):
        raise node
    return isinstance(node, Node)
