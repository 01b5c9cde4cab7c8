"""Verbs and where they may be used; and what makes two requests the same."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chordage.orchestrator.core.errors import StepRefused
from chordage.orchestrator.core.model import UserSays
from chordage.orchestrator.core.settling import check_allowed
from chordage.orchestrator.core.stepping import ALLOWED, Standing, Verb, digest

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
#                 queued ready requesting held tooling waiting parked failed done
TABLE = {
    "next": "x x . x . . x x .",
    "messages": "x x . x . . x x .",
    "steer": "x x x x x x x x .",
    "params": "x x . x . . x x .",
    "options": "x x x x x x x x .",
    "compact": "x x x x x x x x .",
    "plan": ". x . x . . x x .",
    "tool_response": ". . . x x . x . .",
    "retry": ". . . x . . x . .",
    "tool_results": ". . . x x . x . .",
    "hold": ". . . x . . x . .",
    "decide": ". x x x x x x x .",
    "park": ". x . x . . . x .",
    "run": "x x x x x x x x .",
    "cancel": "x x x x x x x x .",
}
CELLS = [
    (verb, standing, mark == "x")
    for verb, marks in TABLE.items()
    for standing, mark in zip(Standing, marks.split(), strict=True)
]


def test_the_table_has_a_line_for_every_verb():
    assert set(TABLE) == set(Verb) == set(ALLOWED)


@pytest.mark.parametrize(("verb", "standing", "is_allowed"), CELLS)
def test_verb_is_accepted_where_the_table_allows(verb, standing, is_allowed):
    if is_allowed:
        check_allowed(Verb(verb), standing, 7)
        return
    with pytest.raises(StepRefused, match=rf"this one is {standing.value} \(rev 7\)") as refused:
        check_allowed(Verb(verb), standing, 7)
    assert (refused.value.code, refused.value.rev, refused.value.standing) == ("not_allowed", 7, standing.value)


def test_two_requests_are_equal_if_verb_and_parameters_are():
    said = (UserSays(text="hi"),)

    assert digest(said, {"a": 1, "b": 2}) == digest(said, {"b": 2, "a": 1})
    assert digest(said, {}) != digest((UserSays(text="ho"),), {})
    assert digest(said, {}) != digest(said, {"temperature": 0})
