"""Start the protection of the tree (`tree_protection.py`) after an arrival, once per incarnation.

Owned by the controller. If the arrival is lost meanwhile, the next one starts it again. Weak: on an
ensemble elsewhere, nodes that belong to another user stay as they are, and are reported once.
"""

from __future__ import annotations

import os
from pathlib import Path

from appliance.base.logging import Logger
from appliance.base.settings import Box
from appliance.base.zookeeper_access import ZooKeeperAccess, open_tree_mark
from services.controller.zookeeper.operation import OperationOutcome, OperationRunner
from services.controller.zookeeper.requests import ZooKeeperConnectionLost
from services.controller.zookeeper.tree_protection import forget_protection, protect_tree


class TreeGuard:
    """`on_arrived` after every arrival; it does nothing where ZooKeeper is open."""

    def __init__(self, access: ZooKeeperAccess | None, box: Box, runner: OperationRunner, log: Logger) -> None:
        self._access = access
        self._box = box
        self._runner = runner
        self._log = log
        self._is_done = access is None

    def on_arrived(self) -> None:
        access = self._access
        if self._is_done or access is None:
            return
        if access.guards:
            has_run_open = os.path.exists(open_tree_mark(self._box.state_directory))
            heap_mb = self._box.integer("zookeeper.heap.mb")
            operation = protect_tree(access, self._box.broker_id, heap_mb, has_run_open)
            self._runner.start("protect-tree", operation, self._on_protected)
        else:
            self._runner.start("protect-tree", forget_protection(self._box.broker_id), self._on_forgotten)

    def _on_forgotten(self, outcome: OperationOutcome) -> None:
        self._is_done = outcome.failure is None

    def _on_protected(self, outcome: OperationOutcome) -> None:
        if isinstance(outcome.failure, ZooKeeperConnectionLost):
            return  # the next arrival begins again
        self._is_done = True
        if outcome.failure is not None:
            words = f"could not give every ZooKeeper node its ACL: {outcome.failure}"
            self._log.warning(f"{words}; the next start of the controller tries again")
            return
        Path(open_tree_mark(self._box.state_directory)).unlink(missing_ok=True)
        if outcome.value:
            self._log.info(f"protected the ZooKeeper tree: {outcome.value} nodes have got an ACL")
