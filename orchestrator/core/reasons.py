"""Why a run is done or waiting: a reason, and for some a code and a detail in fields of their own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.core.text import clean_text

CODE_LENGTH = 100  # the width of the column
DETAIL_LENGTH = 4000  # characters: it may be the text of an exception, and is shown in a line


class Reason(StrEnum):
    NATURAL_END = "natural_end"
    BEHAVIOR_REQUESTED = "behavior_requested"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    ERROR = "error"
    SUSPENDED = "suspended"
    HELD = "held"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    reason: Reason
    code: str | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        """Callers and users' code write the texts: an end must never fail because of them."""
        if self.code is not None:
            object.__setattr__(self, "code", clean_text(self.code)[:CODE_LENGTH])
        if self.detail is not None:
            object.__setattr__(self, "detail", clean_text(self.detail)[:DETAIL_LENGTH])


DISPOSITION_OF = {
    Reason.NATURAL_END: Disposition.ANSWERED,
    Reason.BEHAVIOR_REQUESTED: Disposition.ANSWERED,
    Reason.STOPPED: Disposition.ANSWERED,
    Reason.CANCELLED: Disposition.CANCELLED,
    Reason.ERROR: Disposition.FAILED,
}

TIMEOUT = "timeout"
SUPERSEDED = "superseded"
INTERRUPTED = "interrupted"
ROLLED_BACK = "rolled_back"
BY_A_MESSAGE = frozenset({SUPERSEDED, INTERRUPTED, ROLLED_BACK})  # a later message ended the run
# The dispositions of turns that never started.
WITHOUT_A_RUN = frozenset(Disposition) - {Disposition.ANSWERED, Disposition.FAILED}


def disposition_of(ending: Ending) -> Disposition:
    """The disposition of the turn whose run ended so."""
    return Disposition.SUPERSEDED if ending.code == SUPERSEDED else DISPOSITION_OF[ending.reason]


NATURAL_END = Ending(reason=Reason.NATURAL_END)


def stopped(code: str, detail: str | None = None) -> Ending:
    return Ending(reason=Reason.STOPPED, code=code, detail=detail)


def failed(code: str, detail: str) -> Ending:
    return Ending(reason=Reason.ERROR, code=code, detail=detail)


def out_of_time(limit: float, *, of: str | None = None) -> Ending:
    """`of`: the agent of the run above that has the limit."""
    owner = "a turn" if of is None else f"the run of {of} that asked"
    return failed(TIMEOUT, f"the limit of {limit:g} s for {owner} was reached")


def too_many_calls(asked: int, limit: int) -> Ending:
    return stopped("max_tool_calls", f"{asked} tool calls were asked for; the limit is {limit}")


def cancelled(detail: str | None = None) -> Ending:
    return Ending(reason=Reason.CANCELLED, detail=detail)
