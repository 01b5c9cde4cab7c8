"""Texts, questions and moves of users' code that cannot be stored, shown or carried out: it costs a call or its run."""

from __future__ import annotations

import sys
from itertools import count
from types import ModuleType

import pytest

from chordage import Context, tool
from chordage.orchestrator import stages
from chordage.orchestrator.core.moves import Finish, Infer, Plan, RunTools
from chordage.orchestrator.core.reasons import Ending, Reason
from chordage.plugins import Block, Plugin, SupplyResult, SuspendCall
from chordage.testing import ScriptedModel, World

ODD = "a\x00b\ud800"
STORED = "a\ufffdb?"
CALL = {"tool_calls": [{"name": "ask", "arguments": {}}]}


NUMBERS = count()


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raises(error):
    def play(*_):
        raise error

    return play


ANSWERS = {
    "raises_odd": raises(ValueError(ODD)),
    "raises_unreadable": raises(UnreadableError()),
    "raises_much": raises(ValueError("x" * 100_000)),
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setitem(sys.modules, "odd_code", ModuleType("odd_code"))


def given(code):
    """Its import path, which is a new one for each: what it leads to is remembered."""
    name = f"given_{next(NUMBERS)}"
    setattr(sys.modules["odd_code"], name, code)
    return f"odd_code:{name}"


@pytest.fixture
def world():
    with World() as world:
        yield world


def turn(world, **options):
    world.agent("clerk", model=options.pop("model", ["Hello."]), **options)
    turn_id = world.submit("Go.")
    world.run()
    return world.turn(turn_id)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raises_odd", f"raised ValueError: {STORED}"),
        ("raises_unreadable", "raised UnreadableError: (its text cannot be read: RuntimeError)"),
        ("raises_much", f"raised ValueError: {'x' * 3000}"),
    ],
)
@pytest.mark.parametrize("hook", ["run_start", "before_inference", "after_tool_execute", "strategy"])
def test_whatever_the_text_of_an_exception_it_is_the_reason_of_the_end(world, hook, code, words):
    if hook == "strategy":
        ended = turn(world, strategy=given(ANSWERS[code]))
    else:
        plugin = type("Given", (Plugin,), {"id": "given", hook: ANSWERS[code]})
        ended = turn(world, plugins=[given(plugin)], model=[CALL, "Done."], tools=[asking()])

    assert (ended.reason, ended.code) == (Reason.ERROR, "strategy" if hook == "strategy" else "plugin")
    assert words in ended.detail


def asking(**question):
    @tool(effect="unsafe")
    def ask(ctx: Context) -> str:
        return "asked" if not question else ctx.suspend(**{"prompt": "May I?", **question})

    return ask


UNFIT = [
    ({"schema": {"type": "banana"}}, "$.type"),
    ({"schema": {"type": "object", "properties": 5}}, "$.properties"),
    ({"schema": ["a"]}, "the schema must be a JSON Schema, as a dict"),
    ({"schema": {"$ref": "#/nowhere"}}, "leads nowhere"),
    ({"schema": {"$ref": "#"}}, "leads back to itself"),
    ({"schema": {"type": "string"}, "on_expiry": "default", "default": 7}, "the default does not fit the schema"),
    ({"default": float("nan")}, "the default must be something JSON has"),
    ({"expires_in": 1e12}, "at most 31622400"),
    ({"expires_in": float("inf")}, "at most 31622400"),
    ({"prompt": " "}, "is blank"),
    ({"prompt": "x" * 70_000}, "give at most 65536"),
]


@pytest.mark.parametrize(("question", "why"), UNFIT)
def test_question_that_nobody_could_read_or_answer_is_a_failure_of_the_tool(world, question, why):
    ended = turn(world, model=[CALL, "Done."], tools=[asking(**question)])

    (call,) = world.calls(ended.turn_id)
    assert (call.code, why in call.content, world.inbox()) == ("raised", True, [])
    world.assert_answered(ended.turn_id)


@pytest.mark.parametrize(("question", "why"), UNFIT)
def test_the_same_question_of_a_plugin_ends_its_run(world, question, why):
    asks = type(
        "Given",
        (Plugin,),
        {"id": "given", "before_tool_execute": lambda *_: [SuspendCall(**{"prompt": "May it?", **question})]},
    )
    ended = turn(world, model=[CALL, "Done."], tools=[asking()], plugins=[given(asks)])

    assert (ended.code, why in ended.detail, world.inbox()) == ("plugin", True, [])


def test_what_no_database_stores_is_replaced_in_a_question(world):
    waiting = turn(world, model=[CALL, "Done."], tools=[asking(prompt=ODD, expires_in=5, default=ODD)])

    (question,) = world.inbox()
    assert question.prompt == STORED
    assert waiting.disposition is None


@pytest.mark.parametrize(
    ("verdict", "content"), [(Block(ODD), STORED), (SupplyResult(ODD), STORED), (SupplyResult(""), "")]
)
def test_what_no_database_stores_is_replaced_in_a_verdict(world, verdict, content):
    plugin = type("Given", (Plugin,), {"id": "given", "before_tool_execute": lambda *_: [verdict]})
    ended = turn(world, model=[CALL, "Done."], tools=[asking()], plugins=[given(plugin)])

    assert [call.content for call in world.calls(ended.turn_id)] == [content]


@pytest.mark.parametrize("move", [Infer(), RunTools()])
def test_strategy_that_never_ends_is_ended_by_the_limit_of_rounds(world, move):
    ended = turn(world, strategy=given(lambda view: Infer() if view.reply is None else move), limits={"max_rounds": 3})

    assert (ended.reason, ended.code) == (Reason.STOPPED, "max_rounds")
    assert len(world._agents["clerk"].model.asked) == 4  # noqa: SLF001 - the model of the agent


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        (lambda view: RunTools(), "returned RunTools at the start"),
        (lambda view: Infer() if view.reply is None else Plan(), "returned Plan after a reply"),
        (lambda view: Finish(ending=Ending(reason=Reason.SUSPENDED)), "which is no end of a run"),
        (lambda view: Finish(ending=None), "which is no end of a run"),
    ],
)
def test_move_that_means_nothing_where_it_is_made_ends_the_run(world, strategy, why):
    ended = turn(world, strategy=given(strategy))

    assert (ended.code, why in ended.detail) == ("strategy", True)


def test_reason_of_a_cancel_may_be_any_text(world):
    world.agent("clerk", model=ScriptedModel([CALL, "Done."]), tools=[asking(prompt="May I?")])
    waiting, queued = world.submit("Go."), world.submit("Later.")
    world.run()

    for turn_id in (queued, waiting):
        stages.cancel_turn(world.engine.runtime, turn_id, ODD)
    rows = {row["id"]: row["detail"] for row in world.engine.rows("turns")}
    assert (rows[queued], world.turn(waiting).detail) == (STORED, STORED)
