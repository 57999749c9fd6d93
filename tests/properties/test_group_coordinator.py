"""A group under random clients, time, refused appends and restarts: one leader, no partition twice, every request answered, memory as the log has it."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from appliance.base.errors import ErrorCode
from appliance.cluster.state_log import LoadedRecord
from appliance.protocol.group_apis import JoinGroupProtocol, JoinGroupResponse, LeavingMember
from services.coordinator.groups.group import Group, GroupState
from services.coordinator.groups.group_records import OFFSET_COMMIT, OffsetKey, read_key
from tests.support.group_world import GROUP, Replies, World

pytestmark = pytest.mark.slow

SESSION_MS = 6_000
REBALANCE_MS = 9_000
DELAY_MS = 1_000
ANSWERED_WITHIN_MS = 2 * REBALANCE_MS + DELAY_MS
PARTITIONS = range(6)
PRODUCERS = (7,)
REFUSALS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT)
PROTOCOLS = (
    (JoinGroupProtocol("range", b""), JoinGroupProtocol("sticky", b"")),
    (JoinGroupProtocol("sticky", b""), JoinGroupProtocol("range", b"")),
    (JoinGroupProtocol("range", b"more"),),
)
CLIENTS = 4


class Client:
    """One consumer process: what it knows of itself."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.instance = f"instance{index}" if index % 2 else None
        self.member_id = ""
        self.generation_id = -1
        self.joined: JoinGroupResponse | None = None


class Open(NamedTuple):
    """A request that waits for its answer."""

    client: Client
    told: Replies[Any]
    since_ms: int
    asked: str


