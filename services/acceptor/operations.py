"""What a client may do, as answers about topics and the cluster tell it (KIP-430). There are no ACLs: everybody may do everything.

Owned by nobody. Bits are Kafka's AclOperation codes. Weak spot: with ACLs these become questions about who asks.
"""

from __future__ import annotations

from typing import Final

CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
