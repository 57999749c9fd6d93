"""`kafka-topics.sh` for suites that call it: what they ask of it, by librdkafka's admin client. Kafka's own would need 40 more jars and 2 s a call.

Weak spot: it knows the options that librdkafka's tests use, no more; an unknown one is an error.
"""

from __future__ import annotations

import argparse
import sys

from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

SECONDS = 30.0


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-server", required=True)
    action = parser.add_mutually_exclusive_group(required=True)
    for name in ("create", "alter", "delete"):
        action.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=-1)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--config", action="append", default=[])
    chosen = parser.parse_args(arguments)
    admin = AdminClient({"bootstrap.servers": chosen.bootstrap_server})
    if chosen.create:
        config = dict(one.split("=", 1) for one in chosen.config)
        futures = admin.create_topics([NewTopic(chosen.topic, chosen.partitions, chosen.replication_factor, config=config)])
    elif chosen.alter:
        futures = admin.create_partitions([NewPartitions(chosen.topic, chosen.partitions)])
    else:
        futures = admin.delete_topics([chosen.topic])
    futures[chosen.topic].result(SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
