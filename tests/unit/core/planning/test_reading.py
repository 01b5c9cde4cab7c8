"""Where the plan is in a reply: bare, fenced, between sentences; and what is no plan although it looks like one."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.bounds import DEEPEST
from chordage.orchestrator.core.planning.reading import load, plan_in

PLAN = {"next_action": "execute", "execution_commands": [{"tool_name": "a", "tool_kwargs": {"text": 'x "} {" \\ y'}}]}
TEXT = json.dumps(PLAN)


@pytest.mark.parametrize(
    "reply",
    [
        TEXT,
        f"\ufeff  {TEXT}\n",
        f"```json\n{TEXT}\n```",
        f"```\n{TEXT}",
        f'I think, as "they" say, it\'s 5" wide. Plan:\n{TEXT}\nThat is all {{for now}}.',
        f"With {{name}} and [see below] and {{ }} and [1]: {TEXT}",
        f'An example is {{"q": 1}}, mine is {TEXT}',
        f"{{{TEXT}}}",
        f'{{"broken": }} {TEXT}',
        json.dumps(PLAN, indent=2),
    ],
)
def test_plan_is_found_anywhere_in_the_text(reply):
    assert plan_in(reply) == PLAN


def test_of_two_plans_the_first_counts():
    assert plan_in(f'{{"next_action": "response"}} or {TEXT}') == {"next_action": "response"}


def test_an_object_without_a_plan_is_better_than_none():
    assert plan_in('see {"a": 1} and {"b": 2}') == {"a": 1}


@pytest.mark.parametrize("reply", [f"[{TEXT}]", f"Plans: [1, {TEXT}]", f'"{TEXT}'.replace('"', "'"), json.dumps(TEXT)])
def test_object_in_a_list_or_in_a_string_is_not_the_plan(reply):
    assert plan_in(reply) is None


def test_line_breaks_in_strings_are_accepted():
    assert plan_in('{"next_action": "execute", "a": "one\ntwo"}') == {"next_action": "execute", "a": "one\ntwo"}


def test_of_a_key_that_is_there_twice_the_first_counts():
    assert plan_in('{"next_action": "response", "next_action": "execute"}') == {"next_action": "response"}


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "9" * 5000])
def test_numbers_that_no_database_takes_are_not_read(number):
    assert plan_in(f'{{"next_action": "execute", "a": {number}}}') is None
    with pytest.raises(ValueError):
        load(f"[{number}]")


def test_what_is_nested_too_deep_is_not_read():
    assert load("[" * DEEPEST + "]" * DEEPEST)
    with pytest.raises(ValueError, match="more than 100 deep"):
        load("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1))


@given(st.text(alphabet='{}[]",:\\a1 ', max_size=60))
def test_no_text_is_too_broken_to_be_looked_at(text):
    assert plan_in(text) is None or isinstance(plan_in(text), dict)


@pytest.mark.parametrize("unit", ['{"a":', '[{"', '{ "', '"', '\\"', "{", '{"a":1}', "[["], ids=repr)
def test_reading_takes_time_in_proportion_to_the_text(unit):
    """Read again from every bracket, half a megabyte would take minutes; the bound is a hundred times what it takes."""
    began = time.perf_counter()
    plan_in(unit * (500_000 // len(unit)))

    assert time.perf_counter() - began < 20
