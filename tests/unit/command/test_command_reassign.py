"""`millrace topic reassign`, `topic elect` and `millrace box …`: what they mean, what they refuse all at once, what they plan, and their progress bar."""

from __future__ import annotations

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import BrokerId, LeaderEpoch
from appliance.client.boxes import BoxContents, BoxDescription, DiskSize, Ongoing, Partition
from appliance.client.cluster import PartitionMetadata
from appliance.cluster.box_balance import BalancePlan, PlannedReassignment, ReplicatedPartition
from appliance.command import topic
from appliance.command.box import DrainPlans, require_known, require_running
from appliance.command.cluster_view import ClusterView, file_systems_here
from appliance.command.failures import UsageProblem
from appliance.command.reassigning import FOLLOWERS, LEADERS, ReassignmentBar, print_plan, refuse, throttled_replicas
from appliance.command.topic_reassign import explicit_plan, parse_ids, refuse_unplaced, require_meaning, require_there, spread_plan
from appliance.runtime import running_boxes
from appliance.runtime.new_disk_checks import Mounts
from lab.scratch_layout import scratch_layout

GIB = 1 << 30
MIB = 1 << 20


def box(broker_id: int, sizes: dict[Partition, int], *offline: str) -> BoxDescription:
    disks = [DiskSize("/srv/d0", ErrorCode.NONE, 100 * GIB, 60 * GIB)]
    disks += [DiskSize(path, ErrorCode.KAFKA_STORAGE_ERROR, -1, -1) for path in offline]
    return BoxDescription(broker_id, f"box{broker_id}:9092", None, broker_id == 1, BoxContents(tuple(disks), sizes))


def partition(number: int, *replicas: int) -> PartitionMetadata:
    ids = tuple(BrokerId(replica) for replica in replicas)
    return PartitionMetadata(number, ids[0], LeaderEpoch(0), ids, ids, ErrorCode.NONE)


def view(ongoing: dict[Partition, Ongoing] | None = None, on_3: dict[Partition, int] | None = None) -> ClusterView:
    """Two partitions of 10 and 20 MiB on boxes 1 and 2; box 3 is empty unless said otherwise."""
    sizes = {("t", 0): 10 * MIB, ("t", 1): 20 * MIB}
    replicas = {("t", 0): (1, 2), ("t", 1): (2, 1)}
    for key, each in (ongoing or {}).items():
        replicas[key] = each.replicas  # type: ignore[assignment]
    partitions = {key: partition(key[1], *ids) for key, ids in replicas.items()}
    return ClusterView({1: box(1, sizes), 2: box(2, sizes, "/srv/d1"), 3: box(3, on_3 or {})}, partitions, ongoing or {})


def test_disks_of_this_machine_that_share_a_file_system_have_its_space_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disks = tuple(DiskSize(path, ErrorCode.NONE, 100 * GIB, 60 * GIB) for path in ("/srv/a/d0", "/srv/a/d1", "/srv/b"))
    boxes = {number: BoxDescription(number, f"box{number}:9092", None, False, BoxContents(disks, {})) for number in (1, 2)}
    document = {"broker_id": 1, "disks": [{"name": disk.path[-2:], "path": disk.path} for disk in disks]}
    with scratch_layout() as layout:
        monkeypatch.setattr(running_boxes, "boxes_with", lambda _directory: [running_boxes.KnownBox(layout, document)])
        mounts = Mounts("1 0 8:1 / / rw\n2 1 8:2 / /srv/a rw\n3 1 8:3 / /srv/b rw\n", lambda device: device)
        looked = ClusterView(boxes, {}, {}, frozenset(), file_systems_here(boxes.values(), mounts))
    assert [(room.broker_id, room.free_bytes, room.total_bytes) for room in looked.rooms()] == [
        (1, 120 * GIB, 200 * GIB),
        (2, 180 * GIB, 300 * GIB),
    ], "box 2 is on another machine, which does not say"


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(UsageProblem) as refused:
        require_meaning(["a b", "t"], "1,x", ["0=1,2", "0=2", "one"], "fast", True, True)
    text = str(refused.value)
    for word in ("a b", "--to 1,x", "names partition 0 twice", "--replicas one", "one topic", "both say where to", "--cancel stands alone", "--throttle"):
        assert word in text, word


