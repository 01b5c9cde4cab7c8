"""What the model reads of the demand, and of an answer that did not meet it."""

from __future__ import annotations

from chordage.orchestrator.core import output
from chordage.orchestrator.core.model import AssistantSays, UserSays
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Checkpoint, Entry
from chordage.orchestrator.core.transcript import build, is_note


def entry(kind, **body):
    return Entry(id=1, thread_id="t", run_id="r", step=1, kind=kind, body=body)


def test_the_demand_shows_the_schema_as_it_is():
    said = output.demand({"type": "object", "title": "Größe"})
    assert said.endswith('{"type": "object", "title": "Größe"}')
    assert "exactly one JSON value" in said


def test_refusal_is_a_note_after_the_reply_and_no_user_message():
    said = build(
        [
            entry(Checkpoint.USER_MESSAGE, text="hi"),
            entry(Checkpoint.ASSISTANT_TURN, text="{}"),
            entry(Checkpoint.OUTPUT_REFUSED, why="$: 'n' is missing"),
        ],
        [],
    )
    assert [type(one) for one in said] == [UserSays, AssistantSays, UserSays]
    assert [is_note(one) for one in said] == [False, False, True]
    assert "$: 'n' is missing\nAnswer again with only the JSON value" in said[-1].text


def test_single_complaint_is_a_line_and_several_are_a_list():
    assert output.listed(["a"]) == "a"
    assert output.listed(["a", "b"]) == "- a\n- b"


def test_a_thousand_complaints_are_cut_and_so_is_a_long_one():
    told = output.listed([f"$[{number}]: wrong" for number in range(1000)]).split("\n")
    assert (len(told), told[0], told[-1]) == (output.COMPLAINTS + 1, "- $[0]: wrong", "- and more")
    long = output.listed(["$.a: " + "x" * 1000 + " is no number"])
    assert long.startswith("$.a: ")
    assert long.endswith(" is no number")
    assert len(long) < output.COMPLAINT_LENGTH + 10


def test_end_after_two_refusals_is_one_line():
    ending = output.given_up("- $.a: wrong\n- $.b: wrong").ending
    assert (ending.reason, ending.code) == (Reason.ERROR, "output_invalid")
    assert ending.detail.endswith("also after one repair: $.a: wrong; $.b: wrong")


def test_places_are_json_paths():
    assert output.place([]) == "$"
    assert output.place(["items", 0, "price"]) == "$.items[0].price"
    assert output.place(["a b", 'q"']) == '$["a b"]["q\\""]'
