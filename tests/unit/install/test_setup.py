"""`./install.sh test --setup`, with what installs replaced by what prints its name."""

from __future__ import annotations

from pathlib import Path

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
