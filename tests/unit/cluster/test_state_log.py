"""Where groups and transactional ids belong, against numbers that Java's String.hashCode gives."""

from __future__ import annotations

import pytest

from appliance.cluster.state_log import partition_of


@pytest.mark.parametrize(
    ("name", "hash_code"),
    [("", 0), ("hello", 99162322), ("polygenelubricants", -(1 << 31)), ("Aa", 2112), ("BB", 2112), ("ä", 228), ("💡", 1772548), ("syslog-loader", -639769271)],
)
def test_a_group_belongs_to_the_partition_that_java_finds(name: str, hash_code: int) -> None:
    expected = 0 if hash_code == -(1 << 31) else abs(hash_code) % 50
    assert partition_of(name, 50) == expected
