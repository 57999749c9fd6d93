"""Ties users, ledgers and the end of a test to locust's events. Imports locust; `locustfile` calls `register`.

In a worker: phases come, ledgers go. In the master: both ways round. Where there are no workers, one runner is both and talks to itself.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import gevent
import psutil
from locust import events
from locust.env import Environment
from locust.runners import MasterRunner, Runner, WorkerRunner

from appliance.base.errors import MillraceError
from loadtest.users import report
from loadtest.users.conductor import Conductor
from loadtest.users.crew import Phase, crew
from loadtest.users.ledger import Totals
from loadtest.users.limits import RequestFigures
from loadtest.users.mixes import parse_mix
from loadtest.users.options import add_options, problems
from loadtest.users.verdict import EXIT_NOT_STARTED

PHASE, LEDGER = "millrace.phase", "millrace.ledger"
LEDGER_SECONDS = 0.25
PROGRESS_SECONDS = 3.0
PERCENTILE = 0.99
BEGIN_SECONDS = 30.0
"""All users have begun so long after the last one was called for, or something is wrong."""
LOOK_SECONDS = 0.05


def register() -> None:
    events.init_command_line_parser.add_listener(add_options)
    events.init.add_listener(on_init)


def say(words: str) -> None:
    """Progress and verdict go to stderr, where locust writes, too."""
    print(words, file=sys.stderr, flush=True)


def on_init(environment: Environment, runner: Runner, **_: object) -> None:
    if not isinstance(runner, MasterRunner):
        CrewHooks(environment, runner)
    if not isinstance(runner, WorkerRunner):
        if found := problems(environment.parsed_options):  # type: ignore[arg-type]
            say("\n".join(found))
            end_workers()
            sys.exit(EXIT_NOT_STARTED)
        MasterHooks(environment, runner)


class CrewHooks:
    """A process with users."""

    def __init__(self, environment: Environment, runner: Runner) -> None:
        self._environment = environment
        self._runner = runner
        if isinstance(runner, WorkerRunner) and environment.parsed_options and environment.parsed_options.processes:
            # Ctrl-C reaches the master, too, which ends the test in order and then sends this worker a request to quit.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        runner.register_message(PHASE, self.on_phase, concurrent=True)
        environment.events.test_start.add_listener(self.on_test_start)
        environment.events.report_to_master.add_listener(self.on_report)

    def on_test_start(self, **_: object) -> None:
        assert self._environment.parsed_options is not None
        crew.begin(self._environment.parsed_options)
        crew.options.host = self._environment.host

    def on_report(self, data: dict[str, Any], **_: object) -> None:
        data[LEDGER] = crew.document()

    def on_phase(self, msg: Any, **_: object) -> None:
        phase = Phase(msg.data["phase"])
        if phase is Phase.DRAIN:
            gevent.spawn(self._tell_until_closed)
        gevent.spawn(crew.enter, phase)

    def _tell_until_closed(self) -> None:
        while True:
            document = crew.document()
            self._runner.send_message(LEDGER, document)
            if document["is_closed"]:
                return
            gevent.sleep(LEDGER_SECONDS)


class MasterHooks:
    """The process that judges."""

    def __init__(self, environment: Environment, runner: Runner) -> None:
        self._environment = environment
        self._runner = runner
        assert environment.parsed_options is not None
        self._options = environment.parsed_options
        kinds = choose_users(environment)
        self._conductor = Conductor(self._options, kinds, self._tell_phase, self._count_workers)
        self._began = time.monotonic()
        self._progress: gevent.Greenlet | None = None
        runner.register_message(LEDGER, self.on_ledger)
        hooks = environment.events
        hooks.worker_report.add_listener(self.on_worker_report)
        hooks.test_start.add_listener(self.on_test_start)
        hooks.test_stopping.add_listener(self.on_test_stopping)
        hooks.quitting.add_listener(self.on_quitting)
        hooks.quit.add_listener(self.on_quit)
        self._words = ""
        self._has_begun = self._is_running = False
        self._begin()

    # --- talking with workers

    def _tell_phase(self, phase: Phase) -> None:
        self._runner.send_message(PHASE, {"phase": str(phase)})

    def _count_workers(self) -> int:
        return self._runner.worker_count if isinstance(self._runner, MasterRunner) else 1

    def on_ledger(self, msg: Any, **_: object) -> None:
        self._conductor.documents[msg.node_id] = msg.data

    def on_worker_report(self, client_id: str, data: dict[str, Any], **_: object) -> None:
        if (document := data.get(LEDGER)) is not None:
            self._conductor.documents[client_id] = document

    # --- the course of a test

    def _begin(self) -> None:
        """Before any user is there, and before locust counts the time. Ends the program where the box does not answer."""
        try:
            self._conductor.begin()
        except MillraceError as error:
            say(f"not started: {error}")
            end_workers()
            sys.exit(EXIT_NOT_STARTED)
        self._has_begun = True

    def on_test_start(self, **_: object) -> None:
        if not self._has_begun:
            self._begin()
        self._has_begun, self._is_running = False, True
        self._began = time.monotonic()
        say(f"run {self._options.run_id}: {self._options.mix} against {self._environment.host}, into {self._options.consumed_topics}")
        self._progress = gevent.spawn(self._show_progress)
        if self._options.load_seconds:
            gevent.spawn(self._end_in_time)

    def _end_in_time(self) -> None:
        """A worker that misses the call to begin hears it five seconds later, when it calls for a master again (signals of zmq get lost under gevent now and
        then); locust's --run-time would count that, and all of a short run may be over by then."""
        runner, options = self._runner, self._options
        deadline = self._began + runner.target_user_count / options.spawn_rate + BEGIN_SECONDS
        while runner.user_count < runner.target_user_count and time.monotonic() < deadline:
            gevent.sleep(LOOK_SECONDS)
        if (begun := runner.user_count) < runner.target_user_count:
            self._conductor.add_trouble(f"only {begun} of {runner.target_user_count} users had begun after {time.monotonic() - self._began:.0f} s")
        gevent.sleep(options.load_seconds)
        runner.quit()

    def _show_progress(self) -> None:
        last = Totals()
        while True:
            gevent.sleep(PROGRESS_SECONDS)
            if not isinstance(self._runner, MasterRunner):
                self._conductor.documents["local"] = crew.document()
            now = self._conductor.totals
            say(report.progress_line(time.monotonic() - self._began, self._runner.user_count, now, last, PROGRESS_SECONDS))
            last = now

    def on_test_stopping(self, **_: object) -> None:
        if self._progress is not None:
            self._progress.kill()
        self._is_running = False
        self._conductor.finish(say)

    def on_quitting(self, **_: object) -> None:
        """When the time is over the runner has stopped before, and has the last figures of all workers; at Ctrl-C it stops now."""
        if self._is_running:
            self._runner.quit()
        verdict = self._conductor.verdict(self._figures())
        self._environment.process_exit_code = verdict.exit_code
        self._words = report.verdict_text(verdict)
        if self._options.csv_prefix:
            Path(f"{self._options.csv_prefix}_verdict.json").write_text(report.verdict_document(verdict))
        self._conductor.close()

    def on_quit(self, **_: object) -> None:
        """After locust's own tables."""
        say(self._words)

    def _figures(self) -> list[RequestFigures]:
        return [
            RequestFigures(entry.method, entry.num_requests, entry.num_failures, float(entry.get_response_time_percentile(PERCENTILE) or 0))
            for entry in self._environment.stats.entries.values()
        ]


def end_workers() -> None:
    """Those that `--processes` made; locust would leave them waiting for a master for a minute."""
    for child in psutil.Process().children():
        child.terminate()


def choose_users(environment: Environment) -> set[str]:
    """Classes named on the command line are taken as they are; otherwise those of the mix, with its weights. Returns their kinds."""
    options = environment.parsed_options
    assert options is not None
    classes: list[Any] = list(environment.user_classes)
    if not options.user_classes:
        weights = parse_mix(options.mix)
        classes = [known for known in classes if known.kind in weights]
        for known in classes:
            known.weight = weights[known.kind]
        environment.user_classes = classes
    return {known.kind for known in classes}
