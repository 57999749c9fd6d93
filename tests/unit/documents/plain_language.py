"""Find the retired dialect in Python, Markdown and shell comments (`STYLE.md`).

`.venv/bin/python -m tests.unit.documents.plain_language` lists the hits of the files that it is given, or of all;
with `--rewrite` it lowers the counts in `plain_language_allowed.json`, and refuses to raise one.

Weak: a word is judged without its sentence; only `who` after a word for people is accepted. In Python the check reads
comments, literals with a blank in them, and names of tests; in Markdown no code; in shell scripts no messages.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.unit.documents.allow_list import ROOT, RaisedCount, shrunk

COMMAND = ".venv/bin/python -m tests.unit.documents.plain_language"
ALLOWED = ROOT / "tests/unit/documents/plain_language_allowed.json"
PRODUCT = ("appliance", "services", "pyspark_millrace")
WITH_DOCUMENTS = (*PRODUCT, "docs", "install", "lab", "loadtest", "systemd", "tests")
NOT_READ = ("CHANGELOG.md", "RESULTS.md", "plain_language.py", "test_plain_language.py")
"""They describe the past, or list the retired words."""

INSTEAD = {
    "he|him|his|himself|who|whoever": "the component: the client, the follower, the log-writer",
    "nobody|somebody|everybody|anybody": "no client, a process, each replica",
    "told|tells": "sent, reported, returned, logged, counted",
    r"looks\s+(?:at|into)": "reads, checks, polls",
    "meets": "finds, reaches, reads",
    "rooms?": "component; free space",
    "doors?": "listener, server, channel",
    "lanes?": "queue; partition queue",
    "books": "ledger, accounting, counts",
    r"(?-i:(?!Life of an? ))life(?!\s+of\s+an?\s+(?:produce|fetch|fail-?over|request|record|batch|transaction))|lives": "incarnation; runs, exists",
    "wish|wishes|wished": "request, pending change",
    "parted|parting": "diverged, divergence; partitioned, separated",
    "bury|buries|buried": "quarantine, reap",
    r"recoil\w*": "drain",
    "doubtful": "unresolved",
    "owes?|owed": "needs, pending",
    r"giv(?:es?|en|ing)\s+away": "hand over; controlled shutdown",
}  # fmt: skip
"""Retired words, as patterns, and what to write instead."""
RETIRED = re.compile(rf"(?<![\w./-])(?:{'|'.join(f'({pattern})' for pattern in INSTEAD)})(?![\w/-]|\.\w)", re.IGNORECASE)
OF_PEOPLE = re.compile(
    r"\b(?:person|people|users?|operators?|engineers?|readers?|administrators?|contributors?|developers?|those|anyone|everyone)[,;]?\s+$", re.IGNORECASE
)
PYTHON_TEXT = re.compile(
    r"""(?P<prefix>\b[rRbBuUfF]{1,2})?(?P<literal>"{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<comment>\#[^\n]*)""",
    re.DOTALL,
)
TEST_NAME = re.compile(r"(?<=\bdef )test_\w+")
FORMATTED = re.compile(r"\{[^{}\n]*\}")
MARKDOWN_CODE = re.compile(r"^```.*?^```|``[^`]+``|`[^`\n]*`|\]\([^)\n]*\)", re.DOTALL | re.MULTILINE)
SHELL_COMMENT = re.compile(r"(?:^|(?<=\s))#(?!!)[^\n]*", re.MULTILINE)


class Hit(NamedTuple):
    line: int
    word: str
    instead: str


def python_text(source: str) -> Iterator[tuple[int, str]]:
    """Yield the position and text of each comment, of each literal that is a sentence, and of each test's name."""
    for match in PYTHON_TEXT.finditer(source):
        text = match["comment"] or match["literal"]
        if match["prefix"] and "f" in match["prefix"].lower():
            text = FORMATTED.sub(blank, text)
        if match["comment"] or " " in text:
            yield match.start("comment") if match["comment"] else match.start("literal"), text
    for name in TEST_NAME.finditer(source):
        yield name.start(), name.group().replace("_", " ")


def blank(match: re.Match[str]) -> str:
    """Return as many characters, with the same ends of lines."""
    return re.sub(r"[^\n]", "`", match.group())


def hits_of_text(kind: str, source: str) -> list[Hit]:
    """Return the retired words of a file's text; `kind` is the ending of its name."""
    if kind == ".py":
        parts = list(python_text(source))
    elif kind == ".md":
        parts = [(0, MARKDOWN_CODE.sub(blank, source))]
    else:
        parts = [(match.start(), match.group()) for match in SHELL_COMMENT.finditer(source)]
    replacements = list(INSTEAD.values())
    return [
        Hit(source.count("\n", 0, start + match.start()) + 1, " ".join(match.group().split()), replacements[(match.lastindex or 1) - 1])
        for start, text in parts
        for match in RETIRED.finditer(text)
        if match.group().lower() != "who" or not OF_PEOPLE.search(text, max(0, match.start() - 40), match.start())
    ]


def files(root: Path = ROOT) -> Iterator[Path]:
    """Yield Python of the product, the lab, load tests and tests, all Markdown, and shell scripts."""
    for top in (*PRODUCT, "lab", "loadtest", "tests"):
        yield from (root / top).rglob("*.py")
    yield from root.glob("*.md")
    for top in WITH_DOCUMENTS:
        yield from (path for path in (root / top).rglob("*.md") if "node_modules" not in path.parts)
        yield from (root / top).rglob("*.sh")
    yield from (root / name for name in ("install.sh", ".ci/run", "loadtest/run"))


def found_hits(root: Path = ROOT) -> dict[str, list[Hit]]:
    """Return the hits of each file that has any."""
    found = {str(path.relative_to(root)): hits_of_text(path.suffix, path.read_text()) for path in files(root) if path.is_file() and path.name not in NOT_READ}
    return {file: hits for file, hits in sorted(found.items()) if hits}


def counts(found: dict[str, list[Hit]]) -> dict[str, int]:
    return {file: len(hits) for file, hits in found.items()}


def allowed_counts() -> dict[str, int]:
    allowed: dict[str, int] = json.loads(ALLOWED.read_text())
    return allowed


def complaints(allowed: dict[str, int], found: dict[str, list[Hit]]) -> list[str]:
    """Return what is wrong: each hit of a file that has more than it is allowed, and each count that has to be lowered."""
    wrong = []
    for file in sorted({*allowed, *found}):
        hits, limit = found.get(file, []), allowed.get(file, 0)
        if len(hits) > limit:
            wrong.append(f"{file}: {len(hits)} retired words, allowed {limit}:")
            wrong += [f"  {file}:{hit.line}: {hit.word!r}; write: {hit.instead}" for hit in hits]
        elif len(hits) < limit:
            wrong.append(f"{file}: {len(hits)} retired words, allowed {limit}; lower the count: {COMMAND} --rewrite")
    return wrong


def main(arguments: list[str]) -> int:
    found = found_hits()
    if arguments != ["--rewrite"]:
        wanted = {str(Path(argument)) for argument in arguments} or set(found)
        for file in sorted(wanted & set(found)):
            print("\n".join(f"{file}:{hit.line}: {hit.word!r}; write: {hit.instead}" for hit in found[file]))
        return 0
    try:
        lowered = shrunk(allowed_counts(), counts(found)) if ALLOWED.exists() else counts(found)
    except RaisedCount as raised:
        print(f"{ALLOWED.relative_to(ROOT)} was not changed: counts would rise; reword instead\n{raised}", file=sys.stderr)
        return 1
    ALLOWED.write_text(json.dumps(lowered, indent=0) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
