"""Rules broken on purpose: a simulation that does not notice these proves nothing.

Each replaces one shipped function by one that is wrong in a way in which a developer could get it wrong. `found_by(name, seeds)` gives the first seed of a run
that notices, and what it said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from appliance.base.model import FIRST_OFFSET, NO_LEADER_EPOCH, Offset
from appliance.cluster.placement import bump_leader_epoch
from appliance.cluster.znodes import PartitionState
from appliance.ipc.descriptors import TruncateOrder, Truncation
from appliance.storage import leader_epoch_cache
from services.controller import isr_keeper
from services.controller.decisions import leader_operations
from services.controller.decisions import leader_selection as failover
from services.coordinator.state.confirmations import LeadershipConfirmations
from services.log_writer.replicas.replication_state import FollowerProgress, ReplicationState
from tests.simulation.invariants import Broken
from tests.simulation.simulation import run
from tests.simulation.writer import Writer


class Mutation(NamedTuple):
    """`replaced`: (where, name, the wrong one)."""

    replaced: tuple[tuple[Any, str, Callable[..., Any]], ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        originals = [(where, name, getattr(where, name)) for where, name, _ in self.replaced]
        try:
            for where, name, wrong in self.replaced:
                setattr(where, name, wrong)
            yield
        finally:
            for where, name, original in originals:
                setattr(where, name, original)


# --- the wrong ones ----------------------------------------------------------------------------------------------------


def _cuts_at_high_watermark(writer: Writer, leader_epoch: int, order: TruncateOrder, truncate: Any = Writer.truncate) -> int:
    """As Kafka did before KIP-101: a new follower truncates to its high watermark, and compares no
    epochs.
    """
    if order.kind == Truncation.TELL and leader_epoch == writer.leader_epoch:
        order = TruncateOrder(Truncation.TO_OFFSET, NO_LEADER_EPOCH, Offset(writer.high_watermark))
    code: int = truncate(writer, leader_epoch, order)
    return code


def _everything_is_committed(progress: ReplicationState, _now_ns: int) -> bool:
    before, progress.high_watermark = progress.high_watermark, progress.log_end_offset
    return progress.high_watermark > before


def _shrinks_at_once(progress: ReplicationState, isr: tuple[int, ...], want: Any = ReplicationState._propose) -> None:
    want(progress, isr)
    if len(isr) < len(progress.isr):
        progress.isr = isr
        progress._count()


def _elects_any_replica(state: PartitionState, replicas: Sequence[int], live_brokers: Iterable[int], _unclean: bool, controller_epoch: int) -> PartitionState:
    living = [replica for replica in replicas if replica in set(live_brokers)]
    if not living:
        return state._replace(leader=-1, leader_epoch=state.leader_epoch + 1)
    return PartitionState(living[0], state.leader_epoch + 1, controller_epoch, (living[0],))


def _leaves_an_unclean_box_in_sync(state: PartitionState, _replicas: Sequence[int], broker_id: int, _eligible: Iterable[int]) -> PartitionState | None:
    return bump_leader_epoch(state, state.controller_epoch) if state.leader == broker_id else None


def _leaves_an_unclean_follower_in_sync(state: PartitionState, replicas: Sequence[int], broker_id: int, eligible: Iterable[int]) -> PartitionState | None:
    if state.leader == -1 and not set(state.isr) & (set(eligible) - {broker_id}):
        return None
    return failover.after_unclean_boot(state, replicas, broker_id, eligible)


def _cuts_at_the_leaders_end(_epoch: int, end_offset: int, _end_offset_for: Any, log_end_offset: int) -> int:
    return min(end_offset, log_end_offset)


def _expands_at_the_high_watermark_of_an_older_epoch(
    progress: ReplicationState, follower: FollowerProgress, now_ns: int, expand: Any = ReplicationState._maybe_expand
) -> bool:
    start, progress._epoch_start_offset = progress._epoch_start_offset, FIRST_OFFSET
    is_wished: bool = expand(progress, follower, now_ns)
    progress._epoch_start_offset = start
    return is_wished


def _writes_isr_changes_over_newer_states(cluster: Any, topic: Any, wish: Any, known_added: Any, state: PartitionState) -> PartitionState | None:
    if state.leader != cluster.broker_id:
        return None
    return state._replace(isr=wish.isr)


def _ignores_pending_isr_changes(progress: ReplicationState) -> frozenset[int]:
    return frozenset(progress.isr)


def _believes_the_image(progress: ReplicationState, *arguments: Any, become: Any = ReplicationState.on_become_leader) -> bool:
    leader_epoch, isr, replicas, partition_epoch, *rest = arguments
    is_moved: bool = become(progress, leader_epoch, isr, replicas, max(0, partition_epoch), *rest)
    return is_moved


def _accepts_fetches_of_any_epoch(writer: Writer, leader_epoch: int, *rest: Any, take: Any = Writer.apply_progress) -> None:
    take(writer, writer.leader_epoch, *rest)


def _confirms_nothing(_confirmations: LeadershipConfirmations, _ids: Any, on_confirmed: Callable[[bool], None]) -> None:
    on_confirmed(True)


MUTATIONS = {
    "a coordinator answers from memory": Mutation(((LeadershipConfirmations, "confirm", _confirms_nothing),)),
    "truncation by high watermark": Mutation(((Writer, "truncate", _cuts_at_high_watermark), (leader_epoch_cache, "is_diverging", lambda *_: False))),
    "no comparison of leader epochs": Mutation(((leader_epoch_cache, "is_diverging", lambda *_: False),)),
    "truncation at the leader's end of the epoch alone": Mutation(((leader_epoch_cache, "truncation_offset", _cuts_at_the_leaders_end),)),
    "acks=all before the in-sync set has it": Mutation(((ReplicationState, "_advance", _everything_is_committed),)),
    "the in-sync set shrinks before it is written": Mutation(((ReplicationState, "_propose", _shrinks_at_once),)),
    "a requested member does not count": Mutation(((ReplicationState, "maximal_isr", property(_ignores_pending_isr_changes)),)),  # type: ignore[arg-type]
    "a replica with the high watermark is in sync": Mutation(((ReplicationState, "_maybe_expand", _expands_at_the_high_watermark_of_an_older_epoch),)),
    "an election outside of the in-sync set": Mutation(((failover, "elect_leader", _elects_any_replica),)),
    "an unclean box stays in sync": Mutation(((leader_operations, "after_unclean_boot", _leaves_an_unclean_box_in_sync),)),
    "an unclean box stays in sync with one that is away": Mutation(((leader_operations, "after_unclean_boot", _leaves_an_unclean_follower_in_sync),)),
    "requests are written over newer states": Mutation(((isr_keeper, "decide_isr_change", _writes_isr_changes_over_newer_states),)),
    "a restarted log-writer believes an old in-sync set": Mutation(((ReplicationState, "on_become_leader", _believes_the_image),)),
    "progress of another leader epoch counts": Mutation(((Writer, "apply_progress", _accepts_fetches_of_any_epoch),)),
}


def found_by(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """The first of `seeds` whose run notices, and how; None: none did."""
    with MUTATIONS[name].applied():
        for seed in seeds:
            try:
                run(seed)
            except Broken as broken:
                return seed, str(broken).split("\n", 1)[0]
            except AssertionError as endless:
                return seed, str(endless)
    return None