class GroupUnderStress(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(
            offsets_topic_num_partitions=1,
            group_initial_rebalance_delay_ms=DELAY_MS,
            group_min_session_timeout_ms=1,
            offsets_retention_minutes=1,
            offsets_retention_check_interval_ms=30_000,
        )
        self.world.coordinator.begin(self.world.now_ms)
        self.clients = [Client(index) for index in range(CLIENTS)]
        self.open: list[Open] = []
        self.group: Group | None = None
        self.leaders: dict[int, int] = {}
        self.tags: dict[int, str] = {}
        self.owners: dict[tuple[str, str], int] = {}
        self.newest_generation = 0
        self.assigned_generation = 0
        self.tag = 0
        self.is_log_whole = True
        """Nothing is in the log that was reported to the coordinator as not written."""
        self.was_refused = False

    def ask(self, client: Client, told: Replies[Any], asked: str) -> None:
        self.open.append(Open(client, told, self.world.now_ms, asked))
        self.look_at_answers()

    def look_at_answers(self) -> None:
        group = self.world.coordinator.directory.find_classic(GROUP)
        if group is not self.group:  # deleted or grown old, and made anew: its generations begin again
            self.group = group
            self.forget_generations()
        for request in [request for request in self.open if request.told]:
            self.open.remove(request)
            if request.asked == "join":
                self.on_joined(request.client, request.told.only)
            else:
                self.on_synced(request)
        for request in self.open:
            assert request.asked == "join" or int(request.asked) >= self.newest_generation, "a sync waits that no generation will answer"

    def forget_generations(self) -> None:
        self.newest_generation = self.assigned_generation = 0
        self.leaders.clear()
        self.tags.clear()

    def on_joined(self, client: Client, response: JoinGroupResponse) -> None:
        error = ErrorCode(response.error_code)
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif error is ErrorCode.UNKNOWN_MEMBER_ID or error is ErrorCode.FENCED_INSTANCE_ID:
            client.joined = None
            if response.member_id in ("", client.member_id):
                client.member_id = ""
        elif error is ErrorCode.NONE:
            client.member_id, client.generation_id, client.joined = response.member_id, response.generation_id, response
            assert response.generation_id >= self.newest_generation, "a generation went back"
            self.newest_generation = response.generation_id
            leader = self.owner_of(response.group_leader_id)
            assert self.leaders.setdefault(response.generation_id, leader) == leader, "two leaders in one generation"
            if response.members:
                assert response.group_leader_id == response.member_id

    def owner_of(self, member_id: str) -> int:
        """Ids of static members begin with their instance, those of dynamic ones are distinct by
        themselves.
        """
        return int(member_id[len("instance")]) if member_id.startswith("instance") else 1_000 + int(member_id.rpartition("id")[2])

    def on_synced(self, request: Open) -> None:
        response = request.told.only
        client, generation_id = request.client, int(request.asked)
        if response.error_code != ErrorCode.NONE:
            return
        self.assigned_generation = max(self.assigned_generation, generation_id)
        if not response.assignment:
            return
        tag, _, partitions = response.assignment.decode().partition(":")
        assert self.tags.setdefault(generation_id, tag) == tag, "two assignments of one generation"
        for partition in partitions.split(","):
            owner = self.owners.setdefault((tag, partition), client.index)
            assert owner == client.index, f"partition {partition} has two owners in one generation"

    # ---- what clients do

    @rule(index=st.integers(0, CLIENTS - 1), protocols=st.sampled_from(PROTOCOLS), forgets=st.booleans())
    def join(self, index: int, protocols: tuple[JoinGroupProtocol, ...], forgets: bool) -> None:
        """Static members forget their id, as a process does that is started again."""
        client = self.clients[index]
        if forgets and client.instance is not None:
            client.member_id, client.joined = "", None
        told = self.world.join(client.member_id, instance=client.instance, protocols=protocols, session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS)
        self.ask(client, told, "join")

    @rule(count=st.integers(0, CLIENTS), is_answered=st.booleans())
    def all_members_join_and_some_sync(self, count: int, is_answered: bool) -> None:
        """What healthy clients do, so that generations are reached that single steps seldom reach."""
        for _ in range(2):
            for client in self.clients:
                self.join(client.index, PROTOCOLS[0], False)
        self.pass_time(DELAY_MS)
        for client in self.clients[CLIENTS - count :]:
            self.sync(client.index)
        if is_answered:
            self.the_log_answers()

    @rule(index=st.integers(0, CLIENTS - 1))
    def sync(self, index: int) -> None:
        client = self.clients[index]
        joined = client.joined
        if joined is None:
            return
        assignments: dict[str, bytes] = {}
        if joined.members and not joined.skip_assignment:
            self.tag += 1
            ids = [member.member_id for member in joined.members]
            for place, member_id in enumerate(ids):
                own = [str(partition) for partition in PARTITIONS if partition % len(ids) == place]
                assignments[member_id] = f"{self.tag}:{','.join(own)}".encode()
        told = self.world.sync(client.member_id, client.generation_id, assignments, instance=client.instance)
        self.ask(client, told, str(client.generation_id))

    @rule(index=st.integers(0, CLIENTS - 1))
    def heartbeat(self, index: int) -> None:
        client = self.clients[index]
        if self.world.heartbeat(client.member_id, client.generation_id, instance=client.instance) is ErrorCode.NONE:
            assert client.member_id in self.world.coordinator.directory.find_classic(GROUP).members  # type: ignore[union-attr]

    @rule(index=st.integers(0, CLIENTS - 1))
    def leave(self, index: int) -> None:
        client = self.clients[index]
        self.world.leave(LeavingMember(client.member_id, client.instance))
        client.member_id, client.joined = "", None
        self.look_at_answers()

    @rule(index=st.integers(0, CLIENTS - 1), partition=st.integers(0, 1), offset=st.integers(0, 100))
    def commit(self, index: int, partition: int, offset: int) -> None:
        client = self.clients[index]
        self.world.commit({("syslog", partition): offset}, member_id=client.member_id, generation_id=client.generation_id, instance=client.instance)

    @rule(partition=st.integers(0, 1), offset=st.integers(0, 100))
    def commit_as_unknown_member(self, partition: int, offset: int) -> None:
        self.world.commit({("syslog", partition): offset})

    @rule(producer_id=st.sampled_from(PRODUCERS), partition=st.integers(0, 1), offset=st.integers(0, 100))
    def commit_in_transaction(self, producer_id: int, partition: int, offset: int) -> None:
        self.world.txn_commit(producer_id, {("syslog", partition): offset})

    @rule(index=st.integers(0, CLIENTS - 1), offset=st.integers(0, 100), is_commit=st.booleans(), is_deleted=st.booleans())
    def commit_while_a_transaction_is_open(self, index: int, offset: int, is_commit: bool, is_deleted: bool) -> None:
        """The orders in which an older offset could come back."""
        self.commit_in_transaction(PRODUCERS[0], 0, offset)
        if is_deleted:
            self.delete_offset(0)
        self.commit(index, 0, offset + 1)
        self.commit_as_unknown_member(0, offset + 1)
        self.the_log_answers()
        self.world.end_transaction(PRODUCERS[0], is_commit)

    @precondition(lambda self: not self.world.log.waiting)
    @rule(producer_id=st.sampled_from(PRODUCERS), is_commit=st.booleans())
    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        self.world.turn()
        self.world.end_transaction(producer_id, is_commit)

    @rule(partition=st.integers(0, 1))
    def delete_offset(self, partition: int) -> None:
        self.world.delete_offsets(("syslog", partition))

    @rule()
    def delete_group(self) -> None:
        self.world.delete_groups(GROUP)

    # ---- what the world does

    @rule(milliseconds=st.sampled_from((1, DELAY_MS, SESSION_MS - 1, REBALANCE_MS, 70_000)))
    def pass_time(self, milliseconds: int) -> None:
        self.world.pass_ms(milliseconds)
        self.look_at_answers()

    @rule()
    def the_log_answers(self) -> None:
        self.world.settle()
        self.look_at_answers()

    @precondition(lambda self: self.world.log.waiting)
    @rule(error=st.sampled_from(REFUSALS))
    def the_log_refuses(self, error: ErrorCode) -> None:
        self.world.log.answer_one(error)
        self.was_refused = True
        self.world.turn()
        self.look_at_answers()

    @precondition(lambda self: self.world.log.waiting)
    @rule()
    def an_append_times_out_that_is_in_the_log(self) -> None:
        self.world.log.answer_one(ErrorCode.REQUEST_TIMED_OUT, is_kept=True)
        self.is_log_whole = False
        self.was_refused = True
        self.world.turn()
        self.look_at_answers()

    @rule()
    def restart(self) -> None:
        before = self.world.describe()
        is_quiet = not self.world.log.waiting and not self.was_refused and before.group_state == "Stable"
        self.world.restart()
        self.world.coordinator.begin(self.world.now_ms)
        self.open.clear()
        after = self.world.describe()
        if is_quiet:
            assert after._replace(members=tuple(sorted(after.members))) == before._replace(members=tuple(sorted(before.members)))
        group = self.world.coordinator.directory.find_classic(GROUP)
        if group is not None and group.members and self.is_log_whole:
            assert group.generation_id >= self.assigned_generation, "an assignment that was given out is forgotten"
        self.look_at_answers()
        self.is_log_whole = True
        self.was_refused = False

    # ---- what always holds

    @invariant()
    def no_request_waits_longer_than_its_timeout(self) -> None:
        for request in self.open:
            assert self.world.now_ms - request.since_ms <= ANSWERED_WITHIN_MS, request

    @invariant()
    def the_group_is_in_order(self) -> None:
        group = self.world.coordinator.directory.find_classic(GROUP)
        if group is None:
            return
        members = group.members
        assert group.group_leader_id in members if members else group.group_leader_id is None
        assert group.static_members == {member.group_instance_id: member_id for member_id, member in members.items() if member.is_static}
        assert group.awaiting_join_count == sum(member.awaiting_join is not None for member in members.values())
        assert group.offered_protocols == Counter(protocol.name for member in members.values() for protocol in member.protocols)
        assert not (group.state is GroupState.EMPTY and members)
        assert group.pending_sync <= members.keys()
        assert not group.pending_members.keys() & members.keys()
        assert (group.join_timer is not None and group.join_timer.is_live) == (group.state is GroupState.PREPARING_REBALANCE)
        if group.state is GroupState.COMPLETING_REBALANCE and not group.is_assigning:
            assert group.sync_timer is not None and group.sync_timer.is_live
        for member in members.values():
            assert member.is_parked or (member.session_timer is not None and member.session_timer.is_live)

    @invariant()
    def memory_is_what_a_replay_of_the_log_gives(self) -> None:
        if not self.world.log.waiting and self.is_log_whole:
            self.world.turn()
            if not self.world.log.waiting:
                assert self.world.offsets() == replay(self.world.log.content.get(0, []))


def replay(records: list[LoadedRecord]) -> dict[tuple[str, int], int]:
    """Offsets as the log has them, by the shortest rules that are right."""
    committed: dict[tuple[str, int], tuple[int, int]] = {}
    pending: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
    for record in records:
        producer_id = record.producer.producer_id if record.producer is not None else -1
        if record.is_commit is not None:
            for place, entry in pending.pop(producer_id, {}).items():
                if record.is_commit and committed.get(place, (-1, 0)) < entry:
                    committed[place] = entry
            continue
        key = read_key(record.key)
        if not isinstance(key, OffsetKey):
            continue
        target = committed if record.producer is None else pending.setdefault(producer_id, {})
        if record.value is None:
            target.pop((key.topic, key.partition), None)
        else:
            target[key.topic, key.partition] = (record.offset, OFFSET_COMMIT.decode_value(record.value).offset)
    return {place: offset for place, (_, offset) in committed.items()}


TestGroupUnderStress = GroupUnderStress.TestCase
TestGroupUnderStress.settings = settings(stateful_step_count=60)
