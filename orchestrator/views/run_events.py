"""The events of a run, of a turn, of a thread and of the fleet, from the journal.

Facts are read up to the position of the bus (`stages/project.py`): no row can appear before it any more. So a
reader who follows them live and one who reads them a year later get the same list, with the ids of the bus. What a row
leaves out is read from the rows it is about: of calls their ids, results and questions, of the end the answer and what
it cost.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from chordage.orchestrator.core import message
from chordage.orchestrator.core.approvals import digest
from chordage.orchestrator.core.bus import BusEntry, Fact, entries_of
from chordage.orchestrator.core.errors import NotFound
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.core.records import Checkpoint, Run
from chordage.orchestrator.core.run_events import RunEvent, position_of
from chordage.orchestrator.core.status import SETTLED_CALL, Disposition, RunStatus, TurnStatus
from chordage.orchestrator.store import run_events as rows
from chordage.orchestrator.store import runs, turns
from chordage.orchestrator.store.database import Store, Tx

PAGE = 200  # journal rows at a time
_REPLIES = (Checkpoint.ASSISTANT_TURN, Checkpoint.PLAN, Checkpoint.CLIENT_MESSAGES)
_SETTLED = frozenset(status.value for status in SETTLED_CALL)
_MERGES = 100  # of which one turn can become part, one after the other

Position = tuple[int, int]  # of an event: the journal row, and the number
BEGINNING: Position = (0, -1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EventPage:
    """`upto`: the row up to which everything is in it, and in those before it."""

    events: list[RunEvent]
    upto: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStanding:
    """Of a run as it is now, on the bus or not."""

    run_id: str
    turn_id: str
    thread_id: str
    is_done: bool
    is_waiting: bool
    top: int  # its last journal row, or that of a question or a decision of it
    questions: tuple[dict[str, Any], ...]  # open ones, of it and of its sub-agents, while none of them is at work
    children: tuple[dict[str, Any], ...]  # the sub-agents that are not done, those above before those below
    usage: Usage

    @property
    def rests(self) -> bool:
        """It waits for people, and nothing of it is at work."""
        return bool(self.questions)


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnPlace:
    """Where the events of a turn are."""

    turn_id: str  # of the turn whose run it is: another one, where the message was merged or steered into that
    thread_id: str
    run_id: str | None
    is_done: bool
    asked_id: str  # of the turn that was asked for


def settled_position(store: Store) -> int:
    with store.read() as tx:
        return rows.position(tx)


def now(store: Store) -> Position:
    """Behind everything that has happened."""
    with store.read() as tx:
        return (rows.top(tx) + 1, -1)


def is_known(store: Store, after: Position) -> bool:
    """Whether there is such a row. Id 0 is the beginning."""
    with store.read() as tx:
        return after[0] == 0 or rows.exists(tx, after[0])


def first_event(store: Store) -> str:
    """Behind which every event that is left comes."""
    with store.read() as tx:
        return f"{max(0, (rows.first_row(tx) or 1) - 1)}-0"


def run_events(store: Store, run_id: str, after: Position = BEGINNING, upto: int | None = None) -> EventPage:
    """A page of the facts of a run behind `after`."""
    with store.read() as tx:
        upto = rows.position(tx) if upto is None else upto
        facts = rows.facts_of(tx, rows.subjects_of(tx, run_id), after[0] - 1, upto, PAGE)
        return _page(tx, facts, after, upto)


def turn_notes(
    store: Store, turn_ids: Collection[str], after: Position = BEGINNING, upto: int | None = None
) -> EventPage:
    """What is on record of turns outside their runs: that one was queued, and that it ended without a run."""
    with store.read() as tx:
        upto = rows.position(tx) if upto is None else upto
        facts = rows.facts_of(tx, turn_ids, after[0] - 1, upto, PAGE)
        return _page(tx, facts, after, upto)


def thread_events(store: Store, thread_id: str, after: Position, upto: int | None = None) -> EventPage:
    with store.read() as tx:
        upto = rows.position(tx) if upto is None else upto
        facts = rows.facts_of_thread(tx, thread_id, after[0] - 1, upto, PAGE)
        return _page(tx, facts, after, upto)


def fleet_events(store: Store, after: Position, upto: int | None = None) -> EventPage:
    """Without texts, as on the stream of the fleet."""
    with store.read() as tx:
        upto = rows.position(tx) if upto is None else upto
        facts = rows.facts_of_all(tx, after[0] - 1, upto, PAGE)
    events = [_event(entry) for fact in facts for entry in entries_of(fact) if entry.run is None]
    behind = [event for event in events if event.id is not None and position_of(event.id) > after]
    return EventPage(events=behind, upto=facts[-1].id if len(facts) == PAGE else upto)


def new_results(store: Store, run_id: str, upto: int) -> list[RunEvent]:
    """A note for each call that has a result which is not on record by `upto`: its round is not over yet."""
    with store.read() as tx:
        recorded = rows.last_step(tx, run_id, upto, Checkpoint.TOOL_RESULTS)
        settled = rows.settled_behind(tx, run_id, recorded)
    return [
        RunEvent(
            id=None, kind="tool.settled", run_id=run_id, step=row["step"], data={"call": row["id"], **_result(row)}
        )
        for row in sorted(settled, key=lambda row: (row["ended_at"], row["step"], row["place"]))
    ]


def replied_so_far(store: Store, run_id: str, upto: int) -> tuple[int, set[str]]:
    """The step of the last reply on record by `upto`, and the calls that were asked for."""
    with store.read() as tx:
        step = rows.last_step(tx, run_id, upto, *_REPLIES)
        return step, rows.calls_up_to(tx, run_id, step + 1)


def standing(store: Store, run_id: str) -> RunStanding:
    with store.read() as tx:
        run = runs.load(tx, run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}; `chordage turns` lists turns with their runs")
        is_waiting = _is_suspended(run.status, run.reason)
        questions, children = _questions_of_tree(tx, run) if is_waiting else ([], [])
        return RunStanding(
            run_id=run.id, turn_id=run.turn_id, thread_id=run.thread_id, is_done=run.status is RunStatus.DONE,
            is_waiting=is_waiting, usage=run.usage,
            top=rows.top_of(tx, *(rows.subjects_of(tx, run_id) if run.suspended else [run_id])),
            questions=tuple(questions), children=tuple(children),
        )  # fmt: skip


def waiting_note(standing: RunStanding) -> RunEvent:
    """That a turn waits for people. It is no fact: a decision may come at any moment, and another wait after it."""
    data = {
        "questions": list(standing.questions),
        "children": list(standing.children),
        "usage": asdict(standing.usage),
    }
    return RunEvent(
        id=None, kind="turn.waiting", thread_id=standing.thread_id, turn_id=standing.turn_id, run_id=standing.run_id,
        data=data,
    )  # fmt: skip


def _is_suspended(status: object, reason: object) -> bool:
    return status == RunStatus.WAITING and reason == Reason.SUSPENDED


def _questions_of_tree(tx: Tx, run: Run) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The open questions, and the sub-agents that are not done. Nothing while one is at work, or has not started."""
    turn_of: dict[str, str | None] = {run.id: None}  # the sub-agents' runs
    newest, children = {run.id}, []
    while newest:
        below = rows.open_children(tx, newest)
        if not all(_is_suspended(child["run_status"], child["reason"]) for child in below):
            return [], []
        children += [{**_child(child), "parent": turn_of[child["parent_run"]]} for child in below]
        newest = {child["run_id"] for child in below} - turn_of.keys()
        turn_of |= {child["run_id"]: child["id"] for child in below}
    questions = [{**_question(row), "asker": turn_of[row["run_id"]]} for row in rows.open_questions(tx, turn_of)]
    return questions, children


