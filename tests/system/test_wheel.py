"""The wheel of the product: built, installed into a virtual environment of its own, and a box that runs from there.

Its dependencies are those of .venv, so nothing is downloaded. Weak spot: that the wheel asks for the right ones is seen by the lock's tests only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from appliance import __version__
from lab.running_box import ROOT, eventually

pytestmark = [pytest.mark.system, pytest.mark.deep]


def run(*words: str | Path, cwd: Path) -> str:
    """Output of a command that has to succeed, without the variables that lead into this tree."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "MILLRACE_DATA")}
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_box_runs_from_the_wheel(tmp_path: Path) -> None:
    sources, venv = tmp_path / "sources", tmp_path / "venv"
    sources.mkdir()
    run("git", "-C", ROOT, "archive", "-o", tmp_path / "sources.tar", "HEAD", cwd=tmp_path)
    run("tar", "-xf", tmp_path / "sources.tar", cwd=sources)  # a build leaves directories in its tree
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, sources, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    run(sys.executable, "-m", "pip", "--python", venv, "install", "-q", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    (site,) = venv.glob("lib/python3.*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # .pth files in there are not read
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
