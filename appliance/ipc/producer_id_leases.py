"""Allocates producer ids from blocks that the controller has leased from ZooKeeper; requests the
next block before the last id is used.

Implements `transactions.ports.ProducerIds`. The coordinator has one for the clients of the box,
each ingest one for itself. Unused ids of a dead process are lost, at no cost. Weak: if ZooKeeper is
unavailable for longer than a block lasts, new producers wait (COORDINATOR_LOAD_IN_PROGRESS).
"""

from __future__ import annotations

from typing import Any

import orjson

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.base.model import ProducerId
from appliance.ipc.request_frames import LEASE_PRODUCER_IDS
from appliance.ipc.request_link import ControllerLink
from appliance.shm.counters import Counter

ASK_AGAIN_NS = 200_000_000
ANSWER_TIMEOUT_MS = 6_000
PREFETCH_SHARE = 10
"""The next block is requested when this part of a block is left (a tenth)."""


class ProducerIdLeases:
    """The leased blocks of one process, at most two."""

    def __init__(self, controller: ControllerLink, clock: Clock, given: Counter, log: Logger) -> None:
        self._controller = controller
        self._clock = clock
        self._log = log
        self._block = range(0)
        self._following = range(0)
        self._block_size = 0
        self._is_asking = False
        self._ask_at_ns = 0
        self._last_error = 0
        """The controller's last error, to log each one once."""
        self._given = given

    def next(self) -> ProducerId | None:
        """Return the next producer id; None if there is none now."""
        if not self._block:
            self._block, self._following = self._following, range(0)
        if not self._block:
            self._maybe_ask()
            return None
        producer_id, self._block = self._block[0], self._block[1:]
        self._given.add()
        return ProducerId(producer_id)

    def turn(self, now_ns: int) -> int:
        """Request a block if it is time; returns the work done."""
        if self._is_asking or now_ns < self._ask_at_ns or self._following or len(self._block) * PREFETCH_SHARE > self._block_size:
            return 0
        self._maybe_ask()
        return 1

    def _maybe_ask(self) -> None:
        if not self._is_asking and self._clock.monotonic_ns() >= self._ask_at_ns and self._controller.connected:
            self._is_asking = True
            self._controller.request(LEASE_PRODUCER_IDS, b"{}", ANSWER_TIMEOUT_MS, self._on_answer)

    def _on_answer(self, payload: bytes | None) -> None:
        self._is_asking = False
        self._ask_at_ns = self._clock.monotonic_ns() + ASK_AGAIN_NS
        answer: dict[str, Any] = orjson.loads(payload) if payload else {"error": -1}
        former_error, self._last_error = self._last_error, answer["error"]
        if answer["error"]:
            if answer["error"] != former_error:
                self._log.warning(f"the controller leased no producer ids (Kafka error {answer['error']}); retrying", peer="controller")
            return
        leased = range(answer["first"], answer["last"] + 1)
        self._block_size = len(leased)
        if self._block:
            self._following = leased
        else:
            self._block = leased