def _child(row: rows.Row) -> dict[str, Any]:
    return {"turn": row["id"], "agent": row["agent"], "call": row["parent_call"]}


def place_of_turn(store: Store, turn_id: str, *, space: str | None) -> TurnPlace:
    """A caller with a `space` finds only the turns of its own threads."""
    with store.read() as tx:
        turn = turns.details(tx, turn_id)
        if turn is None or not message.holds(space, turn["root_thread"] or turn["thread_id"]):
            raise NotFound(f"there is no turn {turn_id!r}; `chordage turns` lists them")
        for _ in range(_MERGES):
            if turn["into_turn"] is None or (into := turns.details(tx, turn["into_turn"])) is None:
                break
            turn = into
        leader = turn["turn_id"]
        if turn["disposition"] == Disposition.STEERED and (run := runs.load(tx, turn["run_id"])) is not None:
            leader, is_done = run.turn_id, run.status is RunStatus.DONE
        else:
            is_done = turn["status"] == TurnStatus.DONE
    return TurnPlace(
        turn_id=leader, thread_id=turn["thread_id"], run_id=turn["run_id"], is_done=is_done, asked_id=turn_id
    )


def turn_of_run(store: Store, run_id: str, *, space: str | None) -> TurnPlace:
    with store.read() as tx:
        run = runs.load(tx, run_id)
    if run is None or not message.holds(space, run.home_thread):
        raise NotFound(f"there is no run {run_id!r}; `chordage turns` lists turns with their runs")
    return TurnPlace(
        turn_id=run.turn_id, thread_id=run.thread_id, run_id=run.id, is_done=run.status is RunStatus.DONE,
        asked_id=run.turn_id,
    )  # fmt: skip


