"""Several boxes over one ZooKeeper: what each writes, what all follow, and which box leads after a
death.
"""

from __future__ import annotations

import pytest

from appliance.ipc.request_frames import KAFKA_REQUEST, pack_kafka_request
from appliance.protocol import config_apis
from appliance.protocol.config_apis import ConfigToAlter, IncrementalAlterConfigsRequest, ResourceToAlter
from services.controller.zookeeper.config_changes import SET
from tests.support.stepped_cluster import SteppedCluster

pytestmark = pytest.mark.slow

TOPIC = 2


# --- topics ------------------------------------------------------------------------------------------------------------


def test_a_topic_is_made_on_every_box_that_is_to_have_it_and_all_images_show_it(three: SteppedCluster) -> None:
    three.create("t", (2, 3), (3, 1), (1, 2))
    assert [three.state("t", partition)[:4] for partition in range(3)] == [(2, 0, 1, (2, 3)), (3, 0, 1, (3, 1)), (1, 0, 1, (1, 2))]
    assert [three.leads(leader, "t", partition) for partition, leader in enumerate((2, 3, 1))] == [0, 0, 0]
    assert three.writer_of(3, "t", 0).following[("t", 0)] == (2, 0)
    assert ("t", 1) not in three.boxes[2].directories["d0"].partitions | three.boxes[2].directories["d1"].partitions
    for broker_id in (1, 2, 3):
        assert three.boxes[broker_id].image().topics["t"].partitions[0].disk == (None if broker_id == 1 else three.image_of(broker_id, "t", 0).disk)


def test_a_deleted_topic_leaves_nothing_on_any_box(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3), (2, 3, 1))
    three.delete("t")
    assert all(not box.on_disks("t") for box in three.boxes.values())
    assert not [path for path in three.zookeeper.paths() if path.endswith("/t")]


def test_a_topic_that_was_deleted_while_a_box_was_away_is_deleted_there_when_it_is_back(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3))
    three.create("kept", (1, 2, 3))
    box = three.kill(3)
    three.until_quiet()
    three.delete("t")
    three.create("t", (1, 2))
    assert box.on_disks("t")
    three.start(3)
    three.until_quiet()
    assert box.on_disks("t") == {} and len(box.on_disks("kept")) == 1
    assert "/millrace/brokers/3/topics/t" not in three.zookeeper


def test_a_box_whose_disks_are_away_at_a_creation_begins_out_of_sync_and_follows_later(three: SteppedCluster) -> None:
    for disk in ("d0", "d1"):
        three.boxes[2].kill_writer(disk)
    three.create("t", (2, 1, 3))
    assert three.state("t")[:4] == (1, 0, 1, (1, 3))
    three.boxes[2].start_writers()
    three.until(lambda: three.boxes[2].on_disks("t"), "box 2 has it")
    three.until_quiet()
    assert three.writer_of(2, "t").following[("t", 0)] == (1, 0)


def test_clients_see_all_partitions_of_a_new_topic_or_none(three: SteppedCluster) -> None:
    """A producer that saw one of three had the others refused by its own library."""
    for disk in ("d0", "d1"):
        three.boxes[2].kill_writer(disk)
    three.create("t", (1, 3), (1, 2), (3, 1), wait=False)
    for _ in range(1_000):
        three.turn()
        seen = {len(topic.partitions) for box in three.boxes.values() if (topic := box.image().topics.get("t")) is not None}
        assert seen <= {0, 3}
    three.boxes[2].start_writers()
    three.until(lambda: three.boxes[2].on_disks("t"), "box 2 has it")
    three.until_quiet()
    assert [three.state("t", partition)[:4] for partition in range(3)] == [(1, 0, 1, (1, 3)), (1, 0, 1, (1, 2)), (3, 0, 1, (3, 1))]


def test_a_box_has_longer_to_make_the_directories_of_many_partitions(three: SteppedCluster) -> None:
    """2,000 partitions made on three boxes at once were all led by the controller's box, which was done first."""
    for disk in ("d0", "d1"):
        three.boxes[2].kill_writer(disk)
    three.create("t", *((2, 1), (1, 2)) * 40, wait=False)
    three.pass_ms(3_000)
    three.boxes[2].start_writers()
    three.until(lambda: three.boxes[2].on_disks("t"), "box 2 has it")
    three.until_quiet()
    assert [three.state("t", partition).leader for partition in range(4)] == [2, 1, 2, 1]


# --- deaths ------------------------------------------------------------------------------------------------------------


