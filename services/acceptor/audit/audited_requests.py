"""What an administrative request changes: from request and response to the items that the audit names.

One function for each API. Credentials never appear: of users only names, mechanisms and iterations, of configs
only values that are known to be none. Pure. An acceptor imports this module, and the schemas of each API, at the
first such request: all of them would take 33 ms and 5 MB. Weak: "before" is what the image of this box has, which may
be a moment old; of users and quotas, what the images beside it have; of large requests there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from ipaddress import ip_address
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from appliance.base.errors import ErrorCode, known_error
from appliance.base.logging import KAFKA_LEVELS
from appliance.base.model import AUDIT_TOPIC, NO_TOPIC_ID
from appliance.cluster.broker_configs import DYNAMIC_BROKER_CONFIGS
from appliance.cluster.group_configs import GROUP_CONFIG_ROWS
from appliance.cluster.metadata_image import MetadataImage
from appliance.cluster.state_log import AUDIT_CONFIGS, AUDIT_PARTITIONS
from appliance.cluster.topic_configs import TOPIC_CONFIG_ROWS
from appliance.protocol.apis import ApiKey
from appliance.protocol.wire import ELEMENTS_MAX
from appliance.security.acl import AclOperation, AclPermission, AclResource, PatternType
from appliance.security.quotas import DEFAULT_NAME, ClientQuotas, QuotaEntity

if TYPE_CHECKING:
    from appliance.cluster.credential_image import CredentialFollower
    from appliance.protocol.schema import Message

PARTITIONS_SHOWN: Final = 100
VALUE_CHARACTERS_MAX: Final = 2_000
RESPONSE_ELEMENTS_MAX: Final = 20_000
"""A created topic has 30: its configs."""
HIDDEN: Final = "***"
TOPIC, BROKER, BROKER_LOGGER, GROUP = 2, 4, 8, 32
"""Resource types of configs."""
MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_MODULES: Final = {
    "topic_apis": (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS),
    "config_apis": (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS),
    "offset_apis": (ApiKey.DELETE_RECORDS,),
    "reassignment_apis": (ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.ELECT_LEADERS),
    "log_dir_apis": (ApiKey.ALTER_REPLICA_LOG_DIRS,),
    "cluster_apis": (ApiKey.UNREGISTER_BROKER,),
    "acl_apis": (ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS),
    "sasl_apis": (ApiKey.ALTER_USER_SCRAM_CREDENTIALS,),
    "quota_apis": (ApiKey.ALTER_CLIENT_QUOTAS,),
    "token_apis": (ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN),
    "group_apis": (ApiKey.DELETE_GROUPS,),
    "group_offset_apis": (ApiKey.OFFSET_DELETE, ApiKey.OFFSET_COMMIT),
}
"""Of `appliance.protocol`, with the schemas of their APIs."""
_WORDS: Final = ("set", "delete", "append", "subtract")
"""Operations of IncrementalAlterConfigs."""


class AuditedItem(NamedTuple):
    """One thing that a request changes. `error_code`: of the response."""

    event: str
    resource: str
    details: dict[str, Any]
    error_code: int = 0


class AuditedChange(NamedTuple):
    """A decoded request and the image when it came. `former`: quotas by entity of the request, or iterations by user
    and mechanism; what it lacks is not known."""

    api_key: int
    version: int
    request: Any
    image: MetadataImage
    former: Mapping[Any, Any] = MappingProxyType({})

    @property
    def is_dry_run(self) -> bool:
        return bool(getattr(self.request, "validate_only", False))

    @property
    def response_message(self) -> Message[Any]:
        return _messages(self.api_key)[1]

    @property
    def names_audit_topic(self) -> bool:
        """True if the request creates, changes or deletes the topic of the audit."""
        request = self.request
        if self.api_key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
            return any(each.resource_type == TOPIC and each.resource_name == AUDIT_TOPIC for each in request.resources)
        if self.api_key == ApiKey.DELETE_TOPICS:
            return AUDIT_TOPIC in (_name_of(each, self.image) for each in _topics_to_delete(request))
        return self.api_key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS) and any(each.name == AUDIT_TOPIC for each in request.topics)

    @property
    def is_automatic_creation(self) -> bool:
        """True if the request creates the topic of the audit as the box does that needs it."""
        wanted = AUDIT_PARTITIONS, (), tuple(AUDIT_CONFIGS.items())
        return self.api_key == ApiKey.CREATE_TOPICS and all(
            (each.num_partitions, each.assignments, tuple((config.name, config.value) for config in each.configs)) == wanted
            for each in self.request.topics
            if each.name == AUDIT_TOPIC
        )

    def refused(self, error_code: ErrorCode, message: str) -> bytes:
        """Return the response with an error in each place."""
        response = self.response_message
        return response.encode(self.version, response.error_response(self.version, self.request, error_code, message))

    def items(self, body: bytes | None) -> Iterator[AuditedItem]:
        """Return what was changed, or was not. `body`: of the response; None: it is not known. Raises ProtocolViolation
        (`TOO_MANY_ELEMENTS`: for a large response)."""
        if body is None:
            unknown = ErrorCode.UNKNOWN_SERVER_ERROR
            is_partial = self.api_key == ApiKey.DELETE_RECORDS  # has no such response, and never needs one
            whole = self.response_message.body() if is_partial else self.response_message.error_response(self.version, self.request, unknown)
            return ITEMS[ApiKey(self.api_key)](self, whole)
        response = self.response_message.decode(body, 0, len(body), self.version, len(body), RESPONSE_ELEMENTS_MAX)
        return ITEMS[ApiKey(self.api_key)](self, response)


def _messages(api_key: int) -> tuple[Message[Any], Message[Any]]:
    """Return the schemas of request and response."""
    key = ApiKey(api_key)
    module = import_module(f"appliance.protocol.{next(name for name, keys in _MODULES.items() if key in keys)}")
    return getattr(module, f"{key.name}_REQUEST"), getattr(module, f"{key.name}_RESPONSE")


def _topics_to_delete(request: Any) -> Any:
    from appliance.protocol.topic_apis import topics_to_delete

    return topics_to_delete(request)


def read_change(api_key: int, version: int, body: bytes, image: MetadataImage, elements_max: int = ELEMENTS_MAX) -> AuditedChange:
    """Decode a request. Raises ProtocolViolation (`TOO_MANY_ELEMENTS`: for a large one)."""
    request = _messages(api_key)[0].decode(body, 0, len(body), version, elements_max=elements_max)
    return AuditedChange(api_key, version, request, image)


def _name_of(topic: Any, image: MetadataImage) -> str:
    if topic.name is not None and topic.topic_id == NO_TOPIC_ID:
        return str(topic.name)
    known = image.topics_by_id.get(topic.topic_id)
    return known.name if known is not None else f"with the id {topic.topic_id}"


def _count(image: MetadataImage, name: str) -> int:
    topic = image.topics.get(name)
    return len(topic.partitions) if topic is not None else 0


_KNOWN_CONFIGS: Final = {
    *((TOPIC, name) for name in TOPIC_CONFIG_ROWS),
    *((BROKER, name) for name in DYNAMIC_BROKER_CONFIGS),
    *((GROUP, name) for name in GROUP_CONFIG_ROWS),
}


def _shown(resource_type: int, name: str, value: str | None) -> str | None:
    is_known = (resource_type, name) in _KNOWN_CONFIGS or (resource_type == BROKER_LOGGER and value in KAFKA_LEVELS)
    return value if value is None else value[:VALUE_CHARACTERS_MAX] if is_known else HIDDEN


def _some(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """The first entries, so that one event stays short."""
    found = [(str(key), value) for key, value in pairs]
    return dict(found[:PARTITIONS_SHOWN]) | ({"more": len(found) - PARTITIONS_SHOWN} if len(found) > PARTITIONS_SHOWN else {})


def _worst(codes: Iterable[int]) -> int:
    return next((code for code in codes if code), 0)


# --- topics


def _created_topics(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    codes = {each.name: each.error_code for each in response.topics}
    counts = {each.name: each.num_partitions for each in response.topics}
    for topic in change.request.topics:
        partitions = len(topic.assignments) or max(topic.num_partitions, counts.get(topic.name, -1))
        configs = {each.name: _shown(TOPIC, each.name, each.value) for each in topic.configs}
        details = {"partitions": partitions, "replication_factor": topic.replication_factor, "configs": configs}
        yield AuditedItem("audit.topic.created", f"topic {topic.name}", details, codes.get(topic.name, 0))


def _deleted_topics(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    codes = {each.name: each.error_code for each in response.topics} | {each.topic_id: each.error_code for each in response.topics}
    for topic in _topics_to_delete(change.request):
        name = _name_of(topic, change.image)
        code = codes.get(topic.topic_id if topic.topic_id != NO_TOPIC_ID else topic.name, 0)
        yield AuditedItem("audit.topic.deleted", f"topic {name}", {"before": {"partitions": _count(change.image, name)}}, code)


def _created_partitions(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    codes = {each.name: each.error_code for each in response.results}
    for topic in change.request.topics:
        details = {"before": _count(change.image, topic.name), "partitions": topic.partition_count}
        yield AuditedItem("audit.partitions.created", f"topic {topic.name}", details, codes.get(topic.name, 0))


def _altered_configs(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    codes = {(each.resource_type, each.resource_name): each.error_code for each in response.responses}
    is_incremental = change.api_key == ApiKey.INCREMENTAL_ALTER_CONFIGS
    for resource in change.request.resources:
        kind, name = resource.resource_type, resource.resource_name
        topic = change.image.topics.get(name) if kind == TOPIC else None
        before = change.image.group_configs.get(name, {}) if kind == GROUP else {} if topic is None else topic.config
        changes = {}
        for each in resource.configs:
            word = _WORDS[each.operation] if is_incremental and 0 <= each.operation < len(_WORDS) else "set"
            changes[each.name] = {word: _shown(kind, each.name, each.value), "before": _shown(kind, each.name, before.get(each.name))}
        what = {TOPIC: "topic", BROKER: "broker", BROKER_LOGGER: "loggers of broker", GROUP: "group"}.get(kind, f"resource of type {kind}")
        details = {"configs": changes} if is_incremental else {"configs": changes, "others": "reset"}
        yield AuditedItem("audit.config.altered", f"{what} {name}", details, codes.get((kind, name), 0))


def _deleted_records(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    found = {topic.topic: {each.partition: each for each in topic.partitions} for topic in response.topics}
    for topic in change.request.topics:
        results = found.get(topic.topic, {})
        below = {each.partition: each.offset if each.offset >= 0 else "all" for each in topic.partitions}
        code = _worst(each.error_code for each in results.values())
        yield AuditedItem("audit.records.deleted", f"topic {topic.topic}", {"below_offset": _some(below.items())}, code)


# --- partitions


def _reassigned(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    codes = {topic.name: _worst(each.error_code for each in topic.partitions) for topic in response.responses}
    for topic in change.request.topics:
        known = change.image.topics.get(topic.name)
        partitions = known.partitions if known is not None else ()
        replicas = {number: partition.replicas for number, partition in enumerate(partitions)}
        moves = [(each.partition_index, {"replicas": each.replicas, "before": replicas.get(each.partition_index)}) for each in topic.partitions]
        yield AuditedItem("audit.replicas.reassigned", f"topic {topic.name}", {"partitions": _some(moves)}, response.error_code or codes.get(topic.name, 0))


def _elected(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    details = {"election": "unclean" if change.request.election_type else "preferred"}
    if response.error_code:
        yield AuditedItem("audit.leaders.elected", "partitions", details, response.error_code)
    for topic in response.results:
        results = [each for each in topic.partitions if each.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        if results:
            partitions = [each.partition_id for each in results][:PARTITIONS_SHOWN]
            code = _worst(each.error_code for each in results)
            yield AuditedItem("audit.leaders.elected", f"topic {topic.topic}", {**details, "partitions": partitions}, code)


def _moved(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    codes = {topic.topic_name: _worst(each.error_code for each in topic.partitions) for topic in response.results}
    for directory in change.request.dirs:
        for topic in directory.topics:
            details = {"to": directory.path, "partitions": list(topic.partitions[:PARTITIONS_SHOWN])}
            yield AuditedItem("audit.replicas.moved", f"topic {topic.name}", details, codes.get(topic.name, 0))


def _unregistered(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    yield AuditedItem("audit.broker.unregistered", f"broker {change.request.broker_id}", {}, response.error_code)


# --- access


def _acl(each: Any, pattern: int) -> tuple[str, dict[str, Any]]:
    resource = f"{_word(AclResource, each.resource_type)} {each.resource_name}"
    rule = f"{_word(AclPermission, each.permission_type)} {_word(AclOperation, each.operation)}"
    return resource, {"pattern": _word(PatternType, pattern), "principal": each.principal, "host": each.host, "entry": rule}


def _word(enum: Any, number: int) -> str:
    try:
        return str(enum(number).name).lower()
    except ValueError:
        return str(number)


def _created_acls(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    for index, each in enumerate(change.request.creations):
        code = response.results[index].error_code if index < len(response.results) else 0
        yield AuditedItem("audit.acl.created", *_acl(each, each.resource_pattern_type), code)


def _deleted_acls(_change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    for found in response.filter_results:
        if found.error_code:
            yield AuditedItem("audit.acl.deleted", "entries", {}, found.error_code)
        for each in found.matching_acls:
            yield AuditedItem("audit.acl.deleted", *_acl(each, each.pattern_type), each.error_code)


def _altered_users(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    codes = {each.user: each.error_code for each in response.results}
    for each in change.request.deletions:
        details = {"mechanism": _mechanism(each.mechanism), **_before_of_user(change, each)}
        yield AuditedItem("audit.user.deleted", f"user {each.name}", details, codes.get(each.name, 0))
    for each in change.request.upsertions:
        details = {"mechanism": _mechanism(each.mechanism), "iterations": each.iterations, **_before_of_user(change, each)}
        yield AuditedItem("audit.user.altered", f"user {each.name}", details, codes.get(each.name, 0))


def _mechanism(number: int) -> str:
    return MECHANISMS.get(number, str(number))


def _before_of_user(change: AuditedChange, each: Any) -> dict[str, Any]:
    """None: the user had no credential of this mechanism."""
    key = each.name, _mechanism(each.mechanism)
    if key not in change.former:
        return {}
    iterations = change.former[key]
    return {"before": None if iterations is None else {"iterations": iterations}}


def _altered_quotas(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    codes = {each.entity: each.error_code for each in response.entries}
    for entry in change.request.entries:
        entity = ", ".join(f"{part.entity_type} {'(default)' if part.entity_name is None else part.entity_name}" for part in entry.entity)
        details: dict[str, Any] = {"quotas": {each.key: None if each.remove else each.value for each in entry.ops}}
        if entry.entity in change.former:
            details["before"] = {key: change.former[entry.entity].get(key) for key in details["quotas"]}
        yield AuditedItem("audit.quota.altered", entity, details, codes.get(entry.entity, 0))


def former_quotas(request: Any, quotas: ClientQuotas) -> dict[Any, dict[str, float]]:
    """Return what the entities of an AlterClientQuotas request have; those that no quota can have are left out."""
    former = {}
    for entry in request.entries:
        names = {kind: DEFAULT_NAME if name is None else name for kind, name in entry.entity}
        with suppress(ValueError):
            address = names.get("ip")
            entity = QuotaEntity(names.get("user"), names.get("client-id"), str(ip_address(address)) if address else address)
            former[entry.entity] = quotas.values_of(entity)
    return former


def former_users(request: Any, credentials: CredentialFollower) -> dict[Any, int | None]:
    """Return what the users of an AlterUserScramCredentials request have: of a credential only its iterations."""
    keys = [(each.name, _mechanism(each.mechanism)) for each in (*request.deletions, *request.upsertions)]
    return {key: credentials.iterations(*key) for key in keys}


def former_token(request: Any, credentials: CredentialFollower) -> dict[str, Any]:
    """Return the token that a RenewDelegationToken or ExpireDelegationToken request is about, without its secret."""
    token = credentials.tokens.with_secret(request.hmac)
    return {} if token is None else {"token_id": token.token_id, "owner": str(token.owner), "expires_ms": token.expires_ms}


def _created_token(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    owner = f"{response.principal_type}:{response.principal_name}" if response.principal_name else "the client"
    renewers = [f"{each.principal_type}:{each.principal_name}" for each in change.request.renewers[:PARTITIONS_SHOWN]]
    details = {"owner": owner, "renewers": renewers, "expires_ms": response.expiry_timestamp_ms, "max_ms": response.max_timestamp_ms}
    yield AuditedItem("audit.token.created", f"delegation token {response.token_id}".rstrip(), details, response.error_code)


def _altered_token(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    former = dict(change.former)
    details = {"owner": former.get("owner"), "expires_ms": response.expiry_timestamp_ms, "before": {"expires_ms": former.get("expires_ms")}}
    event = "audit.token.renewed" if change.api_key == ApiKey.RENEW_DELEGATION_TOKEN else "audit.token.expired"
    yield AuditedItem(event, f"delegation token {former.get('token_id', '(unknown)')}", details, response.error_code)


# --- groups


def _deleted_groups(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    codes = {each.group_id: each.error_code for each in response.groups}
    for group in change.request.group_ids:
        yield AuditedItem("audit.group.deleted", f"group {group}", {}, codes.get(group, 0))


def _offsets(event: str, change: AuditedChange, response: Any, value: Callable[[Any], Any]) -> Iterator[AuditedItem]:
    whole = getattr(response, "error_code", 0)
    codes = {topic.topic: _worst(each.error_code for each in topic.partitions) for topic in response.topics}
    for topic in change.request.topics:
        details = {"partitions": _some((each.partition, value(each)) for each in topic.partitions)}
        yield AuditedItem(event, f"group {change.request.group_id}, topic {topic.topic}", details, whole or codes.get(topic.topic, 0))


def _deleted_offsets(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    return _offsets("audit.offsets.deleted", change, response, lambda _each: None)


def _altered_offsets(change: AuditedChange, response: Any) -> Iterator[AuditedItem]:
    return _offsets("audit.offsets.altered", change, response, lambda each: each.offset)


ITEMS: Final[dict[ApiKey, Callable[[AuditedChange, Any], Iterator[AuditedItem]]]] = {
    ApiKey.CREATE_TOPICS: _created_topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.CREATE_PARTITIONS: _created_partitions,
    ApiKey.ALTER_CONFIGS: _altered_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _altered_configs,
    ApiKey.DELETE_RECORDS: _deleted_records,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassigned,
    ApiKey.ELECT_LEADERS: _elected,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _moved,
    ApiKey.UNREGISTER_BROKER: _unregistered,
    ApiKey.CREATE_ACLS: _created_acls,
    ApiKey.DELETE_ACLS: _deleted_acls,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _altered_users,
    ApiKey.ALTER_CLIENT_QUOTAS: _altered_quotas,
    ApiKey.CREATE_DELEGATION_TOKEN: _created_token,
    ApiKey.RENEW_DELEGATION_TOKEN: _altered_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _altered_token,
    ApiKey.DELETE_GROUPS: _deleted_groups,
    ApiKey.OFFSET_DELETE: _deleted_offsets,
    ApiKey.OFFSET_COMMIT: _altered_offsets,
}
"""All APIs of `audit_trail.AUDITED`."""


def outcome_of(item: AuditedItem) -> str:
    return "done" if not item.error_code else known_error(item.error_code).name
