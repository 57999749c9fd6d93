"""Entities of ZooKeeper's `/config` that an image on tmpfs publishes: users with credentials, entities with quotas.

Owned by the controller process of each box, one object for each kind. They are loaded after each arrival, and one by
one when a notification names one. A change is in the image before its client is answered, and the image is written once
for all changes of a turn. Weak: an image that cannot be written ends the controller, which tries again when it restarts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from appliance.base.errors import ErrorCode
from services.controller.admin.pending_orders import PendingOrder, PendingOrders, with_notification
from services.controller.admin.waiting_requests import Result
from services.controller.decisions.cluster import ControllerContext
from services.controller.zookeeper.operation import Operation, OperationOutcome

Entity = TypeVar("Entity")
Values = TypeVar("Values", bound=dict[str, Any])
Change = TypeVar("Change", bound=PendingOrder)


class EntityOperations(NamedTuple, Generic[Entity, Values, Change]):
    """Read all entities; read these, with empty values if they have none; carry a change out."""

    load: Callable[[], Operation[dict[Entity, Values]]]
    read: Callable[[Iterable[Entity]], Operation[dict[Entity, Values]]]
    change: Callable[[Change], Operation[Values]]


class PublishedEntities(ABC, Generic[Entity, Values, Change]):
    """`publish` is called each turn, and `on_published()` after each new image."""

    def __init__(
        self,
        context: ControllerContext,
        kind: str,
        operations: EntityOperations[Entity, Values, Change],
        on_published: Callable[[], None],
        is_awaited: Callable[[Change], bool] = lambda _change: True,
    ) -> None:
        """`kind` names the operations. A change that `is_awaited` denies is dropped before it starts."""
        self._context = context
        self._log = context.log
        self._kind = kind
        self._operations = operations
        self._on_published = on_published
        self._entities: dict[Entity, Values] = {}
        """Those that have values."""
        self._changed_again: set[Entity] = set()
        self._is_loaded = False
        self._is_changed = False
        """`_entities` may differ from the image."""
        self._written: list[Change] = []
        """Answered when the image has them."""
        self._waiting: list[Callable[[], None]] = []
        self._pending: PendingOrders[str, Change] = PendingOrders(
            context, f"{kind}:alter:{{}}".format, self._change, self._on_altered, lambda: self._is_loaded, is_awaited
        )

    def _change(self, _path: str, change: Change) -> Operation[Values]:
        return with_notification(self._context, self._operations.change(change))

    @abstractmethod
    def _on_altered(self, path: str, change: Change, values: Values) -> bool:
        """Use what a change left; see PendingOrders."""

    @abstractmethod
    def _differs(self) -> bool:
        """Return whether the image lacks something of `_entities`, or was never written."""

    @abstractmethod
    def _write_image(self) -> None:
        """Write the next generation of the image."""

    def when_loaded(self, callback: Callable[[], None]) -> None:
        """Call back when the entities are loaded, at once if they are."""
        if self._is_loaded:
            callback()
        else:
            self._waiting.append(callback)

    def on_arrived(self) -> None:
        """The tree was loaded: load the entities, too. What changes meanwhile leaves a notification."""
        self._is_loaded = False
        self._changed_again.clear()
        self._context.runner.start(f"{self._kind}:load", self._operations.load(), self._on_loaded)

    def on_left(self) -> None:
        """What was loaded may be outdated. The image stays as it is."""
        self._is_loaded = False

    def reconsider(self) -> None:
        self._pending.reconsider()

    def reload(self, entity: Entity) -> None:
        """A notification named this entity."""
        operation = self._operations.read([entity])
        if not self._is_loaded or not self._context.runner.start(f"{self._kind}:reload:{entity}", operation, partial(self._on_read, entity)):
            operation.close()
            self._changed_again.add(entity)

    def _on_loaded(self, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._context.on_failure(outcome.failure)
            return
        self._entities = {entity: values for entity, values in outcome.value.items() if values}
        self._is_loaded = self._is_changed = True
        self.publish()
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()
        again, self._changed_again = self._changed_again, set()
        for entity in again:
            self.reload(entity)
        self._pending.reconsider()

    def _on_read(self, entity: Entity, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._context.on_failure(outcome.failure)
            return
        self._use(entity, outcome.value[entity])
        if entity in self._changed_again:
            self._changed_again.discard(entity)
            self.reload(entity)

    def _use(self, entity: Entity, values: Values) -> None:
        if values:
            self._entities[entity] = values
        else:
            self._entities.pop(entity, None)
        self._is_changed = True

    def publish(self) -> int:
        """Write the image if the entities differ from it, and answer the changes that are in it; return how many."""
        if not self._is_changed:
            return 0
        self._is_changed = False
        if self._differs():
            self._write_image()
            self._on_published()
        written, self._written = self._written, []
        for change in written:
            change.answer(Result(ErrorCode.NONE))
        return len(written)
