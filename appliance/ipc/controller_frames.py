"""What is said on `controller.sock` besides Kafka's requests (`request_frames`): changes of the metadata image, topics to create by the way."""

from __future__ import annotations

from struct import Struct

IMAGE_CHANGED = 3
"""controller → everyone connected, at connect and at each change: u64 generation."""
AUTO_CREATE = 4
"""acceptor, ingest or coordinator → controller: JSON {"topics": [name, …]} or {"topics": {name: partitions}}."""
AUTO_CREATE_DONE = 5
"""controller → asker: JSON {"errors": {name: Kafka error code}}; 0 and TOPIC_ALREADY_EXISTS mean that it is there."""

GENERATION = Struct("<Q")
