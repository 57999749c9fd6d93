"""The server of requests, over its real socket."""

from __future__ import annotations

import os

from appliance.ipc.frames import connect_unix
from appliance.runtime.poller import Poller
from appliance.runtime.request_server import RequestServer
from lab.scratch_layout import open_descriptors, scratch_layout


def test_a_client_that_sends_descriptors_is_dropped_and_they_are_closed() -> None:
    with scratch_layout() as layout:
        poller, seen = Poller(), []
        server = RequestServer(layout.controller_socket, poller, lambda client, frame: seen.append((client.user, frame.kind)))
        sender = connect_unix(layout.controller_socket)
        assert sender is not None
        sender.send(1)
        while not seen:
            poller.poll(1000)
        before = open_descriptors()
        sender.send(2, 0, b"", (sender.fileno(),) * 3)
        poller.poll(1000)
        assert seen == [(os.geteuid(), 1)] and len(open_descriptors()) == len(before) - 1
        sender.close()
        server.close()
        poller.close()
