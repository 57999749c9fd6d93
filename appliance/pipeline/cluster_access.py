"""How a Spark job reaches a cluster: addresses, TLS and SASL, isolation level, read path. Parsed on the driver, pickled into every task.

Without `kafka.bootstrap.servers` it is the box of this machine: that of the directory `millrace.data` or MILLRACE_DATA, else
the only running one. Weak spot: a task on another machine needs addresses that are valid there; loopback is not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from appliance.base.layout import DATA_VARIABLE
from appliance.base.settings import Box, load_box
from appliance.client.address import Address, parse_addresses
from appliance.client.cluster import ClusterClient
from appliance.client.security import ClientSecurity, box_security, client_security
from appliance.pipeline.option_values import OptionValues
from appliance.pipeline.problems import SourceProblem
from appliance.runtime.running_boxes import find_box
from appliance.security.listeners import PLAINTEXT

BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"
DATA_OPTION = "millrace.data"
READ_PATH_OPTION = "millrace.read.path"
_SECURITY_OPTIONS = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")


class ReadPath(StrEnum):
    """Where a task reads batches. AUTO: segments if this machine has them, else Fetch."""

    AUTO = "auto"
    SEGMENTS = "segments"
    FETCH = "fetch"


class ClusterAccess(NamedTuple):
    """What a task needs to reach the cluster; `TopicOffsets.access_for` sets `cluster_id` and `topic_ids`."""

    bootstrap: tuple[Address, ...]
    read_committed: bool = False
    path: ReadPath = ReadPath.AUTO
    data_directory: str | None = None
    client_id: str = "millrace-spark"
    fetch_bytes: int = 4 * 1024 * 1024
    """for one partition in one response: Kafka's max.partition.fetch.bytes"""
    fetch_wait_ms: int = 500
    request_timeout_ms: int = 30_000
    patience_ms: int = 120_000
    """how long a reader waits for a cluster without an answer"""
    cluster_id: str = ""
    topic_ids: tuple[tuple[str, bytes], ...] = ()
    security: ClientSecurity | None = None
    """TLS and SASL; None: neither"""

    def open(self, retry_ms: int = 10_000) -> ClusterClient:
        """Return a client, which is a context manager."""
        return ClusterClient(self.bootstrap, client_id=self.client_id, request_timeout_ms=self.request_timeout_ms, retry_ms=retry_ms, security=self.security)

    def topic_id(self, topic: str) -> bytes | None:
        return dict(self.topic_ids).get(topic)

    @property
    def servers(self) -> str:
        """Return the addresses as text."""
        return ",".join(map(str, self.bootstrap))


def access_from(options: Mapping[str, str]) -> ClusterAccess:
    """Parse the options of a reader or a writer. Raises `SourceProblem`."""
    values = options if isinstance(options, OptionValues) else OptionValues(options)
    usual = ClusterAccess(())
    data_directory = values.get(DATA_OPTION) or os.environ.get(DATA_VARIABLE)
    return ClusterAccess(
        bootstrap=_bootstrap(values, data_directory),
        read_committed=values.choice("kafka.isolation.level", "read_uncommitted", ("read_uncommitted", "read_committed")) == "read_committed",
        path=ReadPath(values.choice(READ_PATH_OPTION, ReadPath.AUTO, tuple(ReadPath))),
        data_directory=data_directory,
        client_id=values.get("kafka.client.id", usual.client_id),
        fetch_bytes=values.number("kafka.max.partition.fetch.bytes", usual.fetch_bytes, 1),
        fetch_wait_ms=values.number("kafka.fetch.max.wait.ms", usual.fetch_wait_ms),
        request_timeout_ms=values.number("kafka.request.timeout.ms", usual.request_timeout_ms, 1),
        patience_ms=values.number("kafkaConsumer.pollTimeoutMs", usual.patience_ms, 1),
        security=_security(values, data_directory),
    )


def _bootstrap(values: OptionValues, data_directory: str | None) -> tuple[Address, ...]:
    if BOOTSTRAP_SERVERS not in values:
        return (Address(*_local_box(data_directory).local_kafka),)
    try:
        return tuple(parse_addresses(values[BOOTSTRAP_SERVERS]))
    except ValueError as error:
        raise SourceProblem(f"option '{BOOTSTRAP_SERVERS}': {error}") from None


def _local_box(data_directory: str | None) -> Box:
    """Return this machine's box. Raises `SourceProblem` if there is none, or several and no option names one."""
    layout = find_box(data_directory)
    if layout is None:
        where = f"no running box of this machine has the data directory {data_directory}" if data_directory else "not exactly one box runs on this machine"
        raise SourceProblem(f"option '{BOOTSTRAP_SERVERS}' must be specified, as {where}; give HOST:PORT, or '{DATA_OPTION}' with a box's data directory")
    return load_box(layout)


def _security(values: OptionValues, data_directory: str | None) -> ClientSecurity | None:
    """Return TLS and SASL by the option names of Kafka's clients; without them and without servers, as the box of this machine wants it."""
    given = {name.lower().removeprefix("kafka."): values[name] for name in values if name.lower().startswith(_SECURITY_OPTIONS)}
    protocol = given.get("security.protocol", PLAINTEXT).strip().upper()
    if protocol != PLAINTEXT:
        try:
            return client_security({**given, "security.protocol": protocol}, "options 'kafka.'")
        except ValueError as error:
            raise SourceProblem(str(error)) from None
    unused = [name for name in given if name != "security.protocol"]
    if unused:  # to ignore it would send data in clear text that the user wants to protect
        raise SourceProblem(f"option 'kafka.{unused[0]}' is set, but 'kafka.security.protocol' is {PLAINTEXT}; set it to SSL, SASL_SSL or SASL_PLAINTEXT")
    return None if BOOTSTRAP_SERVERS in values or given else box_security(_local_box(data_directory))
