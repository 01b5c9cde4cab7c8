"""What must hold of the rows of threads on which nothing is open any more, whatever happened while they were written.

One checker for tests, for the testing kit and for `chordage drill`. It takes rows and says in words what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core.model import COUNTS, AssistantSays, ToolSays
from chordage.orchestrator.core.records import History
from chordage.orchestrator.core.transcript import build

PAID = {"AssistantTurnCommitted", "PlanCommitted", "HistoryCompacted", "CompactionFailed"}
ENDED_CALL = {"succeeded", "failed", "cancelled"}
CLOSED_QUESTION = {"settled", "superseded"}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRows:
    """Rows as the tables have them. `entries`: of the journal, in their order. `histories`: by thread."""

    turns: Sequence[Any]
    runs: Sequence[Any]
    calls: Sequence[Any]
    entries: Sequence[Any]
    questions: Sequence[Any]
    unwanted_children: Sequence[str]  # children of runs that are done, which were not cancelled
    histories: Mapping[str, History]


def inconsistencies(rows: StoredRows) -> Iterator[str]:
    yield from (f"turn {turn.id} has no end" for turn in rows.turns if turn.status != "done" or not turn.disposition)
    yield from (f"run {run.id} is left open" for run in rows.runs if run.status != "done")
    yield from (f"call {call.id} is {call.status}" for call in rows.calls if call.status not in ENDED_CALL)
    yield from (f"question {one.id} is {one.status}" for one in rows.questions if one.status not in CLOSED_QUESTION)
    yield from (f"turn {child} was not cancelled with the run that asked for it" for child in rows.unwanted_children)
    yield from _out_of_order(rows)
    yield from _not_finished_once(rows)
    yield from _out_of_time(rows)
    yield from _miscounted(rows)
    for thread_id, history in rows.histories.items():
        yield from _not_answered_once(thread_id, history)


def _out_of_order(rows: StoredRows) -> Iterator[str]:
    """Among turns of one thread and one priority; those that a run has taken in among themselves, behind its own."""
    by_id = {turn.id: turn for turn in rows.turns}
    arrivals: dict[tuple[str, str, int], list[int]] = {}
    for entry in rows.entries:
        if entry.kind != "UserMessage":
            continue
        if (turn := by_id.get(entry.body["turn"])) is None:
            yield f"turn {entry.body['turn']} is in the history of thread {entry.thread_id} and not there"
            continue
        of = entry.run_id if entry.step else turn.grp
        arrivals.setdefault((entry.thread_id, of, turn.rank), []).append(turn.arrival)
        if (turn.disposition == "steered") != bool(entry.step):
            yield f"turn {turn.id} is {turn.disposition} and became history at step {entry.step}"
        if turn.run_id != entry.run_id:
            yield f"turn {turn.id} is of run {turn.run_id} and became history in run {entry.run_id}"
    for (thread_id, _, _), numbers in arrivals.items():
        if numbers != sorted(set(numbers)):
            yield f"thread {thread_id} has its turns in the order {numbers}"


def _not_finished_once(rows: StoredRows) -> Iterator[str]:
    finished = Counter(entry.run_id for entry in rows.entries if entry.kind == "RunFinished")
    known = {run.id for run in rows.runs}
    yield from (f"run {run_id} finished {finished[run_id]} times" for run_id in known if finished[run_id] != 1)
    yield from (f"run {run_id} finished and is not there" for run_id in finished.keys() - known)
    runs = Counter(run.turn_id for run in rows.runs)
    yield from (f"turn {turn_id} was run {count} times" for turn_id, count in runs.items() if count > 1)


def _out_of_time(rows: StoredRows) -> Iterator[str]:
    disposition = {turn.id: turn.disposition for turn in rows.turns}
    for run in rows.runs:
        if run.code == "timeout" and (run.reason, disposition.get(run.turn_id)) != ("error", "failed"):
            yield f"run {run.id} was out of time and did not fail its turn"
        if run.timeout_ms is not None and run.control == "auto" and run.reason == "natural_end":
            worked = (run.ended_at - run.started_at).total_seconds() * 1000 - run.rested_ms
            if worked >= run.timeout_ms:
                yield f"run {run.id} was answered after its time"


def _miscounted(rows: StoredRows) -> Iterator[str]:
    """Of each run that is no copy of a fork: what it has used itself are its replies, also those that were held and did
    not become history; and what its sub-agents have used are their runs.
    """
    paid = {(entry.run_id, entry.step): entry.body["usage"] for entry in rows.entries if entry.kind == "ReplyHeld"}
    paid |= {(entry.run_id, entry.step): entry.body["usage"] for entry in rows.entries if entry.kind in PAID}
    replies: dict[str, Counter[str]] = {run.id: Counter() for run in rows.runs}
    children: dict[str, Counter[str]] = {run.id: Counter() for run in rows.runs}
    for (run_id, _step), usage in paid.items():
        replies[run_id].update({name: number or 0 for name, number in usage.items()})
    for run in rows.runs:
        if run.parent_run in children:
            children[run.parent_run].update({name: getattr(run, name) for name in COUNTS})
    run_of = {turn.id: turn.run_id for turn in rows.turns}
    for run in rows.runs:
        if run_of.get(run.turn_id) != run.id:
            continue
        below = {name: getattr(run, f"children_{name}") for name in COUNTS}
        own = {name: getattr(run, name) - below[name] for name in COUNTS}
        if below != (of_children := {name: children[run.id][name] for name in COUNTS}):
            yield f"run {run.id} has {below} of its sub-agents, and they used {of_children}"
        if own != (of_replies := {name: replies[run.id][name] for name in COUNTS}):
            yield f"run {run.id} has {own} of its own, and its replies used {of_replies}"


def _not_answered_once(thread_id: str, history: History) -> Iterator[str]:
    said = build(history.entries, history.calls)
    for place, message in enumerate(said):
        if not isinstance(message, AssistantSays):
            continue
        answers = [getattr(one, "ask_id", None) for one in said[place + 1 : place + 1 + len(message.asks)]]
        if answers != [ask.id for ask in message.asks]:
            yield f"thread {thread_id}: calls {[ask.id for ask in message.asks]} are answered by {answers}"
    asked = sum(len(message.asks) for message in said if isinstance(message, AssistantSays))
    answered = sum(isinstance(message, ToolSays) for message in said)
    if asked != answered:
        yield f"thread {thread_id} has {asked} calls and {answered} results"
