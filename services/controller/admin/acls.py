"""Access control lists: follow them in ZooKeeper, publish the security image, answer the APIs about them.

Owned by the controller process of each box that has an authorizer. Lists are loaded after each arrival, and
one by one when a notification reports a change. A change is a function of what ZooKeeper holds, so changes by
other boxes and Kafka's tools are not overwritten. It is in the image before its client is answered. Weak
spot: another box applies it when its watch has fired, some milliseconds later, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import partial
from typing import NamedTuple, TypeVar

from appliance.base.errors import ErrorCode
from appliance.cluster.acl_znodes import STORES, AclStore, store_of
from appliance.cluster.security_image import SecurityImage, SecurityImageUnreadable, read_security_image, write_security_image
from appliance.protocol import acl_apis
from appliance.protocol.acl_apis import (
    AclCreation,
    AclCreationResult,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsResponse,
    DeletedAcl,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribedAcl,
    DescribedAcls,
)
from appliance.protocol.apis import ApiKey
from appliance.security.acl import (
    AccessRule,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResource,
    PatternType,
    ResourcePattern,
    binding_problem,
)
from services.controller.admin.pending_orders import PendingOrders
from services.controller.admin.waiting_requests import ControllerRequest, Key, Result, WaitingRequest, WaitingRequests, truncated
from services.controller.decisions.acl_operations import AclTree, Rules, RulesChange, change_rules, follow_acl_changes, load_acls
from services.controller.decisions.cluster import ControllerContext
from services.controller.zookeeper.operation import Operation, OperationOutcome

ACL_TIMEOUT_MS = 30_000
"""These requests have no time-out of their own."""
NO_AUTHORIZER = "No Authorizer is configured."
LOAD = "acls:load"

OnChanged = Callable[[Result, Rules], None]
"""Called with the outcome of a change, and the rules that it removed."""
Number = TypeVar("Number", bound=IntEnum)


class AclAlteration(NamedTuple):
    """A change of the list of one pattern."""

    pattern: ResourcePattern
    change: RulesChange
    on_changed: OnChanged

    def answer(self, result: Result) -> None:
        self.on_changed(result, frozenset())


class AclAdministration:
    """The lists as this box knows them. `on_published()` is called after each new security image."""

    def __init__(self, context: ControllerContext, image_path: str, on_published: Callable[[], None]) -> None:
        self._context = context
        self._log = context.log
        self._image_path = image_path
        self._on_published = on_published
        self._rules: dict[ResourcePattern, Rules] = {}
        self._known_changes: dict[AclStore, frozenset[str]] = {}
        self._changed_again: set[AclStore] = set()
        self._is_loaded = False
        self._waiting: list[Callable[[], None]] = []
        self._pending = PendingOrders(context, "acl:{}".format, self._alter, self._on_altered, lambda: self._is_loaded)
        self._altered = context.counters.counter("controller.acls_altered")
        try:
            self._image = read_security_image(image_path) or SecurityImage()
        except SecurityImageUnreadable:
            self._image = SecurityImage()

    @property
    def image(self) -> SecurityImage:
        return self._image

    def bindings(self) -> Iterable[AclBinding]:
        return (AclBinding.of(pattern, rule) for pattern, rules in self._rules.items() for rule in rules)

    def when_loaded(self, callback: Callable[[], None]) -> None:
        """Call back when the lists are loaded, at once if they are."""
        if self._is_loaded:
            callback()
        else:
            self._waiting.append(callback)

    def alter(self, pattern: ResourcePattern, change: RulesChange, on_changed: OnChanged) -> None:
        """`on_changed` is called when the change is refused, or written and published."""
        self._pending.add(store_of(pattern).path(pattern), AclAlteration(pattern, change, on_changed))

    # --- the tree

    def on_arrived(self) -> None:
        """The tree was loaded: load the lists, too. What changes meanwhile leaves a notification."""
        self._is_loaded = False
        self._changed_again.clear()
        self._context.runner.start(LOAD, load_acls(self._log), self._on_loaded)

    def on_left(self) -> None:
        """What was loaded may be outdated. The image stays as it is."""
        self._is_loaded = False

    def reconsider(self) -> None:
        self._pending.reconsider()

    def on_change(self, path: str) -> None:
        """A watch fired."""
        for store in STORES:
            if path == store.changes:
                self._follow(store)

    def _on_loaded(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._context.on_failure(outcome.failure)
            return
        tree: AclTree = outcome.value
        self._rules = {pattern: rules for pattern, rules in tree.rules.items() if rules}
        self._known_changes = tree.changes
        self._is_loaded = True
        self._publish()
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
        again, self._changed_again = self._changed_again, set()
        for store in again:
            self._follow(store)
        self._pending.reconsider()

    def _follow(self, store: AclStore) -> None:
        operation = follow_acl_changes(store, self._known_changes.get(store, frozenset()), self._context.clock.wall_ms(), self._log)
        if not self._is_loaded:
            operation.close()
            self._changed_again.add(store)
        elif not self._context.runner.start(f"acls:{store.changes}", operation, partial(self._on_followed, store)):
            self._changed_again.add(store)  # a watch fires once, so a change during a reload needs another reload

    def _on_followed(self, store: AclStore, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._context.on_failure(outcome.failure)
            return
        tree: AclTree = outcome.value
        self._known_changes.update(tree.changes)
        for pattern, rules in tree.rules.items():
            self._use(pattern, rules)
        self._publish()
        if store in self._changed_again:
            self._changed_again.discard(store)
            self._follow(store)

    def _use(self, pattern: ResourcePattern, rules: Rules) -> None:
        if rules:
            self._rules[pattern] = rules
        else:
            self._rules.pop(pattern, None)

    def _publish(self) -> None:
        """Write the image if the lists differ from it. A first empty one is written, too: it ends the wait for it."""
        bindings = frozenset(self.bindings())
        if bindings != self._image.bindings or not self._image.generation:
            self._image = SecurityImage(self._image.generation + 1, bindings)
            write_security_image(self._image_path, self._image)
            self._on_published()

    # --- changes

    def _alter(self, _path: str, alteration: AclAlteration) -> Operation[tuple[Rules, Rules]]:
        return change_rules(alteration.pattern, alteration.change)

    def _on_altered(self, _path: str, alteration: AclAlteration, changed: tuple[Rules, Rules]) -> bool:
        former, rules = changed
        pattern = alteration.pattern
        self._use(pattern, rules)
        self._publish()
        for text, difference in (("added", rules - former), ("removed", former - rules)):
            for rule in sorted(difference):
                self._altered.add()
                self._log.info(
                    f"{text} an access control entry: {rule.permission.name} {rule.principal} {rule.operation.name} from {rule.host}"
                    f" on {pattern.resource.name} {pattern.name} ({pattern.pattern.name})"
                )
        alteration.on_changed(Result(ErrorCode.NONE), former - rules)
        return True


class AclRequests:
    """DescribeAcls, CreateAcls and DeleteAcls. `administration` None: the box has no authorizer."""

    def __init__(self, administration: AclAdministration | None, requests: WaitingRequests) -> None:
        self._administration = administration
        self._requests = requests
        self.by_api: dict[int, Callable[[ControllerRequest], None]] = {
            ApiKey.DESCRIBE_ACLS: self._on_describe,
            ApiKey.CREATE_ACLS: self._on_create,
            ApiKey.DELETE_ACLS: self._on_delete,
        }

    # --- DescribeAcls

    def _on_describe(self, request: ControllerRequest) -> None:
        decoded = acl_apis.DESCRIBE_ACLS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        administration, wanted = self._administration, filter_of(decoded)
        problem = filter_problem(wanted)

        def finish(results: dict[Key, Result]) -> None:
            if results[0].code is not ErrorCode.NONE or administration is None:
                response = DescribeAclsResponse(0, results[0].code, results[0].message)
            else:
                response = DescribeAclsResponse(0, resources=_described(each for each in administration.bindings() if wanted.matches(each)))
            self._requests.answer(request, acl_apis.DESCRIBE_ACLS_RESPONSE.encode(request.version, response))

        if administration is None:
            finish({0: Result(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER)})
        elif problem is not None:
            finish({0: Result(ErrorCode.INVALID_REQUEST, problem)})
        else:
            self._when_loaded(administration, [0], lambda waiting: waiting.record(0, Result(ErrorCode.NONE)), finish)

    def _when_loaded(
        self,
        administration: AclAdministration,
        keys: Iterable[Key],
        begin: Callable[[WaitingRequest], None],
        finish: Callable[[dict[Key, Result]], None],
    ) -> None:
        self._requests.wait(keys, ACL_TIMEOUT_MS, lambda waiting: administration.when_loaded(lambda: begin(waiting)), finish)

    # --- CreateAcls

    def _on_create(self, request: ControllerRequest) -> None:
        decoded = acl_apis.CREATE_ACLS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        administration, creations = self._administration, [_binding(creation) for creation in decoded.creations]

        def finish(results: dict[Key, Result]) -> None:
            done = tuple(AclCreationResult(results[index].code, truncated(results[index].message)) for index in range(len(creations)))
            self._requests.answer(request, acl_apis.CREATE_ACLS_RESPONSE.encode(request.version, CreateAclsResponse(0, done)))

        if administration is None:
            finish({index: Result(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER) for index in range(len(creations))})
        else:
            self._when_loaded(administration, range(len(creations)), lambda waiting: _create(administration, waiting, creations), finish)

    # --- DeleteAcls

    def _on_delete(self, request: ControllerRequest) -> None:
        decoded = acl_apis.DELETE_ACLS_REQUEST.decode(request.body, 0, len(request.body), request.version)
        administration, filters = self._administration, [filter_of(each) for each in decoded.filters]
        removed: dict[ResourcePattern, tuple[Result, Rules]] = {}
        """Also what could not be removed: then with the rules that were to be."""

        def finish(results: dict[Key, Result]) -> None:
            done = tuple(_deleted(results[index], wanted, removed) for index, wanted in enumerate(filters))
            self._requests.answer(request, acl_apis.DELETE_ACLS_RESPONSE.encode(request.version, DeleteAclsResponse(0, done)))

        if administration is None:
            finish({index: Result(ErrorCode.SECURITY_DISABLED, NO_AUTHORIZER) for index in range(len(filters))})
        else:
            self._when_loaded(administration, range(len(filters)), lambda waiting: _delete(administration, waiting, filters, removed), finish)


def _create(administration: AclAdministration, waiting: WaitingRequest, creations: list[AclBinding]) -> None:
    """Add the rules of each pattern by one change."""
    indexes: dict[ResourcePattern, list[int]] = {}
    for index, binding in enumerate(creations):
        problem = binding_problem(binding)
        if problem is not None:
            waiting.record(index, Result(ErrorCode.INVALID_REQUEST, problem))
        else:
            indexes.setdefault(binding.resources, []).append(index)

    def on_changed(added: list[int], result: Result, _removed: Rules) -> None:
        for index in added:
            waiting.record(index, result)

    for pattern, added in indexes.items():
        rules = frozenset(creations[index].rule for index in added)
        administration.alter(pattern, partial(frozenset.union, rules), partial(on_changed, added))


def _delete(administration: AclAdministration, waiting: WaitingRequest, filters: list[AclFilter], removed: dict[ResourcePattern, tuple[Result, Rules]]) -> None:
    """Remove from each pattern the rules that any filter matches, by one change."""
    usable = []
    for index, wanted in enumerate(filters):
        problem = filter_problem(wanted)
        if problem is not None:
            waiting.record(index, Result(ErrorCode.INVALID_REQUEST, problem))
        else:
            usable.append(wanted)
    matched = {binding.resources for binding in administration.bindings() if any(wanted.matches(binding) for wanted in usable)}
    left = len(matched)

    def settle() -> None:
        if not left:
            for index in range(len(filters)):
                waiting.record(index, Result(ErrorCode.NONE))

    def keep(pattern: ResourcePattern, former: Rules) -> Rules:
        return frozenset(rule for rule in former if not any(wanted.matches(AclBinding.of(pattern, rule)) for wanted in usable))

    def on_changed(pattern: ResourcePattern, to_remove: Rules, result: Result, gone: Rules) -> None:
        nonlocal left
        left -= 1
        removed[pattern] = result, gone if result.code is ErrorCode.NONE else to_remove
        settle()

    settle()
    for pattern in sorted(matched):
        known = frozenset(binding.rule for binding in administration.bindings() if binding.resources == pattern)
        administration.alter(pattern, partial(keep, pattern), partial(on_changed, pattern, known - keep(pattern, known)))


def _deleted(result: Result, wanted: AclFilter, removed: dict[ResourcePattern, tuple[Result, Rules]]) -> DeleteAclsFilterResult:
    if result.code is not ErrorCode.NONE:
        return DeleteAclsFilterResult(result.code, truncated(result.message))
    matching = [
        DeletedAcl(of_pattern.code, truncated(of_pattern.message), pattern.resource, pattern.name, pattern.pattern, *rule)
        for pattern, (of_pattern, rules) in sorted(removed.items())
        for rule in sorted(rules)
        if wanted.matches(AclBinding.of(pattern, rule))
    ]
    return DeleteAclsFilterResult(0, None, tuple(matching))


def _described(bindings: Iterable[AclBinding]) -> tuple[DescribedAcls, ...]:
    by_pattern: dict[ResourcePattern, list[AccessRule]] = {}
    for binding in sorted(bindings):
        by_pattern.setdefault(binding.resources, []).append(binding.rule)
    return tuple(DescribedAcls(*pattern, tuple(DescribedAcl(*rule) for rule in rules)) for pattern, rules in by_pattern.items())


def filter_of(wanted: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        _known(AclResource, wanted.resource_type_filter),
        wanted.resource_name_filter,
        _known(PatternType, wanted.pattern_type_filter),
        wanted.principal_filter,
        wanted.host_filter,
        _known(AclOperation, wanted.operation),
        _known(AclPermission, wanted.permission_type),
    )


def filter_problem(wanted: AclFilter) -> str | None:
    """Return why a filter is refused, or None: Kafka refuses numbers that it does not know."""
    if 0 in (wanted.resource, wanted.pattern, wanted.operation, wanted.permission):
        return "The filter contains UNKNOWN elements."
    return None


def _binding(creation: AclCreation) -> AclBinding:
    return AclBinding(
        _known(AclResource, creation.resource_type),
        creation.resource_name,
        _known(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        _known(AclOperation, creation.operation),
        _known(AclPermission, creation.permission_type),
    )


def _known(kind: type[Number], number: int) -> Number:
    """The number's meaning; UNKNOWN (0) for one of a newer Kafka."""
    return kind(number) if number in kind.__members__.values() else kind(0)
