"""Client quotas: follow them in ZooKeeper, publish the quota image, answer the two APIs (KIP-546), count mutations (KIP-599).

Owned by the controller process of each box; any box may change a quota, by a write with the version of what it
read, as in Kafka. Mutations of partitions are counted where topics are created, by the controller of the cluster, and
where they are passed on to it. Weak: with the controllership their count moves to another box and begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from ipaddress import ip_address
from typing import Any, NamedTuple

from appliance.base.clock import Clock
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.cluster.quota_image import QuotaImage, Quotas, read_quota_image, write_quota_image
from appliance.cluster.security_image import SecurityImageUnreadable
from appliance.cluster.user_znodes import CLIENTS, CONFIG_ADDRESSES, CONFIG_CLIENTS, CONFIG_USERS, entity_of_path, entity_path, name_of_node
from appliance.cluster.znodes import (
    CONFIG_CHANGE_PREFIX,
    CONFIG_CHANGES,
    DocumentUnreadable,
    decode_config,
    encode_config,
    encode_config_change,
)
from appliance.protocol import quota_apis
from appliance.protocol.apis import ApiKey
from appliance.protocol.quota_apis import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    AlterClientQuotasResponse,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotas,
    QuotaEntityPart,
    QuotasToAlter,
    QuotaValue,
)
from appliance.protocol.wire import INT32
from appliance.security.quotas import (
    CONTROLLER_MUTATION_RATE,
    DEFAULT_NAME,
    ClientQuotas,
    QuotaEntity,
    QuotaScope,
    TokenBucket,
    quota_problem,
    quota_text,
    quota_values,
)
from appliance.security.scram import NAME_MAX
from services.controller.admin.published_entities import EntityOperations, PublishedEntities
from services.controller.admin.waiting_requests import ControllerRequest, Key, OnResult, Result, WaitingRequest, WaitingRequests, truncated
from services.controller.decisions.cluster import ControllerContext
from services.controller.zookeeper import broker_registry
from services.controller.zookeeper.operation import Operation, OwnWrites, all_of
from services.controller.zookeeper.requests import (
    BadVersion,
    Create,
    Delete,
    GetChildren,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    SetData,
    Write,
    ZooKeeperFailed,
)
from services.controller.zookeeper.requests import Get as GetNode

ENTITIES_MAX = 10_000
ALTERED_MAX = 1_000
"""Entities of one request: each is an operation in ZooKeeper."""
ATTEMPTS_MAX = 5
"""Attempts of a write when another box or tool writes the same entity."""
QUOTAS_TIMEOUT_MS = 30_000
BUCKETS_MAX = 1_000
"""Beyond this number, buckets that are full are forgotten, and the fullest of the others."""
ORDER_MS = 1_000
"""Buckets are put into order no more often."""
USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXCEEDED = "The throttling quota has been exceeded."

Values = dict[str, float]


class QuotaChange(NamedTuple):
    """New quotas of one entity, None to remove one; `by` is for the log. It begins only while `is_awaited()`: its client still waits."""

    entity: QuotaEntity
    changes: Mapping[str, float | None]
    validate_only: bool
    by: str
    on_result: OnResult
    is_awaited: Callable[[], bool]

    def answer(self, result: Result) -> None:
        self.on_result(result)


def load_quotas() -> Operation[dict[QuotaEntity, Values]]:
    """Read the quotas of all entities."""
    users = yield GetChildren(CONFIG_USERS)
    clients = yield GetChildren(CONFIG_CLIENTS)
    addresses = yield GetChildren(CONFIG_ADDRESSES)
    entities = [QuotaEntity(name_of_node(name)) for name in users] + [QuotaEntity(None, name_of_node(name)) for name in clients]
    entities += [QuotaEntity(address=name_of_node(name)) for name in addresses]
    of_users: list[Any] = yield from all_of([GetChildren(f"{CONFIG_USERS}/{name}/{CLIENTS}") for name in users])
    for user, names in zip(users, of_users, strict=True):
        if isinstance(names, tuple):
            entities += [QuotaEntity(name_of_node(user), name_of_node(name)) for name in names]
        elif not isinstance(names, NoNode):
            raise names
    return (yield from read_quotas(entities))


def read_quotas(entities: Iterable[QuotaEntity]) -> Operation[dict[QuotaEntity, Values]]:
    """Read these entities; one without a node, or with one that cannot be read, has no quotas."""
    wanted = list(entities)
    found: list[Any] = yield from all_of([GetNode(_path(entity)) for entity in wanted])
    quotas: dict[QuotaEntity, Values] = {}
    for entity, node in zip(wanted, found, strict=True):
        quotas[entity] = {}
        if isinstance(node, ZooKeeperFailed) and not isinstance(node, NoNode):
            raise node
        if not isinstance(node, NoNode) and node.data:
            try:
                quotas[entity] = quota_values(decode_config(_path(entity), node.data), entity.quota_keys)
            except DocumentUnreadable:
                continue
    return quotas


def change_quotas(change: QuotaChange) -> Operation[Values]:
    """Apply a change to the config of an entity, whose credentials stay; return its quotas. Raises RequestRefused.

    A node that would hold nothing is removed, so that `ENTITIES_MAX` also bounds the nodes.
    """
    path = _path(change.entity)
    above: tuple[str, ...] = ()
    if change.entity.user is not None and change.entity.client_id is not None:
        clients = path.rpartition("/")[0]
        above = clients.rpartition("/")[0], clients
    is_parent = False
    for _attempt in range(ATTEMPTS_MAX):
        node = yield from broker_registry.read(path)
        try:
            config = decode_config(path, node.data) if node is not None and node.data else {}
        except DocumentUnreadable as unreadable:
            raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, f"{unreadable}; repair or remove the znode first") from unreadable
        former = dict(config)
        for key, value in change.changes.items():
            if value is not None:
                config[key] = quota_text(key, value)
            else:
                config.pop(key, None)
        if change.validate_only or config == former:
            return quota_values(former, change.entity.quota_keys)
        write: Write
        if node is None:
            write = Create(path, encode_config(config))
        elif config or is_parent:
            write = SetData(path, encode_config(config), node.version)
        else:
            write = Delete(path, node.version)
        notification = Create(f"{CONFIG_CHANGES}/{CONFIG_CHANGE_PREFIX}", encode_config_change(entity_path(change.entity)), sequence=True)
        try:
            if node is None and above:
                yield from broker_registry.create_missing(above)
            yield from OwnWrites().guard((write, notification))
        except NoNode:
            continue  # another box removed the user's node, which held nothing
        except MultiFailed as refused:
            is_parent = is_parent or isinstance(refused.cause, NotEmpty)
            if isinstance(refused.cause, BadVersion | NodeExists | NoNode | NotEmpty):
                continue  # another box wrote it between our read and our write: read again
            raise
        if not config:
            yield from _remove_empty(reversed(above))
        return quota_values(config, change.entity.quota_keys)
    raise RequestRefused(ErrorCode.UNKNOWN_SERVER_ERROR, "the quotas were changed by others at the same time; try again")


def _remove_empty(paths: Iterable[str]) -> Operation[None]:
    """Remove these nodes, from the lowest, as far as they hold nothing."""
    for path in paths:
        node = yield from broker_registry.read(path)
        try:
            if node is None or (node.data and decode_config(path, node.data)):
                return
            yield Delete(path, node.version)
        except (DocumentUnreadable, BadVersion, NoNode, NotEmpty):
            return


def _path(entity: QuotaEntity) -> str:
    return f"/config/{entity_path(entity)}"


class QuotaAdministration(PublishedEntities[QuotaEntity, Values, QuotaChange]):
    """The quotas as this box knows them."""

    def __init__(self, context: ControllerContext, image_path: str, on_published: Callable[[], None]) -> None:
        operations = EntityOperations(load_quotas, read_quotas, change_quotas)
        super().__init__(context, "quotas", operations, on_published, lambda change: change.is_awaited())
        self._image_path = image_path
        self._altered = context.counters.counter("controller.quotas_altered")
        try:
            former = read_quota_image(image_path)
        except SecurityImageUnreadable:
            former = None
        self._image = former or QuotaImage()
        self.mutations = MutationQuotas(context.clock, self._image.quotas)

    @property
    def quotas(self) -> Mapping[QuotaEntity, Values]:
        return self._entities

    def alter(self, change: QuotaChange) -> None:
        """Its `on_result` is called when it is refused, or written and published."""
        is_new = change.entity not in self.quotas and any(value is not None for value in change.changes.values())
        if is_new and len(self.quotas) + len(self._pending) >= ENTITIES_MAX:
            change.answer(Result(ErrorCode.POLICY_VIOLATION, f"There are quotas for {ENTITIES_MAX} entities already; delete some"))
        else:
            self._pending.add(entity_path(change.entity), change)

    def on_changed(self, path: str) -> None:
        """A notification named this path."""
        entity = entity_of_path(path)
        if entity is not None:
            self.reload(entity)

    def _differs(self) -> bool:
        return self.quotas != self._image.quotas

    def _write_image(self) -> None:
        self._image = QuotaImage(self._image.generation + 1, {entity: dict(values) for entity, values in self.quotas.items()})
        write_quota_image(self._image_path, self._image)
        self.mutations.replace(self._image.quotas)

    def _on_altered(self, path: str, change: QuotaChange, values: Values) -> bool:
        if change.validate_only:
            change.answer(Result(ErrorCode.NONE))
            return True
        self._use(change.entity, values)
        self._altered.add()
        text = ", ".join(f"{key}={value:g}" for key, value in sorted(values.items())) or "none"
        self._log.info(f"quotas of {path} are now: {text}, by {change.by}")
        self._written.append(change)
        return True


class MutatingApi(NamedTuple):
    """Responses have a throttle time from version `throttle_since` on; requests above the quota are refused from `strict_since` on."""

    throttle_since: int
    strict_since: int


CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = MutatingApi(2, 6), MutatingApi(1, 5), MutatingApi(0, 3)


class MutationQuotas:
    """Which clients may create and delete how many partitions a second."""

    def __init__(self, clock: Clock, quotas: Quotas) -> None:
        self._clock = clock
        self.buckets: dict[QuotaScope, TokenBucket] = {}
        """those that were the fullest when they were put into order come first"""
        self._order_again_ms = 0
        self.replace(quotas)

    def replace(self, quotas: Quotas) -> None:
        self._quotas = ClientQuotas(quotas)
        for scope, bucket in list(self.buckets.items()):
            limit = self._quotas.limit(CONTROLLER_MUTATION_RATE, scope.user, scope.client_id)
            if limit is None or limit.bound != bucket.bound:
                del self.buckets[scope]

    def of(self, request: ControllerRequest, api: MutatingApi) -> MutationQuota:
        """Return the quota for one request. Other boxes have none: they pass requests on that they have counted, and create internal topics."""
        limit = None if request.origin.is_from_box else self._quotas.limit(CONTROLLER_MUTATION_RATE, request.origin.principal.name, request.client_id)
        if limit is None:
            return MutationQuota(self._clock, None, api, request.version)
        now_ms = self._clock.monotonic_ms()
        bucket = self.buckets.get(limit.scope)
        if bucket is None:
            if len(self.buckets) >= BUCKETS_MAX:
                self._make_room(now_ms)
            bucket = self.buckets[limit.scope] = TokenBucket(limit.bound, now_ms)
        return MutationQuota(self._clock, bucket, api, request.version)

    def _make_room(self, now_ms: int) -> None:
        if now_ms >= self._order_again_ms:
            self._order_again_ms = now_ms + ORDER_MS
            fullness = {scope: bucket.fullness(now_ms) for scope, bucket in self.buckets.items()}
            in_order = sorted(fullness, key=fullness.__getitem__, reverse=True)
            self.buckets = {scope: self.buckets[scope] for scope in in_order if fullness[scope] < 1.0}
        if len(self.buckets) >= BUCKETS_MAX:
            del self.buckets[next(iter(self.buckets))]


class MutationQuota:
    """The quota for one request; `bucket` None: it is not limited."""

    def __init__(self, clock: Clock, bucket: TokenBucket | None, api: MutatingApi, version: int) -> None:
        self._clock = clock
        self._bucket = bucket
        self._is_strict = version >= api.strict_since
        self._shows_throttle = version >= api.throttle_since
        self._throttle_ms = 0

    def refusal(self, partitions: int) -> Result | None:
        """Count mutations of so many partitions; return why they are refused, or None."""
        bucket = self._bucket
        if bucket is None:
            return None
        now_ms = self._clock.monotonic_ms()
        if self._is_strict and (throttle_ms := bucket.throttle_ms(now_ms)):
            self._throttle_ms = throttle_ms
            return Result(ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED)
        bucket.take(max(0, partitions), now_ms)
        if not self._is_strict:
            self._throttle_ms = bucket.throttle_ms(now_ms)
        return None

    def throttled(self, body: bytes) -> bytes:
        """Return the body of a response with the throttle time, its first field."""
        return INT32.pack(self._throttle_ms) + body[INT32.size :] if self._throttle_ms and self._shows_throttle else body


class QuotaRequests:
    """DescribeClientQuotas and AlterClientQuotas."""

    def __init__(self, administration: QuotaAdministration, requests: WaitingRequests) -> None:
        self._administration = administration
        self._requests = requests
        self.by_api: dict[int, Callable[[ControllerRequest], None]] = {
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self._on_describe,
            ApiKey.ALTER_CLIENT_QUOTAS: self._on_alter,
        }

    def _wait(self, keys: Iterable[Key], begin: Callable[[WaitingRequest], None], finish: Callable[[dict[Key, Result]], None]) -> None:
        def begin_if_awaited(waiting: WaitingRequest) -> None:
            if not waiting.is_done:
                begin(waiting)

        self._requests.wait(keys, QUOTAS_TIMEOUT_MS, lambda waiting: self._administration.when_loaded(lambda: begin_if_awaited(waiting)), finish)

    def _on_describe(self, request: ControllerRequest) -> None:
        decoded = quota_apis.DESCRIBE_CLIENT_QUOTAS_REQUEST.decode(request.body, 0, len(request.body), request.version)

        def begin(waiting: WaitingRequest) -> None:
            try:
                _check_filter(decoded)
            except RequestRefused as refused:
                waiting.record(0, Result.of(refused))
            waiting.record(0, Result(ErrorCode.NONE))

        def finish(results: dict[Key, Result]) -> None:
            if results[0].code is not ErrorCode.NONE:
                response = DescribeClientQuotasResponse(0, results[0].code, truncated(results[0].message))
            else:
                found = self._administration.quotas.items()
                entries = tuple(_described(entity, values) for entity, values in found if _matches(decoded, entity))
                response = DescribeClientQuotasResponse(entries=entries)
            self._requests.answer(request, quota_apis.DESCRIBE_CLIENT_QUOTAS_RESPONSE.encode(request.version, response))

        self._wait([0], begin, finish)

    def _on_alter(self, request: ControllerRequest) -> None:
        decoded = quota_apis.ALTER_CLIENT_QUOTAS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        entries = decoded.entries
        by = f"{request.origin.principal} from {request.client_host or 'this box'}"

        def begin(waiting: WaitingRequest) -> None:
            for index, entry in enumerate(entries):
                on_result = partial(waiting.record, index)
                try:
                    if len(entries) > ALTERED_MAX:
                        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"A request alters the quotas of at most {ALTERED_MAX} entities")
                    entity, changes = _planned(entry)
                except RequestRefused as refused:
                    on_result(Result.of(refused))
                    continue
                self._administration.alter(QuotaChange(entity, changes, decoded.validate_only, by, on_result, lambda: not waiting.is_done))

        def finish(results: dict[Key, Result]) -> None:
            altered = tuple(AlteredQuotas(results[index].code, truncated(results[index].message), entry.entity) for index, entry in enumerate(entries))
            response = AlterClientQuotasResponse(0, altered)
            self._requests.answer(request, quota_apis.ALTER_CLIENT_QUOTAS_RESPONSE.encode(request.version, response))

        self._wait(range(len(entries)), begin, finish)


def _planned(entry: QuotasToAlter) -> tuple[QuotaEntity, dict[str, float | None]]:
    """Return the entity and its changes. Raises RequestRefused, with Kafka's texts."""
    if not entry.entity:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    names: dict[str, str | None] = {}
    for kind, name in entry.entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
        if name is not None and (len(name) > NAME_MAX or name in (".", "..")):
            text = f"The name of a {kind} with quotas has at most {NAME_MAX} characters, and is neither '.' nor '..'"
            raise RequestRefused(ErrorCode.INVALID_REQUEST, text)
        if kind in names:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Duplicate {kind} in a client quota entity")
        names[kind] = DEFAULT_NAME if name is None else _address(name) if kind == IP else name
    if IP in names and len(names) > 1:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, "Invalid client quota entity: an ip is combined with no other type")
    entity = QuotaEntity(names.get(USER), names.get(CLIENT_ID), names.get(IP))
    changes: dict[str, float | None] = {}
    for key, value, remove in entry.ops:
        problem = quota_problem(key, 1.0 if remove else value, entity.quota_keys)  # a key that is no quota may be a credential
        if problem is not None:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, problem)
        changes[key] = None if remove else value
    return entity, changes


