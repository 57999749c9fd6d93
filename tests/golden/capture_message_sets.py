"""Makes `tests/golden/message-sets/*.hex` again: Produce before 3 and Fetch before 4 as clients of today send them when they are offered nothing newer.

Run by hand: `python -m tests.golden.capture_message_sets`. One file a request, `SCENARIO-API-vN[-CODEC]-CLIENT.hex`, the whole frame with its size. A
client that is not installed is left as it is. In magic 0 only librdkafka knows the lz4 of that time, and kafkajs does not compress.
"""

from __future__ import annotations

import pytest

from appliance.protocol.apis import ApiKey
from lab.foreign_clients import CONSUMERS, Sent, open_client
from lab.version_proxy import KAFKA_0_10_2, NEWER_FOR
from tests.golden.capture import TOPIC, RecordingBroker, write

DIRECTORY = "message-sets"
OFFERED = {"magic0": KAFKA_0_10_2 | {ApiKey.PRODUCE: 1, ApiKey.FETCH: 1}, "magic1": KAFKA_0_10_2}
CLIENTS = {"magic0": ("librdkafka", "kafkajs"), "magic1": ("librdkafka", "kafka-python", "kafkajs", "kafka-clients")}
CODECS = ("none", "gzip", "snappy", "lz4")
RECORDS = [Sent(b"line %d " % number * 10, b"key", (), 1_700_000_000_000 + number) for number in range(10)]


def capture(scenario: str, name: str) -> dict[str, bytes]:
    broker = RecordingBroker("newest")
    broker.scenario, broker.highest = scenario, OFFERED[scenario] | NEWER_FOR.get(name, {})
    try:
        client = open_client(name, f"127.0.0.1:{broker.port}")
        for codec in CODECS if (scenario, name) != ("magic0", "kafkajs") else CODECS[:1]:
            broker.codec = codec
            client.produce(TOPIC, RECORDS, codec)
        if name in (*CONSUMERS, "librdkafka"):
            client.fetch(TOPIC, len(RECORDS))
        client.close()
    finally:
        broker.close()
    return {f"{request}-{name}": frame for request, frame in broker.requests.items() if "-Produce-" in request or "-Fetch-" in request}


def main() -> None:
    for scenario, names in CLIENTS.items():
        for name in names:
            try:
                write(DIRECTORY, capture(scenario, name))
            except pytest.skip.Exception as reason:
                print(f"{name}: {reason}")


if __name__ == "__main__":
    main()
