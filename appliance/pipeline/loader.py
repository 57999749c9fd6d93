"""One run of `millrace load` into a directory, commit by commit. Owned by one process, which holds the directory's lock.

    recover    finish or remove what an earlier incarnation left
    plan       store the offsets of the next commit before any record is read (or take over the plan of a dead incarnation)
    tasks      write files into the staging directory of this incarnation
    publish    link the manifest: from here on the offsets are loaded
    place      rename the files to their places

A crash at any point costs the work of one commit. Weak spot: the end is determined once, at the start of the run; later
records wait for the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from appliance.base.clock import Clock
from appliance.base.model import TopicPartition
from appliance.pipeline.cluster_access import ClusterAccess
from appliance.pipeline.load_directory import LoadDirectory
from appliance.pipeline.load_manifest import CommitDone, Manifest, Plan, Positions, SkippedRange, positions_after
from appliance.pipeline.load_survey import LogExtent, find_due, next_ranges
from appliance.pipeline.load_task import LoadJob, TaskResult, TaskRunner
from appliance.pipeline.offset_range import OffsetRange, split_ranges
from appliance.pipeline.problems import DamagedTable, LoadProblem
from appliance.pipeline.table_kind import TopicFormat

COMMIT_RECORDS = 16_000_000
"""Offsets in one commit: the work that a crash costs, and how often new files become visible."""
TASK_RECORDS = 500_000
"""Offsets in one task, which writes one file for each hour that it finds: some 100 MB of log lines."""


class LoadRules(NamedTuple):
    """The losses that the user accepts, and the sizes of commits and tasks."""

    accept_loss: bool = False
    skip_corrupt: bool = False
    commit_records: int = COMMIT_RECORDS
    task_records: int = TASK_RECORDS
    by_arrival: bool = False


class Loader:
    """Load everything below `extents` into `directory`, which is open."""

    def __init__(self, directory: LoadDirectory, access: ClusterAccess, formats: Mapping[str, TopicFormat], rules: LoadRules,
                 run_tasks: TaskRunner, clock: Clock, on_placed: Callable[[Manifest], object] = lambda manifest: None) -> None:  # fmt: skip
        self._directory = directory
        self._access = access
        self._formats = formats
        self._rules = rules
        self._run_tasks = run_tasks
        self._clock = clock
        self._on_placed = on_placed

    def run(self, extents: Mapping[TopicPartition, LogExtent], on_commit: Callable[[CommitDone], None] = lambda done: None) -> Positions:
        """Load up to the ends in `extents`; return the new positions."""
        last = self._directory.recover()
        number = 1 if last is None else last.number + 1
        positions: Positions = {} if last is None else last.positions
        plan = self._directory.plan(number)
        while True:
            if plan is None:
                due = find_due(extents, positions)
                self._check_skips(due.lost)
                ranges = next_ranges(due, self._rules.commit_records)
                if not ranges:
                    return positions
                plan = Plan(number, ranges)
                self._directory.keep_plan(plan)
            lost = self._lost_before(plan, positions)
            manifest, record_bytes = self._commit(plan, positions, lost)
            on_commit(CommitDone(number, manifest.rows, manifest.bad_rows, record_bytes, sum(each.size for each in plan.ranges), manifest.skipped))
            positions = manifest.positions
            number += 1
            plan = None

    def _lost_before(self, plan: Plan, positions: Positions) -> tuple[SkippedRange, ...]:
        """Yield the ranges between the positions and a plan that starts after them."""
        partitions = [(each, positions.get(each.topic_partition, each.start)) for each in plan.ranges]
        if early := [each for each, position in partitions if position > each.start]:
            raise DamagedTable(f"plan {plan.number} of {self._directory.path} begins before what is loaded: {early[0]}")
        return tuple(SkippedRange(each.topic, each.partition, position, each.start, "lost") for each, position in partitions if position < each.start)

    def _commit(self, plan: Plan, positions: Positions, lost: tuple[SkippedRange, ...]) -> tuple[Manifest, int]:
        staging = self._directory.begin(plan.number)
        job = LoadJob(self._access, staging, self._formats, self._rules.by_arrival)
        try:
            results = self._run_tasks(job, split_ranges(plan.ranges, None, self._rules.task_records))
            self._check_results(plan.ranges, results)
        except Exception:
            self._directory.abandon(plan.number)
            raise
        manifest = Manifest(
            plan.number,
            self._directory.life,
            self._clock.wall_ms(),
            positions_after(positions, plan.ranges),
            plan.ranges,
            tuple(file for result in results for file in result.files),
            tuple(file for result in results for file in result.bad_files),
            (*lost, *(skip for result in results for skip in result.skipped)),
        )
        self._directory.publish(manifest)
        self._directory.place(manifest)
        self._on_placed(manifest)
        return manifest, sum(result.record_bytes for result in results)

    def _check_results(self, planned: Iterable[OffsetRange], results: Iterable[TaskResult]) -> None:
        """Check that one task loaded each offset of the plan, and that only accepted losses are missing."""
        results = sorted(results, key=lambda result: result.range)
        problems = sorted({result.problem for result in results if result.problem})
        if problems:
            raise LoadProblem("\n".join(problems[:5]))
        for each in planned:
            position = each.start
            for result in results:
                if result.range.topic_partition == each.topic_partition and result.range.start == position:
                    position = result.range.end
            if position != each.end:
                raise LoadProblem(f"no task reported {each.topic_partition} from offset {position}: nothing of this commit is published; run the load again")
        self._check_skips(skip for result in results for skip in result.skipped)

    def _check_skips(self, skips: Iterable[SkippedRange]) -> None:
        problems = []
        for skip in skips:
            where = f"{skip.topic}-{skip.partition}"
            if skip.reason == "lost" and not self._rules.accept_loss:
                words = f"offsets {skip.start} to {skip.end - 1} were deleted before they could be loaded; --accept-loss goes on without them"
                problems.append(f"{where}: {words}")
            elif skip.reason != "lost" and not self._rules.skip_corrupt:
                reason = skip.reason.removeprefix("corrupt: ")
                problems.append(f"{where}: the batch at offset {skip.start} is damaged ({reason}); --skip-corrupt goes on behind it")
        if problems:
            raise LoadProblem("\n".join(problems))