def _address(name: str) -> str:
    """Return an address as the acceptors see it. Raises RequestRefused; Kafka also looks up names of hosts, once, when they are set."""
    try:
        return str(ip_address(name))
    except ValueError:
        raise RequestRefused(ErrorCode.INVALID_REQUEST, f"{name} is not a valid IP; names of hosts are not looked up") from None


def _check_filter(request: DescribeClientQuotasRequest) -> None:
    """Raise RequestRefused for what no entity can match, with Kafka's texts."""
    kinds = [component.entity_type for component in request.components]
    for component in request.components:
        kind = component.entity_type
        if kind == "":
            raise RequestRefused(ErrorCode.INVALID_REQUEST, "Unexpected empty filter component entity type")
        if kind not in (USER, CLIENT_ID, IP):
            raise RequestRefused(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported")
        if kinds.count(kind) > 1:
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Duplicate {kind} filter component entity type")
        if component.match_type not in (MATCH_EXACT, MATCH_DEFAULT, MATCH_SPECIFIED) or (component.match_type == MATCH_EXACT and component.match is None):
            raise RequestRefused(ErrorCode.INVALID_REQUEST, f"Unexpected match type: {component.match_type}")
    if IP in kinds and len(kinds) > 1:
        text = "Invalid entity filter component combination, IP filter component should not be used with user or clientId filter component."
        raise RequestRefused(ErrorCode.INVALID_REQUEST, text)


def _matches(request: DescribeClientQuotasRequest, entity: QuotaEntity) -> bool:
    names = {USER: entity.user, CLIENT_ID: entity.client_id, IP: entity.address}
    for component in request.components:
        name = names.pop(component.entity_type)
        if name is None or (component.match_type == MATCH_EXACT and name != component.match):
            return False
        if component.match_type == MATCH_DEFAULT and name != DEFAULT_NAME:
            return False
    return not request.strict or all(name is None for name in names.values())


def _described(entity: QuotaEntity, values: Values) -> DescribedQuotas:
    parts = tuple(QuotaEntityPart(kind, name or None) for kind, name in zip((USER, CLIENT_ID, IP), entity, strict=True) if name is not None)
    return DescribedQuotas(parts, tuple(QuotaValue(key, value) for key, value in values.items()))
