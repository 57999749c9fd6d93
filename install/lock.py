"""The lock file `install/requirements.lock`: every package that a release or `.venv` installs, with
its version and the SHA-256 of each of its files.

`lock.py select [EXTRA…]` prints the part of it that the dependencies and these extras of
pyproject.toml need, for `pip install --no-deps --require-hashes`; `lock.py only EXTRA…` that of the
extras alone. `lock.py make` writes the file
again after a change of pyproject.toml; it needs `uv` and a package index, and names neither in the
file. Weak: files for other systems than Linux on x86_64 and aarch64 are left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "install/requirements.lock"
HEAD = "# Written by `python install/lock.py make`. Files for Linux on x86_64 and aarch64, and sources.\n"
PROJECT = "millrace (pyproject.toml)"
_MINORS = range(11, 15)
_ABI3 = re.compile(r"cp3(\d+)-abi3")


class LockedPackage(NamedTuple):
    """One package: `requirement` with its marker, the hashes, and which packages need it."""

    requirement: str
    hashes: list[str]
    needed_by: list[str]

    @property
    def name(self) -> str:
        return normal(self.requirement.partition("==")[0])

    @property
    def pin(self) -> str:
        return f"{self.name}=={self.requirement.partition('==')[2].partition(';')[0].strip()}"

    def text(self, with_reasons: bool = True) -> str:
        lines = [self.requirement, *(f"    --hash=sha256:{digest}" for digest in self.hashes)]
        return " \\\n".join(lines) + (f"\n    # via {', '.join(self.needed_by)}\n" if with_reasons else "\n")


def normal(name: str) -> str:
    """Return the name of a package as names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> list[LockedPackage]:
    """Parse the lock, or what `uv pip compile --generate-hashes` writes."""
    packages: list[LockedPackage] = []
    for line in text.splitlines():
        word = line.strip().removesuffix("\\").strip()
        if line[:1].isalnum():
            packages.append(LockedPackage(word, [], []))
        elif word.startswith("--hash=sha256:"):
            packages[-1].hashes.append(word.removeprefix("--hash=sha256:"))
        elif line[:1].isspace() and (reasons := word.removeprefix("#").strip().removeprefix("via").strip()):
            packages[-1].needed_by.extend(map(str.strip, reasons.split(",")))
    return packages


def select(packages: Iterable[LockedPackage], pins: Iterable[str]) -> list[LockedPackage]:
    """Return the packages that these requirements need. Raises ValueError for a pin that is not in
    the lock."""
    by_pin = {package.pin: package for package in packages}
    wanted = {f"{normal(pin.partition('==')[0].partition('[')[0])}=={pin.partition('==')[2].strip()}" for pin in pins}
    if missing := sorted(wanted - by_pin.keys()):
        raise ValueError(f"install/requirements.lock does not have {', '.join(missing)}; run python install/lock.py make")
    names = {pin.partition("==")[0] for pin in wanted}
    while more := {package.name for package in by_pin.values() if names & {normal(reason) for reason in package.needed_by}} - names:
        names |= more
    return [package for package in by_pin.values() if package.name in names]


def pins_of(project: dict[str, Any], extras: Iterable[str]) -> list[str]:
    """Return the dependencies with those of the extras; an extra may name others of ours."""
    pins, waiting = list(project["dependencies"]), list(extras)
    while waiting:
        for line in project["optional-dependencies"][waiting.pop()]:
            own = re.match(r"millrace\[(.*)\]", line)
            if own is None:
                pins.append(line)
            else:
                waiting.extend(own.group(1).split(","))
    return pins


def fits(file: str) -> bool:
    """Return whether a file may be installed on Linux, x86_64 or aarch64, by a Python that is supported."""
    if not file.endswith(".whl"):
        return True
    python, abi, platform = file.removesuffix(".whl").split("-")[-3:]
    abi3 = _ABI3.match(f"{python}-{abi}")
    is_for_python = python.startswith("py") or abi in {f"cp3{minor}" for minor in _MINORS} or (abi3 is not None and int(abi3.group(1)) <= _MINORS[0])
    return is_for_python and (platform == "any" or ("linux" in platform and "musl" not in platform and platform.endswith(("x86_64", "aarch64"))))


def make() -> str:
    """Return the text of a new lock."""
    with tempfile.TemporaryDirectory() as directory:
        outputs = [f"{directory}/requirements.txt", f"{directory}/pylock.toml"]
        for output, form in zip(outputs, ("requirements.txt", "pylock.toml"), strict=True):
            words = ["uv", "pip", "compile", "pyproject.toml", "--all-extras", "--universal", "--python-version", f"3.{_MINORS[0]}"]
            words += ["--format", form, "--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links", "-q", "-o", output]
            subprocess.run(words, cwd=ROOT, check=True)
        packages = read_lock(Path(outputs[0]).read_text())
        located = tomllib.loads(Path(outputs[1]).read_text())["packages"]
    files = [file for package in located for file in [*package.get("wheels", []), package.get("sdist")] if file]
    fitting = {file["hashes"]["sha256"] for file in files if fits(file["url"].rpartition("/")[2])}
    kept = [package._replace(hashes=[digest for digest in package.hashes if digest in fitting]) for package in packages]
    return HEAD + "".join(package.text() for package in kept if "sys_platform == 'win32'" not in package.requirement)


def main(words: list[str]) -> int:
    if words == ["make"]:
        LOCK.write_text(make())
        return 0
    if words[:1] not in (["select"], ["only"]):
        print(__doc__, file=sys.stderr)
        return 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if words[0] == "only":
        project["dependencies"] = []
    try:
        chosen = select(read_lock(LOCK.read_text()), pins_of(project, words[1:]))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print("".join(package.text(with_reasons=False) for package in chosen), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
