"""A quota at two acceptors of a box: one client with connections to both."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from appliance.protocol import quota_apis
from appliance.records.builder import BatchBuilder
from appliance.shm.mapping import list_names
from lab import kio_adapter
from lab.raw_client import RawClient
from lab.running_box import RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.slow]

ACCEPTORS = ("acceptor@0", "acceptor@1")


def accepted(box: RunningBox) -> list[int]:
    return [box.counters(name).values["acceptor.connections_accepted"] for name in ACCEPTORS]


def client_of(box: RunningBox, number: int, stack: ExitStack) -> RawClient:
    """A connection to one of the acceptors, which take connections in turns."""
    made: list[RawClient] = []

    def is_there() -> bool:
        before = accepted(box)
        client = RawClient(box.kafka)
        stack.callback(client.close)
        client.api_versions()
        added = [after - former for former, after in zip(before, accepted(box), strict=True)]
        if added == [number == 0, number == 1]:
            made.append(client)
        return bool(made)

    eventually(is_there, f"a connection to {ACCEPTORS[number]}")
    return made[0]


def alter_quota(admin: RawClient, kind: str, name: str, key: str, value: float) -> None:
    quota = quota_apis.QuotasToAlter((quota_apis.QuotaEntityPart(kind, name),), (quota_apis.QuotaOperation(key, value),))
    request = quota_apis.ALTER_CLIENT_QUOTAS_REQUEST
    admin.send(request.api.key, 0, request.encode(0, quota_apis.AlterClientQuotasRequest((quota,))))
    _, answer = admin.receive()
    assert not quota_apis.ALTER_CLIENT_QUOTAS_RESPONSE.decode(answer, 0, len(answer), 0).entries[0].error_code


def test_clients_share_a_quota_whichever_acceptors_they_connect_to(start: Callable[..., RunningBox]) -> None:
    """120 kB in ten to eleven seconds are more than 10 kB a second, half of it is not. Then the same for an address, which may open one connection a second."""
    box = start(acceptors=2, disks=1)
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, b"key", bytes(60_000))
    batch = bytes(builder.build())
    times = []
    with ExitStack() as stack:
        admin = RawClient(box.kafka)
        stack.callback(admin.close)
        admin.create_topic("t", 1)
        eventually(lambda: admin.is_served("t", 1), "the topic is served")
        alter_quota(admin, "client-id", "raw", "producer_byte_rate", 10_000.0)
        prefix = box.layout.shared_memory_name("quotas", "")
        eventually(lambda: len(list_names(prefix)) == len(ACCEPTORS), "both acceptors have the quota")
        for client in [client_of(box, number, stack) for number in range(len(ACCEPTORS))]:
            client.send_produce("t", 0, batch, 1)
            times.append(kio_adapter.decode_response(0, 7, client.receive()[1]).throttle_time.total_seconds())
        assert times[0] == 0 and 0.9 < times[1] <= 2.1

        alter_quota(admin, "ip", "127.0.0.1", "connection_creation_rate", 1.0)
        refused = 'acceptor.closed{reason="connection-rate-of-address"}'

        def each_has_refused_one() -> bool:
            stack.enter_context(socket.create_connection(box.kafka))
            return all(box.counters(name).values[refused] for name in ACCEPTORS)

        eventually(each_has_refused_one, "both acceptors have refused a connection")
        assert admin.is_served("t", 1), "open connections stay"
