#!/usr/bin/env python
"""Draw docs/reference/lifecycle.md from the tables of the code: `.venv/bin/python docs/draw_lifecycle.py`.

The text between `<!-- drawn: name -->` and `<!-- end -->` is replaced, the rest of the page is kept. A test compares
the page with the tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from chordage.orchestrator.core.reasons import DISPOSITION_OF, SUPERSEDED, WITHOUT_A_RUN, Ending, Reason, disposition_of
from chordage.orchestrator.core.status import CALL, RUN, TURN, CallStatus, Disposition, RunStatus, Table, TurnStatus
from chordage.orchestrator.strategies.shipped import ENDINGS

PAGE = Path(__file__).parent / "reference" / "lifecycle.md"
S = TypeVar("S", bound=StrEnum)

_PART = re.compile(r"(<!-- drawn: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def machine(table: Table[S], beginning: S) -> str:
    """A state machine as a mermaid diagram, with its arrows in the order of the table."""
    order = list(type(beginning))
    arrows = [f"[*] --> {beginning.value}"]
    for here in order:
        arrows += [f"{here.value} --> {there.value}" for there in order if there in table[here]]
        arrows += [] if table[here] else [f"{here.value} --> [*]"]
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {arrow}" for arrow in arrows), "```"])


def reasons() -> str:
    rows = [(reason.value, DISPOSITION_OF[reason].value if reason in DISPOSITION_OF else "-") for reason in Reason]
    return _table(("Reason of the run", "Disposition of its turn"), rows)


def dispositions() -> str:
    """Whether a disposition ends a run, or belongs to a turn that never had one."""
    of_run = {*DISPOSITION_OF.values(), disposition_of(Ending(reason=Reason.CANCELLED, code=SUPERSEDED))}
    rows = [
        (disposition.value, _comes_with(disposition in of_run, disposition in WITHOUT_A_RUN))
        for disposition in Disposition
    ]
    return _table(("Disposition", "Comes with"), rows)


def _comes_with(run: bool, none: bool) -> str:
    return {
        (True, True): "the end of its run, or no run of its own",
        (True, False): "the end of its run",
        (False, True): "no run of its own",
    }[run, none]


def stops() -> str:
    rows = [(stop.value, ending.reason.value, ending.code or "-") for stop, ending in ENDINGS.items()]
    return _table(("The model stops with", "Reason", "Code"), rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    body = (tuple(f"`{cell}`" if cell.isidentifier() else cell for cell in row) for row in rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *body))


PARTS: Mapping[str, Callable[[], str]] = {
    "turn": lambda: machine(TURN, TurnStatus.QUEUED),
    "run": lambda: machine(RUN, RunStatus.RUNNING),
    "call": lambda: machine(CALL, CallStatus.NEW),
    "reasons": reasons,
    "dispositions": dispositions,
    "stops": stops,
}


def redrawn(page: str) -> str:
    """Return the page with every part as the tables have it now."""
    return _PART.sub(lambda part: f"{part[1]}{PARTS[part['name']]()}\n{part[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))