def ended_by(store: Store, place: TurnPlace, after: Position) -> bool:
    """Whether nothing comes behind this position of a turn that is done: its end is the last row."""
    with store.read() as tx:
        return after >= (rows.top_of(tx, place.run_id or place.turn_id), 1 if place.run_id else 0)


def open_run_on(store: Store, thread_id: str) -> str | None:
    with store.read() as tx:
        run = runs.open_on(tx, thread_id)
    return None if run is None else run.id


# From rows to events.


def _page(tx: Tx, facts: Sequence[Fact], after: Position, upto: int) -> EventPage:
    events = [event for event in _Enriched(tx, facts) if event.id is not None and position_of(event.id) > after]
    return EventPage(events=events, upto=facts[-1].id if len(facts) >= PAGE else upto)


def _event(entry: BusEntry, data: dict[str, Any] | None = None) -> RunEvent:
    fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    step = fields.get("step")
    return RunEvent(
        id=entry.id, kind=fields["kind"], thread_id=fields.get("thread"), turn_id=fields.get("turn"),
        run_id=fields.get("run"), agent=fields.get("agent"), step=None if step is None else int(step),
        at=datetime.fromisoformat(fields["at"]), data=json.loads(fields["data"]) if data is None else data,
    )  # fmt: skip


class _Enriched:
    """The events of some facts. What they leave out is read for all of them together."""

    def __init__(self, tx: Tx, facts: Sequence[Fact]) -> None:
        self._tx = tx
        self._facts = facts
        self._body: dict[int, dict[str, Any]] = {fact.id: json.loads(fact.text) for fact in facts}
        rounds = {(fact.run_id, fact.step + 1) for fact in facts if fact.kind in _REPLIES}
        self._rounds: dict[tuple[str, int], list[rows.Row]] = defaultdict(list)
        for row in rows.calls_of_rounds(tx, rounds):
            self._rounds[row["run_id"], row["step"]].append(row)
        results, waits = self._of_kind(Checkpoint.TOOL_RESULTS), self._of_kind(Checkpoint.RUN_WAITING)
        named = {call["id"] for fact in results for call in self._body[fact.id]["calls"]}
        self._calls = rows.calls_by_id(tx, named.union(*(self._body[fact.id].get("calls", ()) for fact in waits)))
        self._asked = {
            fact.id: rows.asked_before(tx, fact.run_id, self._body[fact.id].get("calls", ()), fact.id) for fact in waits
        }
        suspended = {fact.run_id for fact in self._of_kind(Checkpoint.CALL_SUSPENDED)}
        self._questions = rows.questions(tx, suspended.union(*self._asked.values()))
        self._decisions = rows.decision_rows(tx, {fact.run_id for fact in self._of_kind(Checkpoint.CALL_DECIDED)})

    def _of_kind(self, kind: Checkpoint) -> list[Fact]:
        return [fact for fact in self._facts if fact.kind == kind]

    def __iter__(self) -> Iterator[RunEvent]:
        for fact in self._facts:
            known: set[str] = set()
            for entry in entries_of(fact):
                if entry.id not in known:
                    known.add(entry.id)
                    yield _event(entry, self._data(fact, entry))

    def _data(self, fact: Fact, entry: BusEntry) -> dict[str, Any] | None:
        """None: as the bus has it."""
        body, is_first = self._body[fact.id], entry.id.endswith("-0")
        match fact.kind:
            case Checkpoint.RUN_FINISHED:
                return self._end(fact, body, None if is_first else json.loads(entry.fields[-1]))
            case _ if not is_first:
                return None
            case Checkpoint.ASSISTANT_TURN | Checkpoint.PLAN:
                return self._reply(fact, body)
            case Checkpoint.CLIENT_MESSAGES:
                calls = self._rounds.get((fact.run_id, fact.step + 1), [])
                return {**body, **({"calls": [_asked_for(row, body, fact.at) for row in calls]} if calls else {})}
            case Checkpoint.TOOL_RESULTS:
                return {"calls": [self._settled(call) for call in body["calls"]]}
            case Checkpoint.RUN_WAITING:
                open_then = [self._questions[each] for each in self._asked[fact.id] if each in self._questions]
                return {
                    **body,
                    "questions": [self._as_asked(row) for row in open_then],
                    "children": self._children(body.get("calls", ()), fact.at),
                }
            case Checkpoint.CALL_SUSPENDED if fact.run_id in self._questions:
                return {**body, **self._as_asked(self._questions[fact.run_id])}
            case Checkpoint.CALL_DECIDED if (row := self._decisions.get(fact.run_id)) is not None:
                return {**body, "reason": row["reason"], "source": row["source"]}
            case _:
                return body

    def _reply(self, fact: Fact, body: Mapping[str, Any]) -> dict[str, Any]:
        calls = self._rounds.get((fact.run_id, fact.step + 1), [])
        asked = {"calls": [_asked_for(row, body, fact.at) for row in calls]}
        attempts = body.get("attempts") or ()
        seconds = round(sum(attempt["seconds"] or 0 for attempt in attempts), 3) if attempts else None
        names = ("text", "reasoning", "usage", "model", "stop", "worker", "ends", "commands")
        return {**{name: body[name] for name in names if name in body}, **asked, "seconds": seconds}

    def _children(self, call_ids: Collection[str], at: datetime) -> list[dict[str, Any]]:
        waiting = (self._calls[call_id] for call_id in call_ids if call_id in self._calls)
        return [child for row in waiting if (child := _child_of(row, at)) is not None]

    def _settled(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """A call as its round left it. One that waits for a decision has its result later."""
        row = self._calls.get(call["id"])
        content = {"content": row["content"]} if row is not None and call["status"] in _SETTLED else {}
        return {**call, "tool": row["tool"] if row else None, **content}

    def _as_asked(self, row: rows.Row) -> dict[str, Any]:
        """With the arguments that were in question: an answer may have changed those of the call."""
        if digest(row["arguments"]) == row["digest"]:
            return _question(row)
        for body in rows.bodies(self._tx, row["run_id"], Checkpoint.ASSISTANT_TURN, step=row["call_step"] - 1):
            asks = body.get("asks", ())
            if row["call_place"] < len(asks) and digest(asks[row["call_place"]]["arguments"] or {}) == row["digest"]:
                return _question({**row, "arguments": asks[row["call_place"]]["arguments"]})
        return _question(row)

    def _end(self, fact: Fact, body: Mapping[str, Any], turn: Mapping[str, Any] | None) -> dict[str, Any]:
        """Of the run, or with `turn` of its turn."""
        tx, run_id = self._tx, fact.run_id
        replies = rows.bodies(tx, run_id, Checkpoint.ASSISTANT_TURN, step=fact.step)
        run = runs.load(tx, run_id)
        data = {
            **{name: body.get(name) for name in ("reason", "code", "detail")},
            **({"output": body["output"]} if "output" in body else {}),
            "text": replies[0]["text"] if replies else None,
            "usage": asdict(run.usage if run is not None else Usage()),
        }
        if turn is not None:
            return {**data, **turn}
        recorded = {
            call["id"]
            for results in rows.bodies(tx, run_id, Checkpoint.TOOL_RESULTS)
            for call in results["calls"] if call["status"] in _SETTLED
        }  # fmt: skip
        left = [row for row in rows.settled_of(tx, run_id) if row["id"] not in recorded]
        in_order = sorted(left, key=lambda row: (row["step"], row["place"]))
        return {**data, "calls": [{"id": row["id"], **_result(row)} for row in in_order]}


def _asked_for(row: rows.Row, body: Mapping[str, Any], at: datetime) -> dict[str, Any]:
    """A call of a reply, as the model asked for it; with its result, if it was never to run or had run already."""
    asks = body.get("asks") or ()
    ask = asks[row["place"]] if row["place"] < len(asks) else {}
    arguments = ask.get("arguments") if ask.get("id") == row["ask_id"] else row["arguments"]
    call = {"id": row["id"], "tool": row["tool"], "arguments": arguments or {}}
    if (child := _child_of(row, at)) is not None:
        call["child"] = child
    is_over = row["ended_at"] is not None and row["ended_at"] <= at
    return {**call, "result": _result(row)} if is_over else call


def _child_of(row: rows.Row, at: datetime) -> dict[str, Any] | None:
    """The sub-agent that was answering a call at that time, or had answered it."""
    is_started = row["child_turn"] is not None and row["child_since"] <= at
    return {"turn": row["child_turn"], "agent": row["child_agent"], "call": row["id"]} if is_started else None


def _result(row: rows.Row) -> dict[str, Any]:
    return {name: row[name] for name in ("tool", "status", "code", "content")}


def _question(row: rows.Row) -> dict[str, Any]:
    names = ("id", "call_id", "run_id", "tool", "arguments", "why", "prompt", "schema", "digest", "on_expiry")
    times = {name: None if row[name] is None else row[name].isoformat() for name in ("created_at", "expires_at")}
    return {**{name: row[name] for name in names}, **times}
