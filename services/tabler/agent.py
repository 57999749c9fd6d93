"""The tabler: keeps every topic that is configured as a table up to date, for the partitions that this box leads.

One process per box, if the setting `tables.locations` names directories; at low priority. The duty cycle reads the metadata image and the
partition tables; one thread at a time does a run of one table (`table_run`), so that a slow file system delays no heartbeat. Arrow, numpy and
deltalake are imported by the first run: without a table the process has none of them, and when the last one is gone it starts again to give their
memory back. It owns nothing on a disk but the tables and STATE/tables; it may be killed at any moment. Weak: one run at a time, so a location that
hangs delays the other tables.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from appliance.base.errors import MillraceError, StepsDown
from appliance.base.layout import TABLES_STATE
from appliance.base.model import TopicId
from appliance.cluster.metadata_image import ImageFollower, MetadataImage, TopicImage
from appliance.cluster.topic_configs import table_problem
from appliance.ipc.request_link import ControllerLink
from appliance.runtime.agent import PARK_MS_MAX, ServiceContext
from appliance.runtime.background_thread import BackgroundThread, ThreadRefused
from appliance.shm.disk_tables import KnownRows, attach_table
from appliance.shm.mapping import LayoutMismatch, is_held
from appliance.shm.partition_table import ROLE_LEADER, Row, TornRow
from appliance.storage import file_io
from services.tabler.table_rules import TableResult, iceberg_catalog, table_order
from services.tabler.table_state import Remembered, TableMemory, TableState

if TYPE_CHECKING:
    from services.tabler.table_run import TableJob

LOOK_NS = 1_000_000_000
TABLES_MAX = 500
"""One run at a time: each of so many tables has its turn every few minutes at worst."""
TOO_MANY = f"a box keeps at most {TABLES_MAX} topics as tables, and this one has come later; set millrace.table.format to none for another"


class TablerAgent:
    """The duty cycle."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._clock = context.clock
        self.image = MetadataImage.empty()
        self._image_follower = ImageFollower(context.layout, self, context.log)
        self._controller = ControllerLink(context.layout, context.poller, context.clock, self._image_follower.on_changed)
        self._allowed = context.box.table_locations
        self._memory = TableMemory(context.box.state_directory)
        self._rows = LedRows(context)
        self.tables: dict[TopicId, TableState] = {}
        self._run: TableThread | None = None
        self._has_run = False
        self._stopping = False
        self._next_look_ns = 0
        self._shown = b""
        self._is_unshown = False
        self._earlier = self._shown_earlier()

    def _shown_earlier(self) -> dict[str, dict[str, Any]]:
        """Return what an earlier incarnation showed of each table since the box started, by topic id."""
        try:
            document = orjson.loads(file_io.read_file(self._context.layout.tables_file))
            if document["box_started_ms"] != self._context.box.started_wall_ms:
                return {}
            return {table["topic_id"]: table for table in document["tables"]}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def set_image(self, image: MetadataImage) -> None:
        if self.image.generation == 0:
            self._context.notifier.ready()
        self.image = image
        now_ms = self._clock.monotonic_ms()
        tables: dict[TopicId, TableState] = {}
        for topic in self._in_order(image.topics.values()):
            order = None if topic.is_internal else table_order(topic.name, topic.topic_id, topic.config)
            known = self.tables.get(topic.topic_id)
            if order is None:
                if known is not None:
                    self._context.log.info(f"topic {topic.name} is no table any more; {known.order.directory} stays as it is", topic=topic.name)
            elif known is not None and (known.order.directory, known.order.file_format) == (order.directory, order.file_format):
                known.order = order
                known.next_ms = min(known.next_ms, now_ms + order.interval_ms)
                tables[topic.topic_id] = known
            else:
                self._context.log.info(f"topic {topic.name} is kept as table {order.directory}", topic=topic.name)
                tables[topic.topic_id] = TableState(order, now_ms, self._earlier.pop(str(topic.topic_id), None))
        for number, state in enumerate(tables.values()):
            state.refusal = TOO_MANY if number >= TABLES_MAX else ""
        self.tables = tables
        if image.generation:
            for topic_id in self._memory.remembered() - tables.keys():
                self._memory.forget(topic_id)  # it is no table any more, or deleted
        if self._run is not None and tables.get(self._run.state.order.topic_id) is not self._run.state:
            self._run.is_cancelled = True
        self._context.counters.gauge("tables.tables").set(len(tables))

    def _in_order(self, topics: Iterable[TopicImage]) -> list[TopicImage]:
        """Return the topics so that those that were written before come first: a new one stops none of them."""
        places = {topic_id: place for place, topic_id in enumerate(self.tables)}

        def key(topic: TopicImage) -> tuple[int, bool, str]:
            shown = self._earlier.get(str(topic.topic_id))
            return places.get(topic.topic_id, len(places)), shown is None or shown["problem"] == TOO_MANY, topic.name

        return sorted(topics, key=key)

    def do_work(self) -> int:
        now_ns = self._clock.monotonic_ns()
        work = self._controller.do_work(now_ns)
        if self._image_follower.is_stale and self._image_follower.load() is not None:
            work += 1
        if self._run is not None and self._run.has_ended:
            run, self._run = self._run, None
            self._on_ended(run)
            self._next_look_ns = now_ns
            work += 1
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + LOOK_NS
            self._look()
        return work

    def _look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if not self.tables:
            self._show()
            if self._has_run and self._run is None and not self._stopping:
                raise StepsDown("no topic is a table any more; the next incarnation needs less memory")
            return
        led = self._rows.read({state.order.topic_id for state in self.tables.values()})
        for state in self.tables.values():
            state.set_rows(led.get(state.order.topic_id, {}), now_ms)
        if self._run is None and not self._stopping:
            due = [state for state in self.tables.values() if state.is_due(now_ms)]
            if due:
                self._begin(min(due, key=lambda state: state.next_ms), now_ms)
        self._show()

    def _begin(self, state: TableState, now_ms: int) -> None:
        order = state.order
        if (problem := table_problem(order.topic, self.image.topics[order.topic].config, self._allowed)) is not None:
            self._on_failure(state, problem, False)
            return
        try:
            remembered = self._memory.read(order)
        except OSError as error:
            self._on_failure(state, f"could not read what was remembered of the table: {(error.strerror or str(error)).lower()}", False)
            return
        state.on_begun()
        run = TableThread(self._context, state, self._memory, remembered, state.accepted_damage(now_ms))
        try:
            run.thread.start()
        except ThreadRefused as refused:
            self._on_failure(state, str(refused), False)
            return
        self._run, self._has_run = run, True

    def _on_ended(self, run: TableThread) -> None:
        state = run.state
        if self.tables.get(state.order.topic_id) is not state:
            self._memory.forget(state.order.topic_id)  # it is no table any more, or another one; the run may have written that
            return
        if run.is_cancelled:
            return
        if run.result is None:
            self._on_failure(state, run.problem, run.is_conflict)
            return
        result = run.result
        had_problem = bool(state.problem)
        for words in state.on_result(result, self._clock.monotonic_ms(), self._clock.wall_ms()):
            self._context.log.error(f"the table {state.order.directory} lacks records: {words}", topic=state.order.topic)
        if state.problem:
            self._context.log.warning(f"the table {state.order.directory}: {state.problem}", topic=state.order.topic)
        elif had_problem:
            self._context.log.info(f"the table {state.order.directory} is written again", topic=state.order.topic)

    def _on_failure(self, state: TableState, problem: str, is_conflict: bool) -> None:
        if state.on_failure(problem, is_conflict, self._clock.monotonic_ms()):
            self._context.log.error(f"{problem}; retrying", topic=state.order.topic)

    def _show(self) -> None:
        """Write what the commands show, if it changed."""
        tables = [state.document() for state in sorted(self.tables.values(), key=lambda state: state.order.topic)]
        shown = orjson.dumps({"box_started_ms": self._context.box.started_wall_ms, "tables": tables})
        if shown == self._shown:
            return
        try:
            file_io.replace_file(self._context.layout.tables_file, shown, durable=False)
        except OSError as error:
            if not self._is_unshown:
                self._context.log.warning(f"could not write {self._context.layout.tables_file}: {(error.strerror or str(error)).lower()}; retrying")
            self._is_unshown = True
        else:
            self._shown, self._is_unshown = shown, False

    def may_park(self) -> bool:
        return not self._image_follower.is_stale

    def unpark(self) -> None:
        pass

    def park_ms(self) -> int:
        return PARK_MS_MAX

    def begin_stop(self) -> None:
        self._stopping = True
        if self._run is not None:
            self._run.is_cancelled = True

    def stopped(self) -> bool:
        return self._run is None

    def close(self) -> None:
        self._controller.close()
        self._rows.close()

    def status_line(self) -> str:
        failing = sum(1 for state in self.tables.values() if state.problem or state.refusal)
        if not self.tables:
            return "no table"
        return f"{len(self.tables)} table{'s' if len(self.tables) > 1 else ''}" + (f", {failing} failing: see `millrace table list`" if failing else "")


