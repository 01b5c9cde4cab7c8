"""What must hold after chaos, read from the rows and from the ledger that tools, model and receiver have written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sqlalchemy import select, text

from chordage.orchestrator.store import schema
from support.chaos_trial import Trial
from support.invariants import check_all

UNSAFE = {"unsafe", "asks_by_raising"}  # tools
FINAL = {"succeeded", "failed", "cancelled"}


def violations(trial: Trial) -> list[str]:
    """When all is over."""
    check_all(trial.fleet.rig.runtime.store)
    return [*seen_at_work(trial), *_messages(trial), *_effects(trial), *_deliveries(trial), *_poisoned(trial)]


def seen_at_work(trial: Trial) -> list[str]:
    """What would be wrong at any moment."""
    rig = trial.fleet.rig
    return [
        *_doubled_turns(rig.rows("turns")),
        *_doubled_effects(trial),
        *_doubled_runs(rig.rows("runs")),
        *_changed_though_final(trial),
        *_left_open(trial),
        *_out_of_order(trial),
        *(f"over budget: {one}" for one in trial.over_budget),
        *(f"question {one} took two answers" for one in trial.answered_twice),
    ]


def _doubled_turns(rows: list[dict[str, Any]]) -> Iterator[str]:
    keys = Counter((row["source"], row["dedupe_key"]) for row in rows if row["dedupe_key"])
    yield from (f"{count} turns of message {key}" for key, count in keys.items() if count > 1)


def _doubled_runs(rows: list[dict[str, Any]]) -> Iterator[str]:
    of_turn = Counter(row["turn_id"] for row in rows)
    yield from (f"turn {turn} has {count} runs" for turn, count in of_turn.items() if count > 1)
    on_thread = Counter(row["thread_id"] for row in rows if row["status"] != "done")
    yield from (f"thread {thread} has {count} open runs" for thread, count in on_thread.items() if count > 1)


def _changed_though_final(trial: Trial) -> Iterator[str]:
    """Noted by triggers of the trial's own (support.chaos_fleet)."""
    with trial.fleet.rig.runtime.store.read() as tx:
        for row in tx.execute(text("SELECT what, row_id, was, is_now FROM changed_though_final")):
            yield f"a row of {row.what} was final and changed: {row.row_id}\n  {row.was}\n  {row.is_now}"


def _left_open(trial: Trial) -> Iterator[str]:
    """A run closes its calls in the transaction in which it ends."""
    run, call = schema.runs.c, schema.calls.c
    left = select(call.id, call.status, call.tool).join(schema.runs, run.id == call.run_id)
    with trial.fleet.rig.runtime.store.read() as tx:
        for row in tx.execute(left.where(run.status == "done", call.status.not_in(FINAL))):
            yield f"a run has ended, and its call {row.id} of {row.tool} is {row.status}"


def _doubled_effects(trial: Trial) -> Iterator[str]:
    facts = trial.fleet.rig.facts(what="tool", phase="begin")
    begun = Counter((fact["name"], fact["key"]) for fact in facts if fact["name"] in UNSAFE)
    yield from (f"{name} ran {times} times: {key}" for (name, key), times in begun.items() if times > 1)


def _out_of_order(trial: Trial) -> Iterator[str]:
    """Of those that came by now. Turns of a thread end in the order of their arrival, but for one that was cancelled
    while it was queued: its answer does not wait for those before it.
    """
    ends = {row["turn_id"]: row["id"] for row in trial.fleet.rig.rows("outbox")}
    for thread, order in list(trial.fleet.receiver.order.items()):
        came = [ends[turn] for turn in list(order) if turn in ends]
        if came != sorted(came):
            yield f"thread {thread} was answered in the order of its ends {came}"


def _messages(trial: Trial) -> Iterator[str]:
    """Every message that was taken has its turn, and no message has two."""
    turns = {row["id"]: row for row in trial.fleet.rig.rows("turns")}
    for plan, turn in trial.accepted.items():
        if turn not in turns:
            yield f"turn {turn} of message {plan} is lost"
        elif turns[turn]["dedupe_key"] != plan:
            yield f"turn {turn} is of {turns[turn]['dedupe_key']}, not of {plan}"
    stored = {row["dedupe_key"] for row in turns.values()}
    yield from (f"message {plan} that was sent by name is lost" for plan in trial.sent if plan not in stored)
    strange = [row for row in turns.values() if row["source"] == "rig" and row["dedupe_key"] not in trial.accepted]
    yield from (f"turn {row['id']} of nobody" for row in strange)


def _effects(trial: Trial) -> Iterator[str]:
    rig = trial.fleet.rig
    calls = {f"{row['run_id']}:{row['ask_id']}:{row['generation']}": row for row in rig.rows("calls")}
    begun = Counter((fact["name"], fact["key"]) for fact in rig.facts(what="tool", phase="begin"))
    ended = {fact["key"] for fact in rig.facts(what="tool", phase="end")}
    yield from (f"an effect of no call on record: {key}" for name, key in begun if name != "pure" and key not in calls)
    with rig.runtime.store.read() as tx:
        settled = {row.call_id: row.at.timestamp() for row in tx.execute(text("SELECT * FROM settled_calls"))}
    for key, row in calls.items():
        if row["status"] not in FINAL:
            yield f"call {key} is {row['status']}"
        own = row["status"] == "succeeded" and not row["tool"].startswith("ask_")
        if own and key not in ended:
            yield f"call {key} of {row['tool']} succeeded and never ended"
        if own and row["id"] not in settled:
            yield f"the trial did not note when call {key} was settled"
    unsafe = {key: settled.get(row["id"], math.inf) for key, row in calls.items() if row["effect"] == "unsafe"}
    late = [fact for fact in rig.facts(what="tool", phase="begin") if fact["at"] > unsafe.get(fact["key"], math.inf)]
    yield from (f"unsafe call {fact['key']} began after it was settled" for fact in late)


def _deliveries(trial: Trial) -> Iterator[str]:
    """Each answer reached its receiver, those of a thread in the order in which their turns ended."""
    rig, receiver = trial.fleet.rig, trial.fleet.receiver
    wanted: dict[str, list[dict[str, Any]]] = {}
    ends = {row["turn_id"]: row["id"] for row in rig.rows("outbox")}
    for row in rig.rows("turns"):
        if row["reply_target"]:
            wanted.setdefault(row["thread_id"], []).append(row)
    for thread, rows in wanted.items():
        yield from (f"turn {row['id']} of thread {thread} has no answer" for row in rows if row["id"] not in ends)
        answered = [row["id"] for row in rows if row["id"] in ends]
        expected = sorted(answered, key=lambda turn: ends[turn])
        if receiver.order[thread] != expected:
            yield f"thread {thread} was answered as {receiver.order[thread]}, its turns ended as {expected}"


def _poisoned(trial: Trial) -> Iterator[str]:
    ends = trial.fleet.rig.rows("runs", reason="error")
    yield from (f"run {row['id']} ended with {row['code']}: {row['detail']}" for row in ends)
