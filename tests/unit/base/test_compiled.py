"""Compiled modules: used whole if their sources are those of the tree, never otherwise."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.base import compiled
from appliance.base.compiled import MODULES, PURE_VARIABLE, SOURCES_FILE, fits, sources_text
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "install"))
import compile_modules

LOOK = "import services, appliance.base.compiled as c, appliance.small as s; print(c.is_compiled(), s.__file__.endswith(c.SUFFIX), s.double(21))"


def test_every_module_that_is_compiled_is_there_and_has_no_subclass_elsewhere() -> None:
    """A class of a compiled module cannot have one."""
    assert [name for name in MODULES if not (ROOT / f"{name.replace('.', '/')}.py").exists()] == []
    heirs = []
    for source in (source for package in ("appliance", "services") for source in (ROOT / package).rglob("*.py")):
        if ".".join(source.relative_to(ROOT).with_suffix("").parts) in MODULES or not re.search(r"^class \w+\(", text := source.read_text(), re.MULTILINE):
            continue
        tree = ast.parse(text)
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in MODULES)
        taken = {each.asname or each.name for node in imports for each in node.names}
        classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        heirs += [f"{source}: {node.name}" for node in classes if taken & {ast.unparse(base) for base in node.bases}]
    assert heirs == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree of a module, and one that it takes a constant from."""
    (tmp_path / "appliance/base").mkdir(parents=True)
    (tmp_path / "services").mkdir()
    for package in ("appliance", "appliance/base"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "services/__init__.py").write_text((ROOT / "services/__init__.py").read_text())
    text = (ROOT / "appliance/base/compiled.py").read_text()
    (tmp_path / "appliance/base/compiled.py").write_text(re.sub(r"^MODULES = \(.*?^\)", 'MODULES = ("appliance.small",)', text, flags=re.MULTILINE | re.DOTALL))
    (tmp_path / "appliance/factor.py").write_text("from typing import Final\n\nFACTOR: Final = 2\n")
    (tmp_path / "appliance/small.py").write_text("from appliance.factor import FACTOR\n\n\ndef double(number: int) -> int:\n    return FACTOR * number\n")
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").symlink_to(sys.executable)
    return tmp_path


def test_modules_fit_while_no_source_has_changed_and_the_python_is_the_same(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = compile_modules.sources_of(tree, ("appliance.small",))
    assert sources == ["appliance/factor.py", "appliance/small.py"], "what a constant comes from, too"
    directory = tree / "made"
    assert not fits(str(directory), str(tree)), "there are none"
    directory.mkdir()
    (directory / SOURCES_FILE).write_text(sources_text(str(tree), sources))
    assert fits(str(directory), str(tree))
    factor = (tree / "appliance/factor.py").read_text()
    (tree / "appliance/factor.py").write_text(factor.replace("2", "3"))
    assert not fits(str(directory), str(tree))
    (tree / "appliance/factor.py").write_text(factor)
    assert fits(str(directory), str(tree))
    (tree / "appliance/factor.py").unlink()
    assert not fits(str(directory), str(tree))
    (tree / "appliance/factor.py").write_text(factor)
    for name, value in (("version_info", (3, 11, 99)), ("MODULES", ("appliance.other",))):
        with monkeypatch.context() as patch:
            patch.setattr(sys if name == "version_info" else compiled, name, value)
            assert not fits(str(directory), str(tree)), name
    (directory / SOURCES_FILE).write_bytes(b"\xff\n\xff")
    assert not fits(str(directory), str(tree))


def make(tree: Path, **variables: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-P", str(ROOT / "install/compile_modules.py"), str(tree), str(tree / "venv")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    return done.returncode, (done.stdout + done.stderr).splitlines()


def look(tree: Path, **variables: str) -> str:
    """What a process of the tree uses, and what that answers."""
    program = f"import sys; sys.path[0:0] = [{str(tree)!r}]; sys.prefix = {str(tree / 'venv')!r}; {LOOK}"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, env={**os.environ, PURE_VARIABLE: "", **variables})
    return done.stdout.strip()


@pytest.mark.slow
def test_a_process_uses_compiled_modules_until_a_source_changes_and_a_failed_build_leaves_pure_ones(tree: Path) -> None:
    if why := compile_modules.why_not():
        pytest.skip(f"nothing can be compiled here: {why}")
    assert look(tree) == "False False 42"
    assert make(tree, CC="no-such-compiler") == (1, ["not compiled: there is no C compiler (no-such-compiler); all processes run as pure Python"])
    (tree / "venv/.compiling-interrupted").mkdir()
    assert make(tree) == (0, [])
    assert sorted(each.name for each in (tree / "venv").iterdir()) == ["bin", "compiled"]
    assert look(tree) == "True True 42"
    assert look(tree, **{PURE_VARIABLE: "1"}) == "False False 42"
    made_ns = (tree / "venv/compiled").stat().st_mtime_ns
    assert make(tree) == (0, []) and (tree / "venv/compiled").stat().st_mtime_ns == made_ns, "it is there already"
    factor = tree / "appliance/factor.py"
    factor.write_text(factor.read_text().replace("2", "3"))
    assert look(tree) == "False False 63", "the constant is in the compiled module"
    code, lines = make(tree, CC="false")
    assert code == 3 and len(lines) == 1 and lines[0].startswith("not compiled: ") and lines[0].endswith("; all processes run as pure Python")
    assert sorted(each.name for each in (tree / "venv").iterdir()) == ["bin"]
    assert look(tree) == "False False 63"
