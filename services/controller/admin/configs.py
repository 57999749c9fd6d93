"""Carry out changes of configs, per topic or broker, or of groups, one after another; log levels at once.

Owned by the controller process. A change is a function of the current configs (`ConfigChange`),
applied to what ZooKeeper holds when its turn comes. Applying it twice does no harm, so a change
that a lost connection interrupted starts again. It does not if its client has received a time-out
meanwhile, because that client may have had the opposite done by another box. Weak: pending changes
are forgotten with the process; the client gets no answer and retries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.model import topic_name_problem
from appliance.base.setting_rows import SETTING_ROWS
from appliance.base.settings import table_locations
from appliance.cluster.broker_configs import DYNAMIC_BROKER_CONFIGS, BrokerConfig, dynamic_config_problem
from appliance.cluster.group_configs import GROUP_NAME_CHARACTERS_MAX, group_config_problem
from appliance.cluster.topic_configs import TABLE_FORMAT, TABLE_LOCATION, table_problem, topic_config_problem
from appliance.cluster.znodes import DEFAULT_BROKER
from appliance.protocol import config_apis
from appliance.protocol.config_apis import (
    AlteredResource,
    AlteredResources,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfig,
    DescribedResource,
    ResourceToAlter,
    ResourceToDescribe,
    ResourceToReplace,
    ResourceType,
)
from appliance.protocol.schema import Message
from services.controller.admin.broker_loggers import BrokerLoggers
from services.controller.admin.config_descriptions import BrokerSide, describe_broker, describe_dynamic, describe_group, describe_topic
from services.controller.admin.pending_orders import OWN_CHANGES_MAX, PendingOrders, with_notification
from services.controller.admin.waiting_requests import ControllerRequest, Key, OnResult, Result, WaitingRequest, WaitingRequests, truncated
from services.controller.decisions.cluster import Cluster, ControllerContext
from services.controller.decisions.config_operations import LargeConfigs, alter_box_config, alter_group_config, alter_topic_config
from services.controller.zookeeper.config_changes import SET, ConfigChange, ConfigOperation, altered, refuse_bad_names_and_nulls, replaced
from services.controller.zookeeper.operation import Operation


class Entity(NamedTuple):
    """A topic, a broker's configs (its id, or `<default>`), or a group."""

    kind: int
    name: str

    @property
    def is_broker(self) -> bool:
        return self.kind == ResourceType.BROKER


class Alteration(NamedTuple):
    """A change that is pending while `is_awaited()` returns true: its client still waits."""

    change: ConfigChange
    validate_only: bool
    on_result: OnResult
    is_awaited: Callable[[], bool]

    def answer(self, result: Result) -> None:
        self.on_result(result)


