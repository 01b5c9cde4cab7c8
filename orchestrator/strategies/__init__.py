"""How a turn is completed: pure functions from a view of the run to the next move, by name."""

from collections.abc import Callable, Mapping

from chordage.orchestrator.core.moves import Move, View
from chordage.orchestrator.strategies.direct import direct
from chordage.orchestrator.strategies.react import react

Strategy = Callable[[View], Move]

STRATEGIES: Mapping[str, Strategy] = {"direct": direct, "react": react}
