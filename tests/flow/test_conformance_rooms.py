"""Conformance: what is seen of a turn's content. Numbers 66, 67 and 69 are in tests/live/test_background.py."""

from __future__ import annotations

from dataclasses import replace

from chordage.orchestrator import views
from chordage.orchestrator.core.agent import Limits
from chordage.orchestrator.core.model import Prompt, Reply, ToolSays
from chordage.orchestrator.views.runs import InferenceStep, ToolRound
from chordage.orchestrator.views.trace import EventKind
from support.fakes import asking, rounds_of, spoken
from support.one_turn import change_agent
from support.world import World


class Streaming:
    """A model that streams what it says, as providers do: nothing, where a reply has no text."""

    def __init__(self, inner) -> None:
        self._inner = inner

    def complete(self, agent, prompt: Prompt, *, abort, on_delta=None, on_reset=None, on_reasoning=None) -> Reply:
        reply: Reply = self._inner.complete(agent, prompt, abort=abort)
        for word in reply.text.split():
            on_delta(word)
        return reply


def test_64_tool_calls_appear_as_steps_with_arguments_and_output(world: World) -> None:
    turn = world.submit()
    world.run_dry()
    run = views.run(world.store, views.turn(world.store, turn).run_id)
    (found,) = [step for step in run.steps if isinstance(step, ToolRound)]

    assert [(call.tool, call.arguments, call.content) for call in found.calls] == [
        ("pure", {"n": 0}, "pure0"), ("pure", {"n": 1}, "pure1"),
    ]  # fmt: skip
    traced = [event for event in views.trace(world.store, turn).events if event.kind is EventKind.CALL]
    assert [mark.id for mark in traced] == [call.id for call in found.calls]


def test_86_turn_of_tools_alone_ends_with_finish_and_streams_no_text(world: World) -> None:
    world.models.script = rounds_of(2, rounds=5)
    world.runtime = replace(world.runtime, models=Streaming(world.models))
    change_agent(world, stream=True, limits=Limits(max_rounds=1))
    world.submit()
    world.run_dry()

    kinds = [kind for _, kind, _ in world.events.seen]
    assert kinds[-1] == "run.finished"
    assert "model.delta" not in kinds
    assert world.row("runs")["code"] == "max_rounds"


def test_87_parts_of_an_answer_keep_the_order_text_tool_text(world: World) -> None:
    def script(prompt: Prompt) -> Reply:
        if any(isinstance(said, ToolSays) for said in prompt.said):
            return spoken("Here it is.")
        return _with_text("Let me look.", asking(("pure", {"n": 7})))

    world.models.script = script
    turn = world.submit()
    world.run_dry()
    steps = views.run(world.store, views.turn(world.store, turn).run_id).steps

    parts = [step.text if isinstance(step, InferenceStep) else step.calls[0].tool for step in steps]
    assert parts == ["Let me look.", "pure", "Here it is."]
    remarks = views.history(world.store, "t1", limit=10)
    assert [(one.text, [call.tool for call in one.calls]) for one in remarks] == [
        ("hi", []), ("Let me look.", ["pure"]), ("Here it is.", []),
    ]  # fmt: skip


def _with_text(text: str, reply: Reply) -> Reply:
    return replace(reply, text=text)