class ConfigAdministration:
    """Alterations by topic and broker, one after another."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._cluster = cluster = context.cluster
        self._large_configs = LargeConfigs(cluster, context.clock.monotonic_ms)
        self._log = context.log
        self._pending = PendingOrders(
            context, _run_name, self._alter, self._on_altered, lambda: cluster.has_arrived, lambda alteration: alteration.is_awaited()
        )
        self.alter = self._pending.add
        """`on_result` is called when the change is refused, or written and sent to log-writers and image."""
        self.reconsider = self._pending.reconsider
        self._altered = context.counters.counter("controller.configs_altered")

    def on_arrived(self) -> None:
        """The tree was loaded."""
        if self._cluster.group_configs_problem is not None:
            self._log.error(f"configs of groups are not known: {self._cluster.group_configs_problem}")

    def _alter(self, entity: Entity, alteration: Alteration) -> Operation[None]:
        wanted = self._cluster, entity.name, alteration.change, alteration.validate_only
        if entity.kind == ResourceType.GROUP:
            return with_notification(self._context, alter_group_config(*wanted), OWN_CHANGES_MAX)
        operation = alter_box_config(*wanted) if entity.is_broker else alter_topic_config(*wanted, self._large_configs)
        return with_notification(self._context, operation, OWN_CHANGES_MAX)

    def _on_altered(self, entity: Entity, alteration: Alteration, _none: None) -> bool:
        if not alteration.validate_only:
            self._altered.add()
            self._log_configs(entity)
        alteration.answer(Result(ErrorCode.NONE))
        return True

    def _log_configs(self, entity: Entity) -> None:
        if entity.kind == ResourceType.GROUP:
            found = self._cluster.group_configs.get(entity.name, {})
            set_now = ", ".join(f"{key}={value}" for key, value in sorted(found.items())) or "none of its own"
            self._log.info(f"group {entity.name} has new configs: {set_now}")
            return
        topic = self._cluster.topics.get(entity.name)
        config = self._cluster.dynamic_configs.get(entity.name, {}) if entity.is_broker else topic.config if topic is not None else {}
        configs = ", ".join(f"{key}={value}" for key, value in sorted(config.items())) or "none of its own"
        if entity.is_broker:
            self._log.info(f"broker {entity.name} has new configs: {configs}")
        else:
            self._log.info(f"topic {entity.name} has new configs: {configs}", topic=entity.name)


CONFIG_TIMEOUT_MS = 30_000
"""These requests have no time-out of their own."""
ROWS_MAX = 150_000
ANSWER_BYTES_MAX = 48 << 20
"""Limit of one response (6 KB per topic with all texts): it is built in one turn of the duty cycle
and sent to the acceptor in one frame.
"""
TOO_MANY = "The request describes too many configs at once; describe fewer resources."

WITHOUT_MEANING = (
    "background.threads",
    "client.quota.",
    "log.cleaner.io.",
    "log.cleaner.threads",
    "max.connection.creation.rate",
    "max.connections.per.ip.overrides",
    "metric.reporters",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "principal.builder.class",
    "remote.",
    "sasl.",
    "ssl.",
)
"""Names, or their beginnings, that Kafka 4 lets be altered and that stand for what does not exist here."""

Resource = ResourceToReplace | ResourceToAlter


def _run_name(entity: Entity) -> str:
    if entity.kind == ResourceType.GROUP:
        return "group-configs"  # one node for all of them
    return f"{'box-config' if entity.is_broker else 'config'}:{entity.name}"


class ConfigRequests:
    """Requests about configs of topics, of this broker and its loggers, and of groups."""

    def __init__(
        self,
        cluster: Cluster,
        administration: ConfigAdministration,
        loggers: BrokerLoggers,
        broker_configs: Mapping[str, BrokerConfig],
        requests: WaitingRequests,
    ) -> None:
        self._cluster = cluster
        self._administration = administration
        self._loggers = loggers
        self._broker_configs = broker_configs
        self._requests = requests

    # --- describing ---------------------------------------------------------------------------------------------------------

    def on_describe(self, request: ControllerRequest) -> None:
        """Describe brokers at once, topics when the tree is loaded."""
        decoded = config_apis.DESCRIBE_CONFIGS_REQUEST.decode(request.body, 0, len(request.body), request.version)

        def finish(results: dict[Key, Result]) -> None:
            timed_out = results.get(0)
            counts = _counts(decoded.resources)
            described: list[DescribedResource] = []
            rows = 0
            for resource in decoded.resources:
                if rows > ROWS_MAX:
                    described.append(DescribedResource(ErrorCode.INVALID_REQUEST, TOO_MANY, resource.resource_type, resource.resource_name))
                    continue
                described.append(self._describe(resource, decoded, counts, timed_out))
                rows += len(described[-1].configs)
            body = config_apis.DESCRIBE_CONFIGS_RESPONSE.encode(request.version, DescribeConfigsResponse(0, tuple(described)))
            if len(body) > ANSWER_BYTES_MAX:
                described = [DescribedResource(ErrorCode.INVALID_REQUEST, TOO_MANY, kind, name) for _, _, kind, name, _ in described]
                body = config_apis.DESCRIBE_CONFIGS_RESPONSE.encode(request.version, DescribeConfigsResponse(0, tuple(described)))
            self._requests.answer(request, body)

        if any(resource.resource_type == ResourceType.TOPIC for resource in decoded.resources):
            self._requests.wait([0], CONFIG_TIMEOUT_MS, lambda waiting: waiting.record(0, Result(ErrorCode.NONE)), finish)
        else:
            finish({})

    def _describe(
        self, resource: ResourceToDescribe, request: DescribeConfigsRequest, counts: Counter[tuple[int, str]], result: Result | None
    ) -> DescribedResource:
        kind, name = resource.resource_type, resource.resource_name
        try:
            _refuse_twice(resource, counts)
            configs = self._configs_of(kind, name, request, result)
        except RequestRefused as refused:
            return DescribedResource(refused.code, truncated(refused.message), kind, name)
        keys = frozenset(resource.configuration_keys or ())
        return DescribedResource(0, None, kind, name, tuple(config for config in configs if not keys or config.name in keys))

    def _configs_of(self, kind: int, name: str, request: DescribeConfigsRequest, result: Result | None) -> Sequence[DescribedConfig]:
        if kind == ResourceType.BROKER:
            for_all = self._cluster.dynamic_configs.get(DEFAULT_BROKER, {})
            if not name:  # only what was altered for all brokers
                return describe_dynamic({}, for_all, {}, request.include_synonyms, request.include_documentation, only_set=True)
            _refuse_other_broker(name, self._cluster.broker_id)
            own = self._cluster.dynamic_configs.get(name, {})
            read_at_start = {name: config for name, config in self._broker_configs.items() if name not in DYNAMIC_BROKER_CONFIGS}
            fixed = describe_broker(read_at_start, request.include_synonyms, request.include_documentation)
            return [*fixed, *describe_dynamic(own, for_all, self._broker_configs, request.include_synonyms, request.include_documentation)]
        if kind == ResourceType.GROUP:
            _refuse_bad_group(name)
            if self._cluster.group_configs_problem is not None:
                raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, self._cluster.group_configs_problem)
            own = self._cluster.group_configs.get(name, {})
            return describe_group(own, self._broker_configs, request.include_synonyms, request.include_documentation)
        if kind == ResourceType.BROKER_LOGGER:
            _refuse_other_broker(name, self._cluster.broker_id, may_be_empty=False)
            return self._loggers.describe()
        if kind != ResourceType.TOPIC:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {_kind_text(kind)}")
        if result is not None and result.code is not ErrorCode.NONE:
            raise RequestRefused(result.code, result.message or "")
        self._refuse_unknown_topic(name)
        topic = self._cluster.topics[name]
        return describe_topic(topic.config, broker_side(self._cluster, self._broker_configs), request.include_synonyms, request.include_documentation)

    def _refuse_unknown_topic(self, name: str) -> None:
        problem = topic_name_problem(name)
        if problem is not None:
            raise RequestRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in self._cluster.topics or name in self._cluster.deleting:
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")

    # --- altering -----------------------------------------------------------------------------------------------------------

    def on_replace(self, request: ControllerRequest) -> None:
        """AlterConfigs: configs that are not named return to their defaults."""
        decoded = config_apis.ALTER_CONFIGS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        self._alter(request, config_apis.ALTER_CONFIGS_RESPONSE, decoded.resources, decoded.validate_only)

    def on_alter(self, request: ControllerRequest) -> None:
        """IncrementalAlterConfigs."""
        decoded = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        self._alter(request, config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE, decoded.resources, decoded.validate_only)

    def _alter(self, request: ControllerRequest, message: Message[AlteredResources], resources: Sequence[Resource], validate_only: bool) -> None:
        counts = _counts(resources)

        def begin(waiting: WaitingRequest) -> None:
            for index, resource in enumerate(resources):
                self._begin(resource, counts, validate_only, partial(waiting.record, index), lambda: not waiting.is_done)

        def finish(results: dict[Key, Result]) -> None:
            done = tuple(
                AlteredResource(results[index].code, truncated(results[index].message), resource.resource_type, resource.resource_name)
                for index, resource in enumerate(resources)
            )
            self._requests.answer(request, message.encode(request.version, AlteredResources(0, done)))

        self._requests.wait(range(len(resources)), CONFIG_TIMEOUT_MS, begin, finish)

    def _begin(
        self,
        resource: Resource,
        counts: Counter[tuple[int, str]],
        validate_only: bool,
        on_result: Callable[[Result], None],
        is_awaited: Callable[[], bool],
    ) -> None:
        kind, name = resource.resource_type, resource.resource_name
        try:
            if kind == ResourceType.BROKER_LOGGER:
                self._alter_loggers(resource, counts, validate_only)
                on_result(Result(ErrorCode.NONE))
                return
            change = self._planned(resource, counts)
        except RequestRefused as refused:
            on_result(Result.of(refused))
            return
        entity = Entity(kind, name or DEFAULT_BROKER if kind == ResourceType.BROKER else name)
        self._administration.alter(entity, Alteration(change, validate_only, on_result, is_awaited))

    def _alter_loggers(self, resource: Resource, counts: Counter[tuple[int, str]], validate_only: bool) -> None:
        """Change log levels: in this process, so there is nothing to wait for."""
        _refuse_twice(resource, counts)
        if isinstance(resource, ResourceToReplace):
            words = "AlterConfigs does not support the resource type BROKER_LOGGER; use IncrementalAlterConfigs."
            raise RequestRefused(ErrorCode.INVALID_REQUEST, words)
        operations = _operations(resource)
        refuse_bad_names_and_nulls(operations)
        _refuse_other_broker(resource.resource_name, self._cluster.broker_id, may_be_empty=False)
        self._loggers.alter(operations, validate_only)

    def _planned(self, resource: Resource, counts: Counter[tuple[int, str]]) -> ConfigChange:
        kind, name = resource.resource_type, resource.resource_name
        _refuse_twice(resource, counts)
        operations = _operations(resource)
        refuse_bad_names_and_nulls(operations)
        if kind == ResourceType.BROKER:
            if name:
                _refuse_other_broker(name, self._cluster.broker_id)
            if fixed := sorted(operation.name for operation in operations if operation.name not in DYNAMIC_BROKER_CONFIGS):
                raise RequestRefused(ErrorCode.INVALID_REQUEST, _broker_refusal(fixed))
            problem = partial(dynamic_config_problem, settings=self._cluster.settings)
            if isinstance(resource, ResourceToReplace):
                return replaced({operation.name: operation.value or "" for operation in operations}, problem)
            fixed_values = {name: config.value for name, config in self._broker_configs.items() if config.value is not None}
            return altered(fixed_values, operations, problem, DYNAMIC_BROKER_CONFIGS)
        if kind == ResourceType.GROUP:
            _refuse_bad_group(name)
            if isinstance(resource, ResourceToReplace):
                return replaced({operation.name: operation.value or "" for operation in operations}, group_config_problem)
            return altered({}, operations, group_config_problem, {})
        if kind != ResourceType.TOPIC:
            words = f"Configs of {_kind_text(kind)} resources cannot be altered here; those of topics, brokers, loggers and groups can."
            raise RequestRefused(ErrorCode.INVALID_REQUEST, words)
        if not name:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        self._refuse_unknown_topic(name)
        problem = partial(self._topic_problem, name)
        if isinstance(resource, ResourceToReplace):
            return replaced({operation.name: operation.value or "" for operation in operations}, problem)
        return altered(self._cluster.broker_config, operations, problem)

    def _topic_problem(self, name: str, config: Mapping[str, str], stored: Mapping[str, str]) -> str | None:
        allowed = table_locations(str(self._cluster.settings.get("tables.locations", "")))
        is_stored = all(config.get(each) == stored.get(each) for each in (TABLE_FORMAT, TABLE_LOCATION))
        return topic_config_problem(config, stored) or (None if is_stored else table_problem(name, config, allowed))


def broker_side(cluster: Cluster, configs: Mapping[str, BrokerConfig]) -> BrokerSide:
    """Return what topics inherit from this broker now."""
    own, for_all = (cluster.dynamic_configs.get(name, {}) for name in (str(cluster.broker_id), DEFAULT_BROKER))
    return BrokerSide(cluster.broker_config, configs, own, for_all)


def _broker_refusal(names: Sequence[str]) -> str:
    """Return why a broker's configs cannot be altered, and where to change them."""
    reason = f"Cannot update these configs dynamically: {', '.join(names)}."
    settable = [name for name in names if name in SETTING_ROWS or name.startswith("listener.name.")]
    if settable:
        reason += f" A broker reads its settings at the start: change {', '.join(settable)} in its settings file (millrace run --config) and start it again."
    others = [name for name in names if name not in settable]
    if without := [name for name in others if name.startswith(WITHOUT_MEANING)]:
        reason += f" {', '.join(without)} would change nothing: the box has no such mechanism, thread pool, reporter or policy."
    if fixed := [name for name in others if not name.startswith(WITHOUT_MEANING)]:
        reason += f" The settings file has no setting {', '.join(fixed)} (millrace config check --reference lists what it has)."
    return reason