def test_what_is_meant_is_read() -> None:
    assert require_meaning(["t"], None, ["1=3,2"], "50MiB", False, False) == ({1: (3, 2)}, None, 50 * MIB)
    assert require_meaning([], "3, 1", [], None, False, True) == ({}, [3, 1], None)
    assert parse_ids("1,1") == parse_ids("") == parse_ids("-1") == []


def test_what_is_not_there_is_said_at_once() -> None:
    with pytest.raises(UsageProblem) as refused:
        require_there(view(), ["t"], [1, 9], {0: (1, 8), 7: (1,)})
    assert str(refused.value).splitlines() == ["topic t has no partition 7", "no box 8, 9 runs; there are 1, 2, 3"]
    with pytest.raises(UsageProblem, match="no topic u"):
        require_there(view(), ["u"], [], {})


def test_named_replicas_are_planned_as_far_as_they_differ() -> None:
    assert explicit_plan(view(), "t", {0: (1, 2), 1: (3, 1)}) == BalancePlan((PlannedReassignment("t", 1, (2, 1), (3, 1), 20 * MIB),))


def test_a_spread_leaves_boxes_that_are_not_wanted_and_fills_those_that_are() -> None:
    plan = spread_plan(view(), {"t"}, [1, 3])
    assert [(change.partition, change.replicas) for change in plan.changes] == [(1, (3, 1)), (0, (1, 3))]
    assert [change.coming for change in spread_plan(view(), None, None).changes] == [(3,)], "20 MiB to box 3 make it even, 30 would not"
    with pytest.raises(RequestRefused, match="fit on no other box: t-1, t-0"):
        refuse_unplaced(spread_plan(view(), None, [1]))


def test_a_box_that_is_emptied_takes_part_in_nothing_unless_it_is_named() -> None:
    emptied = view()._replace(closed=frozenset({3}))
    assert [room.broker_id for room in emptied.open_rooms()] == [1, 2] and len(emptied.rooms()) == 3
    assert spread_plan(emptied, None, None).changes == ()
    assert spread_plan(emptied, {"t"}, [1, 3]).changes == spread_plan(view(), {"t"}, [1, 3]).changes


def test_a_moving_replica_counts_at_its_target_with_its_size() -> None:
    moving = view({("t", 1): Ongoing((3, 1, 2), (3,), (2,))}, on_3={("t", 1): 5 * MIB})
    assert moving.held() == [ReplicatedPartition("t", 0, (1, 2), 10 * MIB, (1, 2)), ReplicatedPartition("t", 1, (3, 1), 20 * MIB, (3, 1, 2))]
    rooms = {room.broker_id: room for room in moving.rooms()}
    assert rooms[3].promised_bytes == 15 * MIB and rooms[1].promised_bytes == 0 and rooms[2].total_bytes == 100 * GIB
    assert moving.absent_boxes() == [] and moving.replicas_on(3) == [("t", 1)]


