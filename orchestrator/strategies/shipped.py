"""The strategies that come with chordage: pure functions from a view of the run to its next move."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chordage.orchestrator.core.model import Reply, StopReason
from chordage.orchestrator.core.moves import Finish, Infer, Move, Plan, RunPlan, RunTools, View
from chordage.orchestrator.core.planning.state import Converge, Execute
from chordage.orchestrator.core.reasons import NATURAL_END, Ending, stopped

Strategy = Callable[[View], Move]

ENDINGS: dict[StopReason, Ending] = {
    StopReason.END: NATURAL_END,
    StopReason.MAX_TOKENS: stopped("max_tokens", "the reply was cut at the model's output limit"),
    StopReason.REFUSAL: stopped("refusal", "the model declined to answer"),
    StopReason.UNKNOWN: stopped("unknown_stop", "the model stopped for a reason we do not know"),
}
ANSWER = Infer(offer_tools=False)


def direct(view: View) -> Move:
    """Exactly one model call, no tools offered."""
    return ANSWER if view.reply is None else Finish(ending=NATURAL_END)


def react(view: View) -> Move:
    """Model and tools in turns, until the model asks for no tool."""
    if view.reply is None:
        return Infer()
    match view.reply.stop:
        case StopReason.TOOL_USE if view.reply.asks:
            return unless_too_many(view, RunTools())
        case StopReason.TOOL_USE:
            return Finish(ending=NATURAL_END)  # it says it uses tools and asks for none: nothing is left to do
        case StopReason.PAUSE_TURN:
            return unless_too_many(view, Infer())
        case stop:
            return Finish(ending=ENDINGS[stop])


def plan_execute(view: View) -> Move:
    """Rounds of tools that a planner lays down, and an answer from what came of them.

    Before the rows are read, it makes no difference whether the planner is asked or the answer given: both are a model
    call.
    """
    if view.plan is not None and view.planning is not None:
        match view.planning.judge(view.plan):
            case Execute(commands=commands, refused=refused):
                return RunPlan(commands=commands, refused=refused)
            case Converge():
                return ANSWER
    if view.reply is not None:
        return _after_answer(view, view.reply)
    return Plan() if view.planning is None or view.planning.ends is None else ANSWER


def _after_answer(view: View, reply: Reply) -> Move:
    match reply.stop:
        case StopReason.PAUSE_TURN:
            return unless_too_many(view, ANSWER)
        case StopReason.TOOL_USE:
            return Finish(ending=NATURAL_END)  # none were offered
        case stop:
            return Finish(ending=ENDINGS[stop])


def unless_too_many(view: View, move: Move) -> Move:
    """The limit is checked before a round is opened: its calls would run for a model that is never asked again. A pause
    counts as a round, or a model that always pauses would never end.
    """
    if view.max_rounds is not None and view.rounds >= view.max_rounds:
        return Finish(ending=stopped("max_rounds", f"the limit of {view.max_rounds} tool rounds was reached"))
    return move


STRATEGIES: Mapping[str, Strategy] = {"direct": direct, "react": react, "plan_execute": plan_execute}


def plans(name: str) -> bool:
    """Whether it may ask for plans: then the rows of earlier plans are read for it."""
    return name not in {"direct", "react"}
