"""Follow the tree in ZooKeeper: reload each watched path after its watch has fired.

Owned by the controller process of each box. The change log reports everything that boxes write. The
lists of topics, deletions, brokers and Kafka's config notifications are watched beside it, because
other tools write there, and because a dead box writes nothing. The box's own registration is
watched, because a copy of the box may have deleted it. Each path is reloaded by at most one
operation at a time; a change during a reload causes another one. Weak: our own writes fire the
watches, too, and cost a reload that finds nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from appliance.base.model import TopicId
from appliance.cluster.group_configs import GROUPS_ENTITY
from appliance.cluster.user_znodes import entity_of_path, user_of_entity
from appliance.cluster.znodes import BROKER_IDS, BROKER_TOPICS, CONFIG_CHANGES, CONTROLLER, DEFAULT_BROKER, DELETE_TOPICS, broker_path
from services.controller.decisions.arrival import follow_changes, read_topics, take_over
from services.controller.decisions.cluster import ControllerContext
from services.controller.decisions.config_operations import reload_box_configs, reload_group_configs, reload_topic_config
from services.controller.zookeeper import broker_registry, config_changes, topic_registry
from services.controller.zookeeper.change_log import CHANGES
from services.controller.zookeeper.operation import Operation, OperationOutcome, Publish
from services.controller.zookeeper.requests import GetChildren


class ZnodeWatcher:
    """`creating()` returns the names of topics that this process is about to create.

    `on_news` is called if a reload found a change, `on_failure` if ZooKeeper refused or lost a
    request.
    """

    def __init__(
        self,
        context: ControllerContext,
        new_topic_id: Callable[[], TopicId],
        creating: Callable[[], Iterable[str]],
        session_id: Callable[[], int],
        on_news: Callable[[], None],
        on_user_changed: Callable[[str], None] = lambda _name: None,
        on_quotas_changed: Callable[[str], None] = lambda _path: None,
    ) -> None:
        self._cluster = cluster = context.cluster
        self._runner = context.runner
        self._new_topic_id = new_topic_id
        self._creating = creating
        self._session_id = session_id
        self._clock = context.clock
        self._log = context.log
        self._on_news = on_news
        self._on_user_changed = on_user_changed
        self._on_quotas_changed = on_quotas_changed
        self._on_failure = context.on_failure
        self._reloads: dict[str, Callable[[], Operation[bool]]] = {
            CONTROLLER: self._reload_controller,
            CHANGES: self._reload_changes,
            BROKER_TOPICS: self._reload_topics,
            DELETE_TOPICS: self._reload_deletions,
            BROKER_IDS: self._reload_brokers,
            CONFIG_CHANGES: self._reload_config_changes,
            broker_path(cluster.broker_id): self._reload_own_registration,
        }
        self._changed_again: set[str] = set()
        self._changed_on_arrival: set[str] = set()

    def forget(self) -> None:
        """Forget pending reloads: they were dropped, and the next arrival reads everything."""
        self._changed_again.clear()
        self._changed_on_arrival.clear()

    def on_arrived(self) -> None:
        """Reload what changed after the arrival had read it."""
        changed, self._changed_on_arrival = self._changed_on_arrival, set()
        for path in sorted(changed):
            self.on_change(path)

    def on_change(self, path: str) -> None:
        """A watch fired: reload the path."""
        if not self._cluster.has_arrived:
            self._changed_on_arrival.add(path)
        elif path in self._reloads and not self._runner.start(f"reload:{path}", self._reloads[path](), lambda outcome: self._on_reloaded(path, outcome)):
            self._changed_again.add(path)  # a watch fires once, so a change during a reload needs another reload

    def _on_reloaded(self, path: str, outcome: OperationOutcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        if outcome.value:
            self._on_news()
        if path in self._changed_again:
            self._changed_again.discard(path)
            self.on_change(path)

    def _reload_controller(self) -> Operation[bool]:
        former = self._cluster.fence
        yield from take_over(self._cluster, self._session_id(), self._clock.wall_ms(), self._new_topic_id)
        if self._cluster.fence != former:
            self._log.info("this box is the controller of the cluster" if self._cluster.fence is not None else "this box is no longer the controller")
        return True

    def _reload_changes(self) -> Operation[bool]:
        news = yield from follow_changes(self._cluster, self._new_topic_id)
        return bool(news)

    def _reload_topics(self) -> Operation[bool]:
        cluster = self._cluster
        names = set((yield GetChildren(BROKER_TOPICS, True)))
        unknown = names - cluster.topics.keys() - set(self._creating())
        if unknown:
            yield from read_topics(cluster, unknown, self._new_topic_id)
        gone = {name for name in cluster.topics.keys() - names - cluster.deleting if not self._runner.is_running(f"topic:{name}")}
        for name in gone:
            self._log.warning(f"topic {name} was deleted from ZooKeeper by another program; its directories stay", topic=name)
            del cluster.topics[name]
        if unknown or gone:
            yield Publish()
        return bool(unknown or gone)

    def _reload_deletions(self) -> Operation[bool]:
        """Apply new deletion orders, and those that another broker's controller has completed."""
        cluster = self._cluster
        names = yield from topic_registry.load_deletions()
        unknown = {name for name in names - cluster.deleting if not self._runner.is_running(f"topic:{name}")}
        cluster.deleting |= unknown
        done = {name for name in cluster.deleting - names if not self._runner.is_running(f"topic:{name}")}
        if done:
            left = set((yield GetChildren(BROKER_TOPICS, True)))
            for name in done - left:
                cluster.topics.pop(name, None)
            cluster.deleting -= done
            again = done & left  # created again since
            for name in again:
                cluster.topics.pop(name, None)
            yield from read_topics(cluster, again, self._new_topic_id)
        if unknown or done:
            yield Publish()
        return bool(unknown or done)

    def _reload_brokers(self) -> Operation[bool]:
        former = self._cluster.broker_epochs
        self._cluster.use_boxes((yield from broker_registry.read_boxes(watch=True)))
        yield Publish()
        return former != self._cluster.broker_epochs

    def _reload_own_registration(self) -> Operation[bool]:
        yield from broker_registry.check_registration(self._cluster.broker_id, self._session_id())
        return False

    def _reload_config_changes(self) -> Operation[bool]:
        """Load the configs that others changed. Our own changes are notified, too, and are known
        already.
        """
        names = yield from config_changes.list_config_changes()
        for name in sorted(names - self._cluster.config_changes):
            entity = yield from config_changes.entity_named_by(name)
            topic = config_changes.topic_named_by(entity)
            if topic is not None:
                yield from reload_topic_config(self._cluster, topic)
            elif entity in (f"brokers/{self._cluster.broker_id}", f"brokers/{DEFAULT_BROKER}"):
                yield from reload_box_configs(self._cluster)
            elif entity == GROUPS_ENTITY:
                yield from reload_group_configs(self._cluster)
                if self._cluster.group_configs_problem is not None:
                    self._log.error(f"configs of groups stay as they were: {self._cluster.group_configs_problem}")
            elif (user := user_of_entity(entity)) is not None:
                self._on_user_changed(user)
            if entity is not None and entity_of_path(entity) is not None:
                self._on_quotas_changed(entity)
        self._cluster.config_changes = names
        yield from config_changes.remove_old_config_changes(names, self._clock.wall_ms())
        return False
