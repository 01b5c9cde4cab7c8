"""Entries of the bus, from rows of the journal. A pure function, so that a rebuilt bus is the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from chordage.orchestrator.core.reasons import Ending, Reason, disposition_of
from chordage.orchestrator.core.records import Checkpoint
from chordage.orchestrator.core.status import Disposition

LONGEST = 64 * 1024  # characters of the data of an entry; longer data stays in the database

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
    Checkpoint.TURN_CHANGED: "turn.changed",
    Checkpoint.TURN_DROPPED: "turn.ended",
    Checkpoint.CALL_SUSPENDED: "call.suspended",
    Checkpoint.CALL_DECIDED: "call.decided",
    Checkpoint.DELIVERED: "delivery.sent",
    Checkpoint.DELIVERY_DEAD: "delivery.dead",
}
# The kinds on the fleet's stream. They come without texts, which are on the stream of the run.
_FOR_ALL = frozenset(
    {"run.started", "run.waiting", "run.held", "run.finished", "turn.queued", "turn.changed", "turn.steered",
     "turn.ended", "call.suspended", "call.decided", "delivery.sent", "delivery.dead"}
)  # fmt: skip
_TEXTS = frozenset({"text", "parts", "output", "attempts"})
_REASONS = frozenset(Reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class BusRules:
    keep: int = 100_000  # entries of the fleet's stream
    keep_of_run: int = 10_000  # entries of the stream of a run
    keep_seconds: int = 86_400  # the stream of a run expires so long after its last entry
    batch: int = 200  # journal rows at once


@dataclass(frozen=True, kw_only=True, slots=True)
class BusCursor:
    """The position of the bus: the same in SQL and in Redis, unless one of them has lost data."""

    bus: str
    generation: int
    position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A journal row, with the turn, agent and group of its run."""

    id: int
    thread_id: str
    run_id: str
    step: int
    kind: str  # a Checkpoint, or one of a newer version
    text: str  # its body as it is stored: most are copied without parsing
    at: datetime
    turn_id: str | None  # the turn that started the run; none of a note
    agent: str | None
    group: str | None


class BusEntry(NamedTuple):
    """A turn has ten: these are made as cheaply as they can be."""

    position: int
    id: str
    run: str | None  # whose stream it is on; None: the fleet's
    fields: list[str]  # each name with its value behind it


def entries_of(fact: Fact) -> list[BusEntry]:
    """In the order in which they are to be written. Ids are made of the position: `<journal id>-<number>`."""
    is_steered = fact.kind == Checkpoint.USER_MESSAGE and fact.step
    kind = "turn.steered" if is_steered else _KIND.get(fact.kind, fact.kind)
    if kind not in _FOR_ALL and fact.turn_id:
        about = _about(fact, fact.run_id, fact.turn_id, fact.agent, fact.group)
        return [_entry(fact, 0, fact.run_id, kind, about, fact.text)]
    body = json.loads(fact.text)
    run = fact.run_id if fact.turn_id else body.get("run")
    # Of a note the body has the agent and group, which its row does not have.
    agent, group = fact.agent or body.get("agent"), fact.group or body.get("group")
    about = _about(fact, run, body.get("turn") or fact.turn_id, agent, group)
    entries = [_entry(fact, 0, run, kind, about, fact.text)] if run else []
    if kind in _FOR_ALL or not run:
        entries.append(_entry(fact, 0, None, kind, about, _without_texts(fact, body)))
    if (end := _end_of_turn(body, kind)) is not None:
        data = json.dumps(end)
        entries += [_entry(fact, 1, stream, "turn.ended", about, data) for stream in ([run, None] if run else [None])]
    return entries


def _about(fact: Fact, run: str | None, turn: str | None, agent: str | None, group: str | None) -> list[str]:
    """What all entries of a row have in common."""
    known = {"thread": fact.thread_id, "run": run, "turn": turn, "agent": agent, "group": group}
    about = [text for name, value in known.items() if value is not None for text in (name, value)]
    if run:
        about += ["step", str(fact.step)]
    about += ["at", fact.at.isoformat()]
    return about


def _entry(fact: Fact, number: int, stream: str | None, kind: str, about: list[str], data: str) -> BusEntry:
    if len(data) > LONGEST:
        data = json.dumps({"left_out": len(data)})
    return BusEntry(fact.id, f"{fact.id}-{number}", stream, ["kind", kind, "fact", "1", *about, "data", data])


def _without_texts(fact: Fact, body: Mapping[str, Any]) -> str:
    if _TEXTS.isdisjoint(body):
        return fact.text
    return json.dumps({name: value for name, value in body.items() if name not in _TEXTS})


def _end_of_turn(body: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    """The data of `turn.ended`, where the turn ends with this row. A reason of a newer version has no disposition."""
    reason = {name: body[name] for name in ("reason", "code", "detail") if body.get(name) is not None}
    if kind == "turn.steered":
        return {"disposition": Disposition.STEERED.value, **reason}
    if kind != "run.finished":
        return None
    if reason["reason"] not in _REASONS:
        return reason
    ending = Ending(reason=Reason(reason["reason"]), code=reason.get("code"), detail=reason.get("detail"))
    return {"disposition": disposition_of(ending).value, **reason}
