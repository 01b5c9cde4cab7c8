"""Not in the line of a turn: a new thread that begins with the history of another, up to a point.

Journal rows, runs and calls of the conversation are copied under new ids in one transaction, and all of them are over:
nothing of the copy is carried out, and no effect happens again. What is said on one thread from then on is not known on
the other. The state that plugins keep for a thread is not copied: it has no history.

A fork that is to run has what came before the message of a run, and in the same transaction a turn with that message
and the terms of the fork. Its run repeats the source up to a step and continues from there (run/forking.py). A process
that dies has made the thread with its turn, or neither; the turn is then started as any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chordage.orchestrator.core import forking, message
from chordage.orchestrator.core.audit import Actor, Audited
from chordage.orchestrator.core.client_tools import from_stored
from chordage.orchestrator.core.errors import Conflict, InvalidMessage, NotFound
from chordage.orchestrator.core.forking import ForkTerms
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.limits import TurnLimits
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.model import Reply
from chordage.orchestrator.core.records import Checkpoint, Run
from chordage.orchestrator.core.text import NAME_MAX
from chordage.orchestrator.core.transcript import reply_from
from chordage.orchestrator.run import arrivals
from chordage.orchestrator.run.unit import Unit
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import audit, fork_record, forks, runs, threads, turns
from chordage.orchestrator.store.database import Tx
from chordage.orchestrator.strategies import shipped

LONGEST = 5_000  # entries of a conversation
_WITH_CALLS = frozenset({Checkpoint.ASSISTANT_TURN, Checkpoint.CLIENT_MESSAGES})
# What a run cannot repeat, because it came from outside while the source was at work.
_FROM_OUTSIDE = {
    (Checkpoint.USER_MESSAGE, True): "took a message in",
    (Checkpoint.CLIENT_MESSAGES, True): "was given messages by its consumer",
    (Checkpoint.CLIENT_MESSAGES, False): "was given messages by its consumer",
    (Checkpoint.CLIENT_STEERS, True): "was steered by its consumer",
    (Checkpoint.REPLY_HELD, True): "held its reply for its consumer, whose part in it has no record",
}
_WITHOUT_A_RUN = "fork its thread without a run, and send a message there: its tools run then"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkPoint:
    """The last entry that the new thread has: by its position in the journal, or as the end of a step of a run. With
    neither it is the newest.
    """

    upto: int | None = None
    run_id: str | None = None
    step: int | None = None

    def check(self) -> None:
        """Raises InvalidMessage."""
        if (self.run_id is None) is not (self.step is None):
            raise InvalidMessage("give run_id and step together, or neither", field="step")
        if self.upto is not None and self.step is not None:
            raise InvalidMessage("give upto, or run_id and step", field="upto")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    thread_id: str
    forked_from: str
    upto: int  # the last entry that it has
    entries: int
    turn_id: str | None = None  # of the run that continues, where one was wanted


def fork_thread(
    rt: Runtime, thread_id: str, point: ForkPoint, *, space: str, name: str | None = None, by: Actor | None = None
) -> Fork:
    """The new thread is one of `space`, called `name`. Raises NotFound, Conflict and InvalidMessage."""
    point.check()
    own_id = _own_id(rt, space, name)
    with Unit(rt) as unit:
        threads.lock(unit.tx, thread_id)  # so that it is not pruned meanwhile
        agent = forks.agent_of(unit.tx, thread_id)
        if agent is None:
            raise NotFound(f"there is no thread {thread_id!r}; `chordage threads` lists them")
        upto = _place(unit.tx, thread_id, point)
        entries = _copy(unit, thread_id, own_id, agent, upto)
        _record(unit, by, own_id, thread_id, upto)
    return Fork(thread_id=own_id, forked_from=thread_id, upto=upto, entries=entries)


def _record(unit: Unit, by: Actor | None, own_id: str, source: str, upto: int) -> None:
    if by is not None:
        audit.record(unit.tx, by, Audited.FORKED, own_id, now=unit.now, detail={"from": source, "upto": upto})


def fork_run(rt: Runtime, request: TurnRequest) -> tuple[Fork, list[Intent]]:
    """A new thread with what came before a run, and a turn on it that repeats the run and continues it. `request`: as
    `fork_request` made it. Raises Conflict, QueueFull and InvalidMessage.
    """
    terms, own_id = request.fork, request.message.thread_id
    assert terms is not None
    assert own_id is not None
    agent = arrivals.check_request(rt, request, rt.now())
    with rt.store.read() as tx:
        last = _last_kept(tx, terms)
    forking.check(terms, agent, last)
    with Unit(rt) as unit:
        threads.lock(unit.tx, _run(unit.tx, terms.run_id).thread_id)  # so that it is not pruned meanwhile
        source = _run(unit.tx, terms.run_id)
        upto = forks.first_entry_of(unit.tx, source.id) - 1
        entries = _copy(unit, source.thread_id, own_id, agent.name, upto)
        admitted = arrivals.admit(unit, agent, request, [])
        _record(unit, request.by, own_id, source.thread_id, upto)
    fork = Fork(
        thread_id=own_id, forked_from=source.thread_id, upto=upto, entries=entries, turn_id=admitted.turn_id
    )  # fmt: skip
    return fork, unit.intents


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkEdits:
    """What is different in the new run. None: as in the source."""

    text: str | None = None
    arguments: dict[str, dict[str, Any]] | None = None  # of calls of the last round that it has, by their ask ids
    model: str | None = None
    instructions: str | None = None
    effects: frozenset[str] = frozenset()


def fork_request(
    rt: Runtime,
    run_id: str,
    step: int,
    edits: ForkEdits,
    *,
    space: str,
    source: str,
    thread_id: str | None = None,
    name: str | None = None,
) -> TurnRequest:
    """The message of the run again, on a new thread of `space`, and how its run repeats the source. `thread_id`: of the
    source, where it is given. Raises NotFound, Conflict and InvalidMessage.
    """
    with rt.store.read() as tx:
        run = _run(tx, run_id)
        if thread_id not in {None, run.thread_id}:
            raise NotFound(f"run {run_id!r} is not one of thread {thread_id!r}")
        turn = turns.load(tx, run.turn_id)
        terms = _terms(tx, run, step, edits)
    assert turn is not None
    return TurnRequest(
        message=Message(
            origin=Origin.INVOKE, channel=None, sender=Sender(turn.sender), thread_id=_own_id(rt, space, name),
            text=turn.text if edits.text is None else edits.text, meta=turn.meta,
        ),
        agent=run.agent, strategy=run.strategy, group=turn.group, tenant=turn.tenant, source=source, space=space,
        limits=TurnLimits(max_rounds=turn.max_rounds, timeout=turn.timeout),
        client_tools=from_stored(turn.client_tools), fork=terms,
    )  # fmt: skip


def _terms(tx: Tx, run: Run, step: int, edits: ForkEdits) -> ForkTerms:
    last_step = run.next_inference or run.step  # the step of a run that is done is that of its last round
    if step > last_step:
        raise NotFound(f"run {run.id} has no step {step}, its last is {last_step}")
    if shipped.plans(run.strategy):
        problem = f"run {run.id} makes plans, and a fork repeats replies: it can repeat no plan"
        raise Conflict(f"{problem}. Instead, {_WITHOUT_A_RUN}")
    written = fork_record.kinds_upto(tx, run.id, step)
    if outside := sorted((first, _FROM_OUTSIDE[kind]) for kind, first in written.items() if kind in _FROM_OUTSIDE):
        first, what = outside[0]
        instead = f"fork at step {first - 1} or before, or {_WITHOUT_A_RUN}" if first else _WITHOUT_A_RUN
        raise Conflict(f"run {run.id} {what} at step {first}, which a fork cannot repeat. Instead, {instead}")
    terms = ForkTerms(
        run_id=run.id, step=step, kept=fork_record.count_replies(tx, run.id, step), arguments=edits.arguments or {},
        model=edits.model, instructions=edits.instructions, effects=edits.effects,
    )  # fmt: skip
    last = _last_kept(tx, terms)
    if last is not None and not last.asks and fork_record.reply(tx, run.id, terms.kept) is None:
        raise Conflict(
            f"step {step} of run {run.id} is its last reply, nothing comes behind it: fork at an earlier step"
        )
    return terms


def _last_kept(tx: Tx, terms: ForkTerms) -> Reply | None:
    body = fork_record.reply(tx, terms.run_id, terms.kept - 1) if terms.kept else None
    return None if body is None else reply_from(body)


def _run(tx: Tx, run_id: str) -> Run:
    run = runs.load(tx, run_id)
    if run is None:
        raise NotFound(f"there is no run {run_id!r}; `chordage turns` lists turns with their runs")
    return run


def _copy(unit: Unit, thread_id: str, own_id: str, agent: str, upto: int) -> int:
    """Make the thread, with the conversation up to this entry; returns how many entries that are."""
    rt = unit.rt
    entries = forks.conversation(unit.tx, thread_id, upto, LONGEST + 1)
    if len(entries) > LONGEST:
        problem = f"more than {LONGEST} messages and replies come before that place"
        raise Conflict(f"{problem}: have the thread summarised first, with `chordage compact`")
    if not forks.create_thread(unit.tx, own_id, thread_id, agent, unit.now):
        raise Conflict(f"there is a thread {own_id!r} already: give another name, or none")
    run_ids = {run_id: rt.new_id() for run_id in dict.fromkeys(entry["run_id"] for entry in entries)}
    rounds = {(entry["run_id"], entry["step"] + 1) for entry in entries if Checkpoint(entry["kind"]) in _WITH_CALLS}
    calls = forks.calls_of(unit.tx, rounds)
    call_ids = {call["id"]: rt.new_id() for call in calls}
    forks.copy_runs(unit.tx, run_ids, own_id, unit.now)
    forks.copy_calls(unit.tx, calls, own_id, run_ids, call_ids, unit.now)
    forks.copy(unit.tx, entries, own_id, run_ids, call_ids)
    return len(entries)


def _own_id(rt: Runtime, space: str, name: str | None) -> str:
    own_id = message.placed(space, rt.new_id() if name is None else name)
    _check_name(message.name_in(space, own_id))
    return own_id


def _check_name(name: str) -> None:
    if not 1 <= len(name) <= NAME_MAX or not name.isprintable() or name.isspace():
        raise InvalidMessage(f"thread_id must have 1 to {NAME_MAX} visible characters", field="thread_id")


def _place(tx: Tx, thread_id: str, point: ForkPoint) -> int:
    if point.upto is not None:
        place, what = forks.entry_upto(tx, thread_id, point.upto), f"entry {point.upto}"
    elif point.run_id is not None and point.step is not None:
        place = forks.last_entry_of_step(tx, thread_id, point.run_id, point.step)
        what = f"step {point.step} of run {point.run_id}"
    else:
        place, what = forks.newest_entry(tx, thread_id), "message"
    if place is None:
        raise NotFound(f"the history of thread {thread_id!r} has no {what}")
    return place
