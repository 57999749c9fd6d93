"""What every test has: hypothesis profiles, the peers that install.sh unpacked, and a running box for those that want one."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from appliance.base.layout import box_name
from lab.real_zookeeper import RealZooKeeper
from lab.running_box import USUAL_SETTINGS, RunningBox, start_box
from lab.spark_classes import use_archive

# Hooks of pytest's, which finds them here.
from tests.support.failed_tests import pytest_runtest_logreport, pytest_runtest_protocol  # noqa: F401
from tests.support.left_behind import (  # noqa: F401
    pytest_configure,
    pytest_runtest_logfinish,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
    pytest_unconfigure,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
DEEP = bool(os.environ.get("MILLRACE_DEEP"))

# Both are bounded by examples, not by time: the machine may be busy.
settings.register_profile("fast", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", deadline=None, max_examples=2_000, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("deep" if DEEP else "fast")

# A shell that starts the tests in the background has them ignore SIGINT, and every child would inherit that; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["PATH"] = f"{ROOT}/.venv/peers/bin:{os.environ.get('PATH', '')}"

use_archive()

# The first look for records that are too old comes after five minutes, which a file of tests takes on a busy machine. Most records of tests are of 2023.
USUAL_SETTINGS["log.retention.check.interval.ms"] = 86_400_000


LONGEST = (
    *("test_simulation.py", "test_broken_rules.py", "test_boxes_at_every_step.py", "test_transactions.py", "test_spark_cluster.py", "test_load.py"),
    *("test_installed_box.py", "test_disk_orders.py", "test_upgrades.py", "test_the_lab.py"),  # one group, see below; the third ends by uninstalling
    *("test_matrix.py", "test_spark_sink.py", "test_stream_command.py", "test_zookeeper.py"),
    *("test_power_cuts.py", "test_zookeeper_secret.py", "test_controller.py", "test_partition_moves.py", "test_supervisor.py"),
    *("test_disk_faults.py", "test_second_protocol.py", "test_kafka_python_suite.py", "test_oldest_consumers.py", "test_hostile_clients.py"),
    *("test_reassignment.py", "test_command.py", "test_cluster_copies.py", "test_kafka_tools.py", "test_controller_moves.py", "test_hostile_senders.py"),
    *("test_cut_senders.py", "test_killed_senders.py", "test_syslog_senders.py", "test_fetch_sessions.py", "test_deaths.py", "test_mirror.py"),
    *("test_sink_commits.py", "test_transactional_log.py", "test_controller_admin.py", "test_disks.py", "test_fuzz.py", "test_storage_torture.py"),
    *("test_authorized_apis.py", "test_live_alerts.py"),
)
"""Files that come first, so that those who work side by side (`-n`, a file at a time) end at about the same time."""

SESSIONS = (
    ("test_spark_sink.py", "test_spark_source.py", "test_log_minutes.py", "test_spark_session.py"),
    ("test_load.py", "test_stream_jobs.py"),
)
"""Files that have a Spark session together: one costs seconds and half a gigabyte. Another file with the fixture `spark` is right too, and has its own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--word", action="append", help="leave out files that have none of these words: reading all takes seconds, and a marker is in the file that has it"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    words: list[str] | None = config.getoption("--word")
    if not words or not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    return None if any(word in text for word in words) else True


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; long campaigns run on demand; what uses the one Spark session is marked so."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
    if DEEP:
        return
    for item in items:
        if item.get_closest_marker("deep"):
            item.add_marker(pytest.mark.skip(reason="a long campaign; run by ./install.sh test --deep"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude what collection left from garbage collection: some tests collect, and 10,000 collected tests made that take 0.2 s."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file in one process, and together: tests/systemd, whose files have one installed box, and files of one Spark session."""
    from xdist.scheduler import LoadFileScheduling

    sessions = {name: f"Spark session {number}" for number, names in enumerate(SESSIONS) for name in names}

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/systemd" if file.startswith("tests/systemd/") else sessions.get(file.rpartition("/")[2], file)

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def _campaigns_take_their_time() -> None:
    """A test that hangs is ended after five minutes (pyproject.toml); a campaign takes longer than that."""
    if DEEP:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of this process (lab/spark_session.py)."""
    from lab.spark_session import end_spark, the_spark, why_no_spark

    if why := why_no_spark():
        pytest.skip(why)
    yield the_spark().session
    end_spark()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealZooKeeper]:
    """One real ZooKeeper for each process that runs tests. It is open to all."""
    server = RealZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def _credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What boxes on the shared ZooKeeper guard their trees with."""
    file = tmp_path_factory.mktemp("credentials") / "digest"
    file.touch(0o600)
    file.write_text("tests:shared-zookeeper\n")
    return file


@pytest.fixture(scope="module")
def start_shared(request: pytest.FixtureRequest) -> Callable[..., RunningBox]:
    """`start_box` on a tree of the box's own in the shared ZooKeeper: a server for each box is a third of the cost of its start.

    Boxes of a module with the marker `own_zookeeper` run their own, as boxes with a `zookeeper` or `config` among their options do.
    """
    if request.node.get_closest_marker("own_zookeeper"):
        return start_box
    server: RealZooKeeper = request.getfixturevalue("zookeeper")
    credentials: Path = request.getfixturevalue("_credentials")

    def starter(directory: Path, **options: Any) -> RunningBox:
        if not {"zookeeper", "zookeeper_members", "config"} & options.keys():
            options["zookeeper"] = f"{server.connect}/{box_name(str(directory))}"
            options["settings"] = {"zookeeper.digest.file": str(credentials), **(options.get("settings") or {})}
        return start_box(directory, **options)

    return starter


@pytest.fixture
def start(tmp_path: Path, start_shared: Callable[..., RunningBox]) -> Iterator[Callable[..., RunningBox]]:
    """Starts boxes below `tmp_path`: `start(name="second", disks=1, acceptors=2, settings={…})`.

    What still runs after the test is stopped, and nothing may be left of any of them.
    """
    started: list[RunningBox] = []

    def starter(name: str = "box", **options: object) -> RunningBox:
        box = start_shared(tmp_path / name, **options)
        started.append(box)
        return box

    yield starter
    problems = []
    for box in reversed(started):
        box.stop()
        problems += box.leftovers()
    assert problems == []


@pytest.fixture
def box(start: Callable[..., RunningBox]) -> RunningBox:
    """One box with two disks, serving. After the test it is stopped, and nothing may be left of it."""
    return start()


@pytest.fixture(scope="module")
def shared_box(tmp_path_factory: pytest.TempPathFactory, start_shared: Callable[..., RunningBox]) -> Iterator[RunningBox]:
    """One box for all tests of a module that do not hurt it."""
    box = start_shared(tmp_path_factory.mktemp("shared") / "box")
    yield box
    box.stop()
    assert box.leftovers() == []
