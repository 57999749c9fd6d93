"""Carry out changes of configs, per topic or broker one after another.

Owned by the controller process. A change is a function of the current configs (`ConfigChange`),
applied to what ZooKeeper holds when its turn comes. Applying it twice does no harm, so a change
that a lost connection interrupted starts again. It does not if its client has received a time-out
meanwhile, because that client may have had the opposite done by another box. Weak: pending changes
are forgotten with the process; the client gets no answer and retries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.logging import Logger
from appliance.shm.counters import Counters
from services.controller.admin.topic_administration import OnResult, Result
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.config_operations import alter_box_config, alter_topic_config
from services.controller.zookeeper.config_changes import ConfigChange
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner


class Entity(NamedTuple):
    """A topic, or a broker's configs (its id, or `<default>`)."""

    is_broker: bool
    name: str


class Alteration(NamedTuple):
    """A change that is pending while `is_awaited()` returns true: its client still waits."""

    change: ConfigChange
    validate_only: bool
    on_result: OnResult
    is_awaited: Callable[[], bool]


class ConfigAdministration:
    """Alterations by topic and broker. `on_failure` gets what ZooKeeper refused or lost."""

    def __init__(self, cluster: Cluster, runner: OperationRunner, counters: Counters, log: Logger, on_failure: Callable[[Exception], None]) -> None:
        self._cluster = cluster
        self._runner = runner
        self._log = log
        self._on_failure = on_failure
        self._wanted: dict[Entity, deque[Alteration]] = {}
        self._altered = counters.counter("controller.configs_altered")

    def alter(self, entity: Entity, alteration: Alteration) -> None:
        """Order a change. `on_result` is called when it is refused, or written and sent to
        log-writers and image.
        """
        self._wanted.setdefault(entity, deque()).append(alteration)
        self._go_on(entity)

    def reconsider(self) -> None:
        """Start what is due and not running."""
        for entity in sorted(self._wanted):
            self._go_on(entity)

    def _go_on(self, entity: Entity) -> None:
        run = f"{'box-config' if entity.is_broker else 'config'}:{entity.name}"
        waiting = self._wanted.get(entity)
        if waiting is None or not self._cluster.has_arrived or self._runner.is_running(run):
            return
        while waiting and not waiting[0].is_awaited():
            waiting.popleft()
        if not waiting:
            del self._wanted[entity]
            return
        alteration = waiting[0]
        alter = alter_box_config if entity.is_broker else alter_topic_config
        operation = alter(self._cluster, entity.name, alteration.change, alteration.validate_only)
        self._runner.start(run, operation, lambda outcome: self._on_altered(entity, outcome))

    def _on_altered(self, entity: Entity, outcome: OperationOutcome) -> None:
        if isinstance(outcome.failure, RequestRefused):
            result = Result(outcome.failure.code, outcome.failure.message)
        elif outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        else:
            result = Result(ErrorCode.NONE)
        alterations = self._wanted[entity]
        alteration = alterations.popleft()
        if not alterations:
            del self._wanted[entity]
        if result.code is ErrorCode.NONE and not alteration.validate_only:
            self._altered.add()
            self._tell(entity)
        alteration.on_result(result)
        self._go_on(entity)

    def _tell(self, entity: Entity) -> None:
        topic = self._cluster.topics.get(entity.name)
        config = self._cluster.dynamic_configs.get(entity.name, {}) if entity.is_broker else topic.config if topic is not None else {}
        configs = ", ".join(f"{key}={value}" for key, value in sorted(config.items())) or "none of its own"
        if entity.is_broker:
            self._log.info(f"broker {entity.name} has new configs: {configs}")
        else:
            self._log.info(f"topic {entity.name} has new configs: {configs}", topic=entity.name)
