"""What the documents name is there: files, what stands in them, links, tests of invariants, commands with their options.

CHANGELOG.md and loadtest/RESULTS.md tell of the past and are left out. Weak spot: whether a sentence is true no test sees.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.command.main import build_parser
from tests.unit.documents.figures import markdown_bytes

ROOT = Path(__file__).parents[3]
OF_THE_PAST = {"CHANGELOG.md", "RESULTS.md"}
MARKDOWN = sorted(
    path
    for top in (".", "docs", "appliance", "services", "systemd", "install", "loadtest", "tests")
    for path in (ROOT.glob("*.md") if top == "." else (ROOT / top).rglob("*.md"))
)
DOCUMENTS = [path for path in MARKDOWN if path.name not in OF_THE_PAST]
SOURCES = [path for top in ("appliance", "services", "tests", "install") for ending in ("py", "sh") for path in (ROOT / top).rglob(f"*.{ending}")]
PLACES = (ROOT, ROOT / "appliance", ROOT / "tests")
"""Documents name files from here, or from where they lie."""
ENDINGS = ("py", "sh", "md", "toml", "yml", "ipynb", "mjs")
MADE_LATER = {
    "kafka-run-class.sh", "kafka-topics.sh", "kafka-reassign-partitions.sh",  # of a Kafka, where there is one
    "millrace.toml", "my_jobs.py",  # an operator's own
}  # fmt: skip
GENERATED = {
    "loadtest/BESIDE_KAFKA.md",
    "loadtest/MODEL.md",
    "loadtest/RESULTS.md",
}
"""Pages that a program writes or fills; their rows decide how long a line is."""
COLUMNS_MAX = 100
WRITTEN_BYTES_MAX = 350_000
"""Lower this when documents have become shorter; never raise it."""
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(rf"([\w./-]+\.(?:{'|'.join(ENDINGS)}))(?::\s*(.+))?")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
COMMAND = re.compile(r"(?:^\s*(?:sudo )?(?:\.venv/bin/)?|`(?:sudo )?(?:\.venv/bin/)?)millrace ([a-z][a-z -]*(?: [^`#|\n]*)?)", re.MULTILINE)


def prose(document: Path) -> str:
    return FENCED.sub(lambda match: "\n" * match.group().count("\n"), document.read_text())


def found(name: str, document: Path) -> Path | None:
    return next((place / name for place in (*PLACES, document.parent) if (place / name).is_file()), None)


def headings(document: Path) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)}


def words_of(path: Path) -> set[str]:
    return set(re.findall(r"\w+", path.read_text()))


def missing_names(document: Path) -> Iterator[str]:
    beside: Path | None = None
    for code in CODE.findall(prose(document)):
        match = FILE.fullmatch(code)
        if match is None or Path(match[1]).name in MADE_LATER or code.startswith("/"):
            continue
        path = found(match[1], document)
        if path is None and beside is not None and "/" not in match[1]:
            path = beside / match[1] if (beside / match[1]).is_file() else None  # "`a/one.py` and `two.py`"
        if path is None:
            yield code
            continue
        beside = path.parent
        names = re.findall(r"[A-Za-z_]\w*", match[2] or "")
        if names and not set(names) <= words_of(path):
            yield code


def missing_by_end_of_path(text: str) -> Iterator[str]:
    """Files are named by the end of their path, tests by the beginning of their name; some file with that end has all names."""
    for code in CODE.findall(text):
        match = FILE.fullmatch(code)
        if match is None:
            continue
        names = [rf"\b(test_)?{re.escape(name)}" for name in re.findall(r"\w+", match[2] or "")]
        paths = [path for path in SOURCES if path.as_posix().endswith(f"/{match[1]}")]
        if not any(all(re.search(name, path.read_text()) for name in names) for path in paths):
            yield code


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_what_stands_in_them_are_there(document: Path) -> None:
    missing = missing_by_end_of_path(prose(document)) if document.name == "INVARIANTS.md" else missing_names(document)
    assert list(missing) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(prose(document)):
        path = (document.parent / target) if target else document
        if target.startswith("http"):
            continue
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in headings(path)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def long_lines(document: Path) -> list[int]:
    """Numbers of the lines of prose that are too long; code blocks and tables may have longer ones."""
    lines = enumerate(prose(document).split("\n"), start=1)
    return [number for number, line in lines if len(line) > COLUMNS_MAX and not line.startswith("|")]


@pytest.mark.parametrize("document", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_wrapped_at_a_hundred_columns(document: Path) -> None:
    if str(document.relative_to(ROOT)) not in GENERATED:
        assert long_lines(document) == []


def test_the_lists_of_pages_that_need_no_wrapping_name_files_that_exist() -> None:
    names = {str(path.relative_to(ROOT)) for path in MARKDOWN}
    assert GENERATED - names == set()


def test_the_architecture_can_be_read_in_one_sitting() -> None:
    assert (ROOT / "ARCHITECTURE.md").stat().st_size <= 25 << 10


def test_every_decision_has_a_date() -> None:
    paragraphs = [part for part in (ROOT / "DECISIONS.md").read_text().split("\n\n")[2:] if not part.startswith("#")]
    assert [part for part in paragraphs if not re.match(r"\*\*\d{4}-\d\d-\d\d\. ", part)] == []


def test_every_check_and_every_test_that_is_to_hold_an_invariant_is_there() -> None:
    rows = re.findall(r"^\| (\d+) \| .* \| .* \| (.* \| .*) \|$", (ROOT / "INVARIANTS.md").read_text(), re.MULTILINE)
    assert [number for number, _ in rows] == [str(number) for number in range(1, len(rows) + 1)]
    assert [f"{number}: {code}" for number, cells in rows for code in missing_by_end_of_path(cells)] == []


def test_the_map_has_every_folder_and_the_layers_are_those_that_are_held() -> None:
    packages = {str(path.parent.relative_to(ROOT)) for top in ("appliance", "services") for path in ROOT.glob(f"{top}/*/__init__.py")}
    folders = packages | {"docs", "systemd", "lab", "tests", "install", "loadtest"}
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/map.md").read_text().partition("\n## Map\n")[2], re.MULTILINE)
    assert folders - {name for row in rows for name in CODE.findall(row)} == set()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    held = [line.replace("appliance.", "") for line in contracts[0]["layers"]]
    drawn = (ROOT / "ARCHITECTURE.md").read_text().partition("\n## Layers\n")[2].split("```\n")[1]
    assert [re.split(r"  +", line)[0] for line in drawn.splitlines()] == held


def test_commands_and_their_options_are_there() -> None:
    root = build_parser()
    wrong = []
    for document in DOCUMENTS:
        for text in COMMAND.findall(document.read_text()):
            command, words = root, text.split()
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
            if command is root and not words[0].startswith("ready"):
                wrong.append(f"{document.relative_to(ROOT)}: millrace {text}")
            elif not hasattr(command, "commands"):
                wrong += [
                    f"{document.relative_to(ROOT)}: {option} of millrace {text}" for option in re.findall(r"(?<![\w-])--[a-z-]+", text) if option not in options
                ]
    assert wrong == []


def test_each_command_for_those_who_come_from_kafka_is_one() -> None:
    """All of it is parsed, values included, and nothing is run."""
    rows = re.findall(r"^\| `(\S+\.sh)[^|]* \| `millrace ([^`]*)` \|$", (ROOT / "docs/coming-from-kafka.md").read_text(), re.MULTILINE)
    assert len(rows) > 12 and all(tool.startswith(("kafka-", "connect-")) for tool, _ in rows)
    for _, line in rows:
        command, words = build_parser(), line.split()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands"), line
        command.make_context(line, words)


def test_what_is_written_by_hand_does_not_grow() -> None:
    written, _ = markdown_bytes()
    assert written <= WRITTEN_BYTES_MAX, "say it once, where its reader looks for it, and cut elsewhere"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_page_of_docs_is_in_its_index() -> None:
    linked = {target for target, _ in LINK.findall((ROOT / "docs/README.md").read_text())}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - linked == {"README.md"}


def test_the_comparison_with_kafka_has_the_figures_that_were_measured() -> None:
    measured = (ROOT / "loadtest/BESIDE_KAFKA.md").read_text()
    page = (ROOT / "docs/comparison.md").read_text().partition("## Beside consoles")[0]
    cells = [cell for row in re.findall(r"^\|(?! \|)(?!-)(.*)\|$", page, re.MULTILINE) for cell in row.split(" | ")[1:]]
    figures = {figure for cell in cells for figure in re.findall(r"[\d.,]+", cell)}
    assert len(figures) > 20
    assert {figure for figure in figures if re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.,])", measured) is None} == set()
    ahead, even, behind = re.findall(r"\d+", re.findall(r"\d+ rows are ahead.*behind", measured)[0])
    assert f"{ahead} rows ahead of every Kafka, {even} even, {behind} behind" in " ".join(page.split())
