"""The YAML layer: what is read as what, where it stands, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemdl.config.yaml_layer import MAX_CHARACTERS, dump_yaml, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("-0.25", -0.25),
        ("12", 12),
        ("-7", -7),
        ("0", 0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("off", "off"),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("12:30:15", "12:30:15"),
        ("2019-04-13", "2019-04-13"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("'1e-3'", "1e-3"),
        ('"true"', "true"),
        ("9" * 400, "9" * 400),
        ("=", "="),
    ],
)
def test_scalars(text: str, value: object) -> None:
    document = parse_yaml(f"key: {text}\n")
    assert document.faults == []
    found = document.data["key"]
    assert found == value
    assert type(found) is type(value)


def test_lines_of_keys_and_items() -> None:
    document = parse_yaml("# comment\na:\n  b: 1\n\n  c: [1,\n   2]\nd: {e: 3}\n")
    lines = document.lines
    assert {path: lines[path] for path in [("a",), ("a", "b"), ("a", "c"), ("a", "c", 1), ("d",), ("d", "e")]} == {
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "c"): 5,
        ("a", "c", 1): 6,
        ("d",): 7,
        ("d", "e"): 7,
    }


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb:\n  c: 2\n  c: 3\n", 4, "'c' again, after line 3"),
        ("a: 1\nb: 2\na: 3\n", 3, "'a' again, after line 1"),
        ("a: !!python/object/apply:os.system [echo]\n", 1, "tag"),
        ("a: !!int 1\n", 1, "tag"),
        ("a: 1\nb: &x [1]\nc: *x\n", 2, "anchor"),
        ("a:\n\tb: 1\n", 2, "\\t"),
        ("a: [1, 2\n", 2, "flow sequence"),
        ("a: 1\n b: 2\n", 2, "mapping values"),
        ("a: 1\n---\nb: 2\n", 2, "single document"),
        ("a: b\x01c\n", 1, "U+0001"),
        ('a: 1\nb: "x\\0y"\n', 2, "control character"),
        ('a: "\\ud800"\n', 1, "control character"),
        ("? [1, 2]\n: 3\n", 1, "no name"),
        ("[" * 40 + "]" * 40, 1, "depth"),
    ],
)
def test_refused(text: str, line: int, words: str) -> None:
    faults = parse_yaml(text).faults
    assert len(faults) == 1
    assert faults[0].line == line
    assert words in faults[0].found


def test_tabs_are_explained() -> None:
    assert "spaces" in parse_yaml("a:\n\tb: 1\n").faults[0].allowed


def test_several_faults_at_once() -> None:
    faults = parse_yaml("a: 1\na: 2\nb: 3\nb: 4\n").faults
    assert [fault.path for fault in faults] == [("a",), ("b",)]


def test_size_is_checked_before_parsing() -> None:
    start = time.process_time()
    faults = parse_yaml("[" * (MAX_CHARACTERS + 1)).faults
    assert "characters" in faults[0].found
    assert time.process_time() - start < 10  # a guard against hanging, not a speed


@pytest.mark.parametrize("bomb", ["[" * MAX_CHARACTERS, "{a: " * (MAX_CHARACTERS // 4), "- " * (MAX_CHARACTERS // 2)])
def test_bombs_end_early(bomb: str) -> None:
    assert "depth" in parse_yaml(bomb).faults[0].found


def test_merge_keys_have_no_meaning() -> None:
    assert parse_yaml("<<: {a: 1}\n").data == {"<<": {"a": 1}}


_text = st.text("0123456789 .eE+-_:#'\"[]{},&*!|>?%@`~=<nulltrefasyÅ\xa0\u3000😀", max_size=10)
_scalar = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**18), 10**18), st.floats(allow_nan=False, allow_infinity=False), _text
)
_keys = _text.filter(lambda key: key != "?")
_nested = st.recursive(
    _scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3), max_leaves=8
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(_keys, _nested, max_size=4))
def test_what_is_written_reads_back(data: dict[str, Any]) -> None:
    document = parse_yaml(dump_yaml(data))
    if not any("depth" in fault.found for fault in document.faults):
        assert document.faults == []
        assert repr(document.data) == repr(data)  # repr also tells 1 from 1.0 and True


@pytest.mark.parametrize(
    "text", ["1e3", "yes", "null", "", "0.5", "~", "- a", "a: b", "#", " x ", "'", '"', "@", "010"]
)
def test_text_that_looks_like_something_else(text: str) -> None:
    assert parse_yaml(dump_yaml({"key": text, "list": [text]})).data == {"key": text, "list": [text]}
