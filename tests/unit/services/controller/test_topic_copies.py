"""Topics that a box made while it was alone get their replicas when other boxes come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.protocol.topic_apis import CreatableTopic, TopicConfig
from services.controller.admin.topic_copies import SETTLED_MS
from tests.support.stepped_cluster import SteppedCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[SteppedCluster]:
    made = SteppedCluster(tmp_path, 1, {"auto.leader.rebalance.enable": True})
    try:
        yield made
    finally:
        made.close()


def _others_come(cluster: SteppedCluster, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        cluster.start(broker_id)
    agent = cluster.controller().agent
    assert agent is not None
    cluster.until(lambda: set(broker_ids) <= set(agent.cluster.eligible_brokers()), "the controller counts them")


def _replicas(cluster: SteppedCluster, name: str) -> list[tuple[int, ...]]:
    agent = cluster.controller().agent
    assert agent is not None
    replicas = agent.cluster.topics[name].replicas
    return [replicas[number] for number in sorted(replicas)]


def _catches_up(cluster: SteppedCluster, name: str) -> bool:
    """As the leader's log-writer would, once its followers have everything; whether nothing is under way."""
    for number, replicas in enumerate(_replicas(cluster, name)):
        state = cluster.state(name, number)
        if set(state.isr) != set(replicas) and cluster.leads(state.leader, name, number) == state.leader_epoch:
            agent = cluster.boxes[state.leader].agent
            assert agent is not None
            if set(agent.cluster.topics[name].replicas[number]) >= set(replicas):
                cluster.wish(state.leader, name, number, tuple(replicas))
    cluster.pass_ms(50)
    agent = cluster.controller().agent
    assert agent is not None
    document = agent.cluster.topics[name].assignment
    return not document.adding_replicas and all(set(cluster.state(name, number).isr) == {1, 2, 3} for number in range(len(_replicas(cluster, name))))


def test_syslog_of_the_first_box_gets_three_copies_and_every_box_leads_some_of_it(alone: SteppedCluster) -> None:
    alone.create("syslog", (1,), (1,), (1,), (1,))
    alone.create("mine", (1,))
    alone.pass_ms(SETTLED_MS * 2)
    assert _replicas(alone, "syslog") == [(1,)] * 4, "a box that is alone does nothing"
    _others_come(alone, 2, 3)
    alone.until(lambda: _replicas(alone, "syslog") != [(1,)] * 4, "it grows")
    alone.until(lambda: _catches_up(alone, "syslog"), "all copies are in sync")
    alone.until(lambda: {alone.state("syslog", number).leader for number in range(4)} == {1, 2, 3}, "every box leads some")
    alone.until_quiet()
    assert {each: sorted(replicas) for each, replicas in enumerate(_replicas(alone, "syslog"))} == {number: [1, 2, 3] for number in range(4)}
    assert _replicas(alone, "mine") == [(1,)], "no more copies were requested"


def test_nothing_grows_while_boxes_come_or_beside_an_operators_reassignment(alone: SteppedCluster) -> None:
    alone.create("__consumer_offsets", (1,))
    alone.create("mine", (1,))
    _others_come(alone, 2)
    agent = alone.controller().agent
    assert agent is not None
    agent._administration.reassignments.order("mine", {0: (2,)}, lambda _partition, _result: None)
    alone.pass_ms(SETTLED_MS + 2000)
    assert _replicas(alone, "__consumer_offsets") == [(1,)], "the reassignment of another order is under way"
    _others_come(alone, 3)
    agent._administration.reassignments.order("mine", {0: None}, lambda _partition, _result: None)
    alone.pass_ms(SETTLED_MS - 1500)
    assert _replicas(alone, "__consumer_offsets") == [(1,)], "the third box came just now"
    alone.until(lambda: sorted(_replicas(alone, "__consumer_offsets")[0]) == [1, 2, 3], "it grows")


def test_topics_inherit_reloaded_settings_and_those_of_reloaded_tables_get_their_copies(alone: SteppedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    alone.create("routed", (1,))
    _others_come(alone, 2, 3)
    alone.pass_ms(SETTLED_MS * 2)
    box, agent = alone.controller(), alone.controller().agent
    assert agent is not None and _replicas(alone, "routed") == [(1,)]
    topic = agent.cluster.topics["routed"]
    generation = agent.cluster.config_generation_of(topic)
    monkeypatch.setitem(box.box.settings, "log.retention.ms", 77)
    monkeypatch.setitem(box.box.sender_tables, "default", {"topic": "routed"})
    agent.on_reloaded()
    assert agent.cluster.config_of(topic)["retention.ms"] == "77" and agent.cluster.config_generation_of(topic) == generation + 1
    alone.until(lambda: not agent.cluster.configs_to_send, "log-writers have the new configs")
    alone.until(lambda: sorted(_replicas(alone, "routed")[0]) == [1, 2, 3], "it grows")


def test_a_setting_of_one_copy_leaves_it_at_that(tmp_path: Path) -> None:
    cluster = SteppedCluster(tmp_path, 2, {"ingest.topic.replication.factor": 1})
    try:
        cluster.create("syslog", (1,))
        cluster.pass_ms(SETTLED_MS * 2)
        assert _replicas(cluster, "syslog") == [(1,)]
    finally:
        cluster.close()


def test_a_copy_that_waits_for_a_box_that_is_away_holds_up_no_other_topic(alone: SteppedCluster) -> None:
    alone.create("syslog", (1,))
    alone.create("__consumer_offsets", (1,))
    _others_come(alone, 2, 3)
    alone.until(lambda: sorted(_replicas(alone, "syslog")[0]) == [1, 2, 3], "it grows")
    alone.kill(3)
    alone.until(lambda: sorted(_replicas(alone, "__consumer_offsets")[0]) == [1, 2], "the other grows, too, as far as there are boxes")
    assert sorted(_replicas(alone, "syslog")[0]) == [1, 2, 3], "what box 3 was promised waits for it"


def test_an_internal_topic_that_a_client_creates_has_the_partitions_and_settings_of_one_that_the_box_creates(alone: SteppedCluster) -> None:
    box, agent = alone.controller(), alone.controller().agent
    assert agent is not None
    box.create(CreatableTopic("__consumer_offsets", -1, -1), CreatableTopic("__transaction_state", 2, -1, (), (TopicConfig("segment.bytes", "2000000"),)))
    assert (len(_replicas(alone, "__consumer_offsets")), len(_replicas(alone, "__transaction_state"))) == (50, 2)
    assert agent.cluster.topics["__consumer_offsets"].config["cleanup.policy"] == "compact"
    assert agent.cluster.topics["__transaction_state"].config["unclean.leader.election.enable"] == "false"
    assert agent.cluster.topics["__transaction_state"].config["segment.bytes"] == "2000000"