def test_the_plan_says_what_moves_how_much_and_how_long_at_least(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(BalancePlan((PlannedReassignment("t", 1, (2, 1), (3, 1), 20 * MIB), PlannedReassignment("t", 0, (1, 2), (2, 1), 10 * MIB))), 2 * MIB)
    assert capsys.readouterr().out.splitlines() == [
        "PARTITION      SIZE  REPLICAS  BECOME  CHANGE",
        "t-1        20.0 MiB  2,1       3,1     +3, -2",
        "t-0        10.0 MiB  1,2       2,1     order only",
        "2 partitions, 20.0 MiB to copy",
        "to receive: box 3 20.0 MiB",
        "at 2.0 MiB/s for each box that is at least 10s",
    ]


def test_the_bar_follows_what_the_receivers_have() -> None:
    clock = ManualClock()
    bar, partitions = ReassignmentBar(clock), {("t", 0), ("t", 1)}
    both = {("t", 0): Ongoing((3, 1, 2), (3,), (2,)), ("t", 1): Ongoing((3, 2, 1), (3,), (1,))}
    began_ms = clock.monotonic_ms()
    assert bar.text(view(both), partitions, began_ms) == "[........................]   0%  0 B of 30.0 MiB  0 of 2 partitions  0 B/s  ETA -"
    later = view({("t", 1): both[("t", 1)]}, on_3={("t", 0): 10 * MIB, ("t", 1): 5 * MIB})
    assert bar.text(later, partitions, began_ms + 5000) == "[############............]  50%  15.0 MiB of 30.0 MiB  1 of 2 partitions  3.0 MiB/s  ETA 5s"
    assert bar.text(view(), partitions, began_ms + 10_000).startswith("[########################] 100%  30.0 MiB of 30.0 MiB  2 of 2 partitions")


def test_only_copied_replicas_are_throttled() -> None:
    plan = BalancePlan(
        (PlannedReassignment("t", 1, (2, 1), (3, 1), 1), PlannedReassignment("t", 0, (1, 2), (4,), 1), PlannedReassignment("u", 0, (1, 2), (2, 1), 1))
    )
    assert throttled_replicas(plan) == {"t": {LEADERS: "0:1,0:2,1:2,1:1", FOLLOWERS: "0:4,1:3"}}


def test_refusals_are_reported_together() -> None:
    refuse([])
    with pytest.raises(RequestRefused) as refused:
        refuse(RequestRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"no {number}") for number in range(7))
    assert str(refused.value).count("no ") == 5 and "and 2 more" in str(refused.value)


def test_a_box_must_run_to_be_filled_and_be_known_to_be_emptied() -> None:
    with pytest.raises(UsageProblem, match="box 4 does not run"):
        require_running(view(), 4)
    with pytest.raises(UsageProblem, match="no box 4; there are 1, 2, 3"):
        require_known(view(), 4)
    lost = view()._replace(boxes={1: box(1, {})})
    require_known(lost, 2)
    assert lost.absent_boxes() == [2]


def test_an_unclean_election_wants_names() -> None:
    with pytest.raises(UsageProblem) as refused:
        topic.require_meaning([], [1], True)
    assert len(str(refused.value).splitlines()) == 2


def test_a_drain_orders_what_it_has_ordered_again_only_if_many_looks_in_a_row_show_it_on_the_box() -> None:
    """Metadata names old and new replicas of a finished reassignment for a moment: that is no reason to add a replica, or to give up."""
    both = {("t", 0): partition(0, 1, 3), ("t", 1): partition(1, 2, 1, 3)}
    late = view()._replace(partitions=both, closed=frozenset({3}))
    first = view({("t", 0): Ongoing((1, 3), (1,), (3,))})
    plans = DrainPlans(3, first, BalancePlan((PlannedReassignment("t", 1, (2, 3), (2, 1), MIB),)))
    nothing = BalancePlan(())
    assert [plans.next(late) for _ in range(DrainPlans.LOOKS_MIN - 1)] == [nothing] * (DrainPlans.LOOKS_MIN - 1)
    assert plans.next(view()) == nothing, "Metadata names the new replicas now"
    seen = [plans.next(late) for _ in range(DrainPlans.LOOKS_MIN)]
    assert seen[:-1] == [nothing] * (DrainPlans.LOOKS_MIN - 1)
    assert [change.replicas for change in seen[-1].changes] == [(1, 2)] and [str(held) for held in seen[-1].unplaced] == ["t-1"]


def test_a_drain_orders_at_once_what_has_come_to_the_box_since_it_began() -> None:
    came = view()._replace(partitions={("t", 0): partition(0, 3), ("t", 1): partition(1, 2, 1)}, closed=frozenset({3}))
    plans = DrainPlans(3, view(), BalancePlan(()))
    assert [change.replicas for change in plans.next(came).changes] == [(1,)]
    assert plans.next(came).changes == ()
