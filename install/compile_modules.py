"""Compiles the modules of `appliance/base/compiled.py` with mypyc: `compile_modules.py ROOT PREFIX`.

ROOT is the tree, PREFIX the virtual environment whose processes will use them. Run by a Python with
the packages of the extra `compiled`. Needs a C compiler and Python's headers; 35 s of a processor
and 0.4 GB of memory. Without them it says so in a line and exits with 1, if mypyc or the compiler
fails, with 3; then no compiled modules are left, and all processes use the sources. What it makes
is seen whole or not at all. `--check` before ROOT makes nothing, and exits with 2 if there is
something to make.
"""

from __future__ import annotations

import ast
import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("appliance", "services")
TEMPORARY = ".compiling-"


def imports_of(text: str) -> Iterator[str]:
    """Yield the names of the modules that a source imports, anywhere in it, and of what is in them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def sources_of(root: Path, modules: tuple[str, ...]) -> list[str]:
    """Return the sources of these modules and of all that they import of ours: mypyc copies constants
    of other modules."""
    waiting, found = list(modules), set()
    while waiting:
        name = waiting.pop()
        if name.partition(".")[0] not in PACKAGES:
            continue
        path = name.replace(".", "/")
        source = next((each for each in (f"{path}.py", f"{path}/__init__.py") if (root / each).exists()), None)
        if source is not None and source not in found:
            found.add(source)
            waiting.extend(imports_of((root / source).read_text()))
    return sorted(found)


def why_not() -> str:
    """Return why nothing can be compiled here, or ''."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return f"Python's headers are not in {sysconfig.get_path('include')}"
    return ""


BUILD = """
import os, sys
from mypyc.build import mypycify
from setuptools import setup
out, group, *files = sys.argv[1:]
options = ["--config-file=", f"--cache-dir={out}/cache", "--ignore-missing-imports", "--follow-imports=silent"]
modules = mypycify([*options, *files], opt_level="1", debug_level="0", target_dir=f"{out}/c", group_name=group)
os.chdir(out)  # not the tree's pyproject.toml
setup(name=group, packages=[], ext_modules=modules, script_args=["-q", "build_ext", "--build-lib", "lib", "--build-temp", "objects"])
"""
CHECK = """
import importlib, sys
sys.path[:0] = [sys.argv[1]]
from appliance.base import compiled
sys.meta_path.insert(0, compiled.CompiledModules(sys.argv[2]))
for name in compiled.MODULES:
    assert importlib.import_module(name).__file__ == compiled.file_of(sys.argv[2], name), name
"""


def main(root: Path, prefix: Path, only_check: bool = False) -> int:
    sys.path.insert(0, str(root))
    from appliance.base import compiled

    target = Path(compiled.directory_of(str(prefix)))
    if compiled.fits(str(target), str(root)):
        return 0
    if problem := why_not():
        print(f"not compiled: {problem}; all processes run as pure Python")
        return 1
    if only_check:
        return 2
    fcntl.flock(os.open(prefix, os.O_RDONLY), fcntl.LOCK_EX)  # until this process ends
    if compiled.fits(str(target), str(root)):
        return 0  # another one has made them meanwhile
    for left in (target, *prefix.glob(f"{TEMPORARY}*")):  # of an interrupted run
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=prefix) as directory:
        text = compiled.sources_text(str(root), sources_of(root, compiled.MODULES))
        files = [f"{name.replace('.', '/')}.py" for name in compiled.MODULES]
        library = Path(directory, "lib")
        for words, python in (((BUILD, directory, compiled.GROUP, *files), sys.executable), ((CHECK, str(root), str(library)), str(prefix / "bin/python"))):
            done = subprocess.run([python, "-P", "-c", *words], cwd=root, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"not compiled: {' / '.join((done.stdout + done.stderr).strip().splitlines()[-3:])}; all processes run as pure Python")
                return 3
        (library / compiled.SOURCES_FILE).write_text(text)
        library.rename(target)
    if not compiled.fits(str(target), str(root)):
        print("not compiled: a source has changed meanwhile; all processes run as pure Python until this is repeated")
        return 3
    return 0


if __name__ == "__main__":
    *checks, root, prefix = sys.argv[1:]
    sys.exit(main(Path(root).resolve(), Path(prefix).resolve(), bool(checks)))
