"""Orders about disks for the controller of a box: partitions to other disks, a disk that takes no new ones, directories without a topic.

Blocking, for commands and threads. Weak: an order that the controller took before it died is given again; it stands already then.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.layout import BoxLayout
from appliance.ipc.request_frames import MOVE_ORDERS, MOVE_ORDERS_DONE

ANSWER_MS = 35_000
ATTEMPTS = 10
ATTEMPT_PAUSE_SECONDS = 0.5
ORDERS_MAX = 1_000
"""Moves in one frame."""


class Patience(NamedTuple):
    """How often the controller is asked, and how long each time."""

    attempts: int = ATTEMPTS
    answer_ms: int = ANSWER_MS


PATIENT = Patience()


def order_moves(layout: BoxLayout, disk: str, moves: Sequence[Sequence[object]], throttle: int | None, patience: Patience = PATIENT) -> None:
    """Drain a disk: it takes no new partitions, and `moves` (topic, partition, target disk) are ordered. Raises RequestRefused, with what was not
    ordered."""
    refused: list[list[Any]] = []
    for start in range(0, max(1, len(moves)), ORDERS_MAX):
        orders = {"disk": disk, "draining": True, "throttle": throttle, "moves": moves[start : start + ORDERS_MAX]}
        try:
            refused += ask_controller(layout, orders, patience=patience)
        except RequestRefused as error:
            words = f"{error.message}; {start} of {len(moves)} move{'' if len(moves) == 1 else 's'} are ordered and go on"
            raise RequestRefused(error.code, words) from error
    _raise_refused(refused)


def cancel_drain(layout: BoxLayout, disk: str, patience: Patience = PATIENT) -> None:
    """Let a disk take new partitions again, and take back what is not moved yet. Raises RequestRefused."""
    _raise_refused(ask_controller(layout, {"disk": disk, "draining": False, "cancel": True}, patience=patience))


def _raise_refused(refused: list[list[Any]]) -> None:
    if refused:
        shown = [f"{what}: {words or ErrorCode(code).name}" for what, code, words in refused[:5]]
        more = [f"and {len(refused) - 5} more"] if len(refused) > 5 else []
        raise RequestRefused(ErrorCode(refused[0][1]), "\n".join([*shown, *more]))


def ask_controller(
    layout: BoxLayout, orders: dict[str, Any], pause: Callable[[float], None] = time.sleep, kind: int = MOVE_ORDERS, patience: Patience = PATIENT
) -> list[list[Any]]:
    """Give the controller orders (a frame of `kind`); what it refused. Asked again when it dies over them: an order that stands already is none. Raises
    RequestRefused if no broker answers."""
    from appliance.ipc.frames import PeerGone, connect_unix

    for attempt in range(patience.attempts):
        if attempt:
            pause(ATTEMPT_PAUSE_SECONDS)
        connection = connect_unix(layout.controller_socket)
        if connection is not None:
            try:
                answer = _answer_of(connection, orders, kind, patience.answer_ms)
            except PeerGone:
                answer = None
            finally:
                connection.close()
            if answer is not None:
                return answer
    raise RequestRefused(ErrorCode.BROKER_NOT_AVAILABLE, "the controller does not answer; look with: millrace status")


def _answer_of(connection: Any, orders: dict[str, Any], kind: int, answer_ms: int) -> list[list[Any]] | None:
    connection.send(kind, 1, json.dumps(orders).encode())
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    while poll.poll(answer_ms):
        for frame in connection.receive():
            if frame.kind == MOVE_ORDERS_DONE:
                refused: list[list[Any]] = json.loads(frame.payload)["refused"]
                return refused
    return None
