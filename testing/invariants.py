"""What must hold whatever happened: checked after every test that loses, doubles, reorders or kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select

from chordage.orchestrator.core.model import COUNTS, AssistantSays, ToolSays
from chordage.orchestrator.core.transcript import build
from chordage.orchestrator.store import journal, schema
from chordage.orchestrator.store.database import Store


def check_all(store: Store) -> None:
    """After everything has come to rest."""
    with store.read() as tx:
        turns = tx.execute(select(schema.turns)).all()
        runs = tx.execute(select(schema.runs)).all()
        calls = tx.execute(select(schema.calls)).all()
        entries = tx.execute(select(schema.journal).order_by(schema.journal.c.id)).all()
    _every_turn_has_one_end(turns)
    assert [run.id for run in runs if run.status != "done"] == [], "runs left open"
    assert [call.id for call in calls if call.status not in {"succeeded", "failed", "cancelled"}] == []
    _every_question_is_closed(store)
    _nothing_of_a_done_run_is_wanted(store)
    _history_is_in_order_of_arrival(turns, entries)
    _each_run_finished_once(runs, entries)
    _who_is_out_of_time_has_failed(turns, runs)
    _usage_is_the_sum_of_the_replies(turns, runs, entries)
    for thread in {turn.thread_id for turn in turns}:
        _every_ask_is_answered_once(store, thread)


_PAID = {"AssistantTurnCommitted", "PlanCommitted", "HistoryCompacted", "CompactionFailed"}


def _usage_is_the_sum_of_the_replies(turns: Sequence[Any], runs: Sequence[Any], entries: Sequence[Any]) -> None:
    """Of each run that is no copy of a fork: what it has used itself are its replies, also those that were held and did
    not become history; and what its sub-agents have used are their runs.
    """
    began = {turn.run_id for turn in turns}
    paid = {(entry.run_id, entry.step): entry.body["usage"] for entry in entries if entry.kind == "ReplyHeld"}
    paid |= {(entry.run_id, entry.step): entry.body["usage"] for entry in entries if entry.kind in _PAID}
    replies: dict[str, Counter[str]] = {run.id: Counter() for run in runs}
    children: dict[str, Counter[str]] = {run.id: Counter() for run in runs}
    for (run_id, _step), usage in paid.items():
        replies[run_id].update({name: number or 0 for name, number in usage.items()})
    for run in runs:
        if run.parent_run is not None:
            children[run.parent_run].update({name: getattr(run, name) for name in COUNTS})
    for run in runs:
        if run.id in began and next(turn for turn in turns if turn.id == run.turn_id).run_id == run.id:
            below = {name: getattr(run, f"children_{name}") for name in COUNTS}
            assert below == {name: children[run.id][name] for name in COUNTS}, f"sub-agents of {run.id}"
            own = {name: getattr(run, name) - below[name] for name in COUNTS}
            assert own == {name: replies[run.id][name] for name in COUNTS}, f"replies of {run.id}"


def check_always(store: Store, budgets: dict[str, int]) -> None:
    """At every moment."""
    with store.read() as tx:
        runs = tx.execute(select(schema.runs)).all()
    open_runs = Counter(run.thread_id for run in runs if run.status != "done")
    assert all(count == 1 for count in open_runs.values()), f"two open runs on one thread: {open_runs}"
    # A run with a decision resumes at once, whether there is budget or not.
    running = Counter(run.grp for run in runs if run.status == "running" and not run.suspended and not run.stalled)
    assert all(count <= budgets[group] for group, count in running.items()), f"over budget: {running}"
    _nothing_of_a_done_run_is_wanted(store)


def _nothing_of_a_done_run_is_wanted(store: Store) -> None:
    """It has no open question, and no child of it runs without having been cancelled."""
    done = select(schema.runs.c.id).where(schema.runs.c.status == "done")
    asked, child = schema.suspensions.c, schema.turns.c
    with store.read() as tx:
        questions = tx.execute(select(asked.id).where(asked.run_id.in_(done), asked.status.in_(["open", "decided"])))
        assert questions.scalars().all() == [], "questions of runs that are done"
        wanted = select(child.id).where(
            child.parent_run.in_(done), child.status != "done", child.cancel_asked.is_(None)
        )
        assert tx.execute(wanted).scalars().all() == [], "children of runs that are done were not cancelled"


def check_places_are_handed_on(store: Store, budgets: Mapping[str, int], under_way: Counter[str]) -> None:
    """At every moment at which no wake-up has been lost: no place is free while a turn is ready and no wake-up for its
    group is under way. `under_way`: how many are, by group.
    """
    with store.read() as tx:
        at_work = select(schema.runs.c.grp).where(schema.runs.c.status == "running", schema.runs.c.stalled == 0)
        running = Counter(tx.execute(at_work).scalars())
        busy = select(schema.runs.c.thread_id).where(schema.runs.c.status != "done")
        ready = Counter(
            tx.execute(
                select(schema.turns.c.grp).where(
                    schema.turns.c.status == "queued",
                    schema.turns.c.ready == 1,
                    schema.turns.c.thread_id.not_in(busy),
                )
            ).scalars()
        )
    for group, count in ready.items():
        free = budgets[group] - running[group]
        stands = f"{group}: {free} places free, {count} turns ready, {under_way[group]} wake-ups under way"
        assert under_way[group] or free <= 0, stands


def _every_question_is_closed(store: Store) -> None:
    with store.read() as tx:
        left = tx.execute(select(schema.suspensions.c.status)).scalars()
        assert set(left) <= {"settled", "superseded"}


def _every_turn_has_one_end(turns: Sequence[Any]) -> None:
    assert [turn.id for turn in turns if turn.status != "done" or turn.disposition is None] == []


def _history_is_in_order_of_arrival(turns: Sequence[Any], entries: Sequence[Any]) -> None:
    """Among turns of one thread and one priority; those that a run has taken in among themselves, behind its own."""
    by_id = {turn.id: turn for turn in turns}
    told: dict[tuple[str, str, int], list[int]] = {}
    for entry in entries:
        if entry.kind == "UserMessage":
            turn = by_id[entry.body["turn"]]
            of = entry.run_id if entry.step else turn.grp
            told.setdefault((entry.thread_id, of, turn.rank), []).append(turn.arrival)
            assert (turn.disposition == "steered") == bool(entry.step)
            assert turn.run_id == entry.run_id
    for thread, arrivals in told.items():
        assert arrivals == sorted(set(arrivals)), f"thread {thread} tells its turns as {arrivals}"


def _each_run_finished_once(runs: Sequence[Any], entries: Sequence[Any]) -> None:
    finished = Counter(entry.run_id for entry in entries if entry.kind == "RunFinished")
    assert finished == Counter({run.id: 1 for run in runs})
    assert max(Counter(run.turn_id for run in runs).values(), default=1) == 1, "a turn was run twice"


def _who_is_out_of_time_has_failed(turns: Sequence[Any], runs: Sequence[Any]) -> None:
    of = {turn.id: turn.disposition for turn in turns}
    ends = {(run.reason, of[run.turn_id]) for run in runs if run.code == "timeout"}
    assert ends <= {("error", "failed")}, f"a time limit that does not fail the turn: {ends}"
    for run in runs:
        if run.timeout_ms is not None and run.control == "auto" and run.reason == "natural_end":
            worked = (run.ended_at - run.started_at).total_seconds() * 1000 - run.rested_ms
            assert worked < run.timeout_ms, f"run {run.id} was answered after its time"


def _every_ask_is_answered_once(store: Store, thread: str) -> None:
    with store.read() as tx:
        past = journal.history(tx, thread)
    said = build(past.entries, past.calls)
    for place, message in enumerate(said):
        if isinstance(message, AssistantSays):
            answers = said[place + 1 : place + 1 + len(message.asks)]
            assert [getattr(a, "ask_id", None) for a in answers] == [ask.id for ask in message.asks]
    asked = sum(len(m.asks) for m in said if isinstance(m, AssistantSays))
    assert asked == sum(isinstance(m, ToolSays) for m in said)
