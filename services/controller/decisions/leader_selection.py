"""Who leads when somebody cannot: decisions about one partition's state, pure.

The controller of the cluster decides for boxes that are gone (`after_death`), each box for its own replicas (`withdraw`, `take_up`, `after_unclean_boot`).
None stands for "leave it as it is". The last member of an in-sync set is never taken out: who was in sync last is all that can be trusted.
Owned by nobody; `state_changes` writes what is decided here, under the version that was decided on. Weak spot: which brokers live is what ZooKeeper
says, up to a session's time-out late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from appliance.base.model import NO_LEADER
from appliance.cluster.placement import bump_leader_epoch, elect_leader
from appliance.cluster.znodes import PartitionState


def after_death(
    state: PartitionState, replicas: Sequence[int], live: Iterable[int], eligible: Iterable[int], unclean: bool, controller_epoch: int
) -> PartitionState | None:
    """Some broker does not live: an election among the `eligible` where the leader does not live, else its in-sync set without the dead. What nobody leads
    is taken up by the box of a member in sync, which alone knows whether its disk can serve; only where none lives, and `unclean` allows it, it is elected
    here."""
    living = set(live)
    if state.leader == NO_LEADER and (not unclean or living & set(state.isr)):
        return None
    if state.leader in living:
        isr = tuple(member for member in state.isr if member in living)
        return None if isr == state.isr or state.leader not in isr else state._replace(isr=isr, controller_epoch=controller_epoch)
    elected = elect_leader(state, replicas, eligible, unclean, controller_epoch)
    if elected.leader == NO_LEADER and state.leader == NO_LEADER:
        return None
    return elected


def withdraw(state: PartitionState, replicas: Sequence[int], broker_id: int, eligible: Iterable[int]) -> PartitionState | None:
    """`broker_id` cannot, or shall not, serve its replica: another member of the in-sync set leads, and the set is without it. Where nobody else is in sync and
    lives there is no leader, and the set stays. A partition that has no other replica is left alone: nobody can help, and its leader is known."""
    if not set(replicas) - {broker_id}:
        return None
    able = set(eligible) - {broker_id}
    others = tuple(member for member in state.isr if member != broker_id)
    if state.leader != broker_id:
        return state._replace(isr=others) if broker_id in state.isr and state.leader in others else None
    leader = next((replica for replica in replicas if replica in able and replica in others), None)
    if leader is None:
        return state._replace(leader=NO_LEADER, leader_epoch=state.leader_epoch + 1)
    return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, isr=others)


def take_up(state: PartitionState, broker_id: int) -> PartitionState | None:
    """`broker_id` can serve its replica again: it leads what nobody leads, if it was in sync."""
    if state.leader != NO_LEADER or broker_id not in state.isr:
        return None
    return state._replace(leader=broker_id, leader_epoch=state.leader_epoch + 1)


def after_unclean_boot(state: PartitionState, replicas: Sequence[int], broker_id: int, eligible: Iterable[int]) -> PartitionState | None:
    """`broker_id` may have lost the end of its log. Another member of the in-sync set that lives has all of it, and leads; whoever does not lead leaves the set
    whenever another member stays, also one that does not live at the moment: what only that one has must not be lost to an election. Where it leads and no
    other member lives it goes on under a larger epoch: offsets that consumers saw must not come back with other content under the old one."""
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
