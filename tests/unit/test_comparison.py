"""Two runs beside each other: what is paired, and where the first difference is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.model import StopReason, Usage
from chordage.orchestrator.core.status import CallStatus, RunStatus
from chordage.orchestrator.views.calls import CallView
from chordage.orchestrator.views.comparison import MomentKind, compare
from chordage.orchestrator.views.runs import InferenceStep, RunView, ToolRound, WaitStep

AT = datetime(2026, 1, 1, tzinfo=UTC)
SAME = ("hello", "hello")


def reply(number: int, text: str = "", asks: int = 1, **more) -> InferenceStep:
    stop = StopReason.TOOL_USE if asks else StopReason.END
    fields = {"model": "m", "text": text, "stop": stop, **more}
    return InferenceStep(number=number, at=AT, asks=asks, attempts=(), usage=Usage(), seconds=0.0, **fields)


def call(name: str, n: int = 1, **more) -> CallView:
    nothing = dict.fromkeys(("code", "progress", "worker", "started_at", "ended_at", "seconds", "replayed_at", "placed",
                             "question", "answered_from"))  # fmt: skip
    fields = {"content": f"result of {n}", "tool": "pay", "arguments": {"n": n}, **more}
    return CallView(
        **{**nothing, "id": name, "ask_id": name, "generation": 1, "effect": Effect.UNSAFE, "wake_ups": 1,
           "status": CallStatus.SUCCEEDED, **fields}
    )  # fmt: skip


def run(*steps, name: str = "first") -> RunView:
    nothing = dict.fromkeys(("reason", "code", "detail", "parent_run", "parent_call", "root_run", "path", "fork_of"))
    return RunView(
        run_id=name, thread_id="t", turn_id="u", agent="ada", group=Group.CHAT, strategy="react",
        status=RunStatus.DONE, rounds=1, usage=Usage(), own_usage=Usage(), started_at=AT, ended_at=AT, extra={},
        steps=steps, **nothing,
    )  # fmt: skip


FIRST = run(
    reply(1), ToolRound(number=2, at=AT, calls=(call("a"), call("b", 2))),
    reply(3), ToolRound(number=4, at=AT, calls=(call("c", 3),)), reply(5, "done", 0),
)  # fmt: skip


def with_steps(**by_number) -> RunView:
    return replace(FIRST, steps=tuple(by_number.get(f"s{step.number}", step) for step in FIRST.steps))


def words(comparison) -> list[tuple[MomentKind, int, tuple[str, ...]]]:
    return [(row.kind, row.number, row.differs) for row in comparison.rows if row.differs]


def test_a_run_does_not_differ_from_itself():
    comparison = compare(FIRST, FIRST, SAME)

    assert comparison.first_difference is None
    assert [row.kind.value for row in comparison.rows] == ["message", "reply", "call", "call", "reply", "call", "reply"]


@pytest.mark.parametrize(
    ("second", "messages", "kind", "number", "differs"),
    [
        (FIRST, ("hello", "bye"), MomentKind.MESSAGE, 0, ("message",)),
        (with_steps(s3=reply(3, "so")), SAME, MomentKind.REPLY, 2, ("text",)),
        (with_steps(s3=reply(3, model="n")), SAME, MomentKind.REPLY, 2, ("model",)),
        (with_steps(s5=reply(5, "done", 0, stop=StopReason.REFUSAL)), SAME, MomentKind.REPLY, 3, ("end",)),
        (with_steps(s2=ToolRound(number=2, at=AT, calls=(call("x"), call("y", 9)))), SAME, MomentKind.CALL, 1,
         ("arguments", "result")),
        (with_steps(s4=ToolRound(number=4, at=AT, calls=(call("z", 3, tool="refund"),))), SAME, MomentKind.CALL, 2,
         ("tool",)),
        (with_steps(s4=ToolRound(number=4, at=AT, calls=(call("z", 3, code="denied"),))), SAME, MomentKind.CALL, 2,
         ("result",)),
        (with_steps(s4=ToolRound(number=4, at=AT, calls=(call("c", 3), call("d")))), SAME, MomentKind.CALL, 2,
         ("only here",)),
        (run(*FIRST.steps[:2]), SAME, MomentKind.REPLY, 2, ("only here",)),
    ],
)  # fmt: skip
def test_the_first_difference_is_found(second, messages, kind, number, differs):
    first = compare(FIRST, second, messages).first_difference

    assert first is not None
    assert (first.kind, first.number, first.differs) == (kind, number, differs)


def test_only_the_first_of_several_differences_is_the_first():
    comparison = compare(FIRST, with_steps(s1=reply(1, "x"), s3=reply(3, "y")), SAME)

    assert [row.is_first for row in comparison.rows if row.differs] == [True, False]


def test_rounds_are_paired_though_one_of_the_runs_has_waited():
    waited = run(
        reply(1), ToolRound(number=2, at=AT, calls=(call("a"), call("b", 2))),
        WaitStep(number=3, at=AT, calls=(), until=AT),
        reply(5), ToolRound(number=6, at=AT, calls=(call("c", 3),)), reply(7, "done", 0),
    )  # fmt: skip

    assert words(compare(FIRST, waited, SAME)) == []


def test_a_result_from_the_record_that_names_its_call_is_the_same_result():
    forked = with_steps(
        s2=ToolRound(number=2, at=AT, calls=(call("x", content="see x", answered_from="a"), call("b", 2)))
    )

    assert words(compare(FIRST, forked, SAME)) == []
    assert words(compare(forked, FIRST, SAME)) == []


def test_different_versions_of_the_agent_are_said():
    first = replace(FIRST, agent_digest="a")
    continued = replace(with_steps(s5=replace(FIRST.steps[-1], agent_digest="b")), agent_digest="a")

    assert compare(first, first, SAME).versions is None
    assert compare(first, continued, SAME).versions == (("a",), ("a", "b"))
    assert compare(first, replace(FIRST, agent_digest="b"), SAME).versions == (("a",), ("b",))
    assert words(compare(first, continued, SAME)) == []


def test_versions_that_are_not_known_do_not_differ():
    assert compare(FIRST, replace(FIRST, agent_digest="b"), SAME).versions is None
