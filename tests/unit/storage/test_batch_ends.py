"""What is remembered of appended batches above the high watermark."""

from __future__ import annotations

from appliance.storage.batch_boundary import ENDS_MAX, BatchBoundary, BatchEnds


def test_ends_are_bounded_and_taken_in_order() -> None:
    ends = BatchEnds()
    for offset in range(2, 2 * ENDS_MAX + 100, 2):
        ends.add(BatchBoundary(offset, 0, offset * 10))
    assert len(ends) == ENDS_MAX
    assert ends.take(1) is None
    assert ends.take(7) == BatchBoundary(6, 0, 60)
    assert ends.take(7) is None, "what the high watermark has passed is forgotten"
    ends.add(BatchBoundary(5000, 0, 1))
    ends.add(BatchBoundary(5000, 5000, 0))
    assert ends.take(10_000) == BatchBoundary(5000, 5000, 0)
    assert len(ends) == 0
