"""Every fault at the leader's, a follower's and the controller's box, under plain, idempotent and transactional producers with readers reading along; and
before that how the boxes of that cluster find each other.

Every day one cluster bears the cells of `EVERYDAY`, one after the other, each fault for as long as it is felt. With `--deep` each cell runs
`MILLRACE_CELL_RUNS` times (3), on a cluster for each fault, and the result is a table for tests/RESULTS.md (`.venv/log/cluster-matrix.md`). `MILLRACE_SEED`
repeats a run, `MILLRACE_CELLS="cut both ways/leader,disk hung/follower"` chooses cells.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from appliance.cluster.zookeeper_probe import zookeeper_serves
from lab.cluster import ZOOKEEPER_PORT, Cluster, all_serve, running_cluster
from lab.cluster_cell import CONTROLLER, FAULTS, LEADER, ROLES, Cell, CellResult
from lab.cluster_load import Repeated, client_work
from lab.cluster_table import table
from lab.machine import address_of
from lab.running_box import ROOT, environment, eventually
from lab.zookeeper_clients import auth_of, zookeeper_client

pytestmark = [pytest.mark.system, pytest.mark.slow]

SEED = int(os.environ.get("MILLRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
RUNS = int(os.environ.get("MILLRACE_CELL_RUNS", "3"))
WITHOUT_SECONDS = float(os.environ.get("MILLRACE_WITHOUT_ZOOKEEPER_SECONDS", "12"))
EVERYDAY = (
    ("kill -9 of the box", LEADER),
    ("cut off its peers", LEADER),
    ("cut both ways", CONTROLLER),
    ("disk hung", LEADER),
    ("clean stop", LEADER),
)


def brokers_known_to(address: str) -> dict[int, str]:
    told = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=30).brokers
    return {number: f"{broker.host}:{broker.port}" for number, broker in told.items()}


def test_three_boxes_find_each_other_by_their_settings_alone(cluster: Cluster) -> None:
    everybody = {number: box.address for number, box in cluster.boxes.items()}
    for box in cluster.boxes.values():
        eventually(lambda box=box: brokers_known_to(box.address) == everybody, f"box {box.number} knows all boxes")  # type: ignore[misc]
    client = zookeeper_client(cluster.zookeeper, auth_of(cluster.boxes[1].box.box.state_directory))
    client.start(10)
    racks = [client.get(f"/brokers/ids/{number}")[0].decode() for number in cluster.boxes]
    client.stop()
    client.close()
    assert [f'"rack{number}"' in rack for number, rack in zip(cluster.boxes, racks, strict=True)] == [True] * 3


def test_a_member_that_is_killed_is_back_and_one_that_waits_says_for_whom(cluster: Cluster) -> None:
    box = cluster.boxes[1].box
    old = box.kill("zookeeper")
    box.await_restart("zookeeper", old, 20)
    stopped = [cluster.boxes[number].box.stop_process("zookeeper") for number in (2, 3)]
    try:
        words = "waits for members 2 and 3 of the ZooKeeper ensemble; one of them is enough"
        eventually(lambda: box.status()["zookeeper"].get("status") == words, "the member says that it waits")
        assert not zookeeper_serves(address_of(1), ZOOKEEPER_PORT)
        assert box.status()["zookeeper"]["pid"] != old and all_serve(box)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    eventually(lambda: zookeeper_serves(address_of(1), ZOOKEEPER_PORT) and "status" not in box.status()["zookeeper"], "the ensemble serves again")
    cluster.mend()


def test_a_member_that_is_missing_is_shown_beside_boxes_and_topics_that_are_well(cluster: Cluster) -> None:
    def millrace(*words: str) -> str:
        command = [sys.executable, "-P", "-c", "from appliance.command.main import main; main()", *words, "--data", str(cluster.boxes[1].box.disks[0])]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def states() -> list[str]:
        return [line.split()[-1] for line in millrace("box", "list").splitlines() if line.split()[0] in ("1", "2", "3")]

    assert states() == ["serving"] * 3 and "does not serve" not in millrace("topic", "list")
    stopped = cluster.boxes[3].box.stop_process("zookeeper")
    try:
        words = f"ZooKeeper: member 3 ({address_of(3)}:{ZOOKEEPER_PORT}) does not serve; restart no other box before that is mended"
        eventually(lambda: states() == ["serving", "serving", "missing"], "the others have elected a leader without it")
        assert words in millrace("box", "list") and words in millrace("topic", "list")
    finally:
        os.kill(stopped, signal.SIGCONT)
    eventually(lambda: zookeeper_serves(address_of(3), ZOOKEEPER_PORT), "it serves again")
    cluster.mend()


def test_clients_go_on_while_the_ensemble_has_lost_its_majority(cluster: Cluster) -> None:
    """Leaders stay up: acks=all, acks=1, consumers, commits of groups and transactions may wait a moment, not for ZooKeeper."""
    topic = "without-zookeeper"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    eventually(lambda: admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(30) is None, "the topic is created")
    repeated = [Repeated(work) for work in client_work(cluster.bootstrap, topic)]
    for each in repeated:
        each.start()
    eventually(lambda: all(each.times for each in repeated), "all kinds of work succeed", 60)
    stopped = [cluster.boxes[number].box.stop_process("zookeeper") for number in (2, 3)]
    try:
        began = time.monotonic()
        time.sleep(WITHOUT_SECONDS)
        ended = time.monotonic()
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    for each in repeated:
        each.join()
    gaps = {each.name: each.longest_gap(began, ended) for each in repeated}
    print(f"longest time without success while ZooKeeper had no majority ({WITHOUT_SECONDS} s): {gaps}")
    assert max(gaps.values()) < WITHOUT_SECONDS / 3, gaps
    cluster.mend()


def run_cell(cluster: Cluster, fault: str, role: str, number: int, is_brief: bool = False) -> CellResult:
    seed = SEED + number
    print(f"{fault} at the {role}, MILLRACE_SEED={seed} MILLRACE_CELLS={fault}/{role}")
    began = time.monotonic()
    result = Cell(cluster, FAULTS[fault], role, seed, number, is_brief).run()
    print(f"{result.words()}, in {time.monotonic() - began:.0f} s; client errors {result.errors}")
    return result


@pytest.mark.parametrize(("fault", "role"), EVERYDAY)
def test_nothing_acknowledged_is_lost_doubled_or_changed(cluster: Cluster, fault: str, role: str) -> None:
    try:
        result = run_cell(cluster, fault, role, EVERYDAY.index((fault, role)), is_brief=True)
    except AssertionError:
        print(cluster.last_words())
        cluster.mend()
        raise
    assert result.is_good, f"{result.findings}, {result.pauses}\n{cluster.last_words()}"


def chosen_cells() -> list[tuple[str, str]]:
    named = os.environ.get("MILLRACE_CELLS")
    every = [(fault, role) for fault in FAULTS for role in ROLES]
    return every if not named else [cell for cell in every if "/".join(cell) in named.split(",")]


@pytest.mark.deep
def test_every_cell_of_the_matrix(tmp_path: Path) -> None:
    results: list[CellResult] = []
    deaths: list[str] = []
    cells = chosen_cells()
    for fault in dict.fromkeys(fault for fault, _ in cells):
        with running_cluster(tmp_path / fault.replace(" ", "-")) as cluster, cluster.clients():
            for run in range(RUNS):
                for index, (_, role) in enumerate(cell for cell in cells if cell[0] == fault):
                    try:
                        results.append(run_cell(cluster, fault, role, 100 * run + index))
                    except AssertionError as error:
                        deaths.append(f"{fault}, {role}: {error}")
                        print(deaths[-1])
                        cluster.mend()
    text = table(results, deaths)
    (ROOT / ".venv/log").mkdir(exist_ok=True)
    (ROOT / ".venv/log/cluster-matrix.md").write_text(text)
    print(text)
    assert not deaths and all(result.is_good for result in results), text
