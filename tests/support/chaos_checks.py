"""What must hold after chaos, read from the rows and from the ledger that tools, model and receiver have written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from support.chaos_trial import Trial
from support.invariants import check_all

FINAL = {"succeeded", "failed", "cancelled"}


def violations(trial: Trial) -> list[str]:
    check_all(trial.fleet.rig.runtime.store)
    return [
        *_messages(trial),
        *_effects(trial),
        *_deliveries(trial),
        *(f"over budget: {one}" for one in trial.over_budget),
        *_poisoned(trial),
    ]


def _messages(trial: Trial) -> Iterator[str]:
    """Every message that was taken has its turn, and no message has two."""
    turns = {row["id"]: row for row in trial.fleet.rig.rows("turns")}
    for plan, turn in trial.accepted.items():
        if turn not in turns:
            yield f"turn {turn} of message {plan} is lost"
        elif turns[turn]["dedupe_key"] != plan:
            yield f"turn {turn} is of {turns[turn]['dedupe_key']}, not of {plan}"
    keys = Counter((row["source"], row["dedupe_key"]) for row in turns.values() if row["dedupe_key"])
    yield from (f"{count} turns of message {key}" for key, count in keys.items() if count > 1)
    strange = [row for row in turns.values() if row["source"] == "rig" and row["dedupe_key"] not in trial.accepted]
    yield from (f"turn {row['id']} of nobody" for row in strange)


def _effects(trial: Trial) -> Iterator[str]:
    rig = trial.fleet.rig
    calls = {f"{row['run_id']}:{row['ask_id']}:{row['generation']}": row for row in rig.rows("calls")}
    begun = Counter((fact["name"], fact["key"]) for fact in rig.facts(what="tool", phase="begin"))
    ended = {fact["key"] for fact in rig.facts(what="tool", phase="end")}
    unsafe = {"unsafe", "asks_by_raising"}
    yield from (
        f"{name} ran {times} times: {key}" for (name, key), times in begun.items() if name in unsafe and times > 1
    )
    yield from (f"an effect of no call on record: {key}" for name, key in begun if name != "pure" and key not in calls)
    for key, row in calls.items():
        if row["status"] not in FINAL:
            yield f"call {key} is {row['status']}"
        own = row["status"] == "succeeded" and not row["tool"].startswith("ask_")
        if own and key not in ended:
            yield f"call {key} of {row['tool']} succeeded and never ended"
    late = [
        fact for fact in rig.facts(what="tool", phase="begin")
        if (row := calls.get(fact["key"])) and row["effect"] == "unsafe" and fact["at"] > row["ended_at"].timestamp()
    ]  # fmt: skip
    yield from (f"unsafe call {fact['key']} began after it was settled" for fact in late)


def _deliveries(trial: Trial) -> Iterator[str]:
    """Each answer reached its receiver, those of a thread in the order of their arrival."""
    rig, receiver = trial.fleet.rig, trial.fleet.receiver
    wanted: dict[str, list[dict[str, Any]]] = {}
    for row in rig.rows("turns"):
        if row["reply_target"]:
            wanted.setdefault(row["thread_id"], []).append(row)
    for thread, rows in wanted.items():
        expected = [row["id"] for row in sorted(rows, key=lambda row: row["arrival"])]
        if receiver.order[thread] != expected:
            yield f"thread {thread} was answered as {receiver.order[thread]}, its turns came as {expected}"


def _poisoned(trial: Trial) -> Iterator[str]:
    ends = trial.fleet.rig.rows("runs", reason="error")
    yield from (f"run {row['id']} ended with {row['code']}: {row['detail']}" for row in ends)
