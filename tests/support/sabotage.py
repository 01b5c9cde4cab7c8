"""Guards of the engine, each of which can be taken out of a process: then the checks have to see what it prevents.

The product has no switch for this. A guard is taken out by putting a statement without its condition, or a function
without its question, in the place of the real one; `drops` names what the schema would refuse behind it. A condition
that the code no longer has makes `take_out` fail, so no row of the table can outlive its guard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
from redis.lock import Lock
from sqlalchemy import ColumnElement, Select, Update, and_, literal_column, or_, true

from chordage.orchestrator import stages
from chordage.orchestrator.core.agent import Effect
from chordage.orchestrator.core.approvals import SuspensionStatus
from chordage.orchestrator.core.records import Phase, Run
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.gateways.redis_locks import RedisLocks
from chordage.orchestrator.run import approvals as run_approvals
from chordage.orchestrator.run import arrivals, rounds
from chordage.orchestrator.store import (
    approvals,
    calls,
    children,
    fairness,
    outbox,
    processes,
    projection,
    pulse,
    runs,
    starts,
    steering,
    turns,
)
from chordage.orchestrator.store.fairness import StartRule
from chordage.orchestrator.store.predicates import has, nothing_is_open_on
from chordage.orchestrator.store.statements import GuardedUpdate, PreparedStatement, insert_or
from chordage.workers import app

dispatch = import_module("chordage.orchestrator.stages.dispatch")  # the package has functions of these names
rescue = import_module("chordage.orchestrator.stages.rescue")

DOUBLED, LOST, AWAY = "messages are doubled", "messages are lost", "a receiver is away"
Patch = pytest.MonkeyPatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """`drops`: statements that take out of the schema what would refuse it as well. `faults`: those that this guard is
    there for. `settings`: of the fleet, where others show it sooner. `messages`: kinds of them; all, if none is named.
    `test`: with an owned schedule, for what processes do not meet within a minute.
    """

    take_out: Callable[[Patch], None]
    drops: tuple[str, ...] = ()
    faults: tuple[str, ...] = (DOUBLED,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    sends_by_name: bool = False
    test: str = ""


# How a statement or a function loses a part.


def rebound(function: Any, **names: Any) -> Any:
    """The same function with other things behind some of its global names."""
    unknown = names.keys() - set(function.__code__.co_names)
    assert not unknown, f"{function.__qualname__} no longer uses {sorted(unknown)}"
    made = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


def over(module: Any, **names: Any) -> SimpleNamespace:
    """A module with some of its names replaced."""
    unknown = names.keys() - vars(module).keys()
    assert not unknown, f"{module.__name__} no longer has {sorted(unknown)}"
    return SimpleNamespace(**{**vars(module), **names})


def loosen(patch: Patch, module: Any, name: str, *columns: str) -> None:
    """A statement of a module, without its conditions on these columns."""
    made: Any = getattr(module, name)
    is_guarded = isinstance(made, GuardedUpdate)
    statement: Update = (made._plain if is_guarded else made)._statement
    every = statement._where_criteria
    kept = tuple(one for one in every if not any(column in str(one) for column in columns))
    assert len(kept) == len(every) - len(columns), f"{name} no longer has one condition on each of {columns}"
    bare: Any = statement._clone()
    bare._where_criteria = kept
    if is_guarded:
        returned, bare._returning = bare._returning, ()
        patch.setattr(module, name, GuardedUpdate(bare, *returned))
    else:
        patch.setattr(module, name, PreparedStatement(bare))


def asking_less(function: Any, *columns: str) -> Any:
    """A function whose UPDATE or SELECT asks nothing of these columns."""
    used = function.__code__.co_names
    assert all(column.partition(".")[2] in used for column in columns), f"{function.__name__} asks of no {columns}"

    def kept(conditions: Iterable[Any]) -> list[Any]:
        return [one for one in conditions if not any(column in str(one) for column in columns)]

    class BareUpdate(Update):
        inherit_cache = False

        def where(self, *conditions: Any) -> Any:
            return super().where(*kept(conditions))

    class BareSelect(Select[Any]):
        inherit_cache = False

        def where(self, *conditions: Any) -> Any:
            return super().where(*kept(conditions))

    bare = {"update": BareUpdate, "select": BareSelect}
    return rebound(function, **{name: bare[name] for name in bare.keys() & set(function.__code__.co_names)})


# The guards.


def _due(turn: Any) -> ColumnElement[bool]:
    return and_(
        or_(turn.c.not_before.is_(None), turn.c.not_before <= fairness._NOW),
        or_(turn.c.deadline.is_(None), turn.c.deadline > fairness._NOW),
    )


def _start_where(patch: Patch, may_start: Callable[..., ColumnElement[bool]]) -> None:
    open_run = rebound(starts._open_run, fairness=over(fairness, may_start=may_start))
    rules = {
        StartRule.ALL_FIT: (fairness.ALL_FIT,),
        StartRule.HAS_ROOM: (),
        StartRule.FIRST: (fairness.IS_FIRST,),
        StartRule.HAS_SLOT: (or_(fairness.ALL_FIT, fairness.HAS_SLOT),),
    }
    assert rules.keys() == starts._OPEN_RUN.keys()
    patch.setattr(starts, "_OPEN_RUN", {rule: open_run(*more) for rule, more in rules.items()})


def _status_of_a_start(patch: Patch) -> None:
    _start_where(patch, lambda turn, _guard=has: and_(_due(turn), nothing_is_open_on(turn)))

    def as_queued(tx: Any, turn_id: str) -> Any:
        turn = turns.load(tx, turn_id)
        return turn and replace(turn, status=TurnStatus.QUEUED)

    patch.setattr(dispatch, "_start_on", rebound(dispatch._start_on, turns=over(turns, load=as_queued)))


def _one_run_per_thread(patch: Patch) -> None:
    _start_where(patch, lambda turn, guard=has: and_(guard(turn.c.status, TurnStatus.QUEUED), _due(turn)))
    patch.setattr(RedisLocks, "take", lambda *_args, **_more: None)
    patch.setattr(turns, "_ADMIT", _admit_with(turns._ADMITTED, ready=True, once=True))


def _admit_with(admitted: Any, *, ready: bool, once: bool) -> PreparedStatement:
    columns = list(admitted._raw_columns)
    if ready:
        columns[-1] = literal_column("1")
    chosen = admitted.with_only_columns(*columns, maintain_column_froms=True)

    def made(dialect: str) -> Any:
        stored = insert_or(dialect, turns.turns).from_select([*turns._GIVEN, "arrival", "status", "ready"], chosen)
        if once:
            key = turns.turns.c.dedupe_key.is_not(None)
            stored = stored.on_conflict_do_nothing(index_elements=turns.DEDUPED, index_where=key)
        return stored.returning(turns.turns.c.ready)

    return PreparedStatement(made)


def _dedupe_key(patch: Patch) -> None:
    patch.setattr(turns, "_ADMIT", _admit_with(turns._ADMITTED, ready=False, once=False))
    patch.setattr(arrivals, "find_duplicate", lambda *_args: None)


def _budget(patch: Patch) -> None:
    plain_send, plain_next = starts.send, starts.open_next
    patch.setattr(starts, "send", lambda tx, start: plain_send(tx, replace(start, budget=1000)))
    patch.setattr(starts, "open_next", lambda *args, **more: plain_next(*args, **{**more, "budget": 1000}))


def _claim_of_a_call(patch: Patch) -> None:
    patch.setattr(calls, "claim", asking_less(calls.claim, "calls.status"))
    loosen(patch, calls, "_CLAIM_NEW", "calls.status", "calls.lease_until")


def _start_on_record(patch: Patch) -> None:
    patch.setattr(Effect, "starts_on_record", property(lambda _effect: False))
    patch.setattr(rounds, "_ON_RECORD", frozenset())


def _unknown_outcome(patch: Patch) -> None:
    patch.setattr(rescue, "_calls", rebound(rescue._calls, Effect=SimpleNamespace(UNSAFE=None)))


def _outcome_of_a_call(patch: Patch) -> None:
    loosen(patch, calls, "_SETTLE", "calls.status", "calls.claim_token", "calls.suspension_id")


_MOVES = ("_OPEN_STEP", "_OPEN_ROUND", "_FINISH", "_FINISH_UNSTEERED", "_SUSPEND", "_SUSPEND_UNSTEERED", "_HOLD")


def _loosen_moves(patch: Patch, *columns: str) -> None:
    """Every statement that moves a run."""
    for name in _MOVES:
        loosen(patch, runs, name, *columns)


def _step_of_a_run(patch: Patch) -> None:
    _loosen_moves(patch, "runs.step", "runs.claim_token")
    patch.setattr(RedisLocks, "once", lambda *_args: True)


def _epoch_of_a_run(patch: Patch) -> None:
    _loosen_moves(patch, "runs.epoch", "runs.status")


def _barrier_of_a_round(patch: Patch) -> None:
    def next_inference(run: Run) -> int:
        return run.step if run.phase is Phase.INFERENCE else run.step + 1

    patch.setattr(Run, "next_inference", property(next_inference))


def _decision_taken_once(patch: Patch) -> None:
    def as_open(tx: Any, suspension_id: str) -> Any:
        asked = approvals.load(tx, suspension_id)
        return asked and replace(asked, status=SuspensionStatus.OPEN)

    seen = over(approvals, load=as_open, decision_of=lambda *_args: None, decision_by_key=lambda *_args: None)
    patch.setattr(run_approvals, "_store", rebound(run_approvals._store, approvals=seen))


def _order_of_deliveries(patch: Patch) -> None:
    each_is_first = SimpleNamespace(get=lambda _thread: ANY)
    patch.setattr(outbox, "claim", rebound(outbox.claim, _first_of_threads=lambda *_args: each_is_first))


def _rescue(patch: Patch) -> None:
    for part in ("rescue", "rescue_left"):
        patch.setattr(stages, part, lambda _rt: [])


def _answer_of_a_child(patch: Patch) -> None:
    asked_for = rebound(children.open_suspension, STILL_OPEN_SUSPENSION=true(), UNSETTLED_SUSPENSIONS=true())
    patch.setattr(children, "open_suspension", asked_for)
    patch.setattr(children, "mark_answered", rebound(children.mark_answered, STILL_OPEN_SUSPENSION=true()))


def _decision_before_expiry(patch: Patch) -> None:
    def as_open(tx: Any, suspension_id: str) -> Any:
        asked = approvals.load(tx, suspension_id)
        return asked and replace(asked, status=SuspensionStatus.OPEN)

    seen = over(approvals, load=as_open)
    patch.setattr(rescue, "_cancel_undecided", rebound(rescue._cancel_undecided, suspensions=seen))


def _steered_run_continues(patch: Patch) -> None:
    for name in ("_FINISH_UNSTEERED", "_SUSPEND_UNSTEERED"):
        loosen(patch, runs, name, "runs.steers")


def _later_messages_alone(patch: Patch) -> None:
    patch.setattr(steering, "pending", asking_less(steering.pending, "turns.arrival"))


def _claim_of_an_outcome(patch: Patch) -> None:
    loosen(patch, calls, "_SETTLE", "calls.claim_token", "calls.suspension_id")


def _revision_of_the_pulse(patch: Patch) -> None:
    """What this prevents twice in one slot is refused by the dedupe key too."""
    patch.setattr(pulse, "put", asking_less(pulse.put, "pulse.rev"))


def _sign_of_life(patch: Patch) -> None:
    patch.setattr(processes, "mark_gone", asking_less(processes.mark_gone, "processes.seen_at"))


def _owner_of_a_lock(patch: Patch) -> None:
    patch.setattr(Lock, "LUA_RELEASE_SCRIPT", "return redis.call('DEL', KEYS[1])")


def _claim_of_a_delivery(patch: Patch) -> None:
    unasked = rebound(outbox.settle, STILL_PENDING=true())
    patch.setattr(outbox, "settle", asking_less(unasked, "outbox.claim_token"))


def _claim_of_the_bus(patch: Patch) -> None:
    loosen(patch, projection, "_MOVE", "projection.claim_token")


def _answer_with_the_end(patch: Patch) -> None:
    """The delivery is stored by a transaction of its own, a moment later."""
    plain = outbox.add

    def later(engine: Any, *args: Any, **more: Any) -> None:
        with engine.begin() as tx:
            plain(tx, *args, **more)

    def add(tx: Any, *args: Any, **more: Any) -> None:
        threading.Timer(0.5, later, (tx.engine, *args), more).start()

    patch.setattr(outbox, "add", add)


def _acknowledged_late(patch: Patch) -> None:
    plain = app.celery_settings
    patch.setattr(app, "celery_settings", lambda *args: {**plain(*args), "task_acks_late": False})


def _unique(table: str, *names: str) -> tuple[str, ...]:
    return tuple(f"ALTER TABLE {table} DROP CONSTRAINT uq_{table}_{name}" for name in names)


def _check(table: str, name: str) -> tuple[str, ...]:
    return (f"ALTER TABLE {table} DROP CONSTRAINT ck_{table}_{name}",)


_UNIQUE_STEP = (
    *_unique("journal", "run_id_step_kind"),
    *_unique("calls", "run_id_step_place_generation", "run_id_ask_id_generation"),
)
NOTHING = "nothing"  # the control: no check may see anything
KILLED = ("a machine is killed", "a tool's process is killed")

GUARDS: Mapping[str, Guard] = {
    NOTHING: Guard(take_out=lambda _patch: None, faults=(DOUBLED, LOST, AWAY, *KILLED)),
    "a turn is started only while it is queued": Guard(
        take_out=_status_of_a_start,
        drops=(*_check("turns", "done_has_disposition"), *_check("turns", "done_has_time")),
    ),
    "a thread has one open run": Guard(take_out=_one_run_per_thread, drops=("DROP INDEX uq_runs_open_thread",)),
    "a message under one key is stored once": Guard(
        take_out=_dedupe_key, drops=("DROP INDEX uq_turns_dedupe",), faults=("a machine is killed",)
    ),
    "a start needs a place of the budget": Guard(
        take_out=_budget, faults=(), settings={"budgets": {"chat": 3, "chore": 2}}
    ),
    "a call is claimed once": Guard(take_out=_claim_of_a_call),
    "an unsafe call is on record before it begins": Guard(take_out=_start_on_record, faults=KILLED),
    "an unsafe call whose worker died is not repeated": Guard(take_out=_unknown_outcome, faults=KILLED),
    "an outcome is recorded once": Guard(take_out=_outcome_of_a_call),
    "a reply moves its run once": Guard(take_out=_step_of_a_run, drops=_UNIQUE_STEP),
    "a run that was ended takes no late reply": Guard(
        take_out=_epoch_of_a_run, faults=(), messages=("interrupting", "rolling back", "plain")
    ),
    "a round is settled before the model is asked": Guard(take_out=_barrier_of_a_round),
    "a question has one answer": Guard(
        take_out=_decision_taken_once, drops=_unique("decisions", "suspension_id"),
        faults=(), messages=("asking", "raising"),
    ),
    "answers of a thread are delivered in order": Guard(
        take_out=_order_of_deliveries, faults=(AWAY,), messages=("delivered",)
    ),
    "an answer is stored with the end of its turn": Guard(
        take_out=_answer_with_the_end, faults=("a machine is killed",), messages=("delivered",)
    ),
    "a message by name is acknowledged when it is stored": Guard(
        take_out=_acknowledged_late, faults=("a machine is killed", "the network is slow"), messages=("plain",),
        sends_by_name=True,
    ),
    "what was lost is sent again": Guard(take_out=_rescue, faults=(LOST,)),
    "an outcome is written by the holder of the claim": Guard(
        take_out=_claim_of_an_outcome,
        test="tests/store/test_call_races.py::test_lost_claim_cannot_settle_a_call",
    ),
    "a child answers its parent once": Guard(
        take_out=_answer_of_a_child,
        test="tests/flow/test_children.py::test_denial_of_the_call_cancels_the_child_and_its_descendants",
    ),
    "a decision comes before an expiry": Guard(
        take_out=_decision_before_expiry,
        test="tests/flow/test_suspension_races.py::test_a_decision_just_in_time_beats_the_expiry_that_cancels",
    ),
    "a run does not end while a message waits for it": Guard(
        take_out=_steered_run_continues,
        test="tests/flow/test_steering.py::test_behind_the_last_reply_it_keeps_the_run_from_ending",
    ),
    "a run takes in only later messages": Guard(
        take_out=_later_messages_alone,
        test="tests/flow/test_steering.py::test_run_absorbs_no_message_that_came_before_its_own",
    ),
    "a row of the pulse is written by who has read it": Guard(
        take_out=_revision_of_the_pulse,
        test="tests/flow/test_pulse.py::test_own_edit_behind_the_look_at_the_row_moves_it",
    ),
    "a process that shows itself is not gone": Guard(
        take_out=_sign_of_life,
        test="tests/flow/test_presence.py::test_process_that_shows_itself_meanwhile_is_not_marked",
    ),
    "a lock is released by its owner": Guard(
        take_out=_owner_of_a_lock,
        test="tests/unit/gateways/test_redis_locks.py::test_thread_is_held_by_one_run_until_that_run_releases_it",
    ),
    "a delivery is settled by its claim": Guard(
        take_out=_claim_of_a_delivery,
        test="tests/flow/test_delivery.py::test_late_result_after_a_lost_lease_changes_nothing",
    ),
    "the bus has one writer": Guard(
        take_out=_claim_of_the_bus,
        test="tests/flow/test_bus.py::test_a_claim_that_ran_out_moves_nothing",
    ),
}  # fmt: skip
