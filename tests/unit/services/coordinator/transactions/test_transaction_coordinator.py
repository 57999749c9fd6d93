"""The transaction coordinator's rules, in both protocols, with Kafka's codes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.base.errors import ErrorCode
from appliance.base.model import TopicPartition
from appliance.protocol.transaction_apis import DescribeTransactionsRequest, InitProducerIdRequest, InitProducerIdResponse, ListTransactionsRequest
from services.coordinator.transactions.transaction import LARGEST_EPOCH, TransactionSettings, TransactionState
from services.coordinator.transactions.transaction_coordinator import FEW_PARTITIONS
from tests.unit.services.coordinator.transactions.coordination_support import CoordinatedProducers

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def producers() -> Iterator[CoordinatedProducers]:
    yield CoordinatedProducers()


def markers(producers: CoordinatedProducers) -> list[tuple[TopicPartition, int, int, bool]]:
    return [marker[:4] for marker in producers.partitions.written]


# --- producer identity


def test_an_idempotent_producer_gets_an_id_of_its_own_and_nothing_is_written(producers: CoordinatedProducers) -> None:
    assert [producers.init(None), producers.init(None)] == [(0, 1, 0), (0, 2, 0)]
    assert not any(producers.log.records.values())


def test_the_same_transactional_id_gets_the_next_epoch_each_time(producers: CoordinatedProducers) -> None:
    assert [producers.init("x") for _ in range(3)] == [(0, 1, 0), (0, 1, 1), (0, 1, 2)]


def test_the_id_is_known_after_a_restart(producers: CoordinatedProducers) -> None:
    producers.begin("x")
    producers.start()
    assert producers.init("x") == (0, 1, 1)


def test_a_refused_append_leaves_what_was(producers: CoordinatedProducers) -> None:
    producers.begin("x")
    assert producers.init("x", settles=False) is None
    producers.log.deliver(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert producers.current("x").producer_epoch == 0
    assert producers.init("x") == (0, 1, 1)


@pytest.mark.parametrize(
    ("name", "producer", "timeout_ms", "code"),
    [
        ("", (-1, -1), 60_000, ErrorCode.INVALID_REQUEST),
        ("x", (5, -1), 60_000, ErrorCode.INVALID_REQUEST),
        ("x", (-1, -1), 0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ("x", (-1, -1), 900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_an_invalid_init_is_refused(producers: CoordinatedProducers, name: str, producer: tuple[int, int], timeout_ms: int, code: ErrorCode) -> None:
    assert producers.init(name, producer, timeout_ms=timeout_ms) == (code, -1, -1)


def test_without_producer_ids_every_init_is_retriable(producers: CoordinatedProducers) -> None:
    producers.producer_ids.is_dry = True
    assert producers.init(None)[0] == producers.init("x")[0] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    producers.producer_ids.is_dry = False
    assert producers.init("x") == (0, 1, 0)


def test_a_producer_that_sends_its_id_continues_and_a_fenced_one_does_not(producers: CoordinatedProducers) -> None:
    assert producers.init("x", (-1, -1)) == (0, 1, 0)
    assert producers.init("x", (1, 0)) == (0, 1, 1)
    assert producers.init("x", (1, 0)) == (0, 1, 1)  # the answer was lost: it is said again
    producers.begin("x")
    assert producers.init("x", (1, 0)) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert producers.init("x", (9, 0)) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert producers.init("x", (1, 0), version=3) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1, -1)


def test_a_producer_whose_epochs_are_used_up_gets_another_id(producers: CoordinatedProducers) -> None:
    producers.begin("x")
    found = producers.coordinator.ids.find("x")
    assert found is not None
    found.current = found.current._replace(producer_epoch=LARGEST_EPOCH - 1)
    assert producers.init("x", (1, LARGEST_EPOCH - 1)) == (0, 2, 0)
    assert producers.init("x", (1, LARGEST_EPOCH - 1)) == (0, 2, 0)  # the answer was lost


def test_the_former_owner_of_an_exhausted_id_does_not_get_the_successor_of_another_owner(producers: CoordinatedProducers) -> None:
    producers.begin("x")
    found = producers.coordinator.ids.find("x")
    assert found is not None
    found.current = found.current._replace(producer_epoch=LARGEST_EPOCH - 1)
    assert producers.init("x") == (0, 2, 0)  # a restarted producer that does not send its old id
    assert producers.init("x", (1, LARGEST_EPOCH - 1))[0] == ErrorCode.PRODUCER_FENCED
    assert producers.init("x", (2, 0)) == (0, 2, 1)


def test_no_producer_ends_a_transaction_under_the_fencing_epoch(producers: CoordinatedProducers) -> None:
    producers.begin("x")
    found = producers.coordinator.ids.find("x")
    assert found is not None
    found.current = found.current._replace(producer_epoch=LARGEST_EPOCH - 1)
    producers.add("x", (1, LARGEST_EPOCH - 1), 0)
    assert producers.init("x")[0] == ErrorCode.CONCURRENT_TRANSACTIONS  # and the abort goes out under the last epoch
    assert producers.end("x", (1, LARGEST_EPOCH), commit=False, version=5)[0] == ErrorCode.PRODUCER_FENCED
    assert producers.init("x") == (0, 2, 0)


def test_an_open_transaction_is_aborted_when_its_producer_initialises_again(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    assert producers.add("x", producer, 0, 1) == [0, 0]
    assert producers.init("x") == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    assert sorted(markers(producers)) == [(T0, 1, 1, False), (T1, 1, 1, False)]
    assert producers.current("x").state is TransactionState.COMPLETE_ABORT
    assert producers.init("x") == (0, 1, 2)
    assert producers.add("x", producer, 0) == [ErrorCode.PRODUCER_FENCED]


# --- what a transaction goes over


def test_partitions_join_once_and_the_second_time_costs_nothing(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    assert producers.add("x", producer, 0) == [0]
    before = sum(map(len, producers.log.records.values()))
    assert producers.add("x", producer, 0) == [0]
    assert sum(map(len, producers.log.records.values())) == before
    assert producers.add("x", producer, 0, 1) == [0, 0]
    assert producers.current("x").partitions == {T0, T1}


def test_one_unknown_partition_keeps_all_out(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.missing.add(T1)
    assert producers.add("x", producer, 0, 1) == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert producers.current("x").state is TransactionState.EMPTY


def test_strangers_and_zombies_add_nothing(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    assert producers.add("y", producer, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert producers.add("x", (99, 0), 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert producers.add("", producer, 0) == [ErrorCode.INVALID_REQUEST]
    producers.begin("x")
    assert producers.add("x", producer, 0) == [ErrorCode.PRODUCER_FENCED]
    assert producers.add("x", producer, 0, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_while_a_step_is_on_its_way_nothing_else_begins(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    assert producers.add("x", producer, 0, settles=False) is None
    assert producers.add("x", producer, 1, settles=False) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert producers.end("x", producer, settles=False) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    assert producers.init("x", settles=False) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)


def test_only_what_is_in_an_open_transaction_is_verified(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    assert producers.add("x", producer, 0, version=4, verify_only=True) == [ErrorCode.TRANSACTION_ABORTABLE]
    producers.add("x", producer, 0)
    assert producers.add("x", producer, 0, 1, version=4, verify_only=True) == [0, ErrorCode.TRANSACTION_ABORTABLE]
    producers.end("x", producer)
    assert producers.add("x", producer, 0, version=4, verify_only=True) == [ErrorCode.TRANSACTION_ABORTABLE]


def test_a_groups_offsets_join_as_a_partition(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    assert producers.add_offsets("x", producer) == ErrorCode.NONE
    assert producers.current("x").partitions == {TopicPartition("__consumer_offsets", 3)}
    assert producers.add_offsets("x", (1, 9)) == ErrorCode.PRODUCER_FENCED


# --- how it ends


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_writes_a_marker_into_every_partition_and_says_so_twice(producers: CoordinatedProducers, commit: bool) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0, 1)
    assert producers.end("x", producer, commit) == (0, -1, -1)
    assert sorted(markers(producers)) == [(T0, *producer, commit), (T1, *producer, commit)]
    assert producers.partitions.written[0].coordinator_epoch == 7
    assert producers.end("x", producer, commit) == (0, -1, -1)
    assert producers.end("x", producer, not commit) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    assert len(producers.partitions.written) == 2
    assert producers.add("x", producer, 0) == [0]  # the next one


def test_what_was_never_begun_cannot_be_committed_in_the_first_protocol(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    assert producers.end("x", producer) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    assert producers.end("x", (1, 5)) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert producers.end("y", producer) == (ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1, -1)


def test_an_abort_of_what_never_began_changes_nothing_in_the_first_protocol(producers: CoordinatedProducers) -> None:
    """A producer whose AddPartitionsToTxn were lost with their coordinator cannot know that nothing began; INVALID_TXN_STATE would be its end."""
    producer = producers.begin("x")
    before = producers.current("x")
    assert producers.end("x", producer, False) == (0, -1, -1)
    assert producers.current("x") == before and not producers.partitions.written
    assert producers.end("x", (1, 5), False) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    producers.add("x", producer, 0)
    producers.end("x", producer)
    assert producers.end("x", producer, False) == (ErrorCode.INVALID_TXN_STATE, -1, -1)  # it may be the transaction that was committed


def test_the_answer_comes_with_the_decision_and_others_wait_for_the_markers(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0)
    assert producers.end("x", producer, settles=False) is None
    producers.log.deliver()
    assert producers.current("x").state is TransactionState.PREPARE_COMMIT
    assert producers.end("x", producer, settles=False) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    assert producers.end("x", producer, False, settles=False) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    assert producers.add("x", producer, 1, settles=False) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert producers.init("x", settles=False) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    producers.settle()
    assert producers.current("x").state is TransactionState.COMPLETE_COMMIT


def test_a_marker_that_is_refused_is_written_again_until_it_is_there(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0, 1)
    producers.partitions.refusing[T1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    producers.end("x", producer)
    for _ in range(3):
        producers.pass_ms(100)
        producers.settle()
    assert markers(producers) == [(T0, *producer, True)] and producers.coordinator.under_way == 1
    producers.partitions.refusing.clear()
    producers.pass_ms(100)
    producers.settle()
    assert len(producers.partitions.written) == 2 and producers.coordinator.under_way == 0
    assert producers.current("x").state is TransactionState.COMPLETE_COMMIT


def test_a_transaction_completes_without_its_deleted_partition(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0, 1)
    producers.partitions.refusing[T1] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    producers.end("x", producer)
    producers.missing.add(T1)
    producers.pass_ms(100)
    producers.settle()
    assert producers.current("x").state is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_incarnation_ends_a_transaction_that_was_decided(producers: CoordinatedProducers, commit: bool) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0)
    producers.end("x", producer, commit, settles=False)
    producers.log.deliver()
    producers.start()
    producers.settle()
    assert markers(producers) == [(T0, *producer, commit)]
    assert producers.end("x", producer, commit) == (0, -1, -1)


def test_a_transaction_that_was_not_decided_before_a_death_stays_open(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0)
    producers.end("x", producer, settles=False)
    producers.start()
    producers.settle()
    assert producers.current("x").state is TransactionState.ONGOING
    assert producers.end("x", producer, False) == (0, -1, -1)


def test_a_completion_that_cannot_be_written_is_written_later(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0)
    producers.end("x", producer, settles=False)
    producers.log.deliver()
    producers.partitions.deliver()
    producers.log.deliver(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert producers.current("x").state is TransactionState.PREPARE_COMMIT
    producers.pass_ms(100)
    producers.settle()
    assert producers.current("x").state is TransactionState.COMPLETE_COMMIT
    assert len(producers.partitions.written) == 1


def test_an_overdue_transaction_is_aborted_and_its_producer_fenced(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0)
    producers.pass_ms(59_000)
    producers.settle()
    assert producers.current("x").state is TransactionState.ONGOING
    producers.pass_ms(12_000)
    producers.settle()
    assert markers(producers) == [(T0, 1, 1, False)]
    assert producers.end("x", producer) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert producers.end("x", producer, version=1) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1, -1)


def test_an_abort_that_cannot_be_written_raises_the_epoch_only_once(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0)
    for _ in range(3):
        producers.pass_ms(71_000)
        producers.log.deliver(ErrorCode.NOT_ENOUGH_REPLICAS)
    producers.pass_ms(71_000)
    producers.settle()
    assert markers(producers) == [(T0, 1, 1, False)]


def test_an_unused_id_expires(producers: CoordinatedProducers) -> None:
    producers.begin("x")
    producers.pass_ms(604_800_000)
    producers.settle()
    assert producers.coordinator.ids.find("x") is None
    producers.start()
    assert producers.coordinator.ids.find("x") is None


# --- the second protocol (KIP-890)


def test_every_end_raises_the_epoch_and_markers_carry_the_raised_one(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0, version=5)
    assert producers.end("x", producer, version=5) == (0, 1, 1)
    assert markers(producers) == [(T0, 1, 1, True)]
    producers.add("x", (1, 1), 0, version=5)
    assert producers.end("x", (1, 1), False, version=5) == (0, 1, 2)


def test_an_end_whose_answer_was_lost_is_answered_again(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0, version=5)
    producers.end("x", producer, version=5)
    assert producers.end("x", producer, version=5) == (0, 1, 1)
    assert producers.end("x", producer, False, version=5) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    producers.start()
    assert producers.end("x", producer, version=5) == (0, 1, 1)
    assert len(producers.partitions.written) == 1


def test_an_end_that_is_late_fences_and_does_not_touch_the_next_transaction(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0, version=5)
    producers.end("x", producer, version=5)
    producers.add("x", (1, 1), 0, version=5)
    assert producers.end("x", producer, version=5) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert producers.current("x").state is TransactionState.ONGOING


@pytest.mark.parametrize(("version", "raises_epoch"), [(4, False), (5, True)])
def test_a_marker_records_whether_it_raises_the_epoch_also_after_a_restart(producers: CoordinatedProducers, version: int, raises_epoch: bool) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0, version=5)
    producers.end("x", producer, version=version, settles=False)
    producers.log.deliver()
    ((first, _),) = producers.partitions.waiting
    producers.start()
    ((again, _),) = producers.partitions.waiting
    assert (first.raises_epoch, again.raises_epoch) == (raises_epoch, raises_epoch)
    assert first.producer_epoch == again.producer_epoch == raises_epoch


def test_an_end_that_is_repeated_while_its_completion_is_written_is_answered_when_that_is_done(producers: CoordinatedProducers) -> None:
    """The coordinator died after the decision, and the answer with it: the epoch of the request is the one before."""
    producer = producers.begin("x")
    producers.add("x", producer, 0, version=5)
    producers.end("x", producer, version=5, settles=False)
    producers.log.deliver()
    producers.start()  # the next one reads the decision
    producers.partitions.deliver()
    assert producers.end("x", producer, version=5, settles=False) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    producers.log.deliver()
    assert producers.end("x", producer, version=5) == (0, 1, 1)


def test_an_abort_of_the_next_transaction_waits_for_the_end_of_the_one_before(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0, version=5)
    producers.end("x", producer, version=5, settles=False)
    producers.log.deliver()
    assert producers.current("x").state is TransactionState.PREPARE_COMMIT
    assert producers.end("x", (1, 1), False, version=5, settles=False) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    producers.settle()
    assert producers.end("x", (1, 1), False, version=5) == (0, 1, 2)


def test_an_abort_of_nothing_raises_the_epoch_and_a_commit_of_nothing_is_refused(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    assert producers.end("x", producer, version=5) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    assert producers.end("x", producer, False, version=5) == (0, 1, 1)
    assert producers.end("x", (1, 1), False, version=5) == (0, 1, 2)
    assert producers.partitions.written == []


def test_the_last_epoch_of_an_id_is_followed_by_another_id(producers: CoordinatedProducers) -> None:
    producers.begin("x")
    found = producers.coordinator.ids.find("x")
    assert found is not None
    found.current = found.current._replace(producer_epoch=LARGEST_EPOCH - 1)
    producers.add("x", (1, LARGEST_EPOCH - 1), 0, version=5)
    assert producers.end("x", (1, LARGEST_EPOCH - 1), version=5) == (0, 2, 0)
    assert markers(producers) == [(T0, 1, LARGEST_EPOCH, True)]
    assert producers.end("x", (1, LARGEST_EPOCH - 1), version=5) == (0, 2, 0)
    assert producers.add("x", (2, 0), 0, version=5) == [0]


def test_an_overdue_transaction_of_the_second_protocol_is_fenced_by_one_epoch(producers: CoordinatedProducers) -> None:
    producer = producers.begin("x")
    producers.add("x", producer, 0, version=5)
    producers.pass_ms(71_000)
    producers.settle()
    assert markers(producers) == [(T0, 1, 1, False)]


# --- routing and views


def test_another_coordinators_ids_and_those_that_are_being_read_are_not_answered(producers: CoordinatedProducers) -> None:
    partition = producers.coordinator.ids.partition_of("x")
    producers.coordinator.begin_load(partition)
    assert producers.init("x") == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
    producers.coordinator.unload(partition, producers.now_ms)
    assert producers.init("x") == (ErrorCode.NOT_COORDINATOR, -1, -1)
    assert producers.add("x", (1, 0), 0) == [ErrorCode.NOT_COORDINATOR]
    assert producers.end("x", (1, 0)) == (ErrorCode.NOT_COORDINATOR, -1, -1)


def test_a_step_whose_tenure_ends_is_answered_and_forgotten(producers: CoordinatedProducers) -> None:
    answers: list[InitProducerIdResponse] = []
    producers.begin("x")
    producers.coordinator.init_producer_id(InitProducerIdRequest("x"), 5, producers.now_ms, answers.append)
    producers.coordinator.unload(producers.coordinator.ids.partition_of("x"), producers.now_ms)
    assert not answers
    producers.settle()
    assert [answer.error_code for answer in answers] == [ErrorCode.NOT_COORDINATOR]
    producers.start()
    assert producers.init("x")[0] == ErrorCode.NONE


def test_listings_go_by_state_producer_and_duration(producers: CoordinatedProducers) -> None:
    producer = producers.begin("open")
    producers.begin("idle")
    producers.add("open", producer, 0, 1)
    producers.now_ms += 5_000
    ids = producers.coordinator.ids

    def listed(*filters: object) -> list[str]:
        answers: list[object] = []
        producers.coordinator.list_all(ListTransactionsRequest(*filters), 1, producers.now_ms, answers.append)  # type: ignore[arg-type]
        return sorted(each.transactional_id for each in answers[0].transactions)  # type: ignore[attr-defined]

    assert listed() == ["idle", "open"]
    assert listed(("Ongoing", "Nonsense")) == ["open"]
    assert listed((), (2,)) == ["idle"]
    assert listed((), (), 4_999) == ["open"] and listed((), (), 5_001) == []
    answers: list[object] = []
    producers.coordinator.describe(DescribeTransactionsRequest(("open", "nobody", "")), 0, producers.now_ms, answers.append)
    described = answers[0].transactions  # type: ignore[attr-defined]
    assert (described[0].transaction_state, described[0].topics[0]) == ("Ongoing", ("t", (0, 1)))
    assert [each.error_code for each in described] == [0, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST]
    assert len(ids) == 2


def test_a_further_transactional_id_is_refused_and_those_in_the_log_are_served() -> None:
    producers = CoordinatedProducers(TransactionSettings(max_transactional_ids=2))
    refused: list[int] = []
    producers.coordinator.ids.on_refused = lambda: refused.append(1)
    assert [producers.init(name)[0] for name in ("a", "b", "c", "a")] == [0, 0, ErrorCode.POLICY_VIOLATION, 0]
    assert refused == [1] and producers.init(None)[0] == 0
    producers.settings = TransactionSettings(max_transactional_ids=1)
    producers.start()
    assert [producers.init(name)[0] for name in ("a", "b", "c")] == [0, 0, ErrorCode.POLICY_VIOLATION]


def test_without_memory_no_transactional_id_comes_and_no_transaction_grows_large() -> None:
    producers = CoordinatedProducers()
    _, producer_id, producer_epoch = producers.init("a")
    producers.coordinator.ids.has_memory = lambda: False
    assert producers.init("b")[0] is ErrorCode.POLICY_VIOLATION
    codes: list[ErrorCode] = []
    for count in (FEW_PARTITIONS, FEW_PARTITIONS + 1):
        places = frozenset(TopicPartition("t", number) for number in range(count))
        producers.coordinator.extend("a", producer_id, producer_epoch, places, 0, lambda told: codes.extend(set(told.values())))
        producers.settle()
    assert codes == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


def test_descriptions_and_filters_of_transactions_are_bounded() -> None:
    producers = CoordinatedProducers()
    _, producer_id, producer_epoch = producers.init("a")
    places = frozenset(TopicPartition("t", number) for number in range(1_000))
    producers.coordinator.extend("a", producer_id, producer_epoch, places, 0, lambda _: None)
    producers.settle()
    answers: list[object] = []
    producers.coordinator.describe(DescribeTransactionsRequest(("a",) * 1_000), 0, producers.now_ms, answers.append)
    codes = [each.error_code for each in answers[0].transactions]  # type: ignore[attr-defined]
    assert 100 < codes.count(0) < 200 and codes[-1] == ErrorCode.INVALID_REQUEST
    assert producers.init("i" * 1_025)[0] is ErrorCode.INVALID_REQUEST
