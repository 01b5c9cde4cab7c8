"""What a strategy may ask for, and what it is shown to decide on."""

from __future__ import annotations

from dataclasses import dataclass

from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.reasons import Ending


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A run at the moment of a decision: the reply that has just come, or none when a round has settled or nothing
    was.
    """

    rounds: int
    reply: Reply | None
    max_rounds: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Infer:
    """Ask the model."""

    offer_tools: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class RunTools:
    """Carry out what the reply asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish:
    ending: Ending


Move = Infer | RunTools | Finish
