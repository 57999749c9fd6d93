"""Which users may order moves and removals on `controller.sock`."""

from __future__ import annotations

import os
from typing import Any, cast

import orjson
import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ErrorCode
from appliance.base.logging import Logger
from appliance.base.settings import Box, Disk
from appliance.ipc.frames import Frame
from appliance.ipc.request_frames import MOVE_ORDERS, MOVE_ORDERS_DONE, ORPHAN_ORDERS
from appliance.runtime.request_server import RequestClient
from appliance.shm.counters import Counters
from lab.scratch_layout import scratch_layout
from services.controller.admin.controller_requests import ControllerRequests
from services.controller.decisions.cluster import Cluster, ControllerContext


class _Client:
    def __init__(self, user: int) -> None:
        self.user = user


class _Unused:
    """A component that orders about disks do not reach."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *arguments: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())


class _Waiting(_Unused):
    def __init__(self) -> None:
        self.begun, self.sent = 0, list[tuple[int, bytes]]()

    def wait(self, *_arguments: Any) -> None:
        self.begun += 1

    def respond(self, _client: Any, kind: int, _token: int, payload: bytes) -> None:
        self.sent.append((kind, payload))


@pytest.mark.parametrize("kind", [MOVE_ORDERS, ORPHAN_ORDERS])
def test_only_root_and_the_own_user_may_give_orders_about_disks(kind: int) -> None:
    with scratch_layout() as layout:
        counters, clock, waiting, unused = Counters.create_or_adopt(layout, "controller", 1), ManualClock(), _Waiting(), cast(Any, _Unused())
        reading, writing = os.pipe()
        context = ControllerContext(Cluster(7, {}, []), unused, clock, counters, Logger("controller", descriptor=writing), unused, lambda: True)
        box = Box("b", 1, [Disk("d0", "/srv/d0")], "/srv/state", "127.0.0.1", "127.0.0.1", 9092, 514, 8080)
        requests = ControllerRequests(context, unused, unused, unused, box, cast(Any, waiting), None, unused, unused, unused)
        orders = Frame(kind, 5, b'{"disk": "d0"}', ())
        requests.on_frame(cast(RequestClient, _Client(os.geteuid() + 1)), orders)
        ((answer, payload),) = waiting.sent
        assert answer == MOVE_ORDERS_DONE and orjson.loads(payload)["refused"][0][1] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert waiting.begun == 0 and counters.counter("controller.requests_forbidden").value == 1
        assert f"a process of user {os.geteuid() + 1} sent an order" in os.read(reading, 4096).decode()
        for user in (0, os.geteuid()):
            requests.on_frame(cast(RequestClient, _Client(user)), orders)
        assert waiting.begun == 2
        os.close(reading)
        os.close(writing)
        counters.close()