class TableThread:
    """One run in a thread."""

    def __init__(
        self, context: ServiceContext, state: TableState, memory: TableMemory, remembered: Remembered, accepted_damage: frozenset[tuple[int, int]]
    ) -> None:
        self.state = state
        self._memory = memory
        self._remembered = remembered
        self.result: TableResult | None = None
        self.problem = ""
        self.is_conflict = self.is_cancelled = self.has_ended = False
        self.thread = BackgroundThread(self._work, "table-run", (context, accepted_damage))

    def _work(self, context: ServiceContext, accepted_damage: frozenset[tuple[int, int]]) -> None:
        try:
            self._run(context, accepted_damage)
        except ImportError as error:
            words = "which tables need: ./install.sh pipeline, sudo ./install.sh --pipeline, or pip: millrace[pipeline,delta,iceberg]"
            self.problem = f"{error.name} is not installed, {words}"
        finally:
            self.has_ended = True

    def _run(self, context: ServiceContext, accepted_damage: frozenset[tuple[int, int]]) -> None:
        from services.tabler.table_run import run_table
        from services.tabler.topic_table import TableConflict

        try:
            self.result = run_table(self._job(context, accepted_damage))
        except TableConflict as conflict:
            self.problem, self.is_conflict = str(conflict), True
        except MillraceError as error:
            self.problem = str(error)
        except ImportError:
            raise
        except Exception as error:
            self.problem = f"a run of the table {self.state.order.directory} failed with {type(error).__name__}: {error}"
            context.log.error(f"{self.problem}\n{traceback.format_exc()}")

    def _job(self, context: ServiceContext, accepted_damage: frozenset[tuple[int, int]]) -> TableJob:
        from appliance.pipeline.local_rows import find_row_in_box
        from services.tabler.table_run import TableJob
        from services.tabler.topic_table import read_properties

        properties_file = context.box.text("tables.properties.file")
        state = self.state
        return TableJob(
            order=state.order,
            find=partial(find_row_in_box, context.layout, context.box, state.order.topic, state.order.topic_id),
            allowed=context.box.table_locations,
            partitions=sorted(state.rows),
            turn=state.turn,
            writer=f"{context.box.broker_id}-{context.incarnation:x}",
            expected_id=self._remembered.table_id,
            remember=lambda table_id, shortened: self._memory.write(state.order, Remembered(table_id, shortened)),
            scanned=state.scanned,
            accepted_damage=accepted_damage,
            shortened=self._remembered.shortened,
            compaction_commits=context.box.integer("tables.compaction.commits"),
            properties=iceberg_catalog(context.box.state_directory) | (read_properties(properties_file) if properties_file else {}),
            staging=f"{context.box.state_directory}/{TABLES_STATE}/staging",
            is_cancelled=lambda: self.is_cancelled,
        )


