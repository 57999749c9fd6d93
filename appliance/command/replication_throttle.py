"""A throttle for the time of a reassignment, by Kafka's configs: a rate on every box, and which replicas it is for on every topic.

Set before the orders, taken away when nothing is on its way any more: also by a later run of the command, when the first was cut off, because the throttle
stands in the configs and not in the command. The rates are the boxes': they stay as long as anything that is on its way is throttled. Weak spot: it takes away
any throttle of these topics, whoever set it.
"""

from __future__ import annotations

from collections.abc import Collection

from appliance.client.admin import alter_topic_settings, topic_settings
from appliance.client.boxes import alter_box_settings, box_settings
from appliance.client.cluster import ClusterClient
from appliance.cluster.box_balance import BalancePlan
from appliance.command.cluster_view import ClusterView

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS = "leader.replication.throttled.replicas"
FOLLOWERS = "follower.replication.throttled.replicas"


def throttled_replicas(plan: BalancePlan) -> dict[str, dict[str, str]]:
    """topic → its two configs: the replicas that are copied from, and those that are copied to."""
    sources: dict[str, list[str]] = {}
    sinks: dict[str, list[str]] = {}
    for change in sorted(plan.changes, key=lambda change: (change.topic, change.partition)):
        if change.coming:
            sources.setdefault(change.topic, []).extend(f"{change.partition}:{box}" for box in change.former)
            sinks.setdefault(change.topic, []).extend(f"{change.partition}:{box}" for box in change.coming)
    return {topic: {LEADERS: ",".join(sources[topic]), FOLLOWERS: ",".join(sinks[topic])} for topic in sinks}


def set_throttle(cluster: ClusterClient, view: ClusterView, plan: BalancePlan, bytes_per_second: int) -> None:
    """On every box that runs, and on the topics of the plan."""
    for topic, configs in throttled_replicas(plan).items():
        alter_topic_settings(cluster, topic, configs, ())
    for broker_id in view.boxes:
        alter_box_settings(cluster, broker_id, dict.fromkeys(RATES, str(bytes_per_second)), ())


def lift_throttle(cluster: ClusterClient, view: ClusterView, topics: Collection[str] | None = None) -> bool:
    """Of those of `topics` (None: of all) of which nothing is on its way any more, as `view` has it. Whether there was one."""
    under_way = {topic for topic, _ in view.ongoing}
    at_rest = {topic for topic, _ in view.partitions} - under_way
    lifted = False
    for topic in sorted(at_rest if topics is None else at_rest.intersection(topics)):
        if found := _throttled(cluster, topic):
            alter_topic_settings(cluster, topic, {}, found)
            lifted = True
    if lifted and not any(_throttled(cluster, topic) for topic in sorted(under_way)):
        for broker_id in sorted(view.boxes):
            if rates := [name for name in RATES if name in box_settings(cluster, broker_id)]:
                alter_box_settings(cluster, broker_id, {}, rates)
    return lifted


def _throttled(cluster: ClusterClient, topic: str) -> list[str]:
    """Which of the two configs stand on the topic itself."""
    own = topic_settings(cluster, topic).own
    return [name for name in (LEADERS, FOLLOWERS) if name in own]
