"""The line of a key is found in whatever way TOML lets one write it."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.gateways.room.files import line_of, line_of_item

TEXT = '''# model = "in a comment"
model = "m"  # limits = 1
instructions = """
strategy = "in a text"
[limits]
"""
other = \'\'\'
name = "no"
\'\'\'
tools = [
  "a:b",  # "c:d" is below
  'c:d',
  { strategy = "inline" },
]
limits.max_rounds = 3
"odd key".inner = "= [ {"

[params]
temperature = 0.5
inline = { deep = 1, deeper = { deepest = 2 } }

  [ models . "my local" ]
  wire = "x"

[[list]]
name = "first"
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("model",), 2),
        (("instructions",), 3),
        (("other",), 7),
        (("tools",), 10),
        (("limits", "max_rounds"), 15),
        (("odd key", "inner"), 16),
        (("params",), 18),
        (("params", "temperature"), 19),
        (("params", "inline", "deep"), 20),
        (("models", "my local", "wire"), 23),
        (("list", 0, "name"), 26),
        (("list", "name"), 25),
        (("params", "missing"), 18),
        (("missing",), 1),
        (("strategy",), 1),
    ],
)
def test_a_key_is_found_or_else_its_table(path, line):
    tomllib.loads(TEXT)
    assert line_of(TEXT, path) == line


def test_windows_line_ends_count_once():
    assert line_of('a = 1\r\n\r\n[b]\r\nc = """\r\n\r\n"""\r\nd = 1\r\n', ("b", "d")) == 7


def test_an_item_of_a_list_is_found_in_the_list():
    assert line_of_item(TEXT, ("tools",), "a:b") == 11
    assert line_of_item(TEXT, ("tools",), "c:d") in {11, 12}
    assert line_of_item(TEXT, ("tools",), "not there") == 10


KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=6)
VALUES = st.sampled_from(
    ["1", '"# = ["', "[\n1,\n2]", '"""\na = 1\n"""', "'''\n[x]\n'''", "{ a = 1 }", '"\\""', "true # = ["]
)


@given(st.lists(st.tuples(KEYS, VALUES, st.integers(0, 2)), min_size=1, max_size=6, unique_by=lambda entry: entry[0]))
def test_each_of_any_keys_is_found_on_its_line(entries):
    lines: list[str] = []
    expected = {}
    for key, value, blank in entries:
        lines += [""] * blank
        quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
        expected[key] = len(lines) + 1
        lines += f"{quoted} = {value}".split("\n")
    text = "\n".join(lines)
    tomllib.loads(text)
    assert {key: line_of(text, (key,)) for key in expected} == expected