def _counts(resources: Sequence[Resource | ResourceToDescribe]) -> Counter[tuple[int, str]]:
    return Counter((resource.resource_type, resource.resource_name) for resource in resources)


def _refuse_twice(resource: Resource | ResourceToDescribe, counts: Counter[tuple[int, str]]) -> None:
    """Refuse duplicates. Kafka describes a duplicate twice; here no response is much longer than
    its request.
    """
    if counts[(resource.resource_type, resource.resource_name)] > 1:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")


def _operations(resource: Resource) -> list[ConfigOperation]:
    if isinstance(resource, ResourceToReplace):
        return [ConfigOperation(config.name, SET, config.value) for config in resource.configs]
    return [ConfigOperation(config.name, config.operation, config.value) for config in resource.configs]


def _refuse_other_broker(name: str, broker_id: int, may_be_empty: bool = True) -> None:
    try:
        asked = int(name)
    except ValueError:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if asked != broker_id or name != str(broker_id):
        expected = f"{broker_id} or empty string," if may_be_empty else f"{broker_id}"
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {expected} but received {name}")


def _refuse_bad_group(name: str) -> None:
    if not 0 < len(name) <= GROUP_NAME_CHARACTERS_MAX:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"A group's name has 1 to {GROUP_NAME_CHARACTERS_MAX} characters.")


def _kind_text(kind: int) -> str:
    return ResourceType(kind).name if kind in ResourceType.__members__.values() else str(kind)
