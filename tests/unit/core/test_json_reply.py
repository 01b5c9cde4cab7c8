"""The one JSON value of a reply: found where there is no doubt, refused where there is."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.output import DEPTH, NoValue, value_in

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def why(text: str) -> str:
    with pytest.raises(NoValue) as refusal:
        value_in(text)
    return str(refusal.value)


@given(VALUES, st.booleans())
def test_any_value_is_read_as_it_was_written_alone_or_in_a_fence(value, indented):
    text = json.dumps(value, indent=2 if indented else None, ensure_ascii=False)
    assert value_in(text) == value
    assert value_in(f"Here it is:\n```json\n{text}\n```\nAs [you] wished.") == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        ' \n{"a": 1}\n ',
        '\ufeff{"a": 1}',
        '```json\n{"a": 1}\n```',
        '```JSON\n{"a": 1}\n```',
        '```\n{"a": 1}\n```',
        '  ```json\r\n  {"a": 1}\r\n  ```\r\n',
        '```json {"a": 1} ```',
        '```json\n{"a": 1}',
        'Sure! The answer is {"a": 1}.',
        'First:\n```python\nprint("no")\n```\nand then:\n```json\n{"a": 1}\n```',
        'See {this}:\n```json\n{"a": 1}\n```',
    ],
)
def test_value_is_found_behind_a_fence_and_between_text(text):
    assert value_in(text) == {"a": 1}


def test_a_fenced_text_or_number_is_a_value_too():
    assert value_in('```json\n"yes"\n```') == "yes"
    assert value_in("7") == 7


def test_a_fence_inside_a_string_ends_no_block():
    value = {"code": "```py\nx\n```", "line": "one\u2028two"}
    assert value_in(f"```json\n{json.dumps(value, ensure_ascii=False)}\n```") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("I cannot say.", "it is not one JSON value"),
        ('{"a": 1', "it is not one JSON value"),
        ('{"a": 1} {"b": 2}', "it is not one JSON value"),
        ('{"a": 1}\n{"b": 2}', "it is not one JSON value"),
        ('As shown in [1], {"a": 1}', "it is not one JSON value"),
        ('{"a": [1, 2], "b":', "it is not one JSON value"),
        ("{'a': 1}", "it is not one JSON value"),
        ('```json\n{"a": 1}\n```\nor\n```json\n{"a": 2}\n```', "it holds 2 blocks of JSON"),
        ('```\n{"a": 1}\n```\n```\n{"a": 2}\n```', "it holds 2 blocks of JSON"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' occurs twice"),
        ('{"a": NaN}', "NaN is no JSON"),
        ('{"a": -Infinity}', "-Infinity is no JSON"),
        ('{"a": 1e999}', "the number 1e999 is too large"),
        ("9" * 5000, "it is not one JSON value: Exceeds the limit"),
        ("[" * (DEPTH + 1) + "]" * (DEPTH + 1), f"nested more than {DEPTH} levels deep"),
        ("[" * 100_000 + "]" * 100_000, f"nested more than {DEPTH} levels deep"),
        ("[" * 100_000, "it is n"),
    ],
)
def test_what_is_no_single_value_is_refused_with_the_reason(text, says):
    assert says in why(text)


def test_place_of_a_mistake_is_reported():
    assert why('{"a": 1,\n "b": tru}') == (
        'it is not one JSON value: Expecting value at line 2, column 7, near \'{"a": 1,\\n "b": tru}\''
    )


def test_values_as_deep_as_allowed_are_read():
    text = "[" * DEPTH + "]" * DEPTH
    assert json.dumps(value_in(text)) == text


@pytest.mark.parametrize("piece", ["```json\n", "{", "[1,", '{"a":', "`", '"', "```\n"])
def test_no_text_takes_more_time_than_its_length(piece):
    started = time.process_time()
    with pytest.raises(NoValue):
        value_in(piece * 200_000)
    assert time.process_time() - started < 20, "its square would take hours"
