from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator

import pytest

from appliance.shm import doorbell
from appliance.shm.doorbell import Doorbell, DoorbellButton

SLEEPING, TAIL = 1, 0


class AccessRecorder:
    """Stands for shared words and remembers loads and stores, in order, among fences."""

    def __init__(self) -> None:
        self.values = [0, 0]
        self.seen: list[str] = []

    def __getitem__(self, index: int) -> int:
        self.seen.append(f"load {index}")
        return self.values[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.seen.append(f"store {index}")
        self.values[index] = value


@pytest.fixture
def words() -> memoryview:
    return memoryview(bytearray(16)).cast("Q")


@pytest.fixture
def pair(words: memoryview) -> Iterator[tuple[Doorbell, DoorbellButton]]:
    bell = Doorbell(words, SLEEPING)
    button = DoorbellButton(os.dup(bell.fileno()), words, SLEEPING)
    yield bell, button
    button.close()
    bell.close()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> AccessRecorder:
    made = AccessRecorder()
    monkeypatch.setattr(doorbell, "fence", lambda: made.seen.append("fence"))
    return made


def is_ringing(bell: Doorbell) -> bool:
    poll = select.poll()
    poll.register(bell.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def test_a_running_consumer_is_not_rung(pair: tuple[Doorbell, DoorbellButton]) -> None:
    bell, button = pair
    assert not button.ring_if_sleeping() and not is_ringing(bell) and button.rings == 0


def test_a_sleeping_consumer_is_rung_until_it_wakes(pair: tuple[Doorbell, DoorbellButton]) -> None:
    bell, button = pair
    bell.prepare_to_sleep()
    assert button.ring_if_sleeping() and is_ringing(bell) and button.rings == 1
    bell.wake()
    bell.drain()
    assert not is_ringing(bell) and not button.ring_if_sleeping()


def test_several_rings_are_drained_at_once_and_draining_nothing_is_fine(pair: tuple[Doorbell, DoorbellButton]) -> None:
    bell, button = pair
    bell.prepare_to_sleep()
    for _ in range(3):
        button.ring_if_sleeping()
    bell.drain()
    bell.drain()
    assert not is_ringing(bell)


def test_a_bell_that_a_producer_made_block_is_drained_without_waiting(pair: tuple[Doorbell, DoorbellButton]) -> None:
    consumer, producer = pair
    os.set_blocking(producer.descriptor, True)
    consumer.prepare_to_sleep()
    assert producer.ring_if_sleeping()
    for _ in range(2):  # the second time there is nothing
        consumer.drain()
    assert select.select([consumer], [], [], 0)[0] == []


def test_a_bell_that_cannot_take_another_ring_has_been_rung(pair: tuple[Doorbell, DoorbellButton]) -> None:
    bell, button = pair
    os.eventfd_write(bell.fileno(), (1 << 64) - 2)
    bell.prepare_to_sleep()
    assert button.ring_if_sleeping() and is_ringing(bell)


def test_a_producer_fences_between_what_it_published_and_the_sleeping_word(recorder: AccessRecorder) -> None:
    button = DoorbellButton(-1, recorder, SLEEPING)  # type: ignore[arg-type]
    recorder[TAIL] = 1
    button.ring_if_sleeping()
    assert recorder.seen == [f"store {TAIL}", "fence", f"load {SLEEPING}"]


def test_a_consumer_fences_between_the_sleeping_word_and_its_last_look(recorder: AccessRecorder) -> None:
    bell = Doorbell(recorder, SLEEPING)  # type: ignore[arg-type]
    bell.prepare_to_sleep()
    recorder[TAIL]
    assert recorder.seen == [f"store {SLEEPING}", "fence", f"load {TAIL}"]
    bell.close()


@pytest.mark.parametrize("first", ["publish", "sleep"])
def test_the_consumer_finds_the_item_whether_it_sleeps_before_or_after_the_publication(
    first: str, words: memoryview, pair: tuple[Doorbell, DoorbellButton]
) -> None:
    bell, button = pair

    def publish() -> None:
        words[TAIL] += 1
        button.ring_if_sleeping()

    steps: list[Callable[[], None]] = [publish, bell.prepare_to_sleep]
    for step in steps if first == "publish" else reversed(steps):
        step()
    assert words[TAIL] == 1 and is_ringing(bell) == (first == "sleep")