class LedRows:
    """Reads the rows of partitions that this box leads."""

    def __init__(self, context: ServiceContext) -> None:
        self._layout = context.layout
        self._disks = [disk.name for disk in context.box.disks]
        self._known: dict[str, KnownRows] = {}

    def read(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, dict[int, Row]]:
        found: dict[TopicId, dict[int, Row]] = {topic_id: {} for topic_id in topic_ids}
        for disk in self._disks:
            rows = self._of(disk)
            for index, key in enumerate(rows.keys if rows is not None else ()):
                if rows is None or key is None or key[0] not in found:
                    continue
                try:
                    row = rows.table.read(index)
                except TornRow:
                    continue
                if row.role == ROLE_LEADER and (row.topic_id, row.partition) == key:
                    found[key[0]][key[1]] = row
        return found

    def _of(self, disk: str) -> KnownRows | None:
        known = self._known.get(disk)
        if known is not None and not is_held(known.table.shared.name):
            self._known.pop(disk).table.close()
            known = None
        if known is None:
            try:
                table = attach_table(self._layout, disk)
            except (LayoutMismatch, OSError):
                return None
            if table is None:
                return None
            known = self._known[disk] = KnownRows(table)
        if known.is_old:
            known.look()
        return known

    def close(self) -> None:
        for known in self._known.values():
            known.table.close()
        self._known.clear()
