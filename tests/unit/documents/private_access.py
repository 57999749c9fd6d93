"""The files that may access private members of other classes (ruff's SLF001), as per-file-ignores in pyproject.toml.

`.venv/bin/python -m tests.unit.documents.private_access` removes the files that no longer need it. It does not add any.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tests.unit.documents.allow_list import ROOT, RaisedCount, shrunk

COMMAND = ".venv/bin/python -m tests.unit.documents.private_access"
PYPROJECT = ROOT / "pyproject.toml"
BEGIN = f"# Files with private access; give the class a public probe instead. The list only shrinks: {COMMAND}\n"
END = "# End of the files with private access.\n"
BLOCK = re.compile(re.escape(BEGIN) + "(.*?)" + re.escape(END), re.DOTALL)
ROW = re.compile(r'^"([^"]+)" = \["SLF001"\]$', re.MULTILINE)


def found_accesses(root: Path = ROOT) -> dict[str, int]:
    """Count the private accesses of each file, also of those that pyproject.toml lists."""
    published = tomllib.loads(PYPROJECT.read_text())["tool"]["ruff"]["lint"]["flake8-self"]["extend-ignore-names"]
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--exit-zero", "--select", "SLF001", "--output-format", "json"]
    options = ["--config", f"lint.flake8-self.extend-ignore-names = {json.dumps(published)}", "."]
    finished = subprocess.run([*command, *options], cwd=root, capture_output=True, text=True, check=True)
    return dict(Counter(str(Path(row["filename"]).relative_to(root)) for row in json.loads(finished.stdout)))


def allowed_files(text: str) -> set[str]:
    block = BLOCK.search(text)
    assert block is not None, f"pyproject.toml has no lines between {BEGIN!r} and {END!r}"
    return set(ROW.findall(block[1]))


def with_allowed_files(text: str, files: list[str]) -> str:
    rows = "".join(f'"{file}" = ["SLF001"]\n' for file in sorted(files))
    return BLOCK.sub(lambda _: BEGIN + rows + END, text)


def main() -> int:
    text = PYPROJECT.read_text()
    try:
        files = shrunk(dict.fromkeys(allowed_files(text), 1), dict.fromkeys(found_accesses(), 1))
    except RaisedCount as raised:
        print(f"pyproject.toml was not changed: the list would grow\n{raised}", file=sys.stderr)
        return 1
    PYPROJECT.write_text(with_allowed_files(text, list(files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
