"""From rows to prompt: each ask answered once, directly behind it, in the order asked, whatever the rows say."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.model import (
    AssistantSays,
    Attempt,
    Fault,
    Reply,
    StopReason,
    ToolSays,
    Usage,
    UserSays,
)
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.transcript import AWAITING, NOT_RUN, NOT_STARTED, ask_from, body_of, build, reply_from
from support.builders import a_call, a_reply, an_ask, an_entry


def user(number: int, text: str = "hi", **given: Any):
    return an_entry(number, Checkpoint.USER_MESSAGE, {"text": text}, **given)


def assistant(number: int, *asks, text: str = "let me see", **given: Any):
    return an_entry(number, Checkpoint.ASSISTANT_TURN, body_of(a_reply(StopReason.TOOL_USE, *asks, text=text)), **given)


def answers(said):
    return [(one.ask_id, one.content, one.is_error) for one in said if isinstance(one, ToolSays)]


@st.composite
def histories(draw: st.DrawFn):
    """Journal and calls as they never come from the engine: rounds half settled, rows missing, orphans, any order."""
    entries, calls, numbers = [], [], count(1)
    for run in draw(st.lists(st.sampled_from(["r1", "r2", "r3"]), unique=True, max_size=3)):
        entries.append(user(next(numbers), run_id=run, step=0))
        for step in range(1, 2 * draw(st.integers(0, 3)) + 1, 2):
            asks = [an_ask(f"{run}-{step}-{place}") for place in range(draw(st.integers(0, 4)))]
            entries.append(assistant(next(numbers), *asks, run_id=run, step=step))
            entries.append(an_entry(next(numbers), Checkpoint.TOOL_RESULTS, {}, run_id=run, step=step + 1))
            for place, ask in enumerate(asks):
                if draw(st.booleans()):
                    state = draw(st.sampled_from(list(CallStatus)))
                    content = draw(st.none() | st.just("") | st.just(f"result of {ask.id}"))
                    calls.append(
                        a_call(run_id=run, step=step + 1, place=place, ask_id=ask.id, status=state, content=content)
                    )
        entries.append(an_entry(next(numbers), Checkpoint.RUN_FINISHED, {}, run_id=run, step=9))
    orphans = st.builds(
        a_call,
        run_id=st.sampled_from(["r1", "gone"]),
        step=st.sampled_from([1, 3, 50]),
        place=st.integers(0, 9),
        ask_id=st.just("orphan"),
    )
    return entries, draw(st.permutations([*calls, *draw(st.lists(orphans, max_size=3))]))


@given(history=histories())
def test_each_call_has_one_result_directly_behind_it_and_in_order(history):
    said = build(*history)

    expected = []
    for one in said:
        if not isinstance(one, ToolSays):
            assert expected == [], "something else was said before all asks were answered"
            expected = [ask.id for ask in one.asks] if isinstance(one, AssistantSays) else []
        else:
            assert one.ask_id == expected.pop(0)
    assert expected == []


@given(history=histories())
def test_messages_keep_the_order_of_the_journal(history):
    entries, _ = history

    told = [type(one) for one in build(*history) if not isinstance(one, ToolSays)]

    kinds = {Checkpoint.USER_MESSAGE: UserSays, Checkpoint.ASSISTANT_TURN: AssistantSays}
    assert told == [kinds[entry.kind] for entry in entries if entry.kind in kinds]


@given(history=histories())
def test_results_without_a_call_are_left_out(history):
    assert all(ask_id != "orphan" for ask_id, _, _ in answers(build(*history)))


@given(history=histories())
def test_the_order_of_the_call_rows_changes_nothing(history):
    entries, calls = history

    assert build(entries, calls) == build(entries, sorted(calls, key=lambda call: (call.step, call.place)))


@given(history=histories())
def test_only_a_call_that_succeeded_is_no_error(history):
    entries, calls = history
    good = {call.ask_id for call in calls if call.status is CallStatus.SUCCEEDED}

    assert all(is_error is (ask_id not in good) for ask_id, _, is_error in answers(build(entries, calls)))


@pytest.mark.parametrize(
    ("status", "content", "expected"),
    [
        (CallStatus.SUCCEEDED, "found", ("a", "found", False)),
        (CallStatus.SUCCEEDED, "", ("a", "", False)),
        (CallStatus.SUCCEEDED, None, ("a", "", False)),
        (CallStatus.FAILED, "no such page", ("a", "no such page", True)),
        (CallStatus.FAILED, None, ("a", NOT_RUN, True)),
        (CallStatus.CANCELLED, "cancelled with its run", ("a", "cancelled with its run", True)),
        (CallStatus.CANCELLED, None, ("a", NOT_RUN, True)),
        (CallStatus.SUSPENDED, "half", ("a", AWAITING, True)),
        (CallStatus.RESUMING, None, ("a", AWAITING, True)),
        (CallStatus.NEW, None, ("a", NOT_STARTED, True)),
        (CallStatus.RUNNING, None, ("a", NOT_RUN, True)),
    ],
)
def test_what_the_model_reads_of_a_call(status, content, expected):
    said = build([assistant(1, an_ask("a"))], [a_call(status=status, content=content)])

    assert answers(said) == [expected]


def test_a_call_without_a_row_did_not_run():
    assert answers(build([assistant(1, an_ask("a"))], [])) == [("a", NOT_RUN, True)]


def test_placeholder_texts_match_the_state_of_the_call():
    assert "did not run" in NOT_RUN
    assert "has not been executed" in AWAITING
    assert "awaits a decision" in AWAITING


def test_a_call_is_found_by_its_place_although_the_provider_used_its_id_before():
    entries = [assistant(1, an_ask("same"), step=1), assistant(2, an_ask("same"), step=3)]
    calls = [a_call(step=4, ask_id="same", content="second"), a_call(step=2, ask_id="same", content="first")]

    assert [content for _, content, _ in answers(build(entries, calls))] == ["first", "second"]


def test_two_runs_of_one_thread_do_not_share_results():
    entries = [assistant(1, an_ask("a"), run_id="r1"), assistant(2, an_ask("a"), run_id="r2")]
    calls = [a_call(run_id="r1", content="mine")]

    assert answers(build(entries, calls)) == [("a", "mine", False), ("a", NOT_RUN, True)]


def test_empty_journal_makes_an_empty_prompt():
    assert build([], [a_call()]) == ()


def test_a_reply_comes_back_from_the_journal_as_it_was():
    asks = (an_ask("a", arguments={"n": [1, None]}), an_ask("b", arguments=None, raw='{"cut'))
    reply = Reply(text="two", asks=asks, stop=StopReason.TOOL_USE, model="m", extra={"signature": "x"})
    entry = an_entry(1, Checkpoint.ASSISTANT_TURN, body_of(reply))

    says = build([entry], [])[0]

    assert says == AssistantSays(text="two", asks=asks, extra={"signature": "x"})
    assert reply_from(entry.body) == reply


def test_the_journal_keeps_what_a_reply_cost_and_how_often_it_was_tried():
    attempts = (
        Attempt(model="m", seconds=1.23456, fault=Fault.RATE_LIMIT, detail="slow down"),
        Attempt(model="n", seconds=2.0, usage=Usage(input_tokens=5, output_tokens=7)),
    )
    usage = Usage(input_tokens=9, output_tokens=2, cached_tokens=3, cache_write_tokens=4, cost_nanos=5)

    body = body_of(Reply(text="", asks=(), stop=StopReason.END, model="n", usage=usage, attempts=attempts))

    assert body["usage"] == {
        "input_tokens": 9, "output_tokens": 2, "cached_tokens": 3, "cache_write_tokens": 4,
        "cost_nanos": 5, "unpriced": 0,
    }  # fmt: skip
    assert body["attempts"] == [
        {"model": "m", "seconds": 1.235, "fault": "rate_limit", "detail": "slow down", "tokens": [0, 0]},
        {"model": "n", "seconds": 2.0, "fault": None, "detail": "", "tokens": [5, 7]},
    ]
    assert (body["model"], body["stop"]) == ("n", "end")


def test_call_of_an_older_journal_has_no_raw_text():
    assert ask_from({"id": "a", "name": "search", "arguments": {}}) == an_ask("a")


def test_a_journal_row_without_extra_is_read_like_one_with_none():
    body = body_of(a_reply())
    for missing in ({**body, "extra": None}, {name: value for name, value in body.items() if name != "extra"}):
        (says,) = build([an_entry(1, Checkpoint.ASSISTANT_TURN, missing)], [])
        assert says == AssistantSays(text="so be it")
