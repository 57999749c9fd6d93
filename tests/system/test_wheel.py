"""The wheels: built twice, each installed into a virtual environment of its own; a box runs from one, Spark reads and writes by the other.

Their dependencies are those of .venv, so nothing is downloaded. Weak spot: that they ask for the right ones is seen by tests/unit/install only.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from appliance import __version__
from lab.running_box import ROOT, RunningBox, eventually

pytestmark = [pytest.mark.system, pytest.mark.deep]


SPARK_JOB = """
import importlib.util, sys
from pyspark.sql import SparkSession
assert not [name for name in ("appliance", "services", "lab") if importlib.util.find_spec(name)]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
at = {"kafka.bootstrap.servers": sys.argv[1]}
spark.createDataFrame([("one",), ("two",)], "value string").coalesce(1).write.format("millrace").options(**at, topic="from-spark").mode("append").save()
rows = spark.read.format("millrace").options(**at, subscribe="from-spark").load().orderBy("offset").collect()
print(*[bytes(row["value"]).decode() for row in rows])
spark.stop()
"""


def run(*words: str | Path, cwd: Path) -> str:
    """Output of a command that has to succeed, without the variables that lead into this tree."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "MILLRACE_DATA")}
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with both wheels and their bills of materials, as a user builds them. Their tools come from the package index."""
    directory = tmp_path_factory.mktemp("built")
    run(ROOT / "install.sh", "packages", directory, cwd=directory)
    return directory


def install(wheel: Path, venv: Path) -> Path:
    """Make a virtual environment with this wheel and the packages of .venv; return its site-packages."""
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    run(sys.executable, "-m", "pip", "--python", venv, "install", "-q", "--no-deps", "--no-index", wheel, cwd=venv.parent)
    (site,) = venv.glob("lib/python3.*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # .pth files in there are not read
    return site


def test_two_builds_are_equal(built: Path, tmp_path: Path) -> None:
    run("bash", "-c", 'umask 0077; exec ./install.sh packages "$0"', tmp_path, cwd=ROOT)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in built.iterdir())
    assert [path.name for path in tmp_path.iterdir() if path.read_bytes() != (built / path.name).read_bytes()] == []


def test_the_bills_name_what_is_installed_with_each(built: Path) -> None:
    bills = {path.name: json.loads(path.read_text()) for path in built.glob("*.cdx.json")}
    assert {(name, bill["bomFormat"], bill["metadata"]["component"]["version"]) for name, bill in bills.items()} == {
        ("millrace.cdx.json", "CycloneDX", __version__),
        ("pyspark-millrace.cdx.json", "CycloneDX", __version__),
    }
    materials = {component["name"]: component.get("version") for component in bills["millrace.cdx.json"]["components"]}
    assert materials["kazoo"] == importlib.metadata.version("kazoo")
    assert {component["name"] for component in bills["pyspark-millrace.cdx.json"]["components"]} >= {"pyspark", "cramjam"}


def test_spark_reads_and_writes_by_the_small_wheel_alone(built: Path, tmp_path: Path, shared_box: RunningBox) -> None:
    """The reader is Spark's own process of Python; nothing of this tree is on its path."""
    (wheel,) = built.glob("pyspark_millrace-*.whl")
    venv = tmp_path / "venv"
    site = install(wheel, venv)
    assert {path.name for path in site.iterdir()} == {"pyspark_millrace", wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info", "dependencies.pth"}
    (tmp_path / "job.py").write_text(SPARK_JOB)
    assert run(venv / "bin/python", "-P", "job.py", shared_box.bootstrap, cwd=tmp_path).split() == ["one", "two"]
    assert run("kcat", "-b", shared_box.bootstrap, "-t", "from-spark", "-C", "-o", "beginning", "-e", "-q", cwd=tmp_path).split() == ["one", "two"]


def test_a_box_runs_from_the_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("millrace-*.whl")
    venv = tmp_path / "venv"
    site = install(wheel, venv)
    command = venv / "bin/millrace"
    assert run(command, "--version", cwd=tmp_path).strip() == f"millrace {__version__}"
    assert run(venv / "bin/python", "-P", "-c", "import appliance; print(appliance.__file__)", cwd=tmp_path).startswith(str(site))
    ports = [word for port in ("kafka", "syslog", "http", "ingest") for word in (f"--{port}-port", "0")]
    with (tmp_path / "out").open("w") as out:
        box = subprocess.Popen([command, "run", *ports], cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT)
    try:
        ready = eventually(lambda: re.search(r"^millrace ready kafka=(\S+)", (tmp_path / "out").read_text(), re.MULTILINE), "the box serves", 60)
        (tmp_path / "lines").write_text("one\ntwo\n")
        with (tmp_path / "lines").open() as lines:
            subprocess.run([command, "send", "numbers", "--bootstrap", ready[1]], stdin=lines, check=True, timeout=60, capture_output=True)
        assert run("kcat", "-b", ready[1], "-t", "numbers", "-C", "-o", "beginning", "-e", "-q", cwd=tmp_path) == "one\ntwo\n"
    finally:
        box.terminate()
        assert box.wait(60) == 0
