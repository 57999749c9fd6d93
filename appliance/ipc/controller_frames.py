"""Frames on `controller.sock` besides Kafka's requests (`request_frames`): changes of the metadata
image, implicit creation of topics, and others."""

from __future__ import annotations

from struct import Struct

IMAGE_CHANGED = 3
"""controller → each client, when it connects and at each change: u64 generation."""
AUTO_CREATE = 4
"""acceptor, ingest or coordinator → controller: JSON {"topics": [name, …]} or {"topics": {name:
partitions}}."""
AUTO_CREATE_DONE = 5
"""controller → client: JSON {"errors": {name: Kafka error code}}; 0 and TOPIC_ALREADY_EXISTS mean
that the topic exists."""
MOVE_ORDERS = 16
"""command → controller: JSON {"disk": name, "draining": true, false or null (unchanged), "cancel":
true to revoke all moves away from it, "throttle": bytes per second or null, "moves": [[topic,
partition, target disk], …]}."""
MOVE_ORDERS_DONE = 17
"""controller → client: JSON {"refused": [[what, Kafka error code, message], …]}; empty: all of it
is durable."""
LEASE_PRODUCER_IDS = 6
"""coordinator → controller: JSON {}."""
COMMIT_LEGACY_OFFSETS = 7
"""coordinator → controller: JSON {"group": …, "offsets": [[topic, partition, offset], …]}."""
FETCH_LEGACY_OFFSETS = 8
"""coordinator → controller: JSON {"group": …, "partitions": [[topic, partition], …]}."""
COORDINATOR_ANSWER = 9
"""controller → coordinator: JSON {"error": Kafka error code}, and without an error {"first": id, "last": id}, {"errors": [[topic, partition, code], …]} or
{"offsets": [[topic, partition, offset], …]}."""

GENERATION = Struct("<Q")
