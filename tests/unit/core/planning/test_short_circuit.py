"""As soon as the planner has said `response`: the same verdict as of the whole reply, wherever the stream was cut."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.planning.plan import PlanEnd
from chordage.orchestrator.core.planning.reading import ResponseWatch, normalise, plan_in

ACTIONS = ["response", "execute", " Response\n", "RESPONSE", "res ponse", "", "responses", "respons"]
KEYS = ["next_action", "next_actio", "next_actions", "use_tool", "execution_commands", "a", 'q"uote', "\\", "{", ""]
BROKEN = [
    '{"use_tool": tru} ',
    '{"use_tool": true,} ',
    '{"use_tool": true] ',
    '{"a" "use_tool": true} ',
    '{"a": NaN, "use_tool": true} ',
]
ODD = [
    '{"a": "two\nlines", "use_tool": true} ',
    '{"a": "\\ud83d", "use_tool": true} ',
    '{"a": 1, "a": 2, "use_tool": true} ',
]
PROSE = ["", "Plan: ", "```json\n", "\n```", "{name} ", "[see] ", "{{", "it's 5 inches ", "[1] ", "} ] ", "{", "["]

strings = st.sampled_from(
    [*ACTIONS, '"next_action": "response"', '{"next_action": "response"}', "\\", '\\"', "é\U0001f600"]
)
values = st.recursive(
    strings | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=4),
    max_leaves=15,
)
objects = st.dictionaries(st.sampled_from(KEYS) | st.text(), values, max_size=5)
looks = st.fixed_dictionaries({"ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 1])})


@st.composite
def in_pieces(draw: st.DrawFn, texts: st.SearchStrategy[str]):
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


documents = st.builds(lambda value, look: json.dumps(value, **look), objects | values, looks)
replies = st.lists(st.sampled_from([*PROSE, *BROKEN, *ODD]) | documents, max_size=5).map("".join)


def says(pieces) -> bool:
    watch = ResponseWatch()
    return [watch.feed(piece) for piece in pieces][-1] if pieces else watch.is_response


def is_response(plan) -> bool:
    action = plan.get("next_action") if isinstance(plan, dict) else None
    return isinstance(action, str) and action.strip().lower() == "response"


def read_until_sure(text: str) -> str:
    watch = ResponseWatch()
    return next((text[: at + 1] for at, char in enumerate(text) if watch.feed(char)), "")


@given(in_pieces(documents))
def test_however_a_reply_is_cut_the_verdict_is_that_of_the_whole(cut):
    text, pieces = cut

    assert says(pieces) == is_response(json.loads(text))


@given(in_pieces(replies))
def test_between_sentences_and_in_fences_the_verdict_is_that_of_the_plan_that_is_read(cut):
    text, pieces = cut

    assert says(pieces) == is_response(plan_in(text))


@pytest.mark.parametrize(
    "plan",
    [{" next_action": "response"}, {"next_action ": "response"}, {"next_action": "res ponse"},
     {"next_action": "response."}, {"next_action": "re sponse "}, {"a": "next_action", "b": "response"}],
    ids=repr,
)  # fmt: skip
def test_nearly_is_not_enough(plan):
    assert not says([json.dumps(plan)])
    assert not is_response(plan)


def test_behind_the_plan_nothing_counts():
    text = '{"use_tool": true} or rather {"next_action": "response"}'

    assert not says([text])
    assert normalise(text).ends is PlanEnd.NO_COMMANDS


@given(values, st.sampled_from(["tool_kwargs", "a", "execution_commands", "next_action"]))
def test_a_key_that_is_nested_deeper_never_counts(value, key):
    nested = {key: [{"next_action": "response", "more": value}], "b": {"next_action": "response"}}

    assert not says([json.dumps(nested)])
    assert not says([json.dumps([{"next_action": "response"}])])


@given(st.sampled_from(["response", " RESPONSE "]), st.data())
def test_escapes_change_nothing(action, data):
    def written(word):
        return "".join(
            data.draw(st.sampled_from([char, f"\\u{ord(char):04x}", f"\\u{ord(char):04X}"])) for char in word
        )

    assert says(list(f'{{"{written("next_action")}": "{written(action)}"'))


@pytest.mark.parametrize("lead", ["", "\ufeff\n ", "```json\n", "{", "Let me think {about it} [now]:\n"])
def test_the_closing_quote_is_enough(lead):
    """A45, beaten: nothing behind the word has to be waited for, and no schema has to be known."""
    text = f'{lead}{{ "next_action" : "response", "execution_commands": [] }}'

    assert read_until_sure(text) == text[: text.index(",")]


def test_a_plan_that_comes_in_one_piece_is_known_at_once():
    """A46, beaten: others need a second chunk to be sure."""
    watch = ResponseWatch()

    assert watch.feed('{"next_action": "response", "execution_commands": []}')
    assert watch.is_settled


def test_it_also_counts_behind_the_commands():
    """A47"""
    text = (
        '{"execution_commands": [{"tool_name": "a", "tool_kwargs": {"x": "}\\""}}], "next_action": "response", "b": 1}'
    )

    assert read_until_sure(text) == text.partition(', "b"')[0]


@pytest.mark.parametrize("said", ['"execute"', '"finish"', '""', "null", "true", "[]", "{}", '["response"]'])
def test_any_other_action_settles_that_there_is_no_short_circuit(said):
    """A48"""
    watch = ResponseWatch()
    watch.feed(f'{{"next_action": {said}, ')

    assert (watch.is_settled, watch.is_response) == (True, False)
    assert not watch.feed('"next_action": "response"}')


def test_commands_behind_an_early_response_change_nothing():
    """A49"""
    text = '{"next_action": "response", "execution_commands": [{"tool_name": "a"}], "next_action": "execute"}'
    watch = ResponseWatch()

    assert [watch.feed(piece) for piece in (text[:20], text[20:40], text[40:])] == [False, True, True]
    assert normalise(text).ends is PlanEnd.RESPONSE


def test_two_planners_at_the_same_time_do_not_disturb_each_other():
    """A54, as far as it concerns what is kept while a plan streams."""
    one, other = ResponseWatch(), ResponseWatch()

    pieces = zip('{"next_action":"response"', '{"next_action":"execute" ', strict=True)
    fed = [(one.feed(a), other.feed(b)) for a, b in pieces]

    assert fed[-1] == (True, False)


@pytest.mark.parametrize(
    "broken",
    ['{"a" "next_action": "response"}', '{"a": 1 2, "next_action": "response"}', '{, "next_action": "response"}',
     '{"a": tr"ue, "next_action": "response"}', '{"next_actio\\u00zz": "response"}', '{"next_action": "r\\esponse"}',
     "next_action: response", '"next_action": "response"'],
)  # fmt: skip
def test_what_is_no_json_is_not_cut_short(broken):
    assert not says([broken])


def test_of_what_is_long_only_the_current_member_is_kept():
    """Neither depth, nor padding, nor keys and values that have gone by."""
    watch = ResponseWatch()
    for text in ("{" * 100_000, "[" * 100_000, "]" * 100_000, '{"' + "k" * 100_000, '": "' + "v" * 100_000, '", '):
        watch.feed(text)

    assert "".join(watch._member or ()) == " "
    assert watch.feed('"next_action": "' + " " * 100_000 + "response" + " " * 100_000 + '"')


@pytest.mark.parametrize(
    "unit",
    ['{"a": 1} ', '"k": {"b": "x y"}, ', '"k" ', '{"a": "', "[", '\\"', '{ "a": tru, ', "{", "  ", "words "],
    ids=repr,
)
@pytest.mark.parametrize("lead", ["", "{"])
def test_watching_takes_time_in_proportion_to_the_text(lead, unit):
    """Read again at each delta, it would take minutes; the bound is a hundred times what it takes."""
    text = lead + unit * (100_000 // len(unit))
    watch = ResponseWatch()
    began = time.perf_counter()
    for at in range(0, len(text), 20):
        watch.feed(text[at : at + 20])

    assert time.perf_counter() - began < 10
