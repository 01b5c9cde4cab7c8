"""What must happen next, as values. A stage returns them after its commit; the courier makes Celery messages of them.

An intent may be lost, doubled or late. Truth says what is due, so carrying one out twice changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from chordage.orchestrator.core.groups import Group


class Hint(NamedTuple):
    """The turn a wake-up came with, and its thread."""

    turn_id: str
    thread_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch:
    """Start a queued turn of this group, if its budget allows: this one, unless others have waited for longer."""

    group: Group
    hint: Hint | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Advance:
    """Decide what this run does next."""

    run_id: str
    group: Group


@dataclass(frozen=True, kw_only=True, slots=True)
class CallModel:
    """Make the model call that this step of the run stands at."""

    run_id: str
    step: int
    group: Group


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTools:
    """Fan a round out, and have it committed when its calls are settled.

    Each batch is carried out one call after the other, so the number of batches is how many run at once.
    """

    run_id: str
    thread_id: str
    step: int
    batches: tuple[tuple[str, ...], ...]
    group: Group


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTool:
    """Carry out one call, outside any chord: a wake-up that got lost is sent again like this."""

    call_id: str
    run_id: str
    group: Group


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRound:
    """Commit this round if its calls are settled."""

    run_id: str
    step: int
    group: Group


Intent = Dispatch | Advance | CallModel | CallTools | CallTool | CommitRound
