"""Rows into files by date: an impossible date raises nothing, and a text with slashes creates no
directories of its own.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from appliance.pipeline.stream_job import follow_hosts
from appliance.pipeline.table_parts import TableParts

YEAR_10000_DAYS = 2_932_897
MINUTES = pa.timestamp("us", "UTC")


def paths(tmp_path: Path, dates: pa.Array) -> dict[str, int]:
    parts = TableParts(str(tmp_path), "rows", 0, 0, "a")
    parts.add(pa.record_batch([dates, pa.array(range(len(dates)))], names=["date", "number"]))
    done = parts.finish()
    assert all(pq.ParquetFile(f"{tmp_path}/{part.staged}").metadata.num_rows == part.rows for part in done)
    return {part.path: part.rows for part in done}


def test_dates_beyond_the_year_9999_are_rows_without_a_date(tmp_path: Path) -> None:
    dates = pa.array([0, YEAR_10000_DAYS, None, -800_000, 2_000_000_000], pa.int32()).cast(pa.date32())
    assert paths(tmp_path, dates) == {
        "rows/date=1970-01-01/part-00000000-00000.parquet": 1,
        "rows/date=__HIVE_DEFAULT_PARTITION__/part-00000000-00000.parquet": 4,
    }


def test_a_text_as_date_is_one_directory_whatever_is_in_it(tmp_path: Path) -> None:
    found = paths(tmp_path, pa.array(["22/11/2026", "../../x", "50%", "2026-11-22", ""]))
    assert [path.split("/")[1] for path in found] == [
        "date=22%2F11%2F2026",
        "date=..%2F..%2Fx",
        "date=50%25",
        "date=2026-11-22",
        "date=__HIVE_DEFAULT_PARTITION__",
    ]
    assert {path.count("/") for path in found} == {2}


def test_hosts_of_minutes_beyond_the_year_9999_are_not_followed() -> None:
    rows = pa.table({"minute": pa.array([60_000_000, YEAR_10000_DAYS * 86_400_000_000], MINUTES), "host": ["a", "b"]})
    more = follow_hosts(5, {}, rows)
    assert [(row["host"], row["event"]) for row in more.rows] == [("a", "new")]
