"""What is too large or too deep is refused before a parser sees it, and nothing else is."""

from __future__ import annotations

import json
import time
import tomllib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core import bounds

DEEP, AT_THE_LIMIT = bounds.DEEPEST + 1, bounds.DEEPEST


def lists(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "text",
    [
        lists(DEEP), "[" * 100_000, '{"a":' * 100_000, '["]",' * DEEP + "1" + "]" * DEEP, "[" * 100_000 + "}" * 100_000,
        lists(DEEP).encode("utf-16"), b"\xef\xbb\xbf" + lists(DEEP).encode(), '[{"a":' * 60 + "1" + "}]" * 60,
    ],
    ids=["closed", "open", "objects", "hidden", "crossed", "utf-16", "bom", "mixed"],
)  # fmt: skip
def test_json_that_is_too_deep_is_refused(text):
    with pytest.raises(ValueError, match="more than 100 deep"):
        bounds.loads_json(text)
    assert bounds.is_too_deep(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize(
    "value",
    [json.loads(lists(AT_THE_LIMIT)), ["[" * 500, '\\"[' * 500, {"{" * 300: "]"}], [[] for _ in range(5000)]],
    ids=["limit", "strings", "wide"],
)
def test_json_within_the_bounds_is_read(value):
    assert bounds.loads_json(json.dumps(value)) == value
    assert not bounds.is_too_deep(json.dumps(value).encode())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{}"\\a'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[]{}"\\a'), inner, max_size=3),
    max_leaves=30,
)


@given(values, st.lists(st.booleans(), max_size=150))
def test_depth_of_text_is_the_depth_of_its_value(value, around):
    for is_object in around:
        value = {"a": value} if is_object else [value]

    too_deep = bounds.depth_of(value) > bounds.DEEPEST

    assert bounds.is_too_deep(json.dumps(value).encode()) == too_deep


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"a = 1\n\nb = {lists(DEEP)}", 3), ("a = 1\nb = " + "[" * 2000, 2), ("a = " + "{b=" * DEEP, 1),
        ("x = 1\n" + ".".join("k" * 2000) + " = 1", 2), ("[" + ".".join("k" * 2000) + "]", 1),
        ("x = 1\ny = " + "1" * 5000, 2), ("# " + "x" * bounds.TEXT_BYTES, 1),
    ],
)  # fmt: skip
def test_toml_that_is_too_deep_or_too_long_is_refused_with_its_line(text, line):
    with pytest.raises(tomllib.TOMLDecodeError, match=rf"\(at line {line}, column 1\)"):
        bounds.loads_toml(text)


def test_toml_within_the_bounds_is_read():
    text = f'a = \'{"[" * 500}\'\nb = """{"[" * 500}""" # {"[" * 500}\nc = {lists(90)}\n' + "[t]\nx=[]\n[[u]]\n" * 1

    assert bounds.loads_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml.CSafeLoader])
@pytest.mark.parametrize("text", ["a: " + "[" * 100_000, "{a: " * 100_000, "- " * 50_000, "? " * 50_000])
def test_yaml_that_is_too_deep_is_refused_with_its_line(loader, text):
    began = time.monotonic()

    with pytest.raises(yaml.MarkedYAMLError, match="more than 100 deep") as refused:
        bounds.check_yaml(f"# first\n{text}", loader)

    assert refused.value.problem_mark.line == 1
    assert time.monotonic() - began < 10


def test_depth_of_a_value_is_counted_without_a_call_for_each_level():
    value = []
    for _ in range(100_000):
        value = [value]

    assert bounds.depth_of(value) == DEEP
    while value:  # taken apart here: Python itself frees so deep a value call by call
        value = value[0]


def test_invalid_json_is_reported_by_the_parser():
    with pytest.raises(json.JSONDecodeError, match="Expecting value"):
        bounds.loads_json("nonsense")
