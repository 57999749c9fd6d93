"""`millrace mirror check`: connects to each cluster of a mirror's file, and names what is missing there.

It changes nothing: topics are validated and not created, and the transaction that it ends is of no producer.
Weak spots: whether a topic may be written is known only once it exists; a topic that the user may not describe
looks like one that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from appliance.base.errors import ErrorCode, MillraceError, RequestRefused
from appliance.client.admin import create_topic
from appliance.client.cluster import ClusterClient
from appliance.client.coordinator import GROUP, TRANSACTION, CoordinatorClient
from appliance.client.groups import committed_offsets, list_groups
from appliance.client.messages import DESCRIBE_GROUPS, END_TXN, METADATA
from appliance.protocol.group_apis import DescribeGroupsRequest
from appliance.protocol.metadata import OPERATIONS_NOT_ASKED, MetadataRequest, MetadataRequestTopic
from appliance.protocol.transaction_apis import EndTxnRequest
from appliance.security.acl import AclOperation
from services.mirror.group_offsets import is_chosen
from services.mirror.mirror_file import ClusterOptions, MirroredSource, MirrorOptions
from services.mirror.target_topics import read_origins
from services.mirror.topic_rules import CopiedTopic, is_selected, plan_topics, self_copy_problem

CONNECT_MS: Final = 3_000
REQUEST_MS: Final = 5_000
NAMED_MAX: Final = 5
"""Topics that one line names."""


class ClusterCheck:
    """What works with one cluster, and what does not."""

    def __init__(self, subject: str, options: ClusterOptions) -> None:
        self.subject = f"{subject} at {', '.join(map(str, options.bootstrap))}"
        self.cluster_id: str | None = None
        self.found = ""
        """a line about what works; '' if the cluster cannot be used at all"""
        self.problems: list[str] = []
        self._options = options

    def lines(self) -> list[str]:
        return [f"{self.subject}: {text}" for text in ([self.found] if self.found else []) + self.problems]

    def ask(self, question: Callable[[ClusterClient], None]) -> None:
        """Connect and ask; a failure is a problem."""
        security = self._options.security
        with ClusterClient(self._options.bootstrap, client_id="millrace-mirror", connect_timeout_ms=CONNECT_MS, request_timeout_ms=REQUEST_MS,
                           retry_ms=REQUEST_MS, security=security) as cluster:  # fmt: skip
            self.attempt(lambda: question(cluster))

    def attempt(self, question: Callable[[], None]) -> None:
        try:
            question()
        except RequestRefused as error:
            self.problems.append(error.message)
        except MillraceError as error:
            self.problems.append(str(error))

    def require(self, operation: AclOperation, allowed: dict[str, int], what: str = "topics") -> None:
        """Add a problem if the right is missing for some of `allowed` (names and their operations as bits, KIP-430)."""
        missing = [name for name, bits in allowed.items() if bits != OPERATIONS_NOT_ASKED and not bits >> operation & 1]
        if missing:
            self.problems.append(f"the right {_right(operation)} is missing for {what} {_some(missing)}")


def check_clusters(options: MirrorOptions) -> list[ClusterCheck]:
    """Check the target, then each source."""
    target = ClusterCheck("target", options.target)
    target.ask(lambda cluster: _identify(target, cluster))
    checks, copied = [target], dict[str, int]()
    for source in options.sources:
        check = ClusterCheck(f"source {source.name}", source.cluster)
        check.ask(lambda cluster, check=check, source=source: copied.update(_check_source(check, cluster, source, options, target.cluster_id)))  # type: ignore[misc]
        checks.append(check)
    if target.found:
        target.ask(lambda cluster: _check_target(target, cluster, options, copied))
    return checks


def _identify(check: ClusterCheck, cluster: ClusterClient) -> None:
    found = cluster.metadata([])
    check.cluster_id = found.cluster_id
    check.found = f"connected to cluster {found.cluster_id or 'without id'}, brokers {', '.join(map(str, sorted(found.brokers)))}"


def _check_source(check: ClusterCheck, cluster: ClusterClient, source: MirroredSource, options: MirrorOptions, target_id: str | None) -> dict[str, int]:
    """Return the topics of the target and how many partitions they need."""
    _identify(check, cluster)
    topics = cluster.metadata().topics
    selected = [name for name, topic in topics.items() if not topic.is_internal and is_selected(name, source.topics, source.exclude)]
    is_target = check.cluster_id is not None and check.cluster_id == target_id
    if is_target and (problem := self_copy_problem(selected, source.prefix, source.topics, source.exclude)) is not None:
        check.problems.append(problem)
        return {}
    check.found += f"; topics selected: {len(selected)} of {len(topics)}"
    if not selected:
        check.problems.append("no topic is selected: there is none of that name, or the right Describe is missing")
    allowed = _topic_operations(cluster, selected)
    check.require(AclOperation.READ, allowed)
    if options.copies_settings:
        check.require(AclOperation.DESCRIBE_CONFIGS, allowed)
    check.attempt(lambda: _check_groups(check, cluster, source))
    copied: list[CopiedTopic] = []
    check.attempt(lambda: copied.extend(_plan(check, cluster, selected, source, target_id)))
    return {each.target: len(topics[each.source].partitions) for each in copied}


def _plan(check: ClusterCheck, cluster: ClusterClient, selected: Iterable[str], source: MirroredSource, target_id: str | None) -> list[CopiedTopic]:
    copied, left_out = plan_topics(selected, source.prefix, target_id, read_origins(cluster, lambda: None))
    check.problems += [f"topic {each.topic} is not copied: {each.reason}" for each in left_out]
    return copied


def _check_groups(check: ClusterCheck, cluster: ClusterClient, source: MirroredSource) -> None:
    if source.groups:
        chosen = [each.group_id for each in list_groups(cluster) if is_chosen(source, each.group_id)]
        check.found += f"; groups selected: {len(chosen)}"
        for group_id in chosen[:1]:
            committed_offsets(cluster, group_id)


def _check_target(check: ClusterCheck, cluster: ClusterClient, options: MirrorOptions, copied: dict[str, int]) -> None:
    existing = {name for name, topic in cluster.metadata().topics.items() if topic.error == ErrorCode.NONE} & copied.keys()
    new = sorted(copied.keys() - existing)
    check.found += f"; topics: {len(existing)} there, {len(new)} to create"
    allowed = _topic_operations(cluster, sorted(existing))
    check.require(AclOperation.WRITE, allowed)
    if options.copies_settings:
        check.require(AclOperation.DESCRIBE_CONFIGS, allowed)
        check.require(AclOperation.ALTER_CONFIGS, allowed)
    refusals: dict[str, list[str]] = {}
    for name in new:
        try:
            create_topic(cluster, name, partitions=copied[name], replication_factor=options.replication_factor, validate_only=True)
        except RequestRefused as error:
            refusals.setdefault(error.message.partition(": ")[2] or error.message, []).append(name)
    check.problems += [f"topics {_some(names)} cannot be created: {reason}" for reason, names in refusals.items()]
    for source in options.sources:
        group_id = options.group_of(source)
        check.attempt(lambda group_id=group_id: check.require(AclOperation.READ, _group_operations(cluster, group_id), "group"))  # type: ignore[misc]
    check.attempt(lambda: _check_transaction(check, cluster, options.transactional_id))


def _check_transaction(check: ClusterCheck, cluster: ClusterClient, transactional_id: str) -> None:
    """End the transaction of producer -1: refused by a coordinator in any case, and before that for want of the right Write."""
    request = EndTxnRequest(transactional_id)
    try:
        coordinator = CoordinatorClient(cluster, TRANSACTION, transactional_id)
        coordinator.ask(END_TXN, request, f"write with transactional id {transactional_id!r}", lambda body: (body.error_code, None))
    except RequestRefused as error:
        if error.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            check.problems.append(f"the right Write is missing for transactional id {transactional_id}")


def _topic_operations(cluster: ClusterClient, names: list[str]) -> dict[str, int]:
    if not names:
        return {}
    request = MetadataRequest(tuple(MetadataRequestTopic(name=name) for name in names), False, include_topic_authorized_operations=True)
    body = cluster.ask_broker(min(cluster.latest.brokers), METADATA, request)
    return {topic.name: topic.authorized_operations for topic in body.topics if topic.name is not None}


def _group_operations(cluster: ClusterClient, group_id: str) -> dict[str, int]:
    coordinator = CoordinatorClient(cluster, GROUP, group_id)
    request = DescribeGroupsRequest((group_id,), include_authorized_operations=True)
    body = coordinator.ask(DESCRIBE_GROUPS, request, f"describe group {group_id!r}", lambda body: (body.groups[0].error_code, None))
    return {group.group_id: group.authorized_operations for group in body.groups}


def _right(operation: AclOperation) -> str:
    """READ → Read, DESCRIBE_CONFIGS → DescribeConfigs, as Kafka's tools write them."""
    return "".join(part.capitalize() for part in operation.name.split("_"))


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
