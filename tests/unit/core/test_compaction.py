"""Where a conversation is cut: nothing is lost, no reply loses its results, what is open or new is not taken away."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.agent import CompactionSpec
from chordage.orchestrator.core.compaction import Cause, cause, cut
from chordage.orchestrator.core.model import AssistantSays, ToolSays, UserSays
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import OPEN_CALL, CallStatus
from chordage.orchestrator.core.transcript import DECIDED, SUMMARY, build, current_summary
from support.builders import a_call, an_ask, an_entry

USER, REPLY = Checkpoint.USER_MESSAGE, Checkpoint.ASSISTANT_TURN
FULL = CompactionSpec(threshold=100)
SETTLED = sorted(set(CallStatus) - OPEN_CALL)


def message(number, run="r", **more):
    return an_entry(number, USER, {"text": f"message {number}"}, run_id=run, step=0, **more)


def reply(number, *asks, run="r", step=1, tokens=0):
    usage = {"input_tokens": tokens, "output_tokens": 0, "cached_tokens": tokens}
    asked = [{"id": ask.id, "name": ask.name, "arguments": {}} for ask in asks]
    return an_entry(number, REPLY, {"text": f"reply {number}", "asks": asked, "usage": usage}, run_id=run, step=step)


def summary(number, upto, run="r", asked=0, said=()):
    body = {"summary": "so far", "upto": upto, "said": list(said), "asked": asked}
    return an_entry(number, Checkpoint.COMPACTED, body, run_id=run, step=2)


def failure(number, run="r", asked=0):
    return an_entry(number, Checkpoint.COMPACTION_FAILED, {"asked": asked}, run_id=run, step=2)


@st.composite
def histories(draw):
    """Runs one after the other, the last of them under way; calls in any state; perhaps a summary from before."""
    entries, calls, numbers = [], [], count(1)
    runs = [f"r{number}" for number in range(draw(st.integers(1, 4)))]
    for run in runs:
        entries.append(message(next(numbers), run))
        for step in range(1, 2 * draw(st.integers(0, 4)) + 1, 2):
            asks = [an_ask(f"{run}-{step}-{place}") for place in range(draw(st.integers(0, 3)))]
            entries.append(reply(next(numbers), *asks, run=run, step=step))
            for place, ask in enumerate(asks):
                status = draw(st.sampled_from([*SETTLED, *SETTLED, CallStatus.SUSPENDED, CallStatus.RESUMING]))
                late = draw(st.none() | st.integers(step + 2, 12))
                calls.append(
                    a_call(run_id=run, step=step + 1, place=place, ask_id=ask.id, status=status, replayed_at=late)
                )
            if draw(st.integers(0, 5)) == 0:
                entries.append(an_entry(next(numbers), Checkpoint.RUN_WAITING, {"calls": []}, run_id=run, step=step))
            if draw(st.integers(0, 4)) == 0:
                entries.append(message(next(numbers), run))
        if run != runs[-1] and draw(st.booleans()):
            told = {"reason": "cancelled", "code": None, "detail": None}
            entries.append(an_entry(next(numbers), Checkpoint.RUN_INTERRUPTED, told, run_id=run, step=9))
    return entries, calls, runs[-1]


def compacted(entries, found, run):
    """As the journal reads once the summary is written."""
    body = {"summary": "so far", "upto": found.upto, "said": list(found.said), "asked": 0}
    done = an_entry(entries[-1].id + 1, Checkpoint.COMPACTED, body, run_id=run, step=50)
    return [*entries, done]


@given(history=histories(), keep=st.integers(0, 3), whole_run=st.booleans())
def test_summary_and_rest_are_the_whole_history_and_share_nothing(history, keep, whole_run):
    entries, calls, run = history
    found = cut(entries, calls, run, keep=keep, whole_run=whole_run)
    if found is None:
        return
    rest = current_summary(compacted(entries, found, run))[1]
    assert [*found.part, *rest] == entries
    assert found.replaced == len(found.part) > 0
    assert [entry.body for entry in found.part if entry.kind is USER and entry.run_id == run] == list(found.said)


@given(history=histories(), keep=st.integers(0, 3), whole_run=st.booleans())
def test_calls_stay_with_their_results_and_nothing_open_or_new_falls_behind_the_cut(history, keep, whole_run):
    entries, calls, run = history
    found = cut(entries, calls, run, keep=keep, whole_run=whole_run)
    part = found.part if found else ()
    gone = {(entry.run_id, entry.step + 1) for entry in part if entry.kind is REPLY}
    lost = [call for call in calls if (call.run_id, call.step) in gone]
    own = [entry for entry in entries if entry.kind is REPLY and entry.run_id == run]
    newest = own[-1].step if own else 0

    assert all(call.status not in OPEN_CALL for call in lost)
    assert all((call.replayed_at or call.step) <= newest for call in lost if call.run_id == run)
    assert not own or own[-1] not in part
    assert not (whole_run and any(entry.run_id == run for entry in part))
    assert sum(entry.kind is REPLY for entry in entries if entry not in part) >= min(
        keep, sum(entry.kind is REPLY for entry in entries)
    )


@given(history=histories(), keep=st.integers(0, 3))
def test_kept_part_is_unchanged_after_the_summary(history, keep):
    entries, calls, run = history
    found = cut(entries, calls, run, keep=keep)
    if found is None:
        return
    before = [one for one in build(entries, calls) if one != UserSays(text=DECIDED)]
    after = [one for one in build(compacted(entries, found, run), calls) if one != UserSays(text=DECIDED)]
    told, words, rest = after[0], after[1 : 1 + len(found.said)], after[1 + len(found.said) :]

    assert isinstance(told, UserSays)
    assert told.text.startswith(SUMMARY)
    assert [one.text for one in words] == [body["text"] for body in found.said]
    assert rest == before[len(before) - len(rest) :]
    assert _answered(after)


def _answered(said):
    """Each ask has its one result behind it."""
    open_asks: list[str] = []
    for one in said:
        if isinstance(one, ToolSays):
            assert one.ask_id == open_asks.pop(0)
        else:
            assert open_asks == []
            open_asks = [ask.id for ask in one.asks] if isinstance(one, AssistantSays) else []
    return open_asks == []


@given(history=histories(), keep=st.integers(0, 3))
def test_nothing_is_cut_twice_at_one_point(history, keep):
    entries, calls, run = history
    found = cut(entries, calls, run, keep=keep)
    if found is not None:
        assert cut(compacted(entries, found, run), calls, run, keep=keep) is None


def test_late_unread_result_stays_at_its_call():
    entries = [message(1), reply(2, an_ask("a"), step=1), reply(3, step=3), reply(4, step=5), reply(5, step=7)]
    late = a_call(step=2, ask_id="a", replayed_at=8)
    seen = a_call(step=2, ask_id="a", replayed_at=6)

    assert cut(entries, [late], "r") is None
    assert cut(entries, [seen], "r").upto == 4


def test_a_message_in_the_middle_of_its_run_is_kept_beside_the_summary_from_one_to_the_next():
    entries = [message(1, "old"), reply(2, run="old"), message(3), *(reply(number, step=number) for number in (4, 5))]
    first = cut(entries, [], "r")
    later = [*entries, summary(6, first.upto, said=first.said), reply(7, step=7), reply(8, step=9)]

    assert (first.upto, [body["text"] for body in first.said]) == (4, ["message 3"])
    assert cut(later, [], "r").said == first.said
    assert cut([*later, message(9, "next")], [], "next").said == ()


def test_messages_of_a_consumer_stay_with_their_open_calls():
    given = an_entry(3, Checkpoint.CLIENT_MESSAGES, {"messages": [], "replaces": False}, step=3)
    entries = [message(1, "old"), reply(2, run="old"), given, reply(4, step=5), reply(5, step=7)]
    open_call = a_call(step=4, status=CallStatus.SUSPENDED)

    assert cut(entries, [open_call], "r").upto == 2
    assert cut(entries, [], "r").upto == 4


def test_messages_that_were_never_answered_do_not_keep_the_others_from_being_cut():
    entries = [message(1, "a"), reply(2, run="a"), message(3, "b"), message(4, "c"), message(5)]
    assert cut(entries, [], "r").upto == 4


@pytest.mark.parametrize(("size", "due"), [(99, None), (100, Cause.THRESHOLD)])
def test_the_threshold_itself_is_enough_and_cached_tokens_count_once(size, due):
    assert cause(FULL, [message(1), reply(2, tokens=size)], "r", 0) is due


def test_without_a_threshold_only_a_request_counts_and_only_until_it_is_served():
    entries = [message(1), reply(2, tokens=999)]
    off = CompactionSpec()

    assert cause(off, entries, "r", 0) is None
    assert cause(off, entries, "r", 1) is Cause.REQUEST
    assert cause(off, [*entries, summary(3, 1, asked=1)], "r", 1) is None
    assert cause(off, [*entries, failure(3, asked=1)], "r", 1) is None
    assert cause(off, [*entries, summary(3, 1, asked=1)], "r", 2) is Cause.REQUEST


@pytest.mark.parametrize(
    ("first", "now", "due"),
    [(20, 99, None), (20, 100, Cause.THRESHOLD), (90, 114, None), (90, 115, Cause.THRESHOLD), (200, 224, None)],
)
def test_after_a_summary_it_must_be_too_long_again_and_have_grown(first, now, due):
    entries = [message(1), reply(2, tokens=500), summary(3, 1), reply(4, tokens=first), reply(5, tokens=now)]
    assert cause(FULL, entries, "r", 0) is due


def test_right_after_a_summary_nothing_is_known_and_nothing_is_done():
    assert cause(FULL, [message(1), reply(2, tokens=500), summary(3, 1)], "r", 0) is None


def test_a_failure_is_not_tried_again_in_its_run_until_much_was_added_but_once_in_the_next():
    entries = [message(1), reply(2, tokens=100), failure(3)]

    assert cause(FULL, [*entries, reply(4, tokens=124)], "r", 0) is None
    assert cause(FULL, [*entries, reply(4, tokens=125)], "r", 0) is Cause.THRESHOLD
    assert cause(FULL, entries, "next", 0) is Cause.THRESHOLD
    assert cause(FULL, [*entries, failure(4, "next")], "next", 0) is None


def test_unrecorded_messages_come_after_a_summary_and_without_one():
    unwritten = an_entry(0, USER, {"text": "to be"}, step=3)

    assert current_summary([message(1), unwritten])[1][-1] is unwritten
    assert current_summary([summary(3, 1), unwritten])[1] == [unwritten]
