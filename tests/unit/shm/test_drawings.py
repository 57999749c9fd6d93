"""The drawings above the constants of appliance/shm against the constants: every line of a drawing, and every word that has a name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from appliance.shm import arena, counters, histogram, mapping, partition_table, ring
from appliance.shm.mapping import WORD_BYTES
from tests.conftest import ROOT

PAGES = [Path(ROOT, "appliance/shm/README.md"), *sorted(Path(ROOT, "appliance/shm").glob("*.py"))]
README = "\n".join(re.sub(r"^# ?", "", page.read_text(), flags=re.MULTILINE) if page.suffix == ".py" else page.read_text() for page in PAGES)
"""README.md, and the modules with their comments."""
ROW_WORDS = (
    "SEQUENCE TOPIC_ID_HIGH TOPIC_ID_LOW PARTITION_AND_GENERATION ROLE_AND_EPOCH LOG_START_OFFSET LOG_END_OFFSET HIGH_WATERMARK LAST_STABLE_OFFSET"
    " ISR_AND_CONFIG ACTIVE_BASE_OFFSET ACTIVE_POSITION WATERMARK_BASE_OFFSET WATERMARK_POSITION SEGMENT_LIST_GENERATION TRAILING_SEQUENCE"
).split()


def drawing(title: str) -> dict[str, int]:
    """Names and first bytes of the drawing whose comment begins with `title`."""
    section = re.split(rf"\n{title}[\w ]*: byte, name, meaning\.\n\n", README)[1].split("\n\n")[0]
    return {name: int(byte) for byte, name in re.findall(r"^│ *(\d+) │ ([A-Z_]+)[ │]", section, re.MULTILINE)}


def words_of(module: ModuleType) -> set[str]:
    """Names of words that a module defines, not those it imports."""
    source = Path(ROOT, f"{module.__name__.replace('.', '/')}.py").read_text()
    return set(re.findall(r"^([A-Z_]+_WORD)\b(?=.* =)", source, re.MULTILINE))


@pytest.mark.parametrize(
    ("title", "module"),
    [("Arena", arena), ("Ring pair", ring), ("Partition table", partition_table), ("Counters", counters)],
)
def test_words_and_positions_are_drawn_where_they_are(title: str, module: ModuleType) -> None:
    drawn = drawing(title)
    assert words_of(module) <= set(drawn), "a word is not drawn"
    for name, byte in drawn.items():
        constant = getattr(module, name)
        assert byte == (constant * WORD_BYTES if name.endswith("_WORD") else constant), name


def test_the_header_is_drawn_as_it_is() -> None:
    drawn = drawing("Header")
    assert drawn.pop("HEADER_BYTES") == mapping.HEADER_BYTES
    assert drawn == {name: getattr(mapping, name) * WORD_BYTES for name in drawn}
    assert list(drawn.values()) == list(range(0, 56, WORD_BYTES))


def test_a_row_is_drawn_word_by_word() -> None:
    drawn = drawing("Row")
    assert list(drawn) == ROW_WORDS and len(drawn) == partition_table.ROW_WORDS
    assert drawn == {name: getattr(partition_table, name) * WORD_BYTES for name in ROW_WORDS}


@pytest.mark.parametrize("module", ["arena", "ring", "partition_table", "counters"])
def test_every_purpose_and_number_in_the_text_is_the_codes(module: str) -> None:
    purpose = importlib.import_module(f"appliance.shm.{module}").PURPOSE
    assert len(purpose) == WORD_BYTES and f"magic {purpose.decode()} " in README


def test_numbers_in_the_text_are_the_codes() -> None:
    assert (partition_table.ROWS, partition_table.ROW_BYTES) == (10_000, 128) and "10,000 rows of 128 bytes" in README
    assert (counters.SLOTS, counters.LABEL_BYTES, counters.STATE_BYTES) == (1_000, 120, 24) and "1,000 labels of 120 bytes" in README
    assert (counters.HISTOGRAMS, histogram.BUCKETS) == (16, 104) and "16 histograms of 104 words" in README
    low, last = histogram.bucket_bounds_us(103)
    assert f"{low:,}-{last:,}" in README and f"{100 * histogram.ERROR_MAX:g} %" in README
    assert ring.ENTRY_BYTES == 64 and "capacity × 64 bytes" in README
    assert arena.MIN_ORDER == 10 and "n ≥ 10" in README
    assert partition_table.READ_RETRIES == 64 and "64 tries" in README
    states = ", ".join(f"{number} {name}" for number, name in enumerate(partition_table.DISK_STATE_NAMES))
    assert states in README


def test_words_that_others_poll_have_a_cache_line_of_their_own() -> None:
    polled = {
        "Arena": ["SLEEPING_WORD", "WATCHING_WORD"],
        "Ring pair": ["DESCRIPTOR_TAIL_WORD", "DESCRIPTOR_HEAD_WORD", "COMPLETION_TAIL_WORD", "COMPLETION_HEAD_WORD"],
        "Partition table": ["GENERATION_WORD", "SLEEPING_WORD", "FENCE_WORD"],
    }
    for title, names in polled.items():
        drawn = drawing(title)
        for name in names:
            line = drawn[name] // 64
            assert [other for other, byte in drawn.items() if byte // 64 == line] == [name]
