"""The moments of a turn keep the promises that `moments.py` makes, whatever becomes of the notes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from chordage.orchestrator.core.run_events import RunEvent
from chordage.orchestrator.faces.fold import TurnFold
from chordage.orchestrator.faces.moments import (
    CallAsked,
    CallProgressed,
    CallSettled,
    CallStarted,
    MessageTaken,
    QuestionAnswered,
    QuestionAsked,
    Queued,
    Replied,
    RoundSettled,
    Started,
    StepStarted,
    TextDropped,
    TextGrown,
    TurnEnded,
    TurnMoment,
    Waiting,
)
from support.run_stories import TURN, USAGE, RunStory, plain_story, question, reasonings_of, texts_of, told

TEXTS = st.text("ab ", max_size=6)
PIECES = st.lists(st.text("ab ", min_size=1, max_size=4), max_size=4).map(tuple)


def kinds(moments: list[TurnMoment]) -> list[str]:
    return [type(moment).__name__ for moment in moments]


def of(kind: type, moments: list[TurnMoment]) -> list:
    return [moment for moment in moments if isinstance(moment, kind)]


@st.composite
def stories(draw: st.DrawFn) -> RunStory:
    """Rounds of replies, some streamed in several attempts, some with calls, some of which wait for a decision."""
    story = RunStory()
    story.start()
    text, reasoning = "", ""
    for number in range(draw(st.integers(1, 4))):
        if number:
            ids = story.reply(text, draw(st.integers(0, 3)), **({"reasoning": reasoning} if reasoning else {}))
            asked = draw(st.sampled_from(ids)) if ids and draw(st.booleans()) else None
            if asked is not None:
                story.ask(asked)
                story.decide(asked)
            story.run_calls(ids)
            story.record_round(ids)
        attempts = draw(st.lists(PIECES, min_size=1, max_size=3))
        thoughts = draw(PIECES)
        story.think(draw(st.sampled_from(["", "".join(thoughts)])), thoughts, attempt=draw(st.integers(0, 2)))
        story.stream(attempts)
        reasoning = draw(st.one_of(st.just("".join(thoughts)), TEXTS))
        text = draw(st.one_of(st.just("".join(attempts[-1])), TEXTS))
    story.reply(text, **({"reasoning": reasoning} if reasoning else {}))
    story.finish(text)
    return story


@st.composite
def deliveries(draw: st.DrawFn, story: RunStory) -> list[RunEvent]:
    """The facts in their order, some twice; of the notes some are lost, some doubled, all of them anywhere."""
    facts = [event for event in story.facts for _ in range(draw(st.integers(1, 2)))]
    notes = [event for event in story.events if not event.is_fact for _ in range(draw(st.integers(0, 2)))]
    places = sorted((draw(st.integers(0, len(facts))), number) for number in range(len(notes)))
    notes = draw(st.permutations(notes)) if draw(st.booleans()) else notes
    arrived: list[RunEvent] = []
    for place in range(len(facts) + 1):
        arrived += [notes[number] for at, number in places if at == place]
        arrived += facts[place : place + 1]
    return arrived


def check_promises(moments: list[TurnMoment], story: RunStory) -> None:
    first = [moment for moment in moments if not isinstance(moment, Queued)][0]
    assert isinstance(first, Started)
    assert len(of(Started, moments)) == 1
    assert [type(moment) for moment in moments if isinstance(moment, Waiting | TurnEnded)] == [TurnEnded]
    assert isinstance(moments[-1], TurnEnded)
    replies = list(texts_of(moments))
    assert [reply.text for reply, _ in replies] == [grown for _, grown in replies]
    assert all(reply.reasoning == grown for reply, grown in reasonings_of(moments))
    thoughts = [event.data.get("reasoning", "") for event in story.facts if event.kind == "model.replied"]
    assert [reply.reasoning for reply, _ in replies] == thoughts
    expected = [event.data["text"] for event in story.facts if event.kind == "model.replied"]
    assert [reply.text for reply, _ in replies] == expected
    check_calls(moments)


def check_calls(moments: list[TurnMoment]) -> None:
    asked: set[str] = set()
    settled: Counter[str] = Counter()
    for moment in moments:
        match moment:
            case Replied(calls=calls):
                asked |= {call.id for call in calls}
            case CallStarted(id=call) | CallProgressed(id=call):
                assert call in asked
                assert not settled[call]
            case CallSettled(id=call):
                assert call in asked
                settled[call] += 1
            case QuestionAsked(call_id=call):
                assert call in asked
            case _:
                pass
    assert settled == Counter(asked)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_promises_hold_whatever_becomes_of_the_notes(data):
    story = data.draw(stories())
    check_promises(told(data.draw(deliveries(story))), story)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_promises_hold_behind_any_fact(data):
    """Who comes back with the id of a fact gets the rest, and nothing a second time."""
    story = data.draw(stories())
    facts = story.facts
    cut = data.draw(st.integers(1, len(facts) - 1))
    fold = TurnFold(TURN)
    fold.skip(facts[:cut])
    seen = {moment.id for moment in told(facts[:cut]) if isinstance(moment, CallSettled)}
    behind = [event for event in data.draw(deliveries(story)) if not event.is_fact or event in facts[cut:]]
    moments = [moment for event in behind for moment in fold.feed(event)]
    assert isinstance(moments[0], Started)
    assert isinstance(moments[-1], TurnEnded)
    assert len(of(Started, moments)) == len(of(TurnEnded, moments)) == 1
    assert all(reply.text == grown for reply, grown in texts_of(moments))
    again = {moment.id for moment in of(CallSettled, moments)}
    assert not seen & again
    assert seen | again == {call.id for moment in of(Replied, told(facts)) for call in moment.calls}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_facts_alone_give_the_same_transcript(data):
    story = data.draw(stories())

    def transcript(moments: list[TurnMoment]) -> list[object]:
        kept = (Replied, CallSettled, QuestionAsked, QuestionAnswered, TurnEnded)
        return sorted(repr(moment) for moment in moments if isinstance(moment, kept))

    assert transcript(told(story.facts)) == transcript(told(data.draw(deliveries(story))))


def test_plain_turn_in_order():
    assert kinds(told(plain_story().events)) == [
        "Queued", "Started",
        "StepStarted", "TextGrown", "TextGrown", "Replied",
        "CallStarted", "CallStarted", "CallProgressed", "CallSettled", "CallProgressed", "CallSettled", "RoundSettled",
        "StepStarted", "TextGrown", "TextGrown", "Replied", "TurnEnded",
    ]  # fmt: skip


def test_plain_turn_without_notes():
    assert kinds(told(plain_story().facts)) == [
        "Queued", "Started", "StepStarted", "TextGrown", "Replied", "CallSettled", "CallSettled", "RoundSettled",
        "StepStarted", "TextGrown", "Replied", "TurnEnded",
    ]  # fmt: skip


def test_rest_of_a_text_comes_with_its_reply():
    story = RunStory()
    story.start()
    story.stream([("half ",)])
    story.reply("half of it")
    assert [moment.text for moment in of(TextGrown, told(story.events))] == ["half ", "of it"]


def test_text_of_a_worker_that_died_is_dropped():
    story = RunStory()
    story.start()
    story.stream([("it was",), ("it is", " so")])
    story.reply("it is so")
    moments = told(story.events)
    assert kinds(moments)[2:] == ["StepStarted", "TextGrown", "TextDropped", "TextGrown", "TextGrown", "Replied"]
    assert of(TextDropped, moments) == [TextDropped(step=1, attempt=0)]


def test_text_that_is_not_what_was_recorded_is_dropped():
    story = RunStory()
    story.start()
    story.stream([("it was",)])
    story.reply("it is so")
    assert kinds(told(story.events))[2:] == ["StepStarted", "TextGrown", "TextDropped", "TextGrown", "Replied"]


def test_text_behind_a_gap_waits_for_the_whole():
    story = RunStory()
    story.start()
    story.note("live.delta", step=1, attempt=0, offset=4, text="of it")
    assert of(TextGrown, told(story.events)) == []
    story.note("live.snapshot", step=1, attempt=0, text="all of it")
    assert [moment.text for moment in of(TextGrown, told(story.events))] == ["all of it"]


def test_late_text_of_an_older_attempt_changes_nothing():
    story = RunStory()
    story.start()
    story.stream([("old",), ("new",)])
    story.note("live.delta", step=1, attempt=0, offset=3, text="er")
    assert [moment.text for moment in of(TextGrown, told(story.events))] == ["old", "new"]


def test_text_behind_a_round_waits_for_its_results():
    story = RunStory()
    story.start()
    ids = story.reply("look", 1)
    story.step += 1
    story.stream([("found",)])
    assert of(StepStarted, told(story.events))[-1].step == 1
    story.note("tool.settled", call=ids[0], status="succeeded", content="it", code=None)
    assert kinds(told(story.events))[-4:] == ["CallSettled", "RoundSettled", "StepStarted", "TextGrown"]


def test_result_without_its_content_is_not_shown_yet():
    story = RunStory()
    story.start()
    ids = story.reply("look", 1)
    story.note("tool.settled", call=ids[0], status="succeeded", code=None)
    assert of(CallSettled, told(story.events)) == []


def test_call_that_was_settled_with_its_reply():
    """Its arguments did not fit, or it had run before the reply was recorded."""
    story = RunStory()
    story.start()
    call = {"id": "c", "tool": "t", "arguments": {}}
    result = {"status": "failed", "code": "invalid_arguments", "content": "no"}
    story.step = 1
    story.fact("model.replied", text="", model="m", stop="tool_use", calls=[{**call, "result": result}])
    settled = CallSettled(id="c", tool="t", ok=False, code="invalid_arguments", content="no")
    assert told(story.events)[-2:] == [settled, RoundSettled(step=2)]


def test_call_without_a_result_is_settled_at_the_end():
    story = RunStory()
    story.start()
    ids = story.reply("look", 1)
    story.finish("")
    (settled,) = of(CallSettled, told(story.events))
    assert (settled.id, settled.ok, settled.code) == (ids[0], False, "not_run")


def test_wait_for_decisions_is_the_last_moment():
    story = RunStory()
    story.start()
    (call,) = story.reply("may I?", 1)
    story.ask(call)
    story.fact("run.waiting", calls=[call], questions=[question(call)])
    asked = len(told(story.events))
    story.note("turn.waiting", questions=[question(call)], usage=USAGE)
    moments = told(story.events)
    assert kinds(moments[asked - 1 :]) == ["QuestionAsked", "Waiting"]
    (waiting,) = of(Waiting, moments)
    assert [each.call_id for each in waiting.questions] == [call]
    assert waiting.usage.input_tokens == 3


def test_wait_that_is_over_is_no_moment():
    story = RunStory()
    story.start()
    (call,) = story.reply("may I?", 1)
    story.ask(call)
    story.fact("run.waiting", calls=[call], questions=[question(call)])
    story.decide(call)
    story.step += 1
    story.record_round([call])
    story.reply("done")
    story.finish("done")
    moments = told(story.facts)
    assert of(Waiting, moments) == []
    assert kinds(moments)[4:] == [
        "Replied", "QuestionAsked", "QuestionAnswered", "CallSettled", "RoundSettled",
        "StepStarted", "TextGrown", "Replied", "TurnEnded",
    ]  # fmt: skip


def test_question_of_a_sub_agent_comes_with_the_wait():
    story = RunStory()
    story.start()
    story.reply("let me ask", 1)
    story.note("turn.waiting", questions=[{**question("deep"), "run_id": "child"}], usage=USAGE)
    moments = told(story.events)
    assert kinds(moments)[-2:] == ["QuestionAsked", "Waiting"]
    assert of(QuestionAsked, moments)[0].run_id == "child"


def test_after_decisions_the_run_starts_again():
    story = RunStory()
    story.start()
    (call,) = story.reply("may I?", 1)
    story.ask(call)
    seen = list(story.facts)
    story.decide(call)
    story.step += 1
    story.record_round([call])
    story.reply("done")
    story.finish("done")
    fold = TurnFold(TURN)
    fold.skip(seen)
    moments = [moment for event in story.facts for moment in fold.feed(event)]
    assert kinds(moments)[:3] == ["Started", "QuestionAnswered", "CallSettled"]


def test_message_that_was_taken_in_does_not_end_the_turn():
    story = RunStory()
    story.start()
    story.reply("one moment")
    story.step += 1
    story.fact("turn.steered", turn_id="turn-2", text="faster", sender="owner")
    story.fact("turn.ended", number=1, turn_id="turn-2", disposition="steered")
    moments = told(story.events)
    assert moments[-1] == MessageTaken(step=2, turn_id="turn-2", sender="owner", text="faster")


def test_turn_that_never_started():
    fold = TurnFold(TURN)
    story = RunStory()
    story.fact("turn.queued")
    story.fact("turn.ended", disposition="expired", detail="its deadline passed")
    moments = [moment for event in story.events for moment in fold.feed(event)]
    assert kinds(moments) == ["Queued", "TurnEnded"]
    assert fold.is_over


def test_reason_of_waiting_in_the_queue_is_shown_when_it_changes():
    story = RunStory()
    story.note("turn.queued")
    story.fact("turn.queued")
    story.note("turn.queued", why="no free place")
    assert [moment.why for moment in of(Queued, told(story.events)) if moment.turn_id == TURN] == [
        None,
        "no free place",
    ]


def test_plan_is_no_part_of_the_conversation():
    story = RunStory()
    story.start()
    story.step = 1
    calls = [{"id": "c", "tool": "t", "arguments": {"a": 1}}]
    story.fact("plan.made", text="first this", calls=calls, model="m", stop="end")
    (replied,) = of(Replied, told(story.events))
    assert replied.is_plan
    assert replied.calls == (CallAsked(id="c", tool="t", arguments={"a": 1}),)


def test_unknown_kinds_are_passed_over():
    story = RunStory()
    story.start()
    story.fact("moon.rose")
    story.note("moon.set")
    assert len(told(story.events)) == 2
