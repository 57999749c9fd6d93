"""Builds the wheels `millrace` and `pyspark-millrace` and a CycloneDX bill of materials of each:
`wheels.py DIRECTORY`, with a Python that has the extra `packages` of pyproject.toml.

`pyspark-millrace` is the Spark data source for machines without the appliance. Its one top-level
name is `pyspark_millrace`: every module that the data source imports, at once or later, is copied
below it, and imports of `appliance` are rewritten. Two builds of one version are equal byte by
byte: files carry the time of the commit (or of SOURCE_DATE_EPOCH) and modes that no umask changes.

Weak: the bills do not have ZooKeeper's jars, which are no part of a wheel. Imports are found in the
syntax tree, so a module that is imported by a computed name would be missing.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import lock

ROOT = lock.ROOT
SPARK_PACKAGE = "pyspark_millrace"
SPARK_REQUIREMENT = "pyspark[sql]>=4.2"
"""The user's Spark decides; its "sql" has pyarrow, pandas and numpy as that Spark needs them."""
SPARK_LIBRARIES = ("crc32c", "cramjam", "orjson", "posix_ipc")
"""Beside Spark: as pyproject.toml pins them, or newer."""
ZIP_BEGINS = 315532800
"""1980-01-01 in Unix time, the first date that a ZIP file can have."""
_IMPORT = re.compile(r"^(\s*from )appliance\.", re.MULTILINE)
_SOURCES = ("appliance", "services", SPARK_PACKAGE, "pyproject.toml", "LICENSE")


def file_of(module: str) -> Path | None:
    """Return the source of one of our modules, or None if it is a name in a module."""
    path = ROOT / module.replace(".", "/")
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.exists()), None)


def imports_of(source: str) -> Iterator[str]:
    """Yield each module that a source imports anywhere, and what may be a module in `from package import name`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def spark_modules() -> dict[str, Path]:
    """Return the closed set of modules of `appliance` that the data source needs, packages included."""
    found: dict[str, Path] = {}
    waiting = list(imports_of((ROOT / SPARK_PACKAGE / "__init__.py").read_text()))
    while waiting:
        module = waiting.pop()
        file = file_of(module) if module.startswith("appliance.") else None
        if file is not None and module not in found:
            found[module] = file
            waiting += [module.rpartition(".")[0], *imports_of(file.read_text())]
    return found


def spark_requirements(project: dict[str, Any]) -> list[str]:
    """Return what `pyspark-millrace` is installed with, as lower bounds."""
    pins = dict(line.split("==") for line in project["dependencies"])
    return [SPARK_REQUIREMENT, *(f"{name}>={pins[name]}" for name in SPARK_LIBRARIES)]


def write_spark_tree(tree: Path) -> None:
    """Write the sources of `pyspark-millrace` into an empty directory."""
    files = {ROOT / SPARK_PACKAGE / "__init__.py": Path("__init__.py")}
    files |= {file: file.relative_to(ROOT / "appliance") for file in spark_modules().values()}
    for source, name in files.items():
        target = tree / SPARK_PACKAGE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_IMPORT.sub(rf"\1{SPARK_PACKAGE}.", source.read_text()))
    shutil.copy(ROOT / "LICENSE", tree)
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = ours["project"]
    (tree / "pyproject.toml").write_text(f"""\
[build-system]
requires = {ours["build-system"]["requires"]!r}
build-backend = "setuptools.build_meta"

[project]
name = "pyspark-millrace"
version = "{project["version"]}"
description = "Spark data source for topics of Millrace and Kafka: spark.read.format('millrace')"
requires-python = "{project["requires-python"]}"
license = "{project["license"]}"
license-files = ["LICENSE"]
dependencies = {spark_requirements(project)!r}

[tool.setuptools.packages.find]
include = ["{SPARK_PACKAGE}*"]
""")


def write_whole_tree(tree: Path) -> None:
    """Copy the sources of `millrace`, without what tests and former builds left among them."""
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)


def time_of_sources() -> str:
    """Return SOURCE_DATE_EPOCH, else the time of the commit, else the oldest time that a wheel can have."""
    words = ["git", "-C", ROOT, "log", "-1", "--format=%ct"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return os.environ.get("SOURCE_DATE_EPOCH") or done.stdout.strip() or str(ZIP_BEGINS)


def build(tree: Path, directory: Path) -> None:
    """Build the wheel of a tree. Raises CalledProcessError; the builder's output is shown."""
    for path in tree.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "-w", directory, tree]
    subprocess.run(words, env={**os.environ, "SOURCE_DATE_EPOCH": time_of_sources()}, umask=0o022, check=True)


def list_materials(tree: Path, requirements: str, output: Path) -> None:
    """Write the bill of materials of a tree, with the packages that it is installed with. Raises
    ValueError with what the tool printed."""
    listed = tree / "requirements.txt"
    listed.write_text(requirements)
    words = [sys.executable, "-m", "cyclonedx_py", "requirements", listed, "--pyproject", tree / "pyproject.toml", "--output-reproducible"]
    done = subprocess.run([*words, "--of", "JSON", "-o", output], capture_output=True, text=True, check=False)
    if done.returncode != 0:  # it warns of each lower bound otherwise
        raise ValueError(f"{output.name}: {done.stderr}")


def main(words: list[str]) -> int:
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    directory = Path(words[0]).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = lock.select(lock.read_lock(lock.LOCK.read_text()), project["dependencies"])
    with tempfile.TemporaryDirectory() as scratch:
        whole, spark = Path(scratch) / "millrace", Path(scratch) / "pyspark-millrace"
        for tree, write in ((whole, write_whole_tree), (spark, write_spark_tree)):
            tree.mkdir()
            write(tree)
            build(tree, directory)
        list_materials(whole, "".join(package.text(with_reasons=False) for package in locked), directory / "millrace.cdx.json")
        list_materials(spark, "\n".join(spark_requirements(project)), directory / "pyspark-millrace.cdx.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
