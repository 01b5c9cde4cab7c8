"""Which calls of a fork are answered from the record, which run, and which do not."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordage.orchestrator.core.agent import AgentSpec, Effect
from chordage.orchestrator.core.approvals import digest
from chordage.orchestrator.core.errors import InvalidMessage
from chordage.orchestrator.core.forking import (
    ALL,
    NOT_RUN_IN_FORK,
    ForkTerms,
    RecordedCall,
    RecordedResult,
    answered,
    check,
    held_back,
    kept_reply,
    sources_of,
)
from chordage.orchestrator.core.model import Attempt, Reply, StopReason, ToolAsk, Usage
from chordage.orchestrator.core.records import NewCall
from chordage.orchestrator.core.status import CallStatus
from chordage.orchestrator.core.transcript import body_of

PLAIN = ForkTerms(run_id="source", step=3, kept=2)
ASKS = (ToolAsk(id="a", name="pay", arguments={"n": 1}), ToolAsk(id="b", name="pay", arguments=None, raw="{"))
REPLY = Reply(
    text="", asks=ASKS,
    stop=StopReason.TOOL_USE, model="m", usage=Usage(input_tokens=9), attempts=(Attempt(model="m", seconds=1.0),),
)  # fmt: skip


def call(name: str, n: int, *, ask_id: str = "", effect: Effect = Effect.UNSAFE) -> NewCall:
    return NewCall(
        id=name, place=0, ask_id=ask_id or name, generation=1, tool="pay", arguments={"n": n}, effect=effect,
        status=CallStatus.NEW,
    )  # fmt: skip


def recorded(name: str, n: int, tool: str = "pay") -> RecordedCall:
    return RecordedCall(id=name, tool=tool, digest=digest({"n": n}))


numbers = st.lists(st.integers(0, 3), max_size=12)


@given(asked=numbers, record=numbers)
def test_each_recorded_call_answers_at_most_one_and_in_order(asked, record):
    sources = sources_of(
        [call(f"c{place}", n) for place, n in enumerate(asked)],
        [recorded(f"r{place}", n) for place, n in enumerate(record)],
        used=(), terms=PLAIN, kept=3,
    )  # fmt: skip

    for n in range(4):
        answering = [sources[f"c{place}"] for place, own in enumerate(asked) if own == n and f"c{place}" in sources]
        in_order = [f"r{place}" for place, own in enumerate(record) if own == n]
        assert answering == in_order[: Counter(asked)[n]]


def test_what_has_answered_an_earlier_call_answers_no_other():
    record = [recorded("r1", 1), recorded("r2", 1)]

    assert sources_of([call("c", 1)], record, used={"r1"}, terms=PLAIN, kept=3) == {"c": "r2"}
    assert sources_of([call("c", 1)], record, used={"r1", "r2"}, terms=PLAIN, kept=3) == {}


def test_the_same_arguments_of_another_tool_answer_nothing():
    assert sources_of([call("c", 1)], [recorded("r", 1, "refund")], used=(), terms=PLAIN, kept=3) == {}


@pytest.mark.parametrize(
    ("kept", "edited", "is_answered"),
    [(1, False, True), (2, False, True), (2, True, False), (3, False, False)],
    ids=["before the fork", "at the fork", "at the fork, edited", "behind the fork"],
)
@pytest.mark.parametrize("effects", [{"pay"}, {ALL}, {"pay", "other"}])
def test_a_tool_that_may_run_is_answered_from_the_record_up_to_the_fork_alone(kept, edited, is_answered, effects):
    terms = ForkTerms(
        run_id="source", step=3, kept=2, effects=frozenset(effects), arguments={"c": {"n": 1}} if edited else {}
    )

    sources = sources_of([call("c", 1)], [recorded("r", 1)], used=(), terms=terms, kept=kept)

    assert bool(sources) is is_answered


@pytest.mark.parametrize("effect", list(Effect))
@pytest.mark.parametrize("is_agent", [False, True])
@pytest.mark.parametrize("effects", [set(), {"pay"}, {"other"}, {ALL}])
def test_what_is_not_in_the_record_runs_if_it_is_pure_or_allowed(effect, is_agent, effects):
    terms = ForkTerms(run_id="source", step=3, kept=2, effects=frozenset(effects))

    judged = held_back(call("c", 1, effect=effect), terms, is_agent=is_agent)

    runs = bool(effects & {"pay", ALL}) or (effect is Effect.PURE and not is_agent)
    assert judged.status is (CallStatus.NEW if runs else CallStatus.CANCELLED)
    assert judged.code == (None if runs else NOT_RUN_IN_FORK)


def test_an_answer_is_the_recorded_one_whatever_it_was():
    result = RecordedResult(
        effect=Effect.IDEMPOTENT, status=CallStatus.FAILED, code="timeout", content="see call r", full="all of it"
    )

    one = answered(call("c", 1), "r", result)

    assert (one.effect, one.status, one.code, one.full) == (
        Effect.IDEMPOTENT,
        CallStatus.FAILED,
        "timeout",
        "all of it",
    )
    assert (one.content, one.answered_from) == ("see call c", "r")


def test_a_repeated_reply_costs_nothing_and_only_the_last_is_edited():
    terms = ForkTerms(run_id="source", step=3, kept=2, arguments={"a": {"n": 2}})

    first = kept_reply(body_of(REPLY), terms, is_last=False)
    last = kept_reply(body_of(REPLY), terms, is_last=True)

    assert (first.usage, first.attempts) == (Usage(), ())
    assert first.asks == REPLY.asks
    assert [ask.arguments for ask in last.asks] == [{"n": 2}, None]


def test_model_and_instructions_take_the_place_of_the_agents():
    agent = AgentSpec(name="ada", model="m", instructions="Be long.", selectable_models=("n",))

    assert PLAIN.tune(agent) == agent
    tuned = ForkTerms(run_id="source", step=3, kept=2, model="n", instructions="").tune(agent)
    assert (tuned.model, tuned.instructions) == ("n", "")


@pytest.mark.parametrize(
    ("edits", "field"),
    [
        ({"model": "n"}, "model"),
        ({"arguments": {"z": {}}}, "arguments"),
        ({"arguments": {"a": {"n": ["\x00"]}}}, "arguments"),
        ({"arguments": {"a": {"\ud800": 1}}}, "arguments"),
    ],
    ids=["model", "arguments", "nul", "surrogate"],
)
def test_edits_that_name_nothing_or_cannot_be_stored_are_refused(edits, field):
    with pytest.raises(InvalidMessage) as refused:
        check(ForkTerms(run_id="source", step=3, kept=2, **edits), AgentSpec(name="ada", model="m"), REPLY)

    assert refused.value.field == field
