"""Opening a cluster for a command, with time-outs that suit a person who waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from appliance.command.failures import UsageProblem
from appliance.command.finding import bootstrap_addresses

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient

CONNECT_TIMEOUT_MS = 5_000


@contextmanager
def open_cluster(bootstrap: str | None, data: str | None, config: str | None) -> Iterator[ClusterClient]:
    """A client of what the options name, closed at the end."""
    addresses = bootstrap_addresses(bootstrap, data, config)
    from appliance.client.cluster import ClusterClient
    from appliance.client.errors import BrokerUnreachable, ClientFailed

    try:
        with ClusterClient(addresses, client_id="millrace-command", connect_timeout_ms=CONNECT_TIMEOUT_MS) as cluster:
            yield cluster
    except BrokerUnreachable as error:
        hint = "look at `millrace status`" if bootstrap is None else "check the address, and that the broker runs"
        raise ClientFailed(f"{error}; {hint}") from error


def require_topic_name(name: str) -> None:
    """UsageProblem unless `name` can be a topic's name at all: no broker need be asked."""
    from appliance.base.model import topic_name_problem

    if problem := topic_name_problem(name):
        raise UsageProblem(problem)
