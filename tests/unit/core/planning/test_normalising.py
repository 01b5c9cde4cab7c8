"""From whatever a planner returned to a decision. A number such as A12 names the behaviour in the list of scenarios."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.planning.plan import NextAction, NoteKind, PlanEnd, decision_from
from chordage.orchestrator.core.planning.reading import NORMALISER_VERSION, cut_short, normalise

C: dict[str, Any] = {"purpose": "look", "tool_name": "search", "tool_kwargs": {"q": "x"}, "todo_suggestion": "read"}
D = {**C, "purpose": "look again"}
EXECUTES = None

TABLE = [
    ("null", None, PlanEnd.UNREADABLE),
    ("text that holds no object", "I would search.", PlanEnd.UNREADABLE),
    ("a list", [C], PlanEnd.UNREADABLE),
    ("a number", 7, PlanEnd.UNREADABLE),
    ("true", True, PlanEnd.UNREADABLE),
    ("empty object", {}, PlanEnd.NO_COMMANDS),
    ("no commands anywhere", {"thought": "hm"}, PlanEnd.NO_COMMANDS),
    ("execution_commands alone", {"execution_commands": [C]}, EXECUTES),
    ("execution_commands and execute", {"next_action": "execute", "execution_commands": [C]}, EXECUTES),
    ("tool_commands", {"tool_commands": [C]}, EXECUTES),
    ("one tool_command", {"tool_command": C}, EXECUTES),
    ("fix: an empty list gives way to tool_commands", {"execution_commands": [], "tool_commands": [C]}, EXECUTES),
    ("null gives way to tool_commands", {"execution_commands": None, "tool_commands": [C]}, EXECUTES),
    ("an empty list gives way to tool_command", {"execution_commands": [], "tool_command": C}, EXECUTES),
    ("no command that can be read gives way to tool_command", {"tool_commands": [1], "tool_command": C}, EXECUTES),
    ("a list none of which can be read does not give way", {"execution_commands": [1], "tool_commands": [C]},
     PlanEnd.NO_COMMANDS),
    ("execution_commands is an object", {"execution_commands": C}, PlanEnd.NO_COMMANDS),
    ("tool_command is a list", {"tool_command": [C]}, PlanEnd.NO_COMMANDS),
    ("response with commands", {"next_action": "response", "execution_commands": [C]}, PlanEnd.RESPONSE),
    ("EXECUTE", {"next_action": "EXECUTE", "execution_commands": [C]}, EXECUTES),
    ("fix: padded execute", {"next_action": " execute ", "execution_commands": [C]}, EXECUTES),
    ("fix: padded response is a response", {"next_action": "RESPONSE ", "execution_commands": [C]}, PlanEnd.RESPONSE),
    ("an unknown action is inferred", {"next_action": "finish", "execution_commands": [C]}, EXECUTES),
    ("an unknown action without commands", {"next_action": "finish"}, PlanEnd.NO_COMMANDS),
    ("a blank action is inferred", {"next_action": " ", "execution_commands": [C]}, EXECUTES),
    ("an action that is no text is inferred", {"next_action": 1, "execution_commands": [C]}, EXECUTES),
    ("execute without commands", {"next_action": "execute"}, PlanEnd.NO_COMMANDS),
    ("execute without a command that can be read", {"next_action": "execute", "execution_commands": [{}, "x"]},
     PlanEnd.NO_COMMANDS),
    ("use_tool false with commands", {"use_tool": False, "execution_commands": [C]}, PlanEnd.USE_TOOL_FALSE),
    ("use_tool false with execute", {"use_tool": False, "next_action": "execute", "execution_commands": [C]},
     PlanEnd.USE_TOOL_FALSE),
    ("use_tool true with response", {"use_tool": True, "next_action": "response"}, PlanEnd.RESPONSE),
    ("use_tool true without commands", {"use_tool": True}, PlanEnd.NO_COMMANDS),
    ("use_tool 'false' is ignored", {"use_tool": "false", "execution_commands": [C]}, EXECUTES),
    ("use_tool 0 is ignored", {"use_tool": 0, "execution_commands": [C]}, EXECUTES),
]  # fmt: skip

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = ["next_action", "use_tool", "execution_commands", "tool_commands", "tool_command", "todo_suggestion", "next"]
commands = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("purpose", "tool_name", "tool_kwargs", "todo_suggestion", "next"), json_values)
)
plans = st.dictionaries(st.sampled_from(KEYS), json_values | commands | st.lists(commands | json_values, max_size=3))


def kinds(decision):
    return [note.kind for note in decision.notes]


@pytest.mark.parametrize(("raw", "ends"), [row[1:] for row in TABLE], ids=[f"A12 {row[0]}" for row in TABLE])
def test_every_shape_of_a_plan_has_one_reading(raw, ends):
    decision = normalise(raw)

    assert decision.ends is ends
    assert decision.next_action is (NextAction.EXECUTE if ends is None else NextAction.RESPONSE)
    assert decision.as_json()["use_tool"] is (ends is None)
    assert [one.as_json() for one in decision.commands] == ([{**C, "next": "read"}] if ends is None else [])
    assert decision.version == NORMALISER_VERSION


@pytest.mark.parametrize("raw", [row[1] for row in TABLE if not isinstance(row[1], str)], ids=repr)
def test_a_plan_reads_the_same_as_a_value_and_as_text(raw):
    value, text = normalise(raw), normalise(json.dumps(raw))

    assert (text.ends, text.commands) == (value.ends, value.commands)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, [NoteKind.NOT_AN_OBJECT]),
        ("no plan", [NoteKind.NO_JSON_OBJECT]),
        ({"next_action": "execute", "execution_commands": [C]}, []),
        ({"execution_commands": [C]}, [NoteKind.ACTION_INFERRED]),
        ({"next_action": "finish", "execution_commands": [C]}, [NoteKind.ACTION_INFERRED]),
        ({"next_action": " Execute", "execution_commands": [C]}, [NoteKind.ACTION_RESPELLED]),
        ({"next_action": "execute", "execution_commands": [C], "use_tool": "no"}, [NoteKind.USE_TOOL_IGNORED]),
        ({"next_action": "execute", "tool_commands": [C]}, [NoteKind.OLDER_KEY]),
        ({"next_action": "execute", "tool_command": C}, [NoteKind.OLDER_KEY]),
        ({"next_action": "execute", "execution_commands": [C], "tool_commands": [D]}, [NoteKind.KEY_IGNORED]),
        ({"next_action": "execute", "execution_commands": [C], "tool_command": D}, [NoteKind.KEY_IGNORED]),
        ({"next_action": "response", "execution_commands": []}, [NoteKind.EMPTY_LIST_PASSED_OVER]),
        ({"next_action": "response", "execution_commands": C}, [NoteKind.WRONG_CONTAINER]),
        ({"next_action": "response", "tool_command": [C]}, [NoteKind.WRONG_CONTAINER]),
        ({"next_action": "response", "execution_commands": [C]}, [NoteKind.COMMANDS_UNUSED]),
        ({"next_action": "execute", "execution_commands": [C, 3]}, [NoteKind.COMMAND_DROPPED]),
        ({"next_action": "execute", "execution_commands": [{**C, "purpose": ""}]}, [NoteKind.PURPOSE_FILLED]),
        ({"next_action": "execute", "execution_commands": [{**C, "kwargs": {}}]}, [NoteKind.KEY_UNKNOWN]),
        ({"action": "go", "next_action": "execute", "execution_commands": [C]}, [NoteKind.KEY_UNKNOWN]),
        ({"next_action": "execute", "execution_commands": [{**C, "tool_kwargs": "{}"}]}, [NoteKind.KWARGS_REPLACED]),
    ],
    ids=repr,
)
def test_nothing_is_dropped_or_repaired_in_silence(raw, expected):
    assert kinds(normalise(raw)) == expected


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("kwargs", "'kwargs'; did you mean tool_kwargs?"),
        ("tool_kwarg", "'tool_kwarg'; did you mean tool_kwargs?"),
        ("name", "'name'; did you mean tool_name?"),
        ("x" * 100, f"'{'x' * 80}'..."),
    ],
)
def test_a_key_that_nothing_reads_is_named_with_the_one_that_was_meant(key, told):
    decision = normalise({"next_action": "execute", "execution_commands": [C, {**D, key: 1}]})

    assert [(note.kind, note.place, note.detail) for note in decision.notes] == [(NoteKind.KEY_UNKNOWN, 1, told)]


def test_a_decision_that_is_sent_back_has_no_unknown_keys():
    decision = normalise({"next_action": "execute", "execution_commands": [C]})

    assert normalise(decision.as_json()).notes == ()


@pytest.mark.parametrize(
    "bad", [3, "search", None, [C], {}, {"tool_name": ""}, {"tool_name": " \t"}, {"tool_name": 5}], ids=repr
)
def test_a_command_that_cannot_be_read_is_dropped_and_its_neighbours_are_kept(bad):
    """A13"""
    decision = normalise({"next_action": "execute", "execution_commands": [C, bad, D]})

    assert [one.purpose for one in decision.commands] == ["look", "look again"]
    assert [(note.kind, note.place) for note in decision.notes] == [(NoteKind.COMMAND_DROPPED, 1)]


@pytest.mark.parametrize("purpose", [None, "", "  ", 5, ["x"]], ids=repr)
def test_empty_purpose_names_the_tool(purpose):
    """A14"""
    (command,) = normalise({"execution_commands": [{**C, "purpose": purpose}]}).commands

    assert command.purpose == "Use search"


@pytest.mark.parametrize("kwargs", [None, '{"q": "x"}', ["x"], 3], ids=repr)
def test_arguments_that_are_no_object_become_an_empty_one_and_leave_a_note(kwargs):
    """A15"""
    decision = normalise({"next_action": "execute", "execution_commands": [{**C, "tool_kwargs": kwargs}]})

    assert decision.commands[0].kwargs == {}
    assert kinds(decision) == [NoteKind.KWARGS_REPLACED]


def test_arguments_may_be_left_out_without_a_note():
    """A15"""
    decision = normalise({"next_action": "execute", "execution_commands": [{"purpose": "look", "tool_name": "now"}]})

    assert (decision.commands[0].kwargs, decision.notes) == ({}, ())


HINTS = [
    ({"todo_suggestion": "a", "next": "b"}, {"todo_suggestion": "c", "next": "d"}, "a"),
    ({"todo_suggestion": " ", "next": "b"}, {"todo_suggestion": "c", "next": "d"}, "b"),
    ({"todo_suggestion": 1, "next": ""}, {"todo_suggestion": "c", "next": "d"}, "c"),
    ({}, {"todo_suggestion": None, "next": "d"}, "d"),
    ({}, {"todo_suggestion": "", "next": "d"}, ""),  # said to be nothing
    ({}, {}, ""),
]


@pytest.mark.parametrize(("own", "of_the_plan", "expected"), HINTS, ids=[f"A16 level {n}" for n in range(1, 7)])
def test_a_hint_is_looked_for_in_the_command_and_then_in_the_plan(own, of_the_plan, expected):
    (command,) = normalise({"execution_commands": [{"tool_name": "search", **own}], **of_the_plan}).commands

    assert command.todo_suggestion == expected


def test_next_equals_the_suggestion():
    """A17"""
    (command,) = normalise({"execution_commands": [{"tool_name": "search", "next": "read"}]}).commands

    assert (command.as_json()["next"], command.as_json()["todo_suggestion"]) == ("read", "read")


def test_the_name_of_a_tool_is_not_guessed():
    (command,) = normalise({"execution_commands": [{"tool_name": " search"}]}).commands

    assert command.tool_name == " search"


@pytest.mark.parametrize("text", ["", "Sure! I would search for it.", "{", "[]", "```json\n```", '"execute"'])
def test_garbage_is_a_decision_to_answer_without_tools(text):
    """A42"""
    decision = normalise(text)

    assert (decision.ends, decision.commands) == (PlanEnd.UNREADABLE, ())


WHOLE = json.dumps({"next_action": "execute", "execution_commands": [C, {**D, "tool_kwargs": {"tool_commands": [C]}}]})


@pytest.mark.parametrize("fence", ["{}", "Here it is:\n```json\n{}\n```", "```\n{}"], ids=["bare", "fenced", "open"])
def test_a_plan_that_was_cut_off_is_never_executed(fence):
    """A43, beaten: others complete the JSON and run half a plan, with arguments that may be half themselves."""
    cuts = [normalise(fence.split("\n```", 1)[0].format("") + WHOLE[:length]) for length in range(len(WHOLE))]

    assert {decision.ends for decision in cuts} == {PlanEnd.UNREADABLE}
    assert len(normalise(fence.replace("{}", WHOLE)).commands) == 2


def test_a_padded_response_does_not_execute():
    """A12, beaten: untrimmed it would be an unknown action, and commands would run that were not meant to."""
    padded = [f"{before}{word}{after}" for before, word, after in product(("", " ", "\n"), ("response",), (" ", "\t"))]

    ends = {normalise({"next_action": said, "execution_commands": [C]}).ends for said in padded}

    assert ends == {PlanEnd.RESPONSE}


def test_what_was_dropped_for_a_response_is_on_record():
    """A49"""
    decision = normalise({"next_action": "response", "execution_commands": [C, D]})

    assert (decision.commands, decision.notes[-1].kind) == ((), NoteKind.COMMANDS_UNUSED)
    assert decision.notes[-1].detail == "2 of them: response"


def test_a_planner_that_was_cut_short_has_decided_to_answer():
    """A45"""
    assert (cut_short().ends, kinds(cut_short())) == (PlanEnd.RESPONSE, [NoteKind.CUT_SHORT])


@pytest.mark.parametrize(
    "value",
    [{"a": float("nan")}, {"a": float("-inf")}, {"a": {1, 2}}, {"a": 10**5000}, {("a", "b"): 1}],
    ids=["nan", "inf", "set", "huge", "tuple key"],
)
def test_what_no_database_can_store_is_no_plan(value):
    decision = normalise({**value, "execution_commands": [C]})

    assert (decision.ends, kinds(decision)) == (PlanEnd.UNREADABLE, [NoteKind.NOT_STORABLE])


def test_a_plan_that_is_nested_without_end_is_no_plan():
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]

    assert normalise({"execution_commands": [{**C, "tool_kwargs": {"a": deep}}]}).ends is PlanEnd.UNREADABLE
    assert normalise('{"a":' * 50_000).ends is PlanEnd.UNREADABLE
    assert normalise('{"a":' * 50_000 + "1" + "}" * 50_000).ends is PlanEnd.UNREADABLE


def test_characters_that_no_database_takes_are_replaced():
    (command,) = normalise(
        '{"tool_command": {"tool_name": "a\\u0000b", "tool_kwargs": {"q\\ud800": "\\ud800"}}}'
    ).commands

    assert (command.tool_name, command.kwargs) == ("a\ufffdb", {"q?": "?"})


def test_note_keeps_only_the_beginning_of_the_error():
    notes = normalise({"next_action": "x" * 10_000, "use_tool": {"a": [1] * 1000}}).notes

    assert [len(note.detail) <= 90 for note in notes] == [True, True]


@given(json_values | plans)
def test_any_json_value_is_read(raw):
    decision = normalise(raw)

    assert (decision.ends is None) is bool(decision.commands)
    json.dumps(decision.as_json(), allow_nan=False)


@given(plans)
def test_a_stored_decision_comes_back_and_reads_the_same_when_it_is_sent_in_again(raw):
    decision = normalise(raw)
    stored = json.loads(json.dumps(decision.as_json()))

    assert decision_from(stored) == decision
    assert normalise(stored).commands == decision.commands
    assert normalise(stored).next_action is decision.next_action
