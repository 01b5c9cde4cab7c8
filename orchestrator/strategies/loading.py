"""Strategies by name: those that are shipped, then entry points of other packages, then import paths."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import cast

from chordage.orchestrator.core.moves import Finish, Move, View
from chordage.orchestrator.core.reasons import failed
from chordage.orchestrator.strategies import STRATEGIES, Strategy
from chordage.orchestrator.system import user_code

ENTRY_POINTS = "chordage.strategies"


def names() -> list[str]:
    """Those that anybody may ask for. An import path is for an agent's own file alone."""
    return sorted({*STRATEGIES, *(point.name for point in entry_points(group=ENTRY_POINTS))})


@cache
def strategy_of(name: str) -> Strategy:
    """Raises RoomError."""
    shipped = STRATEGIES.get(name)
    return shipped or cast("Strategy", user_code.load_function(name, ENTRY_POINTS, what="strategy"))


def decide(name: str, view: View) -> Move:
    """Total: a strategy that fails would fail again for the same view, so the run ends and says so."""
    strategy = strategy_of(name)
    if strategy is STRATEGIES.get(name):
        return strategy(view)
    try:
        move = strategy(view)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # a signal is heard in the main thread, where none runs
        return Finish(ending=failed("strategy", f"strategy {name!r} raised {type(error).__name__}: {error}"))
    if not isinstance(move, Move):
        return Finish(ending=failed("strategy", f"strategy {name!r} returned {move!r}, which is no move"))
    return move
