"""Find what a client of another protocol means: the turn of a key that it gave, and the turns of questions it saw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core import message
from chordage.orchestrator.core.approvals import SuspensionStatus, Why
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.store import approvals, runs, turns
from chordage.orchestrator.store.database import Store, Tx


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionPlace:
    """A question, open or not, and the conversation that it belongs to."""

    id: str
    call_id: str
    why: Why
    schema: dict[str, Any] | None
    is_open: bool
    turn_id: str  # of the run that asks; if a sub-agent asks, of the run at the top of its tree
    thread_id: str  # of that turn
    call_above: str | None = None  # if a sub-agent asks: the call of that run which waits for it


def turn_by_key(store: Store, *, agent: str, source: str, key: str) -> str | None:
    """The turn that was made of a message with this dedupe key."""
    with store.read() as tx:
        return turns.by_dedupe_key(tx, agent, source, key)


def question_places(store: Store, targets: Iterable[str], *, space: str | None) -> dict[str, QuestionPlace]:
    """By what was asked for: the ids of questions, or those of calls for the newest question about each. Those that do
    not exist, or lie outside the space, are left out.
    """
    places: dict[str, QuestionPlace] = {}
    with store.read() as tx:
        for target in targets:
            asked = approvals.find(tx, target)
            run = runs.load(tx, asked.run_id) if asked else None
            if asked is None or run is None or not message.holds(space, run.home_thread):
                continue
            root = runs.load(tx, run.kin.root_run) if run.kin else run
            if root is not None:
                places[target] = QuestionPlace(
                    id=asked.id, call_id=asked.call_id, why=asked.why, schema=asked.schema,
                    is_open=asked.status is SuspensionStatus.OPEN, turn_id=root.turn_id, thread_id=root.thread_id,
                    call_above=_call_above(tx, run, root.id),
                )  # fmt: skip
    return places


def call_above(store: Store, run_id: str, root_id: str | None) -> str | None:
    """The call of the root that waits for a sub-agent's run, at whatever depth. None: it is the root's own run."""
    if run_id == root_id:
        return None
    with store.read() as tx:
        return _call_above(tx, runs.load(tx, run_id), root_id)


def _call_above(tx: Tx, run: Run | None, root_id: str | None) -> str | None:
    call = None
    while run is not None and run.id != root_id and run.kin is not None:
        call, run = run.kin.parent_call, runs.load(tx, run.kin.parent_run)
    return call
