"""Configs of groups: values, bounds, the document in ZooKeeper."""

from __future__ import annotations

import pytest

from appliance.base.setting_rows import SETTING_ROWS
from appliance.cluster.group_configs import (
    GROUP_CONFIG_ROWS,
    decode_group_configs,
    encode_group_configs,
    group_config_problem,
    group_number,
    group_text,
)
from appliance.cluster.znodes import DocumentUnreadable

LOCK = "share.record.lock.duration.ms"


def test_each_config_has_a_value_without_the_group() -> None:
    assert all(bool(row.default) != (row.setting in SETTING_ROWS) for row in GROUP_CONFIG_ROWS.values())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [(LOCK, "15000", None), (LOCK, "14999", "15000 to 60000"), (LOCK, "soon", "15000 to 60000"), ("share.isolation.level", "x", "or"), ("no", "1", "Unknown")],
)
def test_bounds_are_kafkas(name: str, value: str, words: str | None) -> None:
    problem = group_config_problem({name: value}, {})
    assert problem is None if words is None else words in (problem or "")


def test_an_invalid_value_of_another_program_is_not_used() -> None:
    configs = {"g": {LOCK: "20000", "share.session.timeout.ms": "1", "share.auto.offset.reset": "never"}}
    assert (group_number(configs, "g", LOCK, 5), group_number(configs, "g", "share.session.timeout.ms", 5), group_number(configs, "h", LOCK, 5)) == (
        20_000,
        5,
        5,
    )
    assert group_text(configs, "g", "share.auto.offset.reset", "latest") == "latest"


def test_groups_without_configs_leave_the_document() -> None:
    configs = {"a/b": {LOCK: "20000"}, "gone": {}}
    assert decode_group_configs(encode_group_configs(configs)) == {"a/b": {LOCK: "20000"}}
    assert decode_group_configs(b"") == {}


@pytest.mark.parametrize("document", [b"[]", b"?", b"{}", b'{"version":2,"groups":{}}', b'{"version":1,"groups":{"a":1}}', b'{"version":1,"groups":[]}'])
def test_what_is_no_such_document_is_not_taken_for_an_empty_one(document: bytes) -> None:
    with pytest.raises(DocumentUnreadable, match="/config/groups"):
        decode_group_configs(document)
