"""What a planner sees of the conversation so far."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from chordage.orchestrator.core.model import AssistantSays, UserSays
from chordage.orchestrator.core.planning.prompts import (
    HISTORY_MAX,
    REMARK_MAX,
    PlannerRequest,
    function_input,
    history,
    planner_input,
    planner_prompt,
)
from chordage.orchestrator.core.records import Checkpoint, Entry
from chordage.orchestrator.core.transcript import DECIDED

OWN = "run-2"
_ids = count(1)


def entry(kind: Checkpoint, run: str = "run-1", step: int = 0, **body: Any) -> Entry:
    return Entry(id=next(_ids), thread_id="t", run_id=run, step=step, kind=kind, body=body)


def user(text: str, run: str = "run-1") -> Entry:
    return entry(Checkpoint.USER_MESSAGE, run, text=text)


def reply(text: str, *asks: str, run: str = "run-1", step: int = 1) -> Entry:
    made = [{"id": one, "name": "search", "arguments": {}} for one in asks]
    return entry(Checkpoint.ASSISTANT_TURN, run, step, text=text, asks=made)


def texts(*entries: Entry) -> list[str]:
    return [one.text for one in history(entries, OWN)]


def test_background_is_the_text_of_earlier_runs_and_nothing_of_this_one():
    said = history([user("Paris?"), reply("sunny"), user("and Berlin?", OWN), reply("hm", run=OWN)], OWN)

    assert said == (UserSays(text="Paris?"), AssistantSays(text="sunny", asks=()))


def test_calls_and_results_stay_out_and_so_does_a_reply_of_calls_only():
    assert texts(user("Paris?"), reply("", "a"), reply("I look", "b", step=3), reply("sunny", step=5)) == [
        "Paris?", "I look", "sunny",
    ]  # fmt: skip


def test_a_summary_always_has_its_place():
    summary = entry(Checkpoint.COMPACTED, upto=0, summary="so far", said=[])
    long = [user("x" * REMARK_MAX) for _ in range(9)]

    found = texts(summary, *long)

    assert found[0].endswith("so far")
    assert 0 < len(found) - 1 < len(long)


def test_the_newest_come_first_when_room_is_short_and_it_begins_with_a_user():
    many = [one for n in range(20) for one in (user(f"q{n} " + "x" * (REMARK_MAX - 10)), reply(f"a{n}"))]

    said = history(many, OWN)

    assert sum(len(one.text) for one in said) <= HISTORY_MAX
    assert (said[-1].text, isinstance(said[0], UserSays)) == ("a19", True)


def test_too_long_a_remark_is_cut_and_marked():
    (found,) = texts(user("x" * (REMARK_MAX + 1)))

    assert found == f"{'x' * REMARK_MAX}… ({REMARK_MAX + 1} characters)"


def test_replaced_history_has_no_background():
    given = entry(Checkpoint.CLIENT_MESSAGES, OWN, messages=[], replaces=True)

    assert texts(user("Paris?"), reply("sunny"), user("and Berlin?", OWN), given) == []


def test_the_note_about_results_that_stay_out_stays_out():
    waits = entry(Checkpoint.RUN_WAITING, step=2, calls=["c"])

    assert DECIDED not in texts(user("Paris?"), reply("I ask", "a"), waits)


@pytest.mark.parametrize("remarks", [(), (UserSays(text="Paris?"), AssistantSays(text="sunny", asks=()))])
def test_background_comes_before_the_seven_parts_and_is_none_of_them(remarks):
    request = PlannerRequest(user_input="and Berlin?", tools=(), round_index=0, max_rounds=5, history=remarks)

    assert planner_prompt(request).said[:-1] == remarks
    assert json.loads(planner_prompt(request).said[-1].text) == planner_input(request)
    assert planner_input(request).keys() == {"input", "info"}
    assert [one["text"] for one in function_input(request)["history"]] == [one.text for one in remarks]
