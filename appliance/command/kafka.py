"""Opening a cluster for a command, with time-outs that suit a person who waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.command.failures import UsageProblem
from appliance.command.finding import administration_addresses, bootstrap_addresses, find_running_box

if TYPE_CHECKING:
    from appliance.client.cluster import ClusterClient
    from appliance.client.security import ClientSecurity

CONNECT_TIMEOUT_MS = 5_000
COMMAND_CONFIG_VARIABLE = "MILLRACE_COMMAND_CONFIG"
chosen_command_config: str | None = None
"""The file of --command-config, of the command that this process is."""


@contextmanager
def open_cluster(bootstrap: str | None, data: str | None, config: str | None, command_config: str | None = None) -> Iterator[ClusterClient]:
    """A client of what the options name, closed at the end.

    `command_config`: a properties file with `security.protocol` and what it needs. With `bootstrap` the
    environment variable MILLRACE_COMMAND_CONFIG may name it, too. Without `bootstrap`, a box with TLS is asked
    with its own certificate.
    """
    command_config = command_config or chosen_command_config
    addresses = (bootstrap_addresses if command_config else administration_addresses)(bootstrap, data, config)
    path = command_config or _named_config(bootstrap)
    security = read_security(path) if path else _own_security(data, config) if bootstrap is None else None
    from appliance.client.cluster import ClusterClient
    from appliance.client.errors import BrokerUnreachable, ClientFailed

    try:
        with ClusterClient(addresses, client_id="millrace-command", connect_timeout_ms=CONNECT_TIMEOUT_MS, security=security) as cluster:
            yield cluster
    except BrokerUnreachable as error:
        hint = "look at `millrace status`" if bootstrap is None else "check the address, and that the broker runs"
        if bootstrap is not None and security is None:
            hint += "; a listener for logins or TLS needs --command-config"
        raise ClientFailed(f"{error}; {hint}") from error


def _own_security(data: str | None, config: str | None) -> ClientSecurity | None:
    found = find_running_box(data, config)
    if not found.is_encrypted:
        return None
    from appliance.base.settings import Box
    from appliance.client.security import box_security

    return box_security(Box.from_document({**found.box}))


def _named_config(bootstrap: str | None) -> str | None:
    return os.environ.get(COMMAND_CONFIG_VARIABLE) if bootstrap is not None else None


def spark_options(bootstrap: str | None, data: str | None, config: str | None) -> dict[str, str]:
    """The options of `format("millrace")` for what `open_cluster` opens: addresses, and what TLS and SASL need."""
    path = chosen_command_config or _named_config(bootstrap)
    if path:
        read_security(path)  # what is wrong with the file is said by its name
        named = {name: value for name, value in _properties(path).items() if name.startswith(("security.", "sasl.", "ssl."))}
    else:
        own = _own_security(data, config) if bootstrap is None else None
        named = own.options if own is not None else {}
    servers = ",".join(str(address) for address in bootstrap_addresses(bootstrap, data, config))
    return {"kafka.bootstrap.servers": servers, **{f"kafka.{name}": value for name, value in named.items()}}


def _properties(path: str) -> dict[str, str]:
    from appliance.client.security import read_properties

    return read_properties(Path(path).read_text())


def read_security(path: str) -> ClientSecurity:
    """Read a properties file. Raises UsageProblem."""
    from appliance.client.security import client_security

    try:
        return client_security(_properties(path), path)
    except OSError as error:
        raise UsageProblem(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageProblem(str(error)) from error


def require_topic_name(name: str) -> None:
    """UsageProblem unless `name` can be a topic's name at all: no broker need be asked."""
    from appliance.base.model import topic_name_problem

    if problem := topic_name_problem(name):
        raise UsageProblem(problem)
