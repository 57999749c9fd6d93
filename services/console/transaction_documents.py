"""What the page of transactions and producers shows, as JSON, and the ending of a transaction: through a client
of Kafka, in a thread of `KafkaWorkers`.

A producer *hangs* if its transaction has been open in a partition for long and no coordinator knows it:
read_committed consumers wait there for ever (KIP-664). Lists are bounded; what is left out is counted.
Weak: partitions are asked one after the other, so a transaction that ends meanwhile may be shown.
"""

from __future__ import annotations

from typing import Any

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import TopicPartition
from appliance.client.cluster import ClusterClient
from appliance.client.transactions import (
    ProducerOnPartition,
    abort_in_partition,
    abort_transaction,
    active_producers,
    describe_transactions,
    list_transactions,
    uncoordinated,
)
from appliance.protocol.transaction_apis import NO_TRANSACTION
from services.console.parameters import NUMBER_MAX, Parameters, WrongParameter
from services.console.topic_documents import topic_of

TRANSACTIONS_SHOWN = 200
PARTITIONS_SHOWN = 50
PRODUCERS_SHOWN = 500
REFUSALS_SHOWN = 20
HANGING_MINUTES = 20
"""Transactions may take 15 minutes (transaction.max.timeout.ms), as in `millrace transaction list --hanging`."""
MINUTES_MAX = 7 * 24 * 60
OPEN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


def transactions_document(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Return the transactional ids that contain a text, with `open` only those with a transaction; open ones first."""
    given.require_known("contains", "open")
    contained, only_open = given.text("contains", ""), given.flag("open")
    listed = [each for each in list_transactions(cluster) if contained in each.transactional_id and (each.state in OPEN or not only_open)]
    listed.sort(key=lambda each: (each.state not in OPEN, each.transactional_id))
    shown = listed[:TRANSACTIONS_SHOWN]
    coordinators = {each.transactional_id: each.coordinator for each in shown}
    described = {each.transactional_id: each for each in describe_transactions(cluster, shown)}
    rows = []
    for one in (described[name] for name in coordinators if name in described):
        began_ms = one.start_ms if one.state in OPEN and one.start_ms >= 0 else None
        rows.append(
            one._asdict()
            | {
                "start_ms": began_ms,
                "is_open": one.state in OPEN,
                "is_late": began_ms is not None and given.now_ms - began_ms > one.timeout_ms,
                "partitions": [str(each) for each in one.partitions[:PARTITIONS_SHOWN]],
                "partitions_count": len(one.partitions),
                "coordinator": coordinators[one.transactional_id],
            }
        )
    return {"now_ms": given.now_ms, "transactions": rows, "count": len(listed)}


def producers_document(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Return the producers of a topic's partitions, those that hang first; of all topics only those."""
    given.require_known("topic", "minutes")
    minutes = given.number("minutes", HANGING_MINUTES, 0, MINUTES_MAX)
    names = [topic_of(given)] if given.text("topic", "") else sorted(cluster.metadata(None).topics)
    refusals: list[str] = []
    producers = active_producers(cluster, names, lambda _partition, refusal: refusals.append(refusal.message))
    try:
        hung = set(uncoordinated(cluster, producers, minutes * 60_000, given.now_ms))
    except RequestRefused as refusal:
        if refusal.code is not ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise
        hung = set()
        refusals.insert(0, refusal.message)
    if not given.text("topic", ""):
        producers = list(hung)
    producers.sort(key=lambda each: (each not in hung, each.start_offset == NO_TRANSACTION, -each.last_timestamp, each.partition))
    return {
        "now_ms": given.now_ms,
        "topics_count": len(names),
        "producers": [_producer(each, each in hung) for each in producers[:PRODUCERS_SHOWN]],
        "count": len(producers),
        "hanging_count": len(hung),
        "refusals": refusals[:REFUSALS_SHOWN],
        "refusals_count": len(refusals),
    }


def _producer(each: ProducerOnPartition, hangs: bool) -> dict[str, Any]:
    return each._asdict() | {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "start_offset": None if each.start_offset == NO_TRANSACTION else each.start_offset,
        "last_timestamp": each.last_timestamp if each.last_timestamp >= 0 else None,
        "hangs": hangs,
    }


def abort(cluster: ClusterClient, given: Parameters) -> dict[str, Any]:
    """Abort the transaction of `transactional_id`, whose producer is fenced; `confirm` must be that id. Or
    abort what hangs in a partition, of one producer."""
    given.require_known("transactional_id", "confirm", "topic", "partition", "producer_id", "minutes")
    if name := given.text("transactional_id", ""):
        if given.text("confirm", "") != name:
            raise WrongParameter("confirm must be the transactional id")
        abort_transaction(cluster, name)
        return {"transactional_id": name}
    partition, producer_id = TopicPartition(topic_of(given), given.number("partition", high=1 << 30)), given.number("producer_id", high=NUMBER_MAX)
    here = [each for each in active_producers(cluster, [partition.topic]) if (each.partition, int(each.producer_id)) == (partition, producer_id)]
    hung = uncoordinated(cluster, here, given.number("minutes", HANGING_MINUTES, 0, MINUTES_MAX) * 60_000, given.now_ms)
    if not hung:
        raise RequestRefused(ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} does not hang in {partition} any more")
    abort_in_partition(cluster, hung[0])
    return {"partition": str(partition), "producer_id": producer_id}
