"""Guards for producers that a log has sent to their coordinator before a transaction begins.

The first batch of a transaction is not appended at once. It gets a guard, and returns with it when
the transaction coordinator has confirmed that the partition belongs to the transaction. A guard is
a number that one incarnation of a log-writer issues once. It is valid for one producer id and epoch
until a batch has used it or the transaction has ended, so a late answer to a question about an
older transaction opens nothing. Guards are in memory only: after a restart batches are verified
again. Owned by its log. Source: KIP-890, Kafka's `VerificationStateEntry`.

A batch with an invalid guard is refused, unless its producer leaves it to the broker to add
partitions (Produce 12): then it gets a new guard, and the coordinator is asked once more. Such a
producer begins a transaction while the markers of the previous one are on their way under the same
producer epoch, so a marker often arrives between guard and answer. A batch of an aborted
transaction has an older epoch, which the coordinator refuses. In the first protocol the epoch
stays, and only the guard distinguishes the transactions. Weak spot: with verification switched off
the log relies on its clients.
"""

from __future__ import annotations

from typing import NamedTuple

from appliance.base.errors import ErrorCode
from appliance.base.model import ProducerId


class Offer(NamedTuple):
    """How a transactional batch or a marker is offered.

    `guard` 0: for the first time. `adds_partition`: the producer lets the broker add the partition
    to the transaction (Produce 12, KIP-890), so its epoch is new in each transaction.
    """

    guard: int
    adds_partition: bool
    is_coordinator: bool = False
    """From a coordinator, into its own topic: it is asked nothing, and counts no sequences."""
    is_verified: bool = False
    """It has asked another coordinator before, and the guard it got then must still be good, unless
    the transaction is open."""
    raises_epoch: bool = False
    """Of a marker: its producer epoch is larger than that of its transaction's batches."""


GUARDS_MAX = 10_000
"""Beyond them a log forgets the oldest: a client may ask for any number of producer ids."""

FIRST_OFFER = Offer(0, False)
RAISED_EPOCH = Offer(0, False, raises_epoch=True)


class NeedsVerification(NamedTuple):
    """The batch must be verified by its coordinator, and be offered again with this guard."""

    guard: int


class _Verification(NamedTuple):
    guard: int
    producer_epoch: int
    lowest_sequence: int
    adds_partition: bool
    began_ms: int


class Verifications:
    """The guards of one log, by producer id."""

    def __init__(self, is_enabled: bool = True, first_guard: int = 1) -> None:
        self.is_enabled = is_enabled
        self._next_guard = first_guard
        self._by_producer: dict[ProducerId, _Verification] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def problem(
        self, producer_id: ProducerId, producer_epoch: int, base_sequence: int, offer: Offer, is_known: bool, now_ms: int
    ) -> NeedsVerification | ErrorCode | None:
        """Return why the batch must not begin a transaction (yet), None if it may.

        `is_known`: batches of this producer are remembered.
        """
        if not offer.guard:
            if not self.is_enabled and not offer.adds_partition:
                return None
            return NeedsVerification(self._begin(producer_id, producer_epoch, base_sequence, offer.adds_partition, now_ms))
        found = self._by_producer.get(producer_id)
        if found is None or found.guard != offer.guard or found.producer_epoch != producer_epoch:
            if offer.adds_partition and (found is None or found.producer_epoch <= producer_epoch):
                return NeedsVerification(self._begin(producer_id, producer_epoch, base_sequence, True, now_ms))
            return ErrorCode.INVALID_TXN_STATE
        if base_sequence > found.lowest_sequence or (found.adds_partition and base_sequence and not is_known):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # one that was sent before it is still on its way
        return None

    def begin(self, producer_id: ProducerId, producer_epoch: int, now_ms: int) -> int:
        """Return a guard for a coordinator that is about to ask another one.

        `now_ms` is wall time.
        """
        return self._begin(producer_id, producer_epoch, 0, False, now_ms)

    def is_good(self, producer_id: ProducerId, producer_epoch: int, guard: int) -> bool:
        """Return whether no transaction of the producer has begun or ended here since the guard was
        issued.
        """
        found = self._by_producer.get(producer_id)
        return guard != 0 and found is not None and (found.guard, found.producer_epoch) == (guard, producer_epoch)

    def _begin(self, producer_id: ProducerId, producer_epoch: int, base_sequence: int, adds_partition: bool, now_ms: int) -> int:
        found = self._by_producer.get(producer_id)
        if found is None or found.producer_epoch < producer_epoch:
            self._by_producer.pop(producer_id, None)  # the new guard is the youngest
            if len(self._by_producer) >= GUARDS_MAX:
                del self._by_producer[next(iter(self._by_producer))]
            found = _Verification(self._next_guard, producer_epoch, base_sequence, adds_partition, now_ms)
            self._next_guard += 1
        elif found.producer_epoch == producer_epoch and base_sequence < found.lowest_sequence:
            found = found._replace(lowest_sequence=base_sequence)
        self._by_producer[producer_id] = found
        return found.guard

    def end(self, producer_id: ProducerId) -> None:
        """Invalidate the producer's guard: a batch used it, or the transaction ended."""
        self._by_producer.pop(producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget guards that were issued `expiration_ms` ago and not used.

        `now_ms` is wall time.
        """
        self._by_producer = {producer_id: found for producer_id, found in self._by_producer.items() if now_ms - found.began_ms < expiration_ms}