def test_when_a_box_dies_others_in_sync_lead_what_it_led(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    three.kill(2)
    three.until_quiet()
    assert [three.state("t", partition)[:2] for partition in range(3)] == [(1, 0), (3, 1), (3, 0)]
    assert [three.state("t", partition).isr for partition in range(3)] == [(1, 3), (3, 1), (3, 1)]
    assert three.leads(3, "t", 1) == 1 and three.writer_of(1, "t", 1).following[("t", 1)] == (3, 1)
    assert three.writer_of(1, "t", 0).in_sync[("t", 0)] == [1, 3]


def test_any_box_alters_a_topics_configs_and_all_boxes_have_them(three: SteppedCluster) -> None:
    """Kafka's clients ask whom they please."""
    three.create("t", (1, 2, 3))
    assert three.controller() is three.boxes[1]
    for broker_id, value in ((2, "1000"), (3, "2000"), (1, "3000")):
        change = (ResourceToAlter(TOPIC, "t", (ConfigToAlter("retention.ms", SET, value),)),)
        body = config_apis.INCREMENTAL_ALTER_CONFIGS_REQUEST.encode(1, IncrementalAlterConfigsRequest(change, False))
        three.boxes[broker_id].send(KAFKA_REQUEST, pack_kafka_request(44, 1, "test", "::1", body))
        three.until_quiet()
        answer = three.boxes[broker_id].answer()
        assert [each.error_code for each in config_apis.INCREMENTAL_ALTER_CONFIGS_RESPONSE.decode(answer, 0, len(answer), 1).responses] == [0]
        assert [box.image().topics["t"].config["retention.ms"] for box in three.boxes.values()] == [value] * 3


def test_every_log_writer_hears_which_boxes_live(three: SteppedCluster) -> None:
    def heard() -> list[list[int]]:
        return [writer.live_brokers for box in three.boxes.values() for writer in box.writers.values()]

    three.until(lambda: heard() == [[1, 2, 3]] * 6, "all receive all")
    three.kill(2)
    three.until(lambda: heard() == [[1, 3]] * 4, "and of a death")
    three.boxes[3].kill_writer("d0")
    three.boxes[3].start_writers()
    three.until(lambda: heard() == [[1, 3]] * 4, "a new incarnation of a log-writer, too")
    three.start(2)
    three.until(lambda: heard() == [[1, 2, 3]] * 6, "and the box that comes back")


def test_when_the_controller_dies_another_box_is_controller_and_elects(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3))
    assert three.controller() is three.boxes[1]
    three.kill(1)
    three.until_quiet()
    assert three.state("t")[:2] == (2, 1) and three.state("t").isr == (2, 3)
    assert three.leads(2, "t") == 1


def test_the_last_in_sync_stays_in_sync_and_leads_again_when_it_is_back(three: SteppedCluster) -> None:
    three.create("t", (2, 3))
    three.kill(3)
    three.until_quiet()
    three.kill(2)
    three.until_quiet()
    assert three.state("t")[:4] == (-1, 2, 1, (2,)) or three.state("t").leader == -1
    three.start(3)
    three.until_quiet()
    assert three.state("t").leader == -1, "it was not in sync"
    three.start(2)
    three.until_quiet()
    assert three.state("t").leader == 2 and three.state("t").isr == (2,)
    assert three.leads(2, "t") == three.state("t").leader_epoch


def test_an_unclean_election_comes_where_the_topic_allows_it(three: SteppedCluster) -> None:
    three.create("t", (2, 3), configs={"unclean.leader.election.enable": "true"})
    three.kill(3)
    three.until_quiet()
    three.kill(2)
    three.until_quiet()
    three.start(3)
    three.until_quiet()
    state = three.state("t")
    assert (state.leader, state.isr, state.leader_recovery_state) == (3, (3,), 1)
    three.wish(3, "t", 0, (3,))
    three.start(2)
    three.until_quiet()
    three.wish(3, "t", 0, (3, 2))
    three.until_quiet()
    assert three.state("t").leader_recovery_state == 0 and three.state("t").isr == (3, 2)


# --- in-sync sets ------------------------------------------------------------------------------------------------------


def test_a_leader_gets_its_requested_isr_and_all_boxes_receive_it(three: SteppedCluster) -> None:
    three.create("t", (1, 2, 3))
    three.wish(1, "t", 0, (1, 2))
    three.until_quiet()
    assert three.state("t").isr == (1, 2) and three.image_of(3, "t").isr == (1, 2)
    assert three.writer_of(1, "t").in_sync[("t", 0)] == [1, 2]
    three.wish(1, "t", 0, (1, 2, 3))
    three.until_quiet()
    assert three.state("t").isr == (1, 2, 3)


@pytest.mark.parametrize(
    "fields",
    [{"leader_epoch": 7}, {"partition_epoch": 5}, {"partition_epoch": -1}, {"isr": [2, 3]}, {"isr": [1, 9]}, {"broker_epochs": {"3": 1}}],
    ids=["another-leader-epoch", "another-partition-epoch", "no-partition-epoch", "without-itself", "a-stranger", "an-old-registration"],
)
def test_a_refused_isr_change_is_answered_with_the_current_state(three: SteppedCluster, fields: dict[str, object]) -> None:
    three.create("t", (1, 2, 3))
    three.wish(1, "t", 0, (1, 2))
    three.until_quiet()
    before = three.zookeeper.version("/brokers/topics/t/partitions/0/state")
    writer = three.writer_of(1, "t")
    told = len(writer.commands)
    three.wish(1, "t", 0, (1, 2, 3), fields)
    three.until_quiet()
    assert three.zookeeper.version("/brokers/topics/t/partitions/0/state") == before
    assert [payload["isr"] for _kind, payload in writer.commands[told:]] == [[1, 2]] and writer.commands[-1][1]["change"] == 1


def test_a_replica_that_registered_anew_since_it_fetched_is_not_taken_in(three: SteppedCluster) -> None:
    """KIP-903: the leader knows the old registration, and writes while the new one is being made."""
    three.create("t", (1, 2, 3))
    three.wish(1, "t", 0, (1, 2))
    three.until_quiet()
    agent = three.boxes[1].agent
    assert agent is not None
    old_epoch, old_version = agent.cluster.broker_epochs[3], agent.cluster.box_versions[3]
    three.kill(3)
    three.start(3)
    three.until_quiet()
    agent.cluster.broker_epochs[3], agent.cluster.box_versions[3] = old_epoch, old_version
    three.wish(1, "t", 0, (1, 2, 3))
    three.until_quiet()
    assert three.state("t").isr == (1, 2)
