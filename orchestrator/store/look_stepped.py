"""What is looked at before a verb is carried out: the rows of a stepped turn, at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from chordage.orchestrator.core import kinship, spaces
from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.planning.state import asks_in
from chordage.orchestrator.core.records import Call, Checkpoint, Entry, Run, Turn
from chordage.orchestrator.core.standing import standing_of
from chordage.orchestrator.core.stepping import Standing, Stepped
from chordage.orchestrator.core.transcript import reply_from
from chordage.orchestrator.store import calls, journal, runs, stepped, turns
from chordage.orchestrator.store.tx import Tx


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    turn: Turn
    run: Run | None
    row: Stepped
    held: Entry | None = None  # the reply, or the planner's
    calls: list[Call] = field(default_factory=list)  # of that reply: the newest for each place

    @property
    def standing(self) -> Standing:
        return standing_of(self.turn, self.run, self.row)

    @property
    def reply(self) -> Reply | None:
        """That of a planner asks for what its plan would call."""
        if self.held is None:
            return None
        reply = reply_from(self.held.body)
        if not self.holds_plan or self.plan is None:
            return reply
        return replace(reply, asks=tuple(asks_in(self.plan, self.plan_step).values()))

    @property
    def holds_plan(self) -> bool:
        return self.held is not None and "decision" in self.held.body

    @property
    def plan(self) -> dict[str, Any] | None:
        """The decision that counts when the run moves on: its consumer's, or else the planner's."""
        if self.row.plan is not None or self.held is None or not self.holds_plan:
            return self.row.plan
        return self.held.body

    @property
    def plan_step(self) -> int:
        """Where it stands. One that no planner was asked for has a step of its own."""
        assert self.run is not None
        return self.run.step + 1 if self.held is None else self.held.step

    @property
    def reply_id(self) -> str | None:
        return id_of(self.held) if self.held else None

    @property
    def call_step(self) -> int:
        """Where the calls of the reply stand."""
        assert self.held is not None
        return self.held.step + 1


def id_of(held: Entry) -> str:
    return f"{held.run_id}:{held.step}"


def look(tx: Tx, target: str, *, lock: bool = False, space: str | None = None) -> Seen:
    """`target`: a turn, or its run. `lock`: the run first, then the row of the turn. `space`: of a caller, outside of
    which there is no turn for it.
    """
    turn, run = _named(tx, target, space)
    if lock and run is not None:
        run = runs.lock(tx, run.id)
    row = stepped.load(tx, turn.id, lock=lock)
    if row is None:
        raise Conflict(f"turn {turn.id} is not driven by a consumer: it was submitted with control 'auto'")
    if lock:  # whoever started it meanwhile has committed, or waits for us
        turn, run = _again(tx, turn, run)
    held, asked = _held(tx, run, row)
    return Seen(turn=turn, run=run, row=row, held=held, calls=asked)


def _named(tx: Tx, target: str, space: str | None) -> tuple[Turn, Run | None]:
    turn, run = turns.load(tx, target), None
    if turn is None:
        run = runs.load(tx, target)
        turn = turns.load(tx, run.turn_id) if run else None
    if turn is None or not spaces.holds(space, kinship.home_of(turn.thread_id, turn.kin)):
        raise NotFound(f"there is no turn and no run {target!r}; `chordage turns` lists them")
    if run is None and turn.run_id is not None:
        run = runs.load(tx, turn.run_id)
    return turn, run


def _again(tx: Tx, turn: Turn, run: Run | None) -> tuple[Turn, Run | None]:
    now_turn = turns.load(tx, turn.id)
    assert now_turn is not None
    if run is None and now_turn.run_id is not None:
        return now_turn, runs.load(tx, now_turn.run_id)
    return now_turn, run


def _held(tx: Tx, run: Run | None, row: Stepped) -> tuple[Entry | None, list[Call]]:
    if run is None or row.reply_step is None:
        return None, []
    held = journal.at_step(tx, run.id, row.reply_step, Checkpoint.REPLY_HELD)
    newest = {call.place: call for call in calls.of_step(tx, run.id, row.reply_step + 1)}
    return held, [newest[place] for place in sorted(newest)]
