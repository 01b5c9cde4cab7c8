"""Strategies by name: those that come with chordage, then entry points of other packages, then import paths."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import cast

from chordage.orchestrator.core.moves import Finish, Infer, Move, Plan, RunPlan, RunTools, View
from chordage.orchestrator.core.reasons import DISPOSITION_OF, Ending, failed
from chordage.orchestrator.strategies.shipped import STRATEGIES, Strategy, unless_too_many
from chordage.orchestrator.system import user_code

ENTRY_POINTS = "chordage.strategies"
SECONDS = 5.0  # as for the hook of a plugin


def names() -> list[str]:
    """Those that any client may ask for. An import path is allowed in an agent's own file only."""
    return sorted({*STRATEGIES, *(point.name for point in entry_points(group=ENTRY_POINTS))})


@cache
def strategy_of(name: str) -> Strategy:
    """Raises RoomError."""
    shipped = STRATEGIES.get(name)
    return shipped or cast("Strategy", user_code.load_function(name, ENTRY_POINTS, what="strategy"))


def decide(name: str, view: View) -> Move:
    """Never raises: a strategy that fails would fail again for the same view, so the run ends with the reason."""
    strategy = strategy_of(name)
    if strategy is STRATEGIES.get(name):
        return strategy(view)
    try:
        move = user_code.within(SECONDS, lambda: _checked(strategy(view), view), f"strategy {name}")
    except user_code.JobRaised as raised:
        why = str(raised.error) if isinstance(raised.error, _Misfit) else f"raised {raised}"
    except user_code.TookTooLong:
        why = f"hung: no move after {SECONDS:g} s; a strategy only looks at its view, and waits for nothing"
    else:
        return move
    return Finish(ending=failed("strategy", f"strategy {name!r} {why}"))


class _Misfit(Exception):
    """What a strategy returned cannot be carried out."""


def _checked(move: object, view: View) -> Move:
    """A move that can be carried out here, within the limit of rounds: a strategy may well leave that to us."""
    if not isinstance(move, Move):
        raise _Misfit(f"returned {move!r}, which is no move")
    match move:
        case Finish(ending=ending):
            if not isinstance(ending, Ending) or ending.reason not in DISPOSITION_OF:
                raise _Misfit(f"returned {move!r}, which is no end of a run")
            return move
        case Infer() if view.reply is None or view.plan is not None:
            return move
        case Plan() if view.reply is None:
            return unless_too_many(view, move)
        case RunTools() if view.reply is not None and view.plan is None:
            return unless_too_many(view, move)
        case RunPlan() if view.plan is not None:
            return unless_too_many(view, move)
        case Infer():
            return unless_too_many(view, move)
    at = "at the start" if view.reply is None else "after a reply" if view.plan is None else "after a plan"
    raise _Misfit(f"returned {type(move).__name__} {at}, where it means nothing")
