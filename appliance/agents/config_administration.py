"""Changes of topic configs that are wanted, one topic's after another, and the operations that carry them out.

Owned by the controller process. A change is a function of what is set (`metadata.config_changes`), applied to what ZooKeeper holds when its turn
comes; doing one twice does no harm, so what a lost connection cut off is begun again. Weak spot: what waits is forgotten with the process; the client
hears nothing and asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from appliance.agents.topic_administration import OnResult, Result
from appliance.base.errors import ErrorCode, RequestRefused
from appliance.base.logging import Logger
from appliance.metadata.config_changes import ConfigChange
from appliance.metadata.operation import OperationRunner, Outcome
from appliance.replication.cluster import Cluster
from appliance.replication.operations import alter_topic_config
from appliance.shm.counters import Counters


class Alteration(NamedTuple):
    """A change that is wanted."""

    change: ConfigChange
    validate_only: bool
    on_result: OnResult


class ConfigAdministration:
    """Alterations by topic. `on_failure` gets what ZooKeeper refused or lost."""

    def __init__(self, cluster: Cluster, runner: OperationRunner, counters: Counters, log: Logger, on_failure: Callable[[Exception], None]) -> None:
        self._cluster = cluster
        self._runner = runner
        self._log = log
        self._on_failure = on_failure
        self._wanted: dict[str, deque[Alteration]] = {}
        self._altered = counters.counter("controller.configs_altered")

    def alter(self, name: str, change: ConfigChange, validate_only: bool, on_result: OnResult) -> None:
        """`on_result` is called when the change is refused, or written and known to log-writers and image."""
        self._wanted.setdefault(name, deque()).append(Alteration(change, validate_only, on_result))
        self._go_on(name)

    def reconsider(self) -> None:
        """Start whatever is wanted and not under way."""
        for name in sorted(self._wanted):
            self._go_on(name)

    def _go_on(self, name: str) -> None:
        if self._cluster.fence is not None and name in self._wanted:
            alteration = self._wanted[name][0]
            operation = alter_topic_config(self._cluster, name, alteration.change, alteration.validate_only)
            self._runner.start(f"config:{name}", operation, lambda outcome: self._on_altered(name, outcome))

    def _on_altered(self, name: str, outcome: Outcome) -> None:
        if isinstance(outcome.failure, RequestRefused):
            result = Result(outcome.failure.code, outcome.failure.message)
        elif outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        else:
            result = Result(ErrorCode.NONE)
        alterations = self._wanted[name]
        alteration = alterations.popleft()
        if not alterations:
            del self._wanted[name]
        if result.code is ErrorCode.NONE and not alteration.validate_only:
            self._altered.add()
            topic = self._cluster.topics.get(name)
            configs = ", ".join(f"{key}={value}" for key, value in sorted(topic.config.items())) if topic is not None else ""
            self._log.info(f"topic {name} has new configs: {configs or 'none of its own'}", topic=name)
        alteration.on_result(result)
        self._go_on(name)
