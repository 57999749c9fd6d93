"""Questions to other boxes by broker id (`client/peers.py`): connections come and go with the image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.client.peers import Peers, may_be_box
from appliance.cluster.metadata_image import BrokerImage
from appliance.protocol import transaction_apis
from appliance.protocol.transaction_apis import TxnMarkerResult, WriteTxnMarkersRequest, WriteTxnMarkersResponse
from appliance.runtime.poller import Poller
from tests.support.scripted_peer import ScriptedPeer, until

WRITTEN = WriteTxnMarkersResponse((TxnMarkerResult(7),))


class World:
    """Box 7 is at the first peer; the second is where it may move to."""

    def __init__(self) -> None:
        self.poller, self.clock = Poller(), ManualClock()
        self.peers = Peers("broker-1-test", self.poller, self.clock, None)
        self.played = [ScriptedPeer(self.turn), ScriptedPeer(self.turn)]
        self.answers: list[Any] = []

    def register(self, place: int = 0, broker_epoch: int = 1) -> None:
        host, port = self.played[place].address
        self.peers.refresh({7: BrokerImage(7, host, port, None, broker_epoch)})

    def ask(self, broker_id: int = 7, channel: int = 0) -> None:
        self.peers.ask(
            broker_id,
            transaction_apis.WRITE_TXN_MARKERS_REQUEST,
            transaction_apis.WRITE_TXN_MARKERS_RESPONSE,
            WriteTxnMarkersRequest(),
            self.answers.append,
            30_000,
            channel=channel,
        )

    def turn(self) -> None:
        self.poller.poll(1)
        self.peers.do_work(self.clock.monotonic_ns())

    def answer(self, place: int = 0) -> None:
        request = self.played[place].next_request()
        self.played[place].answer(request, transaction_apis.WRITE_TXN_MARKERS_RESPONSE.encode(request.version, WRITTEN))

    def until_answers(self, *expected: Any) -> None:
        until(lambda: self.answers == list(expected), self.turn, f"{self.answers}, not {expected}")

    def close(self) -> None:
        self.peers.close()
        for peer in self.played:
            peer.die()
        self.poller.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_a_box_is_asked_where_it_is_registered_over_one_connection(world: World) -> None:
    world.register()
    for count in (1, 2):
        world.ask()
        world.answer()
        world.until_answers(*[WRITTEN] * count)
    assert world.played[0].accepted == 1


def test_a_request_to_an_unknown_box_fails(world: World) -> None:
    world.ask(8)
    assert world.answers == [], "never from within"
    world.turn()
    assert world.answers == [None]


@pytest.mark.parametrize("becomes", ["gone", "elsewhere", "restarted"])
def test_requests_fail_at_once_if_their_box_leaves_moves_or_restarts(world: World, becomes: str) -> None:
    world.register()
    world.ask()
    world.played[0].next_request()
    if becomes == "gone":
        world.peers.refresh({})
    else:
        world.register(place=1 if becomes == "elsewhere" else 0, broker_epoch=2 if becomes == "restarted" else 1)
    world.turn()
    assert world.answers == [None]
    if becomes == "elsewhere":
        world.ask()
        world.answer(place=1)
        world.until_answers(None, WRITTEN)


def test_an_image_that_changes_nothing_of_a_box_leaves_its_connection_alone(world: World) -> None:
    world.register()
    world.ask()
    world.register()
    world.answer()
    world.until_answers(WRITTEN)


def test_channels_do_not_wait_for_each_other(world: World) -> None:
    world.register()
    world.ask(channel=0)
    world.played[0].next_request()
    slow, world.played[0].sock = world.played[0].sock, None
    world.ask(channel=1)
    world.answer()
    world.until_answers(WRITTEN)
    assert world.played[0].accepted == 2
    assert slow is not None
    slow.close()
    world.until_answers(WRITTEN, None)


def test_which_client_ids_processes_of_boxes_have() -> None:
    of_boxes = ["controller of broker 1", "controller of broker 1, without authorizer", "coordinator of broker 12", "acceptor of broker 3"]
    of_boxes += ["millrace-ingest", "millrace-console", "broker-1-fetcher", "broker-2-repair"]
    assert all(map(may_be_box, of_boxes))
    assert not any(map(may_be_box, ["", "millrace", "broker-1", "rdkafka", "a controller of broker 1", "my-fetcher"]))
