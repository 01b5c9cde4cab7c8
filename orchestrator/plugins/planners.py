"""Functions that plan instead of a model, by name: an entry point, or an import path.

Such a function is given what a model planner would read, as a dict, and returns a plan in any shape the normaliser
knows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from chordage.orchestrator.core.errors import ChordageError
from chordage.orchestrator.system import user_code
from chordage.orchestrator.system.user_code import JobRaised, TookTooLong, within

ENTRY_POINTS = "chordage.planners"
SECONDS = 60.0  # it may well ask a service
FAULT = "planner"  # reported to a stepped run in place of a fault of the model

Planner = Callable[[dict[str, Any], Callable[[], None]], Any]


class PlannerFailed(ChordageError):
    """The function raised, or did not return."""


@cache
def planner_of(name: str) -> Planner:
    function: Callable[[dict[str, Any]], Any] = user_code.load_function(name, ENTRY_POINTS, what="planner")

    def ask(given: dict[str, Any], check: Callable[[], None]) -> Any:
        try:
            return within(SECONDS, lambda: function(given), f"planner {name}", check)
        except JobRaised as error:
            raise PlannerFailed(f"planner {name!r} raised {error}") from error.error
        except TookTooLong as error:
            raise PlannerFailed(f"planner {name!r} did not answer within {SECONDS:g} s") from error

    return ask
