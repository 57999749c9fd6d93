"""Operations on the registrations of brokers, the records of their boxes, the cluster id and the
root paths.

Owned by the controller process. Each operation can be restarted after any step.

`/millrace/brokers/N` records the identity of the box that owns broker id N, which keeps two boxes
with the same id apart. A registration is never taken from another session: that session may belong
to the original of which this box is a copy (a cloned machine, a restored backup). Each registration
also writes the record, so the record's version identifies the registration; a transaction that adds
a replica to an in-sync set checks this version (KIP-903).

Weak: a box that lost its saved session (a reboot) waits until the old session has timed out. A box
that lost its state directory also waits until its disks have reported their directory ids.
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
from services.controller.zookeeper.change_log import CHANGES, ClusterChange, change_write
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
    """The broker id or the address is registered by another session, or the id belongs to another
    box.
    """


class RegistrationHeld(BrokerIdTaken):
    """Another session holds this box's registration: its previous incarnation's until the time-out,
    or a copy's.
    """

    def __init__(self, broker_id: int, node: Node) -> None:
        endpoints = BrokerRegistration.decode(broker_id, node.data).endpoints if node.data else ()
        self.address = ", ".join(f"{host}:{port}" for _, host, port in endpoints) or "no address"
        self.owner = node.owner
        super().__init__(f"broker id {broker_id} is registered by session {node.owner:#x} of a box with this identity, at {self.address}")


class RegistrationLost(ZooKeeperFailed):
    """Our registration was deleted or replaced although our session is alive.

    `owner` is the session that holds the registration now, 0 if there is none.
    """

    def __init__(self, broker_id: int, owner: int) -> None:
        whose = f"now belongs to session {owner:#x}: a copy of this box may be running" if owner else "was deleted by another program"
        super().__init__(f"the registration of broker {broker_id} {whose}")
        self.owner = owner


class DirectoryTaken(ZooKeeperFailed):
    """A disk of this box is recorded as a disk of another box: it is a copy, or it was moved
    between boxes.
    """


class BoxesSeen(NamedTuple):
    """All boxes by broker id: registrations with their broker epochs (czxid), records with their
    versions.
    """

    registrations: dict[int, BrokerRegistration]
    broker_epochs: dict[int, int]
    records: dict[int, BoxRecord]
    record_versions: dict[int, int]


def read(path: str, watch: bool = False) -> Operation[Node | None]:
    """Return a node, or None if it does not exist."""
    try:
        node: Node = yield Get(path, watch)
    except NoNode:
        return None
    return node


def create_roots(broker_id: int) -> Operation[None]:
    """Create Kafka's root paths and ours where they are missing: one round trip, and one per
    missing path.
    """
    yield from create_missing((*PERSISTENT_PATHS, placements_path(broker_id), CHANGES, CLUSTER))


def create_missing(wanted: tuple[str, ...]) -> Operation[None]:
    """Create the nodes that are missing, and their parents, empty."""
    paths = parents_first(wanted)
    found: list[Any] = yield from all_of([GetChildren(path) for path in paths])
    for path, children in zip(paths, found, strict=True):
        if isinstance(children, NoNode):
            try:
                yield Create(path)
            except NodeExists:
                pass  # another broker created it first
        elif isinstance(children, Exception):
            raise children


def take_cluster_id(candidate: str) -> Operation[str]:
    """Return the cluster's id from ZooKeeper; if there is none, store `candidate` and return it."""
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
    """Register under `session_id` and return the broker epoch (the node's czxid).

    The registration, the record and the change node are one transaction. If `box` is fenced and
    there are other boxes, the record is fenced too. Sets a watch on the registration, ours or the
    one that prevents ours. Raises BrokerIdTaken and DirectoryTaken.
    """
    broker_id = registration.broker_id
    path = broker_path(broker_id)
    seen = yield from read_boxes(watch=False)
    record = yield from read(box_path(broker_id))
    former = seen.records.get(broker_id)
    existing = yield from read(path, watch=True)
    try:
        yield from _refuse_other_owner(registration, box, session_id, former, existing)
        _refuse_taken_directories(broker_id, box, seen)
        _refuse_address_taken(registration, seen)
    except (BrokerIdTaken, DirectoryTaken):
        if existing is not None and existing.owner == session_id:
            yield Delete(path, existing.version)  # the conflict was found after we had registered
        raise
    if existing is not None and existing.owner == session_id:
        if not _same_content(existing.data, registration):
            yield Multi((SetData(path, registration.encode(), -1), change_write(ClusterChange(broker_id, boxes=(broker_id,)))))
        return existing.czxid
    ours = box if former is None or former.box_id != box.box_id else _merged(former, box)
    ours = ours._replace(is_fenced=box.is_fenced and bool(seen.records.keys() - {broker_id}))
    writes: list[Write] = [Create(path, b"", ephemeral=True), SetData(path, registration.encode(), 0)]
    writes += [
        SetData(box_path(broker_id), ours.encode(), record.version if record is not None else -1),
        change_write(ClusterChange(broker_id, boxes=(broker_id,))),
    ]
    try:
        yield Multi(tuple(writes))
    except MultiFailed as refused:
        raise BrokerIdTaken(f"broker id {broker_id} was registered by another session at the same time") from refused
    return (yield from check_registration(broker_id, session_id))


