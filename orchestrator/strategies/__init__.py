"""How a turn is completed: pure functions from a view of the run to the next move, by name."""

from collections.abc import Callable, Mapping

from chordage.orchestrator.core.moves import Move, View
from chordage.orchestrator.strategies.direct import direct
from chordage.orchestrator.strategies.plan_execute import plan_execute
from chordage.orchestrator.strategies.react import react

Strategy = Callable[[View], Move]

PLANLESS = frozenset({"direct", "react"})

STRATEGIES: Mapping[str, Strategy] = {"direct": direct, "react": react, "plan_execute": plan_execute}


def plans(name: str) -> bool:
    """Whether it may ask for plans: then the rows of those there were are read for it."""
    return name not in PLANLESS
