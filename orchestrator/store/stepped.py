"""Stepped turns: one row each, the responses to their idempotency keys, and all rows of one turn at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, update

from chordage.orchestrator.core import message
from chordage.orchestrator.core.errors import Conflict, NotFound
from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.planning.state import asks_in
from chordage.orchestrator.core.records import Call, Checkpoint, Entry, Run, Turn
from chordage.orchestrator.core.settling import standing_of
from chordage.orchestrator.core.stepping import CapPolicy, Drive, OnHeld, Standing, Stepped, StepTerms
from chordage.orchestrator.core.transcript import reply_from
from chordage.orchestrator.store import calls, journal, runs, schema, turns
from chordage.orchestrator.store.contents import owned
from chordage.orchestrator.store.database import Tx

_FLAGS = ("going", "mutated", "parked", "replaces")
_ENUMS = {"drive": Drive, "cap_policy": CapPolicy, "on_held": OnHeld}


def create(tx: Tx, turn_id: str, terms: StepTerms) -> None:
    empty: dict[str, Any] = {"given": [], "steers": [], "verdicts": {}, "withheld": []}
    values = {
        **empty, **dict.fromkeys(_FLAGS, 0), "turn_id": turn_id, "rev": 1, "drive": Drive.STEP.value, "iteration": 0,
        "max_iterations": terms.max_iterations, "cap_policy": terms.cap_policy.value,
        "hold_seconds": terms.hold_seconds, "on_held": terms.on_held.value, "params": terms.params,
        "options": terms.options,
    }  # fmt: skip
    tx.execute(insert(schema.stepped).values(owned(tx, schema.stepped, values)))


def load(tx: Tx, turn_id: str, *, lock: bool = False) -> Stepped | None:
    """`lock`: as it stays until the commit. The run is locked before it."""
    by_id = select(schema.stepped).where(schema.stepped.c.turn_id == turn_id)
    row = tx.execute(by_id.with_for_update() if lock else by_id).mappings().first()
    return _from_row(row) if row else None


def _from_row(row: Mapping[Any, Any]) -> Stepped:
    flags = {name: bool(row[name]) for name in _FLAGS}
    return Stepped(**{**row, **flags, **{name: enum(row[name]) for name, enum in _ENUMS.items()}})


def change(tx: Tx, seen: Stepped, **changes: Any) -> bool:
    """Change the row, unless another has changed it since it was read."""
    changed = update(schema.stepped).where(schema.stepped.c.turn_id == seen.turn_id, schema.stepped.c.rev == seen.rev)
    values = {"rev": seen.rev + 1, **{name: _stored(changes[name]) for name in changes}}
    return tx.execute(changed.values(owned(tx, schema.stepped, values, owner=seen.turn_id))).rowcount == 1


def _stored(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def overdue(tx: Tx, now: datetime, limit: int) -> list[tuple[str, str]]:
    """Turns whose hold time is over, each with its run."""
    past = (
        select(schema.stepped.c.turn_id, schema.turns.c.run_id)
        .join(schema.turns, schema.turns.c.id == schema.stepped.c.turn_id)
        .where(schema.stepped.c.held_until.is_not(None), schema.stepped.c.held_until <= now)
        .order_by(schema.stepped.c.held_until)
        .limit(limit)
    )
    return [(row.turn_id, row.run_id) for row in tx.execute(past)]


def stored_response(tx: Tx, turn_id: str, key: str) -> tuple[str, dict[str, Any]] | None:
    """The hash of the request under this key, and its response."""
    row = tx.execute(
        select(schema.ops.c.request_hash, schema.ops.c.response).where(
            schema.ops.c.turn_id == turn_id, schema.ops.c.key == key
        )
    ).first()
    return (row.request_hash, row.response) if row else None


def store_response(tx: Tx, turn_id: str, key: str, request_hash: str, response: dict[str, Any], now: datetime) -> None:
    row = {"turn_id": turn_id, "key": key, "request_hash": request_hash, "response": response, "at": now}
    tx.execute(insert(schema.ops).values(owned(tx, schema.ops, row)))


@dataclass(frozen=True, kw_only=True, slots=True)
class SteppedRows:
    turn: Turn
    run: Run | None
    row: Stepped
    held: Entry | None = None  # the held reply, or the planner's
    calls: list[Call] = field(default_factory=list)  # of that reply: the newest of each place

    @property
    def standing(self) -> Standing:
        return standing_of(self.turn, self.run, self.row)

    @property
    def reply(self) -> Reply | None:
        """A planner's reply asks for the calls of its plan."""
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
        """The decision that counts when the run is resumed: its consumer's, or else the planner's."""
        if self.row.plan is not None or self.held is None or not self.holds_plan:
            return self.row.plan
        return self.held.body

    @property
    def plan_step(self) -> int:
        """Its step. A plan of the consumer has a step of its own."""
        assert self.run is not None
        return self.run.step + 1 if self.held is None else self.held.step

    @property
    def reply_id(self) -> str | None:
        return reply_id_of(self.held) if self.held else None

    @property
    def call_step(self) -> int:
        """The step of the calls of the reply."""
        assert self.held is not None
        return self.held.step + 1


def reply_id_of(held: Entry) -> str:
    return f"{held.run_id}:{held.step}"


def load_view(tx: Tx, target: str, *, lock: bool = False, space: str | None = None) -> SteppedRows:
    """`target`: a turn, or its run. `lock`: the run first, then the stepped row. `space`: a caller sees no turn outside
    its space.
    """
    turn, run = _find(tx, target, space)
    if lock and run is not None:
        run = runs.lock(tx, run.id)
    row = load(tx, turn.id, lock=lock)
    if row is None:
        raise Conflict(f"turn {turn.id} is not driven by a consumer: it was submitted with control 'auto'")
    if lock:  # a transaction that started it meanwhile has committed, or waits for this one
        turn, run = _reload(tx, turn, run)
    held, held_calls = _held(tx, run, row)
    return SteppedRows(turn=turn, run=run, row=row, held=held, calls=held_calls)


def _find(tx: Tx, target: str, space: str | None) -> tuple[Turn, Run | None]:
    turn, run = turns.load(tx, target), None
    if turn is None:
        run = runs.load(tx, target)
        turn = turns.load(tx, run.turn_id) if run else None
    if turn is None or not message.holds(space, turn.home_thread):
        raise NotFound(f"there is no turn and no run {target!r}; `chordage turns` lists them")
    if run is None and turn.run_id is not None:
        run = runs.load(tx, turn.run_id)
    return turn, run


def _reload(tx: Tx, turn: Turn, run: Run | None) -> tuple[Turn, Run | None]:
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
