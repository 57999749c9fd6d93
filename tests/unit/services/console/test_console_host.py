"""The machine's figures on their way to a broker that takes them, refuses them, or is not there. Its wire format is kio's."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.base.clock import ManualClock
from appliance.base.layout import BoxLayout
from appliance.base.logging import Logger
from appliance.base.model import TopicId
from appliance.client import messages
from appliance.cluster.metadata_image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from appliance.records.record import iterate_records
from appliance.runtime.agent import ServiceContext
from appliance.shm.counters import Counters
from lab.scratch_layout import scratch_layout
from services.console.console_host import TOLD_AFTER, WAITING_MAX, HostFigures
from tests.unit.base.test_settings import make_box
from tests.unit.client.fake_kafka_broker import FakeKafkaBroker, HangUp, produced

NAME = "millrace-host"


class Console:
    """The figures as a console has them, stepped by hand."""

    def __init__(self, layout: BoxLayout, port: int) -> None:
        self.image = MetadataImage.empty()
        self.clock = ManualClock()
        self.counters = Counters.create_or_adopt(layout, "console", 1)
        self._said, writing = os.pipe2(os.O_NONBLOCK)
        context = SimpleNamespace(
            layout=layout, box=make_box(kafka_port=port, listen="0.0.0.0"), clock=self.clock, counters=self.counters, log=Logger("console", descriptor=writing)
        )
        self.figures = HostFigures(cast(ServiceContext, context), lambda: self.image)

    def count(self, name: str) -> int:
        return self.counters.counter(f"host_figures.{name}").value

    def said(self) -> str:
        try:
            return os.read(self._said, 65536).decode()
        except BlockingIOError:
            return ""

    def turns(self, *between: Callable[[], object]) -> None:
        """A reading to begin with, then for each of `between` ten seconds, the call, a look and a try to send."""

        async def run() -> None:
            self.figures.look()
            for do in between:
                self.clock.advance_ms(10_000)
                do()
                self.figures.look()
                await self.figures.send()
            self.figures.hang_up()

        asyncio.run(run())


def nothing() -> None:
    pass


@pytest.fixture
def broker() -> Iterator[FakeKafkaBroker]:
    broker = FakeKafkaBroker()
    yield broker
    broker.close()


@pytest.fixture
def console(broker: FakeKafkaBroker) -> Iterator[Console]:
    with scratch_layout() as layout:
        console = Console(layout, broker.address.port)
        yield console
        console.counters.close()


def take(broker: FakeKafkaBroker) -> Callable[[Any], dict[str, Any]]:
    """An answer that takes the batch, and names the topic as it was asked."""

    def answer(request: Any) -> dict[str, Any]:
        broker.produce(request)
        return {"responses": [{"name": NAME, "partition_responses": [produced(0)]}], "throttle_time": 0}

    return answer


def refuse(code: int) -> Callable[[Any], dict[str, Any]]:
    return lambda _request: {"responses": [{"name": NAME, "partition_responses": [produced(0, code)]}], "throttle_time": 0}


def stored(broker: FakeKafkaBroker) -> list[tuple[bytes | None, int, dict[str, Any]]]:
    found = []
    for batch in broker.appended[0]:
        for record in iterate_records(memoryview(batch), 1 << 20):
            found.append((record.key, record.timestamp, json.loads(bytes(record.value or b""))))
    return found


def test_an_interval_becomes_one_batch_with_the_time_of_its_end(broker: FakeKafkaBroker, console: Console) -> None:
    broker.answers[messages.PRODUCE] = take(broker)
    console.turns(nothing, nothing)
    assert len(broker.appended[0]) == 2 and console.count("records") == len(stored(broker)) and console.count("failures") == 0
    key, timestamp, first = stored(broker)[0]
    assert key == os.uname().nodename.encode() and first["kind"] == "cpu" and first["interval_seconds"] == 10.0
    assert timestamp == ManualClock().wall_ms() + 10_000
    (_, request), *_ = [asked for asked in broker.requests if asked[0] == "produce"]
    assert request.acks == -1 and request.topic_data[0].name == NAME


def test_a_topic_that_is_not_there_is_created_with_bounded_retention(broker: FakeKafkaBroker, console: Console) -> None:
    broker.answers[messages.PRODUCE] = refuse(3)

    def create(request: Any) -> dict[str, Any]:
        broker.answers[messages.PRODUCE] = take(broker)
        return {"throttle_time": 0, "topics": [{"name": NAME, "error_code": 0, "error_message": None}]}

    broker.answers[messages.CREATE_TOPICS] = create
    console.turns(nothing)
    (created,) = [request for name, request in broker.requests if name == "create_topics"]
    (topic,) = created.topics
    configs = {config.name: config.value for config in topic.configs}
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (NAME, 1, -1)
    assert (configs["cleanup.policy"], configs["retention.ms"], configs["retention.bytes"]) == ("delete", "604800000", "268435456")
    assert len(broker.appended[0]) == 1 and console.count("failures") == 0


def test_refused_records_are_retried_and_a_lasting_refusal_is_logged_once(broker: FakeKafkaBroker, console: Console) -> None:
    broker.answers[messages.PRODUCE] = refuse(56)
    console.turns(nothing, nothing, nothing, lambda: broker.answers.update({messages.PRODUCE: take(broker)}))
    assert console.count("failures") == 3 and console.said().count("KAFKA_STORAGE_ERROR") == 1
    times = [record["time"] for _, _, record in stored(broker)]
    assert len(set(times)) == 4 and times == sorted(times), "nothing is missing"


@pytest.mark.parametrize(
    "nonsense", [b"\0\0\0\x04\x7f\xff\xff\xff", b"\x7f\0\0\0", b"\0\0\0\x06\0\0\0\x01\0\0"], ids=["another request's", "huge", "too short"]
)
def test_an_answer_that_is_none_is_a_failure_and_the_next_try_gets_a_new_connection(broker: FakeKafkaBroker, console: Console, nonsense: bytes) -> None:
    broker.answers[messages.PRODUCE] = lambda _request: nonsense
    console.turns(nothing, lambda: broker.answers.update({messages.PRODUCE: take(broker)}))
    assert console.count("failures") == 1 and len(broker.appended[0]) == 1 and console.said() == ""


def test_a_broker_that_hangs_up_or_is_gone_is_a_failure_and_no_more(broker: FakeKafkaBroker, console: Console) -> None:
    def hang_up(_request: Any) -> dict[str, Any]:
        raise HangUp

    broker.answers[messages.PRODUCE] = hang_up
    console.turns(nothing, broker.stop, nothing)
    assert console.count("failures") == 3 >= TOLD_AFTER and console.said().count("could not be written") == 1


@pytest.mark.slow
def test_the_task_begins_with_the_loop_and_ends_with_it(broker: FakeKafkaBroker, console: Console) -> None:
    broker.answers[messages.PRODUCE] = take(broker)
    console.figures.interval_seconds = 0.01
    loop = asyncio.new_event_loop()
    console.figures.start(loop)

    async def two_batches() -> None:
        while len(broker.appended[0]) < 2:
            await asyncio.sleep(0.001)

    loop.run_until_complete(asyncio.wait_for(two_batches(), 10))
    console.figures.close(loop)
    loop.close()
    assert console.figures.connection is None and console.count("failures") == 0


def test_an_interval_of_zero_means_never(console: Console) -> None:
    console.figures.interval_seconds = 0
    loop = asyncio.new_event_loop()
    console.figures.start(loop)
    assert not asyncio.all_tasks(loop)
    console.figures.close(loop)
    loop.close()


def test_no_more_than_so_many_records_wait(broker: FakeKafkaBroker, console: Console) -> None:
    broker.stop()
    console.turns(nothing)
    an_interval = len(console.figures.waiting)
    console.figures.waiting.extend([(1, b"{}")] * WAITING_MAX)
    console.figures.look()
    assert len(console.figures.waiting) == WAITING_MAX and console.count("dropped") >= an_interval


def test_figures_go_to_the_box_that_leads_their_topic_and_orders_to_the_controllers(console: Console, broker: FakeKafkaBroker) -> None:
    elsewhere = FakeKafkaBroker()
    try:
        brokers = {7: BrokerImage(7, *elsewhere.address), 8: BrokerImage(8, *broker.address)}
        topic = TopicImage(NAME, TopicId(bytes(16)), (PartitionImage(7, 0, (7,), (7,)),), {})
        console.image = MetadataImage(1, "cluster", 8, brokers, {NAME: topic})
        missing = [3]
        elsewhere.answers[messages.PRODUCE] = lambda request: (
            {"responses": [{"name": NAME, "partition_responses": [produced(0, missing.pop())]}], "throttle_time": 0} if missing else take(elsewhere)(request)
        )
        asked: list[Any] = []

        def create(request: Any) -> dict[str, Any]:
            asked.append(request)
            return {"topics": [{"name": NAME, "error_code": 36, "error_message": None}], "throttle_time": 0}

        broker.answers[messages.CREATE_TOPICS] = create
        console.turns(nothing)
        assert len(asked) == 1 and len(elsewhere.appended[0]) == 1 and broker.appended[0] == []
        assert console.count("failures") == 0 and console.count("records") > 0
    finally:
        elsewhere.close()
