"""Decide which replica leads a partition after a failure. Pure.

The controller of the cluster decides for dead boxes (`after_death`), each box for its own replicas
(`withdraw`, `take_up`, `after_unclean_boot`). None means: leave the state as it is. `state_changes`
writes a decision under the version on which it was made.

The last member of an in-sync set is never removed: it is the only replica that is known to have
every acknowledged record. Weak: which brokers are alive is ZooKeeper's view, late by up to a
session time-out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from appliance.base.model import NO_LEADER
from appliance.cluster.placement import bump_leader_epoch, elect_leader
from appliance.cluster.znodes import PartitionState


def after_death(
    state: PartitionState, replicas: Sequence[int], live: Iterable[int], eligible: Iterable[int], unclean: bool, controller_epoch: int
) -> PartitionState | None:
    """Decide after the death of some broker: elect if the leader is dead, else remove dead members
    from the in-sync set.

    A partition without a leader is left to an in-sync box (`take_up`), because only that box knows
    whether its disk can serve. If none of them is alive and `unclean` allows it, any eligible
    replica is elected here, at the price of records that only the dead ones have.
    """
    living = set(live)
    if state.leader == NO_LEADER and (not unclean or living & set(state.isr)):
        return None  # left to the box of an in-sync replica, which takes it up
    if state.leader in living:
        isr = tuple(member for member in state.isr if member in living)
        return None if isr == state.isr or state.leader not in isr else state._replace(isr=isr, controller_epoch=controller_epoch)
    elected = elect_leader(state, replicas, eligible, unclean, controller_epoch)
    if elected.leader == NO_LEADER and state.leader == NO_LEADER:
        return None  # no candidate, and the state says so already
    return elected


def withdraw(state: PartitionState, replicas: Sequence[int], broker_id: int, eligible: Iterable[int], serves_reads: bool = False) -> PartitionState | None:
    """Decide when `broker_id` cannot or shall not serve its replica: another in-sync replica leads,
    and it leaves the set.

    If no other in-sync replica is alive, the partition has no leader and the set stays, so that no
    outdated replica can be elected; a leader that still `serves_reads` (its disk is full) stays. A
    partition without other replicas is left alone: there is no replacement, and clients know its
    leader.
    """
    if not set(replicas) - {broker_id}:
        return None
    able = set(eligible) - {broker_id}
    others = tuple(member for member in state.isr if member != broker_id)
    if state.leader != broker_id:
        return state._replace(isr=others) if broker_id in state.isr and state.leader in others else None
    leader = next((replica for replica in replicas if replica in able and replica in others), None)
    if leader is None:  # the set stays: its members alone have every acknowledged record
        return None if serves_reads else state._replace(leader=NO_LEADER, leader_epoch=state.leader_epoch + 1)
    return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, isr=others)


def take_up(state: PartitionState, broker_id: int) -> PartitionState | None:
    """Decide when `broker_id` can serve its replica again: it leads if there is no leader and it is
    in sync.
    """
    if state.leader != NO_LEADER or broker_id not in state.isr:
        return None
    return state._replace(leader=broker_id, leader_epoch=state.leader_epoch + 1)


def after_unclean_boot(state: PartitionState, replicas: Sequence[int], broker_id: int, eligible: Iterable[int]) -> PartitionState | None:
    """Decide when `broker_id` may have lost the end of its log.

    * Another live in-sync replica has all records, so it leads.
    * A replica that does not lead leaves the in-sync set whenever another member stays, even a dead
      one. Otherwise an election could choose this replica and lose what only the dead one has.
    * If it leads and no other member is alive, it continues under a larger epoch: offsets that
      consumers have read must not return with other content under the old epoch.
    """
    able = set(eligible) - {broker_id}
    others = tuple(member for member in state.isr if member != broker_id)
    if state.leader == broker_id:
        return withdraw(state, replicas, broker_id, able) if able & set(others) else bump_leader_epoch(state, state.controller_epoch)
    if broker_id not in state.isr or not others:
        return None
    leader = next((replica for replica in (*replicas, *others) if replica in able and replica in others), NO_LEADER)
    if state.leader != NO_LEADER or leader == NO_LEADER:
        return state._replace(isr=others)
    return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, isr=others)
