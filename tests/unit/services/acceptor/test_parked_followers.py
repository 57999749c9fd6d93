"""Followers and consumers that wait, and sessions of followers that sleep: what wakes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.protocol.apis import ApiKey
from tests.support.leader_side import END, Make, appended, in_session, make_sides
from tests.support.stepped_fetches import Asked, Followed


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from make_sides(tmp_path)


@pytest.mark.parametrize("partitions", [1, 40])
def test_a_parked_follower_is_woken_by_the_log_end_and_a_parked_consumer_by_the_high_watermark(make: Make, partitions: int) -> None:
    side = make(partitions)
    follower = side.follow(side.connect(), [Followed(each, END) for each in range(partitions)], max_wait_ms=500)
    consumer = side.fetch(side.connect(), [Asked(each, 20) for each in range(partitions)], max_wait_ms=500)
    side.serve()
    appended(side, partitions - 1)
    side.delayed.wake_moved()
    side.serve()
    assert (side.answers(follower), side.answers(consumer)) == (1, 0)
    appended(side, partitions - 1, high_watermark=END + 2)
    side.delayed.wake_moved()
    side.serve()
    assert side.answers(consumer) == 1


def test_a_session_of_a_follower_sleeps_at_the_log_end_and_wakes_when_it_moves(make: Make) -> None:
    side = make(2)
    side.change_row(1, log_end_offset=40, active_position=4 * side.batch_bytes)
    client = side.connect()
    session = in_session(side, client, Followed(0, END), Followed(1, 40))
    side.follow(client, [], (session, 1))
    side.serve()
    side.followed(client)
    assert len(side.progress()) == 2, "they were awake"
    side.follow(client, [], (session, 2), max_wait_ms=500)
    assert side.progress() == [] and side.answers(client) == 0
    side.change_row(1, log_end_offset=END, active_position=side.size_bytes)
    side.delayed.wake_moved()
    side.serve()
    _, parts = side.followed(client)
    assert [(part.partition, part.records_size) for part in parts] == [(1, side.batch_bytes)]


def test_a_follower_that_is_not_in_sync_is_heard_with_every_fetch(make: Make) -> None:
    side = make(2)
    client = side.connect()
    session = in_session(side, client, Followed(0, END), Followed(1, END))
    for epoch in (1, 2):
        side.follow(client, [], (session, epoch))
        side.serve()
        side.followed(client)
    side.progress()
    side.assign((1, 2), isr=(1,))
    side.fetches.on_view_changed()
    for epoch in (3, 4):
        side.follow(client, [], (session, epoch))
        side.serve()
        side.followed(client)
        assert len(side.progress()) == 2
    side.assign((1, 2))
    side.fetches.on_view_changed()
    for epoch, told in ((5, 2), (6, 0)):
        side.follow(client, [], (session, epoch))
        side.serve()
        side.followed(client)
        assert len(side.progress()) == told


def test_a_follower_that_asks_again_ends_its_parked_fetch_and_loses_nothing(make: Make) -> None:
    side = make(2)
    side.change_row(1, log_end_offset=40, active_position=4 * side.batch_bytes)
    client = side.connect()
    session = in_session(side, client, Followed(0, END))
    side.follow(client, [], (session, 1), max_wait_ms=500)
    assert client.may_start(ApiKey.FETCH) and not client.may_start(ApiKey.LIST_OFFSETS)
    side.follow(client, [Followed(1, 40)], (session, 2), max_wait_ms=500)
    assert side.followed(client) == (session, []), "the first has nothing to say"
    assert client.may_start(ApiKey.FETCH), "a third one would end the second"
    side.change_row(1, log_end_offset=END, active_position=side.size_bytes)
    side.delayed.wake_moved()
    side.serve()
    _, parts = side.followed(client)
    assert [(part.partition, part.records_size) for part in parts] == [(1, side.batch_bytes)]


def test_a_fetch_whose_time_is_over_while_a_log_reader_is_asked_is_not_overtaken(make: Make) -> None:
    """It is parked no longer, and would be refused: its session had gone on without it."""
    side = make(2)
    client = side.connect()
    session = in_session(side, client, Followed(0, END), Followed(1, END))
    side.follow(client, [], (session, 1), max_wait_ms=500)
    side.change_row(1, leader_epoch=1, log_end_offset=END + 10)
    side.placements["t", 1].cursors.clear()
    side.change_row(0, log_end_offset=END + 10, active_position=side.size_bytes)
    side.placements["t", 0].cursors.clear()
    side.delayed.wake_moved()
    assert side.answers(client) == 0 and client.replies[0].gives_way
    side.clock.advance_ms(500)
    side.delayed.expire(side.clock.monotonic_ns())
    assert side.answers(client) == 0 and not client.may_start(ApiKey.FETCH)
    side.serve()
    side.followed(client)
    side.follow(client, [], (session, 2))
    side.serve()
    side.followed(client)


def test_a_follower_under_a_new_leader_epoch_receives_the_high_watermark_again(make: Make) -> None:
    side = make(1)
    client = side.connect()
    session = in_session(side, client, Followed(0, END))
    side.follow(client, [Followed(0, END)], (session, 1))
    side.serve()
    assert side.followed(client)[1] == [], "it was sent when the session began"
    side.epoch_ends[0] = (0, 2 * END)
    side.change_row(0, leader_epoch=1)
    side.follow(client, [Followed(0, END, leader_epoch=1)], (session, 2))
    side.serve()
    _, (part,) = side.followed(client)
    assert (part.error_code, part.high_watermark) == (0, 20)


def test_a_parked_fetch_without_a_follower_session_does_not_give_way(make: Make) -> None:
    side = make(1)
    client = side.connect()
    side.fetch(client, [Asked(0, END)], max_wait_ms=500)
    assert not client.may_start(ApiKey.FETCH)


def test_a_moved_high_watermark_alone_answers_followers_only_where_consumers_read_from_them(make: Make) -> None:
    side = make(prefers_racks=True)
    client = side.connect()
    session = in_session(side, client, Followed(0, END))
    side.follow(client, [], (session, 1), max_wait_ms=500)
    assert side.answers(client) == 0
    side.change_row(0, high_watermark=30, last_stable_offset=30, watermark_position=3 * side.batch_bytes)
    side.delayed.wake_moved()
    ((_, (part,))) = side.followed(client)
    assert (part.high_watermark, part.records_size) == (30, 0)


def test_the_sessions_of_consumers_never_push_out_that_of_a_follower(make: Make) -> None:
    side = make()
    client = side.connect()
    session = in_session(side, client, Followed(0, END))
    for _ in range(150):  # the cache has a hundred places
        side.fetched(side.fetch(side.connect(), [Asked(0, 20)], (0, 0)))
        side.clock.advance_ms(500)
    side.follow(client, [Followed(0, END)], (session, 1))
    side.serve()
    side.followed(client)
