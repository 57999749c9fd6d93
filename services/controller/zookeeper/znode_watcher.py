"""Following the tree in ZooKeeper: what is looked at again when a watch says that it has changed.

The change log tells of everything that boxes write; beside it the lists of topics, of deletions, of brokers and of Kafka's config notifications are
watched, because other tools write there too, and because a box that dies writes nothing; and the box's own registration, which a copy of the box may
have deleted. Owned by the controller process of each box. One look at each
path at a time; what changes during a look is looked at after it. Weak spot: our own writes come along here too, and cost a look that finds nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from appliance.base.clock import Clock
from appliance.base.logging import Logger
from appliance.base.model import TopicId
from appliance.cluster.znodes import BROKER_IDS, BROKER_TOPICS, CONFIG_CHANGES, CONTROLLER, DEFAULT_BROKER, DELETE_TOPICS, broker_path
from services.controller.decisions.arrival import follow_changes, read_topics, take_over
from services.controller.decisions.box_config_operations import load_box_configs
from services.controller.decisions.cluster import Cluster
from services.controller.decisions.config_operations import reload_topic_config
from services.controller.zookeeper import broker_registry, config_notifications, topic_registry
from services.controller.zookeeper.change_log import CHANGES
from services.controller.zookeeper.operation import Operation, OperationRunner, Outcome, Publish
from services.controller.zookeeper.requests import GetChildren


class ZnodeWatcher:
    """`creating()`: names of topics that this process is about to create. `on_news` is called when something has changed, `on_failure` gets what ZooKeeper
    refused or lost."""

    def __init__(
        self,
        cluster: Cluster,
        runner: OperationRunner,
        new_topic_id: Callable[[], TopicId],
        creating: Callable[[], Iterable[str]],
        session_id: Callable[[], int],
        clock: Clock,
        log: Logger,
        on_news: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._cluster = cluster
        self._runner = runner
        self._new_topic_id = new_topic_id
        self._creating = creating
        self._session_id = session_id
        self._clock = clock
        self._log = log
        self._on_news = on_news
        self._on_failure = on_failure
        self._looks: dict[str, Callable[[], Operation[bool]]] = {
            CONTROLLER: self._look_at_controller,
            CHANGES: self._look_at_changes,
            BROKER_TOPICS: self._look_at_topics,
            DELETE_TOPICS: self._look_at_deletions,
            BROKER_IDS: self._look_at_brokers,
            CONFIG_CHANGES: self._look_at_config_changes,
            broker_path(cluster.broker_id): self._look_at_own_registration,
        }
        self._changed_again: set[str] = set()
        self._changed_on_arrival: set[str] = set()

    def forget(self) -> None:
        """The looks under way were dropped; an arrival reads everything."""
        self._changed_again.clear()
        self._changed_on_arrival.clear()

    def on_arrived(self) -> None:
        """What changed after an arrival had read it is looked at now."""
        changed, self._changed_on_arrival = self._changed_on_arrival, set()
        for path in sorted(changed):
            self.on_change(path)

    def on_change(self, path: str) -> None:
        """A watch has fired."""
        if not self._cluster.has_arrived:
            self._changed_on_arrival.add(path)
        elif path in self._looks and not self._runner.start(f"look:{path}", self._looks[path](), lambda outcome: self._on_looked(path, outcome)):
            self._changed_again.add(path)  # a watch fires once: what changed during a look is looked at after it

    def _on_looked(self, path: str, outcome: Outcome) -> None:
        if outcome.failure is not None:
            self._on_failure(outcome.failure)
            return
        if outcome.value:
            self._on_news()
        if path in self._changed_again:
            self._changed_again.discard(path)
            self.on_change(path)

    def _look_at_controller(self) -> Operation[bool]:
        former = self._cluster.fence
        yield from take_over(self._cluster, self._session_id(), self._clock.wall_ms(), self._new_topic_id)
        if self._cluster.fence != former:
            self._log.info("this box is controller of the cluster" if self._cluster.fence is not None else "this box is not controller any more")
        return True

    def _look_at_changes(self) -> Operation[bool]:
        news = yield from follow_changes(self._cluster, self._new_topic_id)
        return bool(news)

    def _look_at_topics(self) -> Operation[bool]:
        cluster = self._cluster
        names = set((yield GetChildren(BROKER_TOPICS, True)))
        strange = names - cluster.topics.keys() - set(self._creating())
        if strange:
            yield from read_topics(cluster, strange, self._new_topic_id)
        gone = {name for name in cluster.topics.keys() - names - cluster.deleting if not self._runner.is_running(f"topic:{name}")}
        for name in gone:
            self._log.warning(f"topic {name} was taken out of ZooKeeper by somebody else; its directories stay", topic=name)
            del cluster.topics[name]
        if strange or gone:
            yield Publish()
        return bool(strange or gone)

    def _look_at_deletions(self) -> Operation[bool]:
        """New orders; and those that are gone because another broker's controller has carried them out, with the topics."""
        cluster = self._cluster
        names = yield from topic_registry.load_deletions()
        strange = {name for name in names - cluster.deleting if not self._runner.is_running(f"topic:{name}")}
        cluster.deleting |= strange
        done = {name for name in cluster.deleting - names if not self._runner.is_running(f"topic:{name}")}
        if done:
            left = set((yield GetChildren(BROKER_TOPICS, True)))
            for name in done - left:
                cluster.topics.pop(name, None)
            cluster.deleting -= done
            again = done & left  # made anew since
            for name in again:
                cluster.topics.pop(name, None)
            yield from read_topics(cluster, again, self._new_topic_id)
        if strange or done:
            yield Publish()
        return bool(strange or done)

    def _look_at_brokers(self) -> Operation[bool]:
        former = self._cluster.broker_epochs
        self._cluster.use_boxes((yield from broker_registry.read_boxes(watch=True)))
        yield Publish()
        return former != self._cluster.broker_epochs

    def _look_at_own_registration(self) -> Operation[bool]:
        yield from broker_registry.check_registration(self._cluster.broker_id, self._session_id())
        return False

    def _look_at_config_changes(self) -> Operation[bool]:
        """Configs that somebody else changed. Our own changes come along here too, and are known already."""
        names = yield from config_notifications.list_config_changes()
        for name in sorted(names - self._cluster.config_changes):
            entity = yield from config_notifications.entity_named_by(name)
            topic = config_notifications.topic_named_by(entity)
            if topic is not None:
                yield from reload_topic_config(self._cluster, topic)
            elif entity in (f"brokers/{self._cluster.broker_id}", f"brokers/{DEFAULT_BROKER}"):
                yield from load_box_configs(self._cluster)
                yield Publish()
        self._cluster.config_changes = names
        yield from config_notifications.remove_old_config_changes(names, self._clock.wall_ms())
        return False
