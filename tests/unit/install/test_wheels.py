"""What is in the wheel `pyspark-millrace`: a closed set of modules below one name, and dependencies for all that they import."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.install_functions import TREE

sys.path.insert(0, str(TREE / "install"))
import wheels

VERIFIES_TOKENS = {"jwt", "cryptography"}
"""Imported by `KeySet.parse`, which only acceptors call."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spark")
    wheels.write_spark_tree(path)
    return path


def test_its_one_name_is_that_which_spark_looks_for(tree: Path) -> None:
    assert {path.name for path in tree.iterdir()} == {"pyspark_millrace", "pyproject.toml", "LICENSE"}
    sources = (TREE / "pyspark_millrace/__init__.py").read_text()
    assert (tree / "pyspark_millrace/__init__.py").read_text() == sources.replace("appliance.", "pyspark_millrace.")
    assert not {"command", "ipc", "senders"} & {path.name for path in (tree / "pyspark_millrace").iterdir()}


def test_all_that_it_imports_is_in_it_or_among_its_dependencies(tree: Path) -> None:
    files = list(tree.rglob("*.py"))
    modules = {".".join(file.relative_to(tree).with_suffix("").parts).removesuffix(".__init__") for file in files}
    assert all((file.parent / "__init__.py").exists() for file in files)
    imported = {module for file in files for module in wheels.imports_of(file.read_text())}
    ours = {module for module in imported if module.startswith("pyspark_millrace")}
    assert {module for module in ours if module not in modules and module.rpartition(".")[0] not in modules} == set()
    others = {module.partition(".")[0] for module in imported - ours} - sys.stdlib_module_names - VERIFIES_TOKENS
    spark = {"pyspark", "pyarrow", "numpy"}  # the last two by pyspark[sql]
    assert others == spark | set(wheels.SPARK_LIBRARIES)


def test_it_asks_for_any_newer_spark_and_has_our_version_and_licence(tree: Path) -> None:
    written, ours = (tomllib.loads((path / "pyproject.toml").read_text()) for path in (tree, TREE))
    assert written["build-system"] == ours["build-system"]
    assert {key: written["project"][key] for key in ("version", "license", "requires-python")} == {
        key: ours["project"][key] for key in ("version", "license", "requires-python")
    }
    wanted = [Requirement(line) for line in written["project"]["dependencies"]]
    assert str(wanted[0]) == "pyspark[sql]>=4.2"
    assert {specifier.operator for requirement in wanted for specifier in requirement.specifier} == {">="}
    assert all(requirement.specifier.contains(importlib.metadata.version(requirement.name)) for requirement in wanted)


@pytest.mark.slow
def test_it_is_imported_without_the_appliance(tree: Path) -> None:
    program = "import pyspark_millrace, pyspark_millrace.pipeline.record_sink, pyspark_millrace.pipeline.stream_reader, sys; "
    program += "print([name for name in ('appliance', 'services') if name in sys.modules], pyspark_millrace.DefaultSource.name())"
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=tree, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("[] millrace\n", 0), done.stderr


@pytest.mark.parametrize("words", [[], [""], ["--help"], ["one", "two"]])
def test_the_verb_wants_a_directory(words: list[str]) -> None:
    done = subprocess.run([TREE / "install.sh", "packages", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "install.sh: packages wants a directory: ./install.sh packages DIR\n")
