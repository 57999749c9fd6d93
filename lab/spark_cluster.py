"""A real Spark standalone cluster on loopback: a master and workers that have Python, the libraries and no Millrace, and that see no box of this machine.

`with start_cluster(directory, workers=2) as cluster: cluster.submit(job, "argument")`. Nothing is fetched; everything is of the installed PySpark.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from appliance.pipeline.spark_session import spark_java_home
from lab.loop_disks import FOLLOWING
from lab.running_box import ROOT
from lab.spark_classes import SHORT_LIVED

START_SECONDS = 90.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile("Successfully registered with master")


def bare_python(directory: Path) -> Path:
    """An interpreter with every library of this one, and without Millrace: a .pth file leads to the libraries, so that their own are not read."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    packages = next(directory.glob("lib/python*/site-packages"))
    (packages / "libraries.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
    return directory / "bin/python"


def packed_sources(path: Path) -> Path:
    """What `--py-files` takes: the two packages as a zip file, compiled, because each of Spark's many processes would do that again."""
    with zipfile.PyZipFile(str(path), "w", zipfile.ZIP_DEFLATED) as packed:
        for package in ("appliance", "pyspark_millrace"):
            packed.writepy(str(ROOT / package))
    return path


class SparkCluster:
    """A running master with its workers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.master = ""
        self.python = bare_python(directory / "python")
        self.packed = packed_sources(directory / "millrace.zip")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """Of every process here: no checkout on the path, no box's runtime directory."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR", "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS") if name in os.environ}
        home = str(Path(next(path for path in site.getsitepackages() if (Path(path) / "pyspark").exists())) / "pyspark")
        return kept | {
            "SPARK_HOME": home,
            "JAVA_HOME": spark_java_home(),
            "PYSPARK_PYTHON": str(self.python),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_JAVA_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", SHORT_LIVED),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "XDG_RUNTIME_DIR": str(self.directory / "runtime"),
            "HOME": str(self.directory),
        }

    def start(self, name: str, *arguments: str) -> None:
        """One process of Spark's; `await_log` waits until it serves."""
        with open(self.directory / f"{name}.log", "wb") as output:
            command = [*_blind_to_boxes(), f"{self.environment['SPARK_HOME']}/bin/spark-class", *arguments]
            process = subprocess.Popen(command, env=self.environment, cwd=self.directory, stdout=output, stderr=subprocess.STDOUT)
        self.processes[name] = process

    def await_log(self, name: str, wanted: re.Pattern[str]) -> re.Match[str]:
        log = self.directory / f"{name}.log"
        deadline = time.monotonic() + START_SECONDS
        while not (found := wanted.search(log.read_text(errors="replace"))):
            running = self.processes[name].poll() is None and time.monotonic() < deadline
            assert running, f"{name} does not serve:\n{log.read_text(errors='replace')[-3000:]}"
            time.sleep(0.05)
        return found

    def submit(self, job: Path, *arguments: str, settings: Sequence[str] = (), seconds: float = 240.0) -> str:
        """`spark-submit` as people call it. What the job printed."""
        command = [f"{self.environment['SPARK_HOME']}/bin/spark-submit", "--master", self.master, "--py-files", str(self.packed)]
        executors = f"spark.executor.extraJavaOptions={os.environ.get('SPARK_SUBMIT_OPTS', SHORT_LIVED)}"
        options = ("spark.driver.host=127.0.0.1", "spark.ui.enabled=false", "spark.executor.memory=512m", executors, *settings)
        command += [part for option in options for part in ("--conf", option)]
        done = subprocess.run(
            [*command, str(job), *arguments],
            env=self.environment | {"PYTHONPATH": str(self.packed)},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"the job failed:\n{done.stdout[:3000]}\n{_without_chatter(done.stderr)[:6000]}"
        return done.stdout

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _without_chatter(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if " INFO " not in line)


def _blind_to_boxes() -> list[str]:
    """Root finds boxes below /run/millrace, so its processes get a mount namespace in which that is empty; others find them by XDG_RUNTIME_DIR."""
    if os.getuid() != 0:
        return []
    return ["unshare", "--mount", *FOLLOWING, "sh", "-c", 'mount -t tmpfs none /run/millrace && exec "$@"', "sh"]


@contextmanager
def start_cluster(directory: Path, workers: int = 2) -> Iterator[SparkCluster]:
    cluster = SparkCluster(directory)
    try:
        cluster.start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        cluster.master = cluster.await_log("master", _MASTER)[1]
        names = [f"worker{number}" for number in range(workers)]
        for name in names:
            place = ["--work-dir", str(directory / name), "--cores", "1", "--memory", "600m", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            cluster.start(name, "org.apache.spark.deploy.worker.Worker", *place, cluster.master)
        for name in names:
            cluster.await_log(name, _REGISTERED)
        yield cluster
    finally:
        cluster.stop()
