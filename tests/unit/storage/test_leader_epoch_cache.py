"""Which epoch began where (KIP-101, KIP-279)."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.storage.leader_epoch_cache import LeaderEpochCache
from tests.unit.storage.storage_support import failing_file_calls


def cache_of(path: Path, *starts: tuple[int, int]) -> LeaderEpochCache:
    cache = LeaderEpochCache(str(path))
    for leader_epoch, offset in starts:
        cache.assign(leader_epoch, offset)
    return cache


def test_the_latest_epoch_ends_at_the_log_end_and_others_where_the_next_begins(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, (2, 0), (4, 10), (5, 20))
    assert [cache.end_offset_for(epoch, 33) for epoch in (-1, 1, 2, 3, 4, 5, 6)] == [(-1, -1), (1, 0), (2, 10), (2, 10), (4, 20), (5, 33), (-1, -1)]
    assert [cache.epoch_at(offset) for offset in (0, 9, 10, 25)] == [2, 2, 4, 5]


def test_an_assignment_replaces_what_contradicts_it(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, (2, 0), (4, 10), (4, 15), (5, 20), (6, 20))
    assert cache.entries == ((2, 0), (4, 10), (6, 20))
    cache.assign(4, 5)
    assert cache.entries == ((2, 0), (4, 5))


def test_truncation_at_either_end(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, (2, 0), (4, 10), (5, 20))
    cache.truncate_from_end(20)
    assert cache.entries == ((2, 0), (4, 10))
    cache.truncate_from_start(12)
    assert cache.entries == ((4, 12),)
    again = LeaderEpochCache(str(tmp_path))
    assert again.load() and again.entries == ((4, 12),) and again.latest == 4


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, (2, 0))
    for fail_at in range(1, 5):
        with failing_file_calls(fail_at) as faults, pytest.raises(OSError):
            cache.assign(3, 5)
        assert cache.entries == ((2, 0),), faults.failed
    again = LeaderEpochCache(str(tmp_path))
    assert again.load() and again.entries == ((2, 0),)


@pytest.mark.parametrize("content", [b"0\n1\n", b"0\n2\n1 5\n2 5\n", b"0\n1\n1\n", b"\xff"])
def test_a_broken_checkpoint_is_distinguished_from_a_missing_one(tmp_path: Path, content: bytes) -> None:
    assert LeaderEpochCache(str(tmp_path)).load()
    (tmp_path / "leader-epoch-checkpoint").write_bytes(content)
    assert not LeaderEpochCache(str(tmp_path)).load()
