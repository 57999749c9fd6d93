"""`millrace mirror check`: connects to each cluster of a mirror's file, and names what is missing there.

It changes nothing: topics are validated, not created, and the transaction that it ends is of no producer. Weak
spots: whether a topic that does not exist yet could be written is known only once it exists; a topic that the
user may not describe looks like one that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from appliance.base.errors import ErrorCode, MillraceError, RequestRefused
from appliance.client.admin import create_topic, topic_operations
from appliance.client.cluster import ClusterClient, ClusterMetadata
from appliance.client.coordinator import GROUP, TRANSACTION, CoordinatorClient
from appliance.client.groups import committed_offsets, group_operations, list_groups
from appliance.client.messages import END_TXN
from appliance.protocol.transaction_apis import EndTxnRequest
from appliance.security.acl import AclOperation
from services.mirror.group_offsets import is_chosen
from services.mirror.mirror_file import ClusterOptions, MirroredSource, MirrorOptions
from services.mirror.target_topics import read_origins
from services.mirror.topic_rules import CopiedTopic, is_selected, plan_topics

CONNECT_MS: Final = 3_000
REQUEST_MS: Final = 5_000
NAMED_MAX: Final = 5
"""Topics that one line names."""


class ClusterCheck(NamedTuple):
    """`found`: one line about what works, '' if nothing does; `problems`: lines about what does not."""

    subject: str
    found: str
    problems: list[str]

    def lines(self) -> list[str]:
        return [f"{self.subject}: {text}" for text in ([self.found] if self.found else []) + self.problems]


def check_clusters(options: MirrorOptions) -> list[ClusterCheck]:
    """Check the target, then each source. A cluster that cannot be reached costs at most CONNECT_MS for each address."""
    checked, target_id, there = [], None, None
    copied: list[CopiedTopic] = []
    for source in options.sources:
        subject = f"source {source.name} ({_addresses(source.cluster)})"
        checked.append(_attempt(subject, source.cluster, lambda cluster, check, each=source: copied.extend(_check_source(cluster, each, options, check))))  # type: ignore[misc]
    return checked
