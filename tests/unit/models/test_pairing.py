"""Both wire formats under their providers' rules of pairing, for histories in which calls wait, ended or were cut off.

The rules are written down here as the providers state them, apart from the code that keeps them.
"""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.model import Prompt, StopReason
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.transcript import body_of, build
from chordage.orchestrator.gateways.models import openai
from chordage.orchestrator.gateways.models.anthropic import messages
from support.builders import a_call, a_reply, an_ask, an_entry

IDS = st.sampled_from(["a", "b", "call 1", "call_1", "toolu:7"])  # providers reuse them, and some are illegal elsewhere


@st.composite
def threads(draw: st.DrawFn):
    """Runs as the engine leaves them: rounds settled or waiting, natural ends that waited, runs cut off."""
    entries, calls, numbers = [], [], count(1)

    def wrote(kind, body, run, step):
        entries.append(an_entry(next(numbers), kind, body, run_id=run, step=step))

    for run in draw(st.lists(st.sampled_from(["r1", "r2", "r3"]), min_size=1, max_size=3, unique=True)):
        wrote(Checkpoint.USER_MESSAGE, {"text": draw(st.sampled_from(["hi", "and now?"]))}, run, 0)
        step = 1
        for _ in range(draw(st.integers(0, 3))):
            asked = draw(st.lists(IDS, min_size=1, max_size=3, unique=True))
            reply = a_reply(StopReason.TOOL_USE, *map(an_ask, asked), text=draw(st.sampled_from(["", "let me see"])))
            wrote(Checkpoint.ASSISTANT_TURN, body_of(reply), run, step)
            for place, ask_id in enumerate(asked):
                status = draw(st.sampled_from(list(CallStatus)))
                calls.append(a_call(run_id=run, step=step + 1, place=place, ask_id=ask_id, status=status))
            wrote(draw(st.sampled_from([Checkpoint.TOOL_RESULTS, Checkpoint.RUN_WAITING])), {}, run, step + 1)
            step += 2
        for waits in draw(st.lists(st.booleans(), max_size=2)):  # a reply without calls, after which the run waited
            wrote(Checkpoint.ASSISTANT_TURN, body_of(a_reply()), run, step)
            if waits:
                wrote(Checkpoint.RUN_WAITING, {}, run, step + 1)
            step += 2
        if draw(st.booleans()):
            wrote(Checkpoint.RUN_INTERRUPTED, {"reason": "cancelled", "code": None, "detail": None}, run, step)
    goes_on = entries[-1].kind in {Checkpoint.TOOL_RESULTS, Checkpoint.RUN_WAITING}
    if not goes_on or draw(st.booleans()):  # the model is asked in the middle of a run, or about a new message
        wrote(Checkpoint.USER_MESSAGE, {"text": "last"}, "r9", 0)
    return build(entries, calls)


@given(said=threads())
def test_anthropic_gets_turns_that_alternate_and_results_at_the_head_of_the_very_next(said):
    turns = messages(said, "anthropic")

    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"]
    seen: set[str] = set()
    for turn, after in zip(turns, [*turns[1:], {"content": []}], strict=True):
        assert turn["content"], "an empty turn is refused"
        used = [block["id"] for block in turn["content"] if block["type"] == "tool_use"]
        head = after["content"][: len(used)]
        assert sorted(used) == sorted(block.get("tool_use_id", "") for block in head)
        assert all(block["type"] != "tool_result" for block in after["content"][len(used) :])
        assert not seen.intersection(used), "an id is used once in the whole history"
        seen.update(used)


@given(said=threads())
def test_openai_gets_one_tool_message_for_each_call_directly_behind_it(said):
    wire = openai.messages(Prompt(system="", said=said), "openai")

    owed: list[str] = []
    for message in wire:
        if message["role"] == "tool":
            assert message["tool_call_id"] == owed.pop(0)
            continue
        assert owed == [], "something else was said before all calls were answered"
        owed = [call["id"] for call in message.get("tool_calls", ())]
        assert message["content"] or owed, "an empty message is refused"
    assert owed == []


@given(said=threads())
def test_no_prompt_ends_with_the_models_own_text(said):
    assert messages(said, "anthropic")[-1]["role"] == "user"
