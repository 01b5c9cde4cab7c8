"""What the bus is told: from a row of the journal to entries of streams. Pure, so that a bus built anew is the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from chordage.orchestrator.core.reasons import Ending, Reason, disposition_of
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import Disposition

LONGEST = 64 * 1024  # characters of the data of an entry; what is longer is left to the truth

_KIND: Mapping[str, str] = {
    Checkpoint.USER_MESSAGE: "run.started",
    Checkpoint.ASSISTANT_TURN: "model.replied",
    Checkpoint.PLAN: "plan.made",
    Checkpoint.TOOL_RESULTS: "tools.settled",
    Checkpoint.OUTPUT_REFUSED: "output.refused",
    Checkpoint.COMPACTED: "history.compacted",
    Checkpoint.COMPACTION_FAILED: "compaction.failed",
    Checkpoint.REPLY_HELD: "run.held",
    Checkpoint.CLIENT_MESSAGES: "client.messages",
    Checkpoint.CLIENT_STEERS: "client.steered",
    Checkpoint.RUN_WAITING: "run.waiting",
    Checkpoint.RUN_INTERRUPTED: "run.interrupted",
    Checkpoint.ROLLED_BACK: "run.rolled_back",
    Checkpoint.RUN_FINISHED: "run.finished",
    Checkpoint.TURN_QUEUED: "turn.queued",
    Checkpoint.TURN_DROPPED: "turn.ended",
    Checkpoint.CALL_SUSPENDED: "call.suspended",
    Checkpoint.CALL_DECIDED: "call.decided",
    Checkpoint.DELIVERED: "delivery.sent",
    Checkpoint.DELIVERY_DEAD: "delivery.dead",
}
# What the fleet's stream carries. Of a message only that there is one: what was said is on the stream of its run.
_FOR_ALL = frozenset(
    {"run.started", "run.waiting", "run.held", "run.finished", "turn.queued", "turn.steered", "turn.ended",
     "call.suspended", "call.decided", "delivery.sent", "delivery.dead"}
)  # fmt: skip
_WORDS = frozenset({"text", "parts", "output", "attempts"})


@dataclass(frozen=True, kw_only=True, slots=True)
class BusRules:
    keep: int = 100_000  # entries of the fleet's stream
    keep_of_run: int = 10_000  # entries of the stream of a run
    keep_seconds: int = 86_400  # the stream of a run goes this long after its last entry
    batch: int = 200  # journal rows at once


@dataclass(frozen=True, kw_only=True, slots=True)
class BusCursor:
    """How far the bus of a database is: the same in SQL and in Redis, unless one of them has lost something."""

    bus: str
    generation: int
    position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A journal row, and whom its run belongs to."""

    id: int
    thread_id: str
    run_id: str
    step: int
    kind: str  # a Checkpoint, or what a newer version calls one of its own
    text: str  # its body, as it is stored: most of them are passed on unread
    at: datetime
    turn_id: str | None  # the turn that started the run; none of a note
    agent: str | None
    group: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BusEntry:
    position: int
    id: str
    run: str | None  # of whose stream; None: the fleet's
    fields: Mapping[str, str] = field(default_factory=dict)


def entries_of(fact: Fact) -> list[BusEntry]:
    """In the order in which they are to be written. Ids are made of the position: `<journal id>-<number>`."""
    is_steered = fact.kind == Checkpoint.USER_MESSAGE and fact.step
    kind = "turn.steered" if is_steered else _KIND.get(fact.kind, fact.kind)
    if kind not in _FOR_ALL and fact.turn_id:
        return [_entry(fact, 0, fact.run_id, kind, _Whose(run=fact.run_id, turn=fact.turn_id), fact.text)]
    body = json.loads(fact.text)
    whose = _whose(fact, body)
    made = []
    if whose.run:
        made.append(_entry(fact, 0, whose.run, kind, whose, fact.text))
    if kind in _FOR_ALL or not whose.run:
        made.append(_entry(fact, 0, None, kind, whose, _without_words(fact, body)))
    if (told := _end_of_turn(body, kind)) is not None:
        streams = [whose.run, None] if whose.run else [None]
        made += [_entry(fact, 1, stream, "turn.ended", whose, json.dumps(told)) for stream in streams]
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class _Whose:
    run: str | None
    turn: str | None
    agent: str | None = None  # as a note has it that belongs to no run
    group: str | None = None


def _whose(fact: Fact, body: Mapping[str, Any]) -> _Whose:
    return _Whose(
        run=fact.run_id if fact.turn_id else body.get("run"), turn=body.get("turn") or fact.turn_id,
        agent=body.get("agent"), group=body.get("group"),
    )  # fmt: skip


def _without_words(fact: Fact, body: Mapping[str, Any]) -> str:
    if _WORDS.isdisjoint(body):
        return fact.text
    return json.dumps({name: value for name, value in body.items() if name not in _WORDS})


def _end_of_turn(body: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    """What is told of a turn whose end is told by its run. Without a disposition, where a newer version gave a reason
    that is not known here.
    """
    if kind == "turn.steered":
        return {"disposition": Disposition.STEERED.value, **_why(body)}
    if kind != "run.finished":
        return None
    why = _why(body)
    if why["reason"] not in set(Reason):
        return why
    how = Ending(reason=Reason(why["reason"]), code=why.get("code"), detail=why.get("detail"))
    return {"disposition": disposition_of(how).value, **why}


def _why(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("reason", "code", "detail") if body.get(name) is not None}


def _entry(fact: Fact, number: int, stream: str | None, kind: str, whose: _Whose, data: str) -> BusEntry:
    fields = {
        "kind": kind, "fact": "1", "thread": fact.thread_id, "run": whose.run, "turn": whose.turn,
        "agent": fact.agent or whose.agent, "group": fact.group or whose.group,
        "step": str(fact.step) if whose.run else None, "at": fact.at.isoformat(),
        "data": data if len(data) <= LONGEST else json.dumps({"left_out": len(data)}),
    }  # fmt: skip
    kept = {name: value for name, value in fields.items() if value is not None}
    return BusEntry(position=fact.id, id=f"{fact.id}-{number}", run=stream, fields=kept)