def check_registration(broker_id: int, session_id: int) -> Operation[int]:
    """Return the broker epoch if the registration is this session's, else raise RegistrationLost.
    Sets a watch.
    """
    node = yield from read(broker_path(broker_id), watch=True)
    if node is None or node.owner != session_id:
        raise RegistrationLost(broker_id, node.owner if node is not None else 0)
    return node.czxid


def _refuse_other_owner(registration: BrokerRegistration, box: BoxRecord, session_id: int, former: BoxRecord | None, existing: Node | None) -> Operation[None]:
    """Raise BrokerIdTaken if another session holds the id, or another box owns it and has
    partitions.

    The id passes to this box all the same if one of its disks is a disk of the recorded box: then
    it is the same box, and its state directory was lost.
    """
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
        disks = ", ".join(sorted(box.directories)) or "none reported yet"
        raise BrokerIdTaken(
            f"broker id {broker_id} belongs to box {former.box_id}, which has partitions on directories {', '.join(sorted(former.directories))};"
            f" this box has others ({disks}). Give this box another broker id, or attach those disks; if they are lost,"
            f" run `millrace box remove {broker_id} --lost` on another box"
        )


def _refuse_taken_directories(broker_id: int, box: BoxRecord, seen: BoxesSeen) -> None:
    # A directory without an id is recorded under its disk's name, which two boxes may share.
    ours = {directory: disk for directory, disk in box.directories.items() if directory != disk}
    for other_id, record in sorted(seen.records.items()):
        # A copy of a whole box has the same identity, so the identity alone does not tell two boxes apart.
        is_another = other_id != broker_id and (record.box_id != box.box_id or other_id in seen.registrations)
        taken = sorted(ours.keys() & record.directories.keys()) if is_another else []
        if taken:
            raise DirectoryTaken(
                f"disk {ours[taken[0]]} (directory id {taken[0]}) is recorded as a disk of broker {other_id}: if it is a copy,"
                " empty it; if it was moved here, remove it from that box first"
            )


def _refuse_address_taken(registration: BrokerRegistration, seen: BoxesSeen) -> None:
    ours = {(host, port) for _, host, port in registration.endpoints}
    for other in seen.registrations.values():
        taken = ours & {(host, port) for _, host, port in other.endpoints}
        if other.broker_id != registration.broker_id and taken:
            host, port = sorted(taken)[0]
            raise BrokerIdTaken(f"address {host}:{port} is registered by broker {other.broker_id}; advertise another one")


def record_directories(broker_id: int, box: BoxRecord) -> Operation[tuple[BoxRecord, int]]:
    """Add the box's directories to its record; return the record and its version.

    A disk has one directory, the one that was reported last. The draining marks stay. Raises
    DirectoryTaken if another box has one of the directories.
    """
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
                continue  # another disk of this box was recorded meanwhile
            raise
        return merged, version


def write_record(broker_id: int, record: BoxRecord, version: int) -> Operation[int]:
    """Write this box's record if it has `version`, with a change node; return the new version."""
    results = yield Multi((SetData(box_path(broker_id), record.encode(), version), change_write(ClusterChange(broker_id, boxes=(broker_id,)))))
    return int(results[0])


def change_record(broker_id: int, decide: Callable[[BoxRecord], BoxRecord]) -> Operation[tuple[BoxRecord, int]]:
    """Apply `decide` to this box's record, retrying after concurrent writes; return the record and
    its version.
    """
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
    return BoxRecord(box.box_id, dict(sorted({**kept, **box.directories}.items())), former.draining, generation=former.generation)


def _same_content(data: bytes, registration: BrokerRegistration) -> bool:
    """Whether the registered node equals `registration` apart from its time.

    A node without data is one whose second write is missing.
    """
    return bool(data) and BrokerRegistration.decode(registration.broker_id, data)._replace(timestamp_ms=0) == registration._replace(timestamp_ms=0)


def read_boxes(watch: bool) -> Operation[BoxesSeen]:
    """Read all boxes; with `watch`, set a watch on `/brokers/ids`.

    Records are read before registrations. If a box registers in between, its record has a newer
    version than the one read. A transaction that checks this version then fails, instead of passing
    for a registration that was never read.
    """
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
