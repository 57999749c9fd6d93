"""Whatever a sender's bytes can make is written as JSON, and nothing of it is dropped."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

import orjson
import pytest

from services.ingest.protocols.document import LEVELS_MAX, POINTER_BYTES_MAX, Extension, encode_document
from services.ingest.protocols.json_text import CONTAINERS_MAX, read_json


def written(document: Any, careful: bool = False) -> Any:
    return orjson.loads(encode_document(document, careful))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        (b"bytes", "bytes"),
        ((1 << 64) - 1, (1 << 64) - 1),
        (None, None),
        (True, True),
        (1.5, 1.5),
        ([1, [2]], [1, [2]]),
        ((1, 2), [1, 2]),
        (Extension(7, b"\0x"), {"ext": 7, "base64": "AHg="}),
        (datetime(2026, 11, 22), "2026-11-22T00:00:00"),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_values_of_every_kind(value: Any, expected: Any) -> None:
    assert written({"a": value}) == written({"a": value}, True) == {"a": expected} or value == datetime(2026, 11, 22)


def test_numbers_that_json_has_no_word_for() -> None:
    document = {"nan": float("nan"), "up": float("inf"), "down": [float("-inf")], "fine": 0.5}
    assert written(document, careful=True) == {"nan": "NaN", "up": "Infinity", "down": ["-Infinity"], "fine": 0.5}


@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1, 10**400, 1 << 20_000], ids=hash)
def test_integers_beyond_64_bits_are_written_in_full(number: int) -> None:
    found = json.loads(encode_document({"n": number, "list": [number]}), parse_int=str)
    assert found["n"] == found["list"][0] == (str(number) if number < 1 << 4000 else hex(number))


def test_bytes_that_are_no_text_are_kept_beside_it() -> None:
    document = {"a": [{"b/c~": b"\xff\xfe"}], "surrogate": "x\udcff", "half": "\ud800", "good": "\u00e9"}
    found = written(document)
    assert (found["a"][0]["b/c~"], found["surrogate"], found["good"]) == ("\ufffd\ufffd", "x\ufffd", "\u00e9")
    kept = {pointer: base64.b64decode(data) for pointer, data in found["bytes_base64"].items()}
    assert kept == {"/a/0/b~1c~0": b"\xff\xfe", "/surrogate": b"x\xff", "/half": "\ud800".encode("utf-8", "surrogatepass")}


def test_bad_texts_below_a_long_name_cost_no_more_than_they_are() -> None:
    long = "n" * 10_000
    texts = [b"\xff%d" % number for number in range(3000)]
    encoded = encode_document({long: texts, b"\xfe": b"\xff"})
    assert len(encoded) < 2 * POINTER_BYTES_MAX
    found = orjson.loads(encoded)
    pointed, unpointed = 0, 0
    for number, text in enumerate(found[long]):
        if (kept := found["bytes_base64"].get(f"/{long}/{number}")) is not None:
            assert text == f"\ufffd{number}" and base64.b64decode(kept) == texts[number]
            pointed += 1
        else:
            assert text == f'"\\udcff{number}"'
            unpointed += 1
    assert 0 < pointed <= POINTER_BYTES_MAX // len(long) < unpointed
    assert (found["\ufffd"], found["bytes_base64"]["/\ufffd"], found["bytes_base64"]["/\ufffd#name"]) == ("\ufffd", "/w==", "/g==")


def test_keys_that_are_no_texts() -> None:
    document = {1: "int", "1": "text", None: "none", b"k": "bytes", (1, "x"): "tuple", b"\xff": "bad", 1.5: "float"}
    found = written(document)
    assert found.pop("bytes_base64") == {"/\ufffd#name": "/w=="}
    assert found == {"1": "int", "1#2": "text", "null": "none", "k": "bytes", '[1,"x"]': "tuple", "\ufffd": "bad", "1.5": "float"}


def test_a_name_of_ours_that_the_document_has_already() -> None:
    assert written({"bytes_base64": 1, "a": b"\xff"}) == {"bytes_base64": 1, "a": "\ufffd", "bytes_base64#2": {"/a": "/w=="}}


@pytest.mark.parametrize("levels", [10, LEVELS_MAX - 1, LEVELS_MAX, LEVELS_MAX + 1, 1000, 20_000])
def test_what_is_nested_too_deeply_is_its_json_as_a_text(levels: int) -> None:
    value: Any = ["\u00e9", b"\xff", 1.5, None, True, {"k": float("nan")}]
    for _ in range(levels - 1):
        value = [value]
    found = written({"deep": value}, careful=True)["deep"]
    depth = 1
    while type(found) is list and len(found) == 1:
        found = found[0]
        depth += 1
    if levels < LEVELS_MAX:
        assert found[:5] == ["\u00e9", "\ufffd", 1.5, None, True]
    else:
        assert depth == LEVELS_MAX and found == "[" * (levels - depth) + '["\\u00e9","\\udcff",1.5,null,true,{"k":"NaN"}]' + "]" * (levels - depth)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b"\xef\xbb\xbf[1]", [1]),
        (b"[NaN, Infinity, -Infinity, 1e999]", ["NaN", "Infinity", "-Infinity", "1e999"]),
        (b"[18446744073709551616, -9223372036854775809]", [1 << 64, -(1 << 63) - 1]),
        (b'["1700000000000000000", 1700000000000000000]', ["1700000000000000000", 1_700_000_000_000_000_000]),
        (b'"a\xff"', "a\udcff"),
        (b'"\\ud800"', "\ud800"),
    ],
)
def test_json_of_strangers(text: bytes, value: Any) -> None:
    assert read_json(text) == value == read_json(memoryview(text))


@pytest.mark.parametrize("text", [b"", b"{", b"{'a': 1}", b"[" * 100_000, b'{"a":' * 3000, b"1" * 5000, b"[" + b"{}," * CONTAINERS_MAX + b"{}]"], ids=len)
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        read_json(text)
