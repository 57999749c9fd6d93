"""Numbers in configs: nothing that Java would refuse is taken, and what is taken our own readers can read."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.base.config_numbers import parse_double, parse_integer
from appliance.cluster.topic_configs import TOPIC_CONFIG_ROWS, topic_config_problem

JAVA_LONG = re.compile(r"[+-]?[0-9]+")
JAVA_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)")
NUMBERLIKE = st.text(st.sampled_from("0123456789_+-.eEfFdDnaif \t\u0663\u00b2\x00"), max_size=12)


@given(NUMBERLIKE)
@example("1_000")
@example("1_0e-2")
@example("\u0663")
def test_what_is_taken_java_takes_and_python_reads_alike(text: str) -> None:
    whole, double = parse_integer(text), parse_double(text)
    java_text = text.strip("".join(map(chr, range(33))))
    assert whole is None or (JAVA_LONG.fullmatch(java_text) and int(text) == whole)
    assert double is None or (JAVA_DOUBLE.fullmatch(java_text) and float(text) == double)


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["", " ", "\t", "\n"]))
def test_every_number_as_it_is_usually_written_is_taken(whole: int, double: float, space: str) -> None:
    assert parse_integer(f"{space}{whole}{space}") == whole and parse_double(f"{space}{double!r}") == double


@pytest.mark.parametrize("text", ["1_000", "1_0e-2", "", "-", "0x10", "1e3", "1 000", "\u0661", "9" * 10_000, "1L", "\x001"])
def test_no_topic_config_takes_what_is_no_number_to_kafka(text: str) -> None:
    numeric = [row.name for row in TOPIC_CONFIG_ROWS.values() if row.type in ("int", "long") or (row.type == "double" and text != "1e3")]
    assert len(numeric) > 20 and all(topic_config_problem({name: text}) is not None for name in numeric)
