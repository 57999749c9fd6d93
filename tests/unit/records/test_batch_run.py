"""Where the whole batches of a run end, however it is cut into parts."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from appliance.records.batch import RECORDS_AT, WholeBatches, whole_batches
from tests.support.cold_segments import stamped_batch

BATCHES = [stamped_batch(0, 3, 100), stamped_batch(3, 1, 5), stamped_batch(4, 7, 400), stamped_batch(20, 1, 0)]
NEXT = [3, 4, 11, 21]
RUN = b"".join(BATCHES)


def cut(data: bytes, places: list[int]) -> list[memoryview]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [memoryview(data[start:end]) for start, end in pairwise(edges) if end > start] or [memoryview(b"")]


@given(st.integers(0, len(RUN)), st.lists(st.integers(0, 10_000), max_size=3))
def test_the_run_ends_behind_its_last_whole_batch(end: int, places: list[int]) -> None:
    sizes = [len(batch) for batch in BATCHES]
    whole = [sum(sizes[: number + 1]) for number in range(len(sizes)) if sum(sizes[: number + 1]) <= end]
    found = whole_batches(cut(RUN[:end], places))
    if whole:
        assert found == WholeBatches(whole[-1], NEXT[len(whole) - 1], sizes[0])
    else:
        assert found == WholeBatches(0, -1, sizes[0] if end >= RECORDS_AT else 0)


def test_what_is_no_batch_is_not_measured() -> None:
    assert whole_batches([memoryview(bytes(200))]) is None
