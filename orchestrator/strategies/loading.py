"""Strategies by name: those that come with chordage, then entry points of other packages, then import paths."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import cast

from chordage.orchestrator.core.moves import Finish, Move, View
from chordage.orchestrator.core.reasons import failed
from chordage.orchestrator.strategies.shipped import STRATEGIES, Strategy
from chordage.orchestrator.system import user_code

ENTRY_POINTS = "chordage.strategies"


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
        move = strategy(view)  # in no main thread, so a signal is never among what it raises
    except (
        Exception,
        SystemExit,
        KeyboardInterrupt,
    ) as error:
        return Finish(ending=failed("strategy", f"strategy {name!r} raised {type(error).__name__}: {error}"))
    if not isinstance(move, Move):
        return Finish(ending=failed("strategy", f"strategy {name!r} returned {move!r}, which is no move"))
    return move
