"""Model and tools, until no tool is asked for."""

from __future__ import annotations

from chordage.orchestrator.core.model import StopReason
from chordage.orchestrator.core.moves import Finish, Infer, Move, RunTools, View
from chordage.orchestrator.core.reasons import NATURAL_END, Ending, stopped

ENDINGS: dict[StopReason, Ending] = {
    StopReason.END: NATURAL_END,
    StopReason.MAX_TOKENS: stopped("max_tokens", "the reply was cut at the model's output limit"),
    StopReason.REFUSAL: stopped("refusal", "the model declined to answer"),
    StopReason.UNKNOWN: stopped("unknown_stop", "the model stopped for a reason we do not know"),
}


def react(view: View) -> Move:
    if view.reply is None:
        return Infer()
    match view.reply.stop:
        case StopReason.TOOL_USE if view.reply.asks:
            return on_or_stop(view, RunTools())
        case StopReason.TOOL_USE:
            return Finish(ending=NATURAL_END)  # says it uses tools and asks for none: nothing is left to do
        case StopReason.PAUSE_TURN:
            return on_or_stop(view, Infer())
        case stop:
            return Finish(ending=ENDINGS[stop])


def on_or_stop(view: View, move: Move) -> Move:
    """The limit is asked before a round is opened: its calls would run for a model that is never asked again. A pause
    counts as a round, or a model that always pauses would never end.
    """
    if view.max_rounds is not None and view.rounds >= view.max_rounds:
        return Finish(ending=stopped("max_rounds", f"the limit of {view.max_rounds} tool rounds was reached"))
    return move
