"""Produce and consume with a client id that has a quota: what passes in spite of it, once the burst that a quota allows is over.

The same load for every contender, so a row that is even says that a quota means the same. Weak spot: a turn is a few windows of the quota (1 s) long, so
a full window more or less is some percent of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.client.address import Address
from appliance.client.connection import ClientConnection
from appliance.client.messages import ClientApi
from appliance.protocol import quota_apis
from loadtest.benchmark import BenchmarkFailed
from loadtest.beside_kafka.contenders import Contender
from loadtest.beside_kafka.rows import Cell, Part, Row, Tools, Turn, turn_of
from loadtest.beside_kafka.throughput import FRAMING, PARTITIONS, PRODUCERS, consume, fill, produce, topic_of_a_turn
from loadtest.observation import Observer

ALTER_CLIENT_QUOTAS = ClientApi(quota_apis.ALTER_CLIENT_QUOTAS_REQUEST, quota_apis.ALTER_CLIENT_QUOTAS_RESPONSE, 0, 1)
CLIENT_ID = "throttled"
VALUE_BYTES = 1024
BYTES_PER_SECOND = 5_000_000
BURST_SECONDS = 12
"""A quota counts the last 10 windows of a second, which are empty at first."""
SECONDS = 20


def set_quota(contender: Contender, name: str) -> None:
    """Limit `CLIENT_ID` to `BYTES_PER_SECOND`. Raises BenchmarkFailed."""
    entity = (quota_apis.QuotaEntityPart("client-id", CLIENT_ID),)
    request = quota_apis.AlterClientQuotasRequest((quota_apis.QuotasToAlter(entity, (quota_apis.QuotaOperation(name, float(BYTES_PER_SECOND)),)),))
    connection = ClientConnection(Address(*contender.kafka))
    try:
        (altered,) = connection.request(ALTER_CLIENT_QUOTAS, request).entries
    finally:
        connection.close()
    if altered.error_code:
        raise BenchmarkFailed(f"{contender.name} refused a quota: {altered.error_message}")


@dataclass(frozen=True)
class Throttled(Cell):
    """`verb`: produce or consume."""

    verb: str

    @property
    def name(self) -> str:
        return f"{self.verb} 1 KB with a quota of {BYTES_PER_SECOND / 1e6:g} MB/s"

    @property
    def rows(self) -> tuple[Row, ...]:
        return (Row(self.name, "MB/s", True),)

    def measure(self, contender: Contender, tools: Tools) -> Turn:
        burst, records = (tools.scaled(seconds * BYTES_PER_SECOND // VALUE_BYTES) // PRODUCERS * PRODUCERS for seconds in (BURST_SECONDS, SECONDS))
        set_quota(contender, f"{self.verb}r_byte_rate")
        with topic_of_a_turn(contender, PARTITIONS, int((burst + records) * VALUE_BYTES * FRAMING)) as topic:
            if self.verb == "produce":
                produce(contender, tools, topic, burst, VALUE_BYTES, "all", "none", client_id=CLIENT_ID)
                observer = Observer(contender.pids())
                report = produce(contender, tools, topic, records, VALUE_BYTES, "all", "none", client_id=CLIENT_ID)
            else:
                fill(contender, tools, topic, records, VALUE_BYTES, "none")
                consume(contender, tools, topic, burst, VALUE_BYTES, CLIENT_ID)
                observer = Observer(contender.pids())
                report = consume(contender, tools, topic, records, VALUE_BYTES, CLIENT_ID)
            observation = observer.finish({self.verb: report.cpu_seconds})
        return turn_of({self.name: records * VALUE_BYTES / 1e6 / report.seconds}, observation)


class QuotasPart(Part):
    name = "quotas"
    title = "what passes a client quota; even is best: within 5 % it throttles as Kafka does"

    @property
    def cells(self) -> Sequence[Cell]:
        return [Throttled("produce"), Throttled("consume")]
