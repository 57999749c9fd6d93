"""The tabler's duty cycle, stepped by hand: what it shows, remembers and forgets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from appliance.base.clock import SystemClock
from appliance.base.logging import Logger
from appliance.base.model import TopicId
from appliance.cluster.metadata_image import MetadataImage, TopicImage
from appliance.runtime.agent import ServiceContext
from appliance.runtime.poller import Poller
from appliance.shm.counters import Counters
from lab.pretended_box import PretendedBox
from lab.scratch_layout import scratch_layout
from services.tabler import agent as agent_module
from services.tabler.agent import TablerAgent
from services.tabler.table_rules import TableOrder
from services.tabler.table_state import Remembered, TableMemory


class Silent:
    def ready(self) -> None: ...

    def status(self, text: str) -> None: ...


class Stand:
    """A box with topics `a`, `b`, `c`, of which images say which are tables below `location`."""

    def __init__(self, pretended: PretendedBox, directory: Path, log: int) -> None:
        self.location = directory / "srv"
        self.location.mkdir()
        settings = pretended.box.settings | {"tables.locations": str(self.location)}
        self._box = pretended.box._replace(state_directory=str(directory / "state"), settings=settings, started_wall_ms=7)
        self.layout = pretended.layout
        self.memory = TableMemory(self._box.state_directory)
        self._log = log
        self._poller = Poller()
        self.counters = Counters.create_or_adopt(self.layout, "tabler", 1)
        self.agent = self.start()

    def start(self, **box: Any) -> TablerAgent:
        log = Logger("tabler", descriptor=self._log)
        context = ServiceContext(self.layout, self._box._replace(**box), SystemClock(), self.counters, self._poller, "tabler", "", 1, Silent(), log, {})
        self.agent = TablerAgent(context)
        return self.agent

    def image(self, tables: str, topics: str = "abc") -> MetadataImage:
        config = {"millrace.table.format": "delta", "millrace.table.location": str(self.location)}
        images = {name: TopicImage(name, topic_id(name), (), config if name in tables else {}) for name in topics}
        return MetadataImage(1, "cluster", 1, {}, images)

    def shown(self) -> dict[str, dict[str, Any]]:
        return {table["topic"]: table for table in json.loads(Path(self.layout.tables_file).read_bytes())["tables"]}

    def step_until(self, condition: Callable[[], object]) -> None:
        deadline = SystemClock().monotonic_ms() + 30_000
        while not condition():
            assert SystemClock().monotonic_ms() < deadline, "not in time"
            self.agent.do_work()
            self._poller.poll(1)

    def close(self) -> None:
        self.agent.close()
        self._poller.close()
        self.counters.close()


def topic_id(name: str) -> TopicId:
    return TopicId(("abc".index(name) + 1).to_bytes(16, "big"))


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    log = os.open(os.devnull, os.O_WRONLY)
    with scratch_layout() as layout:
        pretended = PretendedBox(layout, SystemClock(), topics={"a": 1, "b": 1, "c": 1})
        Path(layout.image_file).unlink()
        made = Stand(pretended, tmp_path, log)
        yield made
        made.close()
        pretended.close()
    os.close(log)


def order_of(stand: Stand, name: str) -> TableOrder:
    return TableOrder(name, topic_id(name), "delta", str(stand.location), 60_000, 1 << 20)


def test_what_is_remembered_ends_with_the_table_or_its_topic(stand: Stand) -> None:
    for name in "abc":
        stand.memory.write(order_of(stand, name), Remembered("table"))
    stand.agent.set_image(stand.image("ab", topics="ab"))
    assert stand.memory.remembered() == {topic_id("a"), topic_id("b")}, "c was deleted"
    stand.agent.set_image(stand.image("a", topics="ab"))
    assert stand.memory.remembered() == {topic_id("a")}, "b is no table any more"


def test_what_a_run_remembers_after_its_topic_is_no_table_is_forgotten(stand: Stand) -> None:
    stand.agent.set_image(stand.image("a"))
    stand.agent.do_work()
    stand.agent.set_image(stand.image("b"))
    stand.memory.write(order_of(stand, "a"), Remembered("table"))  # as its thread does
    stand.step_until(lambda: stand.memory.remembered() == set())


def test_a_box_has_a_bounded_number_of_tables_and_says_which_are_too_many(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "TABLES_MAX", 2)
    stand.agent.set_image(stand.image("bc"))
    stand.agent.set_image(stand.image("abc"))
    stand.agent.set_image(stand.image("abc"))
    stand.agent.do_work()
    stand.agent.close()
    stand.start().set_image(stand.image("abc"))
    stand.agent.do_work()
    shown = stand.shown()
    assert {name: table["failing"] for name, table in shown.items()} == {"a": 1, "b": 0, "c": 0}, "the one that came last"
    assert "at most" in shown["a"]["problem"] and stand.agent.status_line().startswith("3 tables, 1 failing")
    stand.agent.set_image(stand.image("ac"))
    stand.step_until(lambda: stand.shown()["a"]["problem"] == "")


def test_figures_go_on_after_a_restart_of_the_process_and_need_no_counters(stand: Stand) -> None:
    stand.agent.set_image(stand.image("a"))
    stand.agent.do_work()
    stand.step_until(stand.agent.stopped)
    stand.agent.close()
    document = {**stand.shown()["a"], "records": 5, "lost": ["partition 0, offsets 1 to 2: retention"], "last_commit_ms": 9}
    Path(stand.layout.tables_file).write_bytes(orjson.dumps({"box_started_ms": 7, "tables": [document]}))
    for started, records in ((7, 5), (8, 0)):
        agent = stand.start(started_wall_ms=started)
        agent.set_image(stand.image("a"))
        state = agent.tables[topic_id("a")]
        assert (state.document()["records"], len(state.document()["lost"])) == (records, records // 5), "since the box started"
        if started == 7:
            agent.close()
    assert [label for label in stand.counters.labels() if "{" in label] == []
