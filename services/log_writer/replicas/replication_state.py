"""The replicas of a led partition: its high watermark, and the ISR that its leader proposes.

One object for each partition that this box leads and that has several replicas. The log-writer
passes everything to it (appends, followers' fetches, committed ISRs, time) and carries out its
decisions. Pure: times are arguments, monotonic nanoseconds of one box.

The maximal ISR (the committed one and the proposal) counts until ZooKeeper has answered, so
acks=all is safe whatever becomes of the proposal. A leader that has not heard from its controller
(partition epoch `UNKNOWN`: a new incarnation of the log-writer) knows neither the committed ISR nor
the last proposal of the dead one, so every assigned replica counts. A replica that leaves the ISR
must show its position again by a later fetch: its disk may be gone. Sources: KIP-497 (maximal ISR),
KIP-903 (broker epochs of returning replicas), KIP-966 (the high watermark does not move below
`min.insync.replicas`).

Weak spots: a fetch that was unread on an old connection while its follower lost its disk and came
back under the same broker epoch counts until that follower's next fetch; a follower outside the ISR
counts as live for `OUTSIDER_WAIT_NS`, or for two of its rounds, after its last fetch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from appliance.base.invariants import check
from appliance.base.model import FIRST_OFFSET, NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset

UNKNOWN = -1
NEVER = -(1 << 62)
NO_PROPOSAL = -1
UNSENT = 0

PROPOSAL_REPEAT_NS = 5_000_000_000
"""After which a proposal without an answer is repeated."""
ISR_PROPOSAL_PAUSE_NS = 500_000_000
"""Between a refused proposal and the next one."""
OUTSIDER_WAIT_NS = 250_000_000
"""How long after its last fetch the high watermark waits for a replica that keeps up and is not in
the ISR yet. A live one fetches many times in that while under load; without the wait it would never
get in, always behind by what was appended since its last fetch. A replica whose box stops cleanly
has left the ISR and fetches until the end: acks=all waits this long for it (with 1 s it took 1.3 s
over a stop). On an overloaded machine one round of fetch and append takes longer; then the wait is
`OUTSIDER_ROUNDS` of its rounds, at most `OUTSIDER_WAIT_NS_MAX`."""
OUTSIDER_ROUNDS = 2
OUTSIDER_WAIT_NS_MAX = 5_000_000_000


class IsrProposal(NamedTuple):
    """The ISR that the controller is to write if the partition's state still has `partition_epoch`.

    `broker_epochs`: for each replica to be added, the broker epoch under which it fetched. `number`
    comes back with the answer; a repeated proposal has a new one.
    """

    number: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: dict[int, int]


class FollowerProgress:
    """One follower as its leader knows it.

    Offsets are -1 until it has fetched under this leader epoch.
    """

    __slots__ = (
        "broker_epoch",
        "caught_up_ns",
        "fetched_ns",
        "is_counted",
        "leader_end_at_fetch",
        "left_ns",
        "log_end_offset",
        "log_start_offset",
        "replica_id",
        "round_ns",
    )

    def __init__(self, replica_id: int) -> None:
        self.replica_id = replica_id
        self.broker_epoch = 0
        self.left_ns = NEVER
        """When it was out of the ISR: fetches that came before say nothing."""
        self.is_counted = False
        """Whether it is in the maximal ISR."""
        self.forget()

    def forget(self) -> None:
        self.log_end_offset = NO_OFFSET
        self.log_start_offset = FIRST_OFFSET
        self.caught_up_ns = NEVER
        """The last time at which it is known to have had everything that the leader had."""
        self.fetched_ns = NEVER
        self.leader_end_at_fetch = NO_OFFSET
        """The leader's log end offset at its last fetch: at a later one that begins there, it has
        caught up with what was then."""
        self.round_ns = 0
        """From a fetch that was behind, and so was answered at once, to the next one. Measured
        outside the ISR."""

    @property
    def awaited_ns(self) -> int:
        """How long the high watermark waits for it after its last fetch, while it is outside the
        ISR.
        """
        return max(OUTSIDER_WAIT_NS, min(OUTSIDER_ROUNDS * self.round_ns, OUTSIDER_WAIT_NS_MAX))


class ReplicationState:
    """Methods that return a bool: whether the high watermark moved or a proposal is due
    (`take_proposal`).
    """

    __slots__ = (
        "_checked_ns",
        "_counted",
        "_epoch_start_offset",
        "_followers",
        "_is_due",
        "_lag_ns",
        "_number",
        "_pause_until_ns",
        "_proposal",
        "_sent_ns",
        "_ticked_ns",
        "broker_id",
        "dropped",
        "durable_offset",
        "high_watermark",
        "isr",
        "leader_epoch",
        "log_end_offset",
        "log_start_offset",
        "min_insync_replicas",
        "partition_epoch",
        "replicas",
    )

    def __init__(self, broker_id: int, lag_ns: int, min_insync_replicas: int) -> None:
        """`lag_ns` is `replica.lag.time.max.ms`."""
        self.broker_id = broker_id
        self._lag_ns = lag_ns
        self.min_insync_replicas = min_insync_replicas
        """As configured; more than there are replicas is as many as there are."""
        self.leader_epoch = NO_LEADER_EPOCH
        self.partition_epoch = UNKNOWN
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        """Committed."""
        self.log_end_offset = FIRST_OFFSET
        self.log_start_offset = FIRST_OFFSET
        self.durable_offset: Offset | None = None
        """What of the leader's own log counts, where acknowledgements wait for flushes; None: all
        of it."""
        self.high_watermark = FIRST_OFFSET
        self.dropped = 0
        """Fetches that were dropped: of an unknown replica, of an old broker epoch, or from before
        the replica left the ISR."""
        self._epoch_start_offset = FIRST_OFFSET
        self._followers: tuple[FollowerProgress, ...] = ()
        self._counted: tuple[FollowerProgress, ...] = ()
        self._proposal: IsrProposal | None = None
        """Decided, and not settled; what it asks for counts from the decision on."""
        self._number = 0
        self._sent_ns = NEVER
        self._is_due = False
        self._pause_until_ns = NEVER
        self._checked_ns = NEVER
        self._ticked_ns = NEVER

    # --- what the controller says

    def on_become_leader(
        self,
        leader_epoch: LeaderEpoch,
        isr: Iterable[int],
        replicas: Iterable[int],
        partition_epoch: int,
        log_start_offset: Offset,
        log_end_offset: Offset,
        high_watermark: Offset,
        now_ns: int,
    ) -> bool:
        """Lead under `leader_epoch`.

        Again under the same one: only replicas and ISR are taken over. `partition_epoch` `UNKNOWN`:
        `isr` is hearsay.
        """
        if leader_epoch == self.leader_epoch:
            self.replicas = tuple(replicas)
            self._count()
            return self.on_isr(isr, partition_epoch, now_ns)
        check(leader_epoch > self.leader_epoch, f"leader epoch {leader_epoch} after {self.leader_epoch}")
        self.leader_epoch, self.partition_epoch = leader_epoch, partition_epoch
        self.log_start_offset, self.log_end_offset = log_start_offset, log_end_offset
        self.high_watermark = min(high_watermark, log_end_offset)
        self._epoch_start_offset = log_end_offset
        self._followers, self._proposal, self._is_due = (), None, False
        self._pause_until_ns = NEVER
        self._checked_ns = self._ticked_ns = now_ns
        self.isr = tuple(isr)
        self.replicas = tuple(replicas)
        self._count()
        for follower in self._counted:
            follower.caught_up_ns = now_ns
        return self._advance(now_ns)

    def on_isr(self, isr: Iterable[int], partition_epoch: int, now_ns: int, number: int = NO_PROPOSAL) -> bool:
        """Apply the committed ISR under the current leader epoch. `number`: of the proposal that it
        answers.

        With the same partition epoch it ends a proposal only if it answers the last copy that was
        sent. A larger partition epoch always ends it, since a proposal is written for one partition
        epoch.
        """
        if partition_epoch < self.partition_epoch:
            return False
        if partition_epoch == self.partition_epoch:
            if self._proposal is None or number != self._proposal.number:
                return False
            self._pause_until_ns = now_ns + ISR_PROPOSAL_PAUSE_NS
        before = self.replicas if self.partition_epoch == UNKNOWN else self.isr
        self.partition_epoch = partition_epoch
        self.isr = tuple(isr)
        self._proposal, self._is_due = None, False
        for follower in self._followers:
            if follower.replica_id in before and follower.replica_id not in self.isr:
                follower.forget()
                follower.left_ns = now_ns
            elif follower.replica_id in self.isr and follower.replica_id not in before and follower.caught_up_ns < now_ns - self._lag_ns:
                follower.caught_up_ns = now_ns  # the controller added it: it has the full time to catch up
        self._count()
        return self._advance(now_ns)

    def _count(self) -> None:
        """Update the followers and which of them count. A replica that is being removed from the
        assignment counts as long as it is in sync."""
        known = {follower.replica_id: follower for follower in self._followers}
        replicas = dict.fromkeys((*self.replicas, *self.isr))
        self._followers = tuple(known.get(replica) or FollowerProgress(replica) for replica in replicas if replica != self.broker_id)
        maximal_isr = self.maximal_isr
        for follower in self._followers:
            follower.is_counted = follower.replica_id in maximal_isr
        self._counted = tuple(follower for follower in self._followers if follower.is_counted)

    # --- what the log says

    def on_append(self, log_end_offset: Offset, now_ns: int) -> bool:
        """The leader's log ends there now.

        A follower that had everything has been caught up until now.
        """
        before = self.log_end_offset
        self.log_end_offset = log_end_offset
        for follower in self._followers:
            if follower.log_end_offset == before:
                follower.caught_up_ns = now_ns
        return not self._counted and self._advance(now_ns)

    def on_durable(self, durable_offset: Offset | None, now_ns: int) -> bool:
        """Where acknowledgements wait for flushes: what of the leader's log survives a power cut.

        None: they do not wait any more.
        """
        self.durable_offset = durable_offset
        return self._advance(now_ns)

    # --- what followers say

    def on_progress(self, replica_id: int, fetch_offset: Offset, received_ns: int, broker_epoch: int = 0, log_start_offset: Offset = FIRST_OFFSET) -> bool:
        """A follower's fetch, which the acceptor has found to agree with our log (leader epochs,
        range): it has everything below `fetch_offset`.
        """
        follower = self._follower(replica_id)
        if follower is None or not 0 <= fetch_offset <= self.log_end_offset:
            self.dropped += 1
            return False
        if broker_epoch < follower.broker_epoch or received_ns <= follower.left_ns or received_ns < follower.fetched_ns:
            self.dropped += 1
            return False
        if broker_epoch > follower.broker_epoch:
            follower.broker_epoch = broker_epoch
            follower.fetched_ns, follower.leader_end_at_fetch = NEVER, NO_OFFSET
        if not follower.is_counted and NO_OFFSET < follower.log_end_offset < follower.leader_end_at_fetch:
            follower.round_ns = received_ns - follower.fetched_ns
        if fetch_offset >= self.log_end_offset:
            follower.caught_up_ns = max(follower.caught_up_ns, received_ns)
        elif fetch_offset >= follower.leader_end_at_fetch != NO_OFFSET:
            follower.caught_up_ns = max(follower.caught_up_ns, follower.fetched_ns)
        follower.fetched_ns = received_ns
        follower.leader_end_at_fetch = self.log_end_offset
        follower.log_start_offset = log_start_offset
        has_moved = fetch_offset != follower.log_end_offset
        follower.log_end_offset = fetch_offset
        moved = has_moved and self._advance(received_ns)
        if not follower.is_counted and self._maybe_expand(follower, received_ns):
            return True
        return moved

    def _follower(self, replica_id: int) -> FollowerProgress | None:
        for follower in self._followers:
            if follower.replica_id == replica_id:
                return follower
        return None

    # --- time

    def tick(self, now_ns: int) -> bool:
        """Find followers that lag, and repeat an unanswered proposal.

        Call it at least every `lag_ns` / 8, after all fetches that have arrived.
        """
        slept_ns, self._ticked_ns = now_ns - self._ticked_ns, now_ns
        if self._proposal is not None and now_ns - self._sent_ns >= PROPOSAL_REPEAT_NS:
            self._is_due = True
        if slept_ns > self._lag_ns // 4:
            self._checked_ns = now_ns - self._lag_ns // 4  # this process slept, and does not know which followers lagged
        elif now_ns - self._checked_ns >= self._lag_ns // 2 and self._proposal is None:
            self._checked_ns = now_ns
            self._maybe_shrink(now_ns)
        moved = self._advance(now_ns)
        return moved or self._is_due

    def _maybe_shrink(self, now_ns: int) -> None:
        if now_ns < self._pause_until_ns or self.partition_epoch == UNKNOWN:
            return
        lagging = {follower.replica_id for follower in self._followers if follower.replica_id in self.isr and not self._is_caught_up(follower, now_ns)}
        if lagging:
            self._propose(tuple(replica for replica in self.isr if replica not in lagging))

    def _maybe_expand(self, follower: FollowerProgress, now_ns: int) -> bool:
        """Propose to add a follower that has everything committed, and everything of this leader
        epoch's start.
        """
        if self._proposal is not None or self.partition_epoch == UNKNOWN or now_ns < self._pause_until_ns or follower.replica_id not in self.replicas:
            return False
        if follower.log_end_offset < max(self.high_watermark, self._epoch_start_offset):
            return False
        self._propose(self.isr + (follower.replica_id,))
        return True

    def _is_caught_up(self, follower: FollowerProgress, now_ns: int) -> bool:
        return follower.log_end_offset == self.log_end_offset or now_ns - follower.caught_up_ns <= self._lag_ns

    def _propose(self, isr: tuple[int, ...]) -> None:
        added = {follower.replica_id: follower.broker_epoch for follower in self._followers if follower.replica_id in isr and not follower.is_counted}
        self._proposal, self._is_due, self._sent_ns = IsrProposal(UNSENT, self.leader_epoch, self.partition_epoch, isr, added), True, NEVER
        self._count()

    def take_proposal(self, now_ns: int) -> IsrProposal | None:
        """What is to be sent now. From here on it is under way until `on_isr` settles it."""
        if not self._is_due or self._proposal is None:
            return None
        self._number += 1
        self._proposal = self._proposal._replace(number=self._number)
        self._is_due, self._sent_ns = False, now_ns
        return self._proposal

    # --- what follows from it

    def low_watermark(self, live_brokers: frozenset[int] | None) -> Offset:
        """Return the offset below which no replica on a live box has records (KIP-107).

        `live_brokers` None: not known yet, so all count. The caller sets the leader's own
        `log_start_offset`; a follower that has not fetched under this leader epoch counts with 0.
        """
        awaited = (each for each in self._followers if live_brokers is None or each.replica_id in live_brokers)
        return min((self.log_start_offset, *(follower.log_start_offset for follower in awaited)))

    @property
    def has_enough_replicas(self) -> bool:
        """Whether acks=all is taken."""
        return len(self.isr) >= min(self.min_insync_replicas, len(self.replicas))

    @property
    def followers(self) -> tuple[FollowerProgress, ...]:
        """For those who show them."""
        return self._followers

    @property
    def maximal_isr(self) -> frozenset[int]:
        if self.partition_epoch == UNKNOWN:
            return frozenset((*self.isr, *self.replicas))
        return frozenset(self.isr if self._proposal is None else (*self.isr, *self._proposal.isr))

    def _advance(self, now_ns: int) -> bool:
        """Move the high watermark to the smallest end of all replicas that count; never back."""
        end = self.log_end_offset if self.durable_offset is None else min(self.durable_offset, self.log_end_offset)
        for follower in self._followers:
            if follower.log_end_offset < end and (follower.is_counted or self._is_outsider_awaited(follower, now_ns)):
                end = follower.log_end_offset
        if end <= self.high_watermark or not self.has_enough_replicas:
            return False
        self.high_watermark = end
        return True

    def _is_outsider_awaited(self, follower: FollowerProgress, now_ns: int) -> bool:
        if follower.fetched_ns <= follower.left_ns or now_ns - follower.caught_up_ns > self._lag_ns:
            return False
        return now_ns - follower.fetched_ns <= follower.awaited_ns
