"""The engine in one thread, whose every delivery the caller decides.

Real stages, real SQL. Stages meet only through intents, so the owner of the list of intents owns the schedule: it may
deliver them in any order, twice, or never, and let the process die at any commit.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Engine, event, select

from chordage.orchestrator import stages
from chordage.orchestrator.core.approvals import Action, DecisionRequest
from chordage.orchestrator.core.groups import DEFAULT_BUDGETS, Group
from chordage.orchestrator.core.intents import (
    Advance,
    CallModel,
    CallTool,
    CallTools,
    CancelTurn,
    CommitRound,
    ContinueBulk,
    Deliver,
    Dispatch,
    Intent,
    Project,
    StepOn,
)
from chordage.orchestrator.core.message import CALLERS, Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.prices import Price
from chordage.orchestrator.core.records import NOTES, History, Run
from chordage.orchestrator.core.stepping import StepRequest, Verb
from chordage.orchestrator.gateways.ports import Agents, Models, Tools
from chordage.orchestrator.run.approvals import Decided
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.stages.step.verbs import Stepping
from chordage.orchestrator.store import schema
from chordage.orchestrator.store import statements as sql
from chordage.orchestrator.store.database import Store
from chordage.tasks.follow import carry_out
from chordage.testing.fakes import CountedIds, MemoryLocks, RecordingEvents, StoppedClock


class Died(BaseException):
    """The process is gone. Not an Exception: no code of ours may catch it and carry on."""


def _nothing(*_: object) -> None: ...


@dataclass
class MemoryEngine:
    """Stages, and the messages between them in a list. `options`: further fields of its runtime."""

    store: Store
    models: Models
    tools: Tools
    agents: Agents
    locks: MemoryLocks = field(default_factory=MemoryLocks)
    events: RecordingEvents = field(default_factory=RecordingEvents)
    clock: StoppedClock = field(default_factory=StoppedClock)
    prices: dict[str, tuple[Price, ...]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    budgets: dict[Group, int] = field(default_factory=lambda: dict(DEFAULT_BUDGETS))
    commits: int = 0
    statements: int = 0
    die_at: int | None = None  # the commit after which, counted from now, the process dies
    die_before: bool = False  # ... or just before it
    dead: bool = False
    carries: bool = False  # as a worker carries on with a run that it has just brought to its next step
    before_carrying: Callable[[str, Run, History], None] = _nothing
    before_commit: Callable[[Any], None] = _nothing
    _thread: threading.local = field(default_factory=threading.local)

    def __post_init__(self) -> None:
        self.runtime = Runtime(
            store=self.store, agents=self.agents, models=self.models, tools=self.tools, locks=self.locks,
            events=self.events, clock=self.clock, new_id=CountedIds(), worker="world", budgets=self.budgets,
            queues=self, hands_on=True, **{"prices": lambda: self.prices, **self.options},
        )  # fmt: skip
        self._engines = (self.store.engine, self.store.plain)
        if not self.store.is_postgres:
            for engine in self._engines:
                event.listen(engine, "connect", _unsynced)  # no power is lost here
        self._watch_commits()

    def _watch_commits(self) -> None:
        """Every write transaction and every single guarded statement is a place to die at."""
        event.listen(Engine, "after_cursor_execute", self._count_slow)
        sql.observers.append(self._count)
        event.listen(Engine, "commit", self._before_commit)  # of the class: before the engine's own
        plain = self.store.read

        def counting(opened: Callable[[], Any]) -> Any:
            @contextmanager
            def counted() -> Iterator[object]:
                self._only_the_living()
                with self._holding_one(), opened() as tx:
                    yield tx
                self._after_commit()

            return counted

        @contextmanager
        def single() -> Iterator[object]:
            self._only_the_living()
            with self._holding_one(), plain() as tx:
                yield tx

        self.store.write = counting(self.store.write)  # type: ignore[method-assign]
        self.store.read, self.store.single = single, single  # type: ignore[method-assign, assignment]

    @contextmanager
    def _holding_one(self) -> Iterator[None]:
        """No stage asks for a second connection while it has one: all threads of a process might, and then wait for
        each other. What a test, or the kit, opens meanwhile does not count.
        """
        # Behind this one, `counted` or `single`, and contextlib twice.
        opener = sys._getframe(4).f_globals["__name__"]  # noqa: SLF001 - there is no other way to know the caller
        held = getattr(self._thread, "held", False)
        is_stage = opener.startswith("chordage.") and not opener.startswith("chordage.testing.")
        assert not (held and is_stage), f"{opener} asks for a second connection"
        self._thread.held = held or is_stage
        try:
            yield
        finally:
            self._thread.held = held

    @contextmanager
    def as_another_process(self) -> Iterator[None]:
        """What is done in the middle of a stage plays another process."""
        held, self._thread.held = getattr(self._thread, "held", False), False
        try:
            yield
        finally:
            self._thread.held = held

    def _only_the_living(self) -> None:
        """A process that was killed runs no `except` and no `finally`: whatever it still tries fails like this."""
        if self.dead:
            raise Died

    def _before_commit(self, connection: Any) -> None:
        if connection.engine is not self._engines[0]:
            return
        with self.as_another_process():
            self.before_commit(connection)
        if self.die_at is not None and self.die_before and self.commits + 1 >= self.die_at:
            self._die()

    def _count_slow(self, connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        self._count(connection, statement)

    def _count(self, connection: Any, statement: str) -> None:
        if connection.engine not in self._engines:
            return
        self.statements += 1
        writes = statement.lstrip().upper().startswith(("UPDATE", "INSERT", "DELETE"))
        if writes and connection.engine is self._engines[1]:
            self._after_commit()

    def detach(self) -> None:
        """Leave the store as it was: for another engine."""
        sql.observers.remove(self._count)
        event.remove(Engine, "after_cursor_execute", self._count_slow)
        event.remove(Engine, "commit", self._before_commit)
        for name in ("write", "read", "single"):
            delattr(self.store, name)

    def close(self) -> None:
        self.detach()
        self.store.close()

    def _after_commit(self) -> None:
        self.commits += 1
        if self.die_at is not None and self.commits >= self.die_at:
            self._die()

    def _die(self) -> None:
        self.die_at = None
        raise self.kill()

    def kill(self) -> Died:
        """The process is killed here: `raise world.kill()`. It stays dead until something is delivered to another
        one.
        """
        self.dead = self.locks.dead = True
        return Died()

    def revive(self) -> None:
        self.dead = self.locks.dead = False

    # what happens

    def submit(self, text: str = "hi", *, thread: str | None = "t1", **more: Any) -> str:
        origin = more.pop("origin", Origin.INVOKE)
        sender = more.pop("sender", Sender.SERVICE)
        channel, meta = more.pop("channel", None), more.pop("meta", {})
        message = Message(origin=origin, channel=channel, sender=sender, thread_id=thread, text=text, meta=meta)
        here = bool(more.pop("here", False))  # as `turns.submit` does it, on the queue of the turn's group
        with self.as_another_process():
            admitted, intents = stages.admit(self.runtime, TurnRequest(message=message, **more), here=here)
        self.pending += intents
        return admitted.turn_id

    def decide(self, *requests: DecisionRequest) -> list[Decided]:
        with self.as_another_process():
            decided, intents = stages.decide(self.runtime, requests, source="test")
        self.pending += intents
        return decided

    def step(
        self, target: str, verb: str, *, if_rev: int | None = None, key: str | None = None, **args: object
    ) -> Stepping:
        request = StepRequest(target=target, verb=Verb(verb), args=args, if_rev=if_rev, key=key)
        with self.as_another_process():
            stepping, intents = stages.step(self.runtime, request)
        self.pending += intents
        return stepping

    def inbox(self) -> list[dict[str, Any]]:
        return [row for row in self.rows("suspensions", status="open") if row["why"] != "child"]

    def deliver(self, intent: Pending, *, doubt: bool = False) -> list[Pending]:
        """Carry one intent out, as a worker does; what follows from it is pending now."""
        self.revive()
        before = len(self.pending)
        with self.as_another_process():
            self._follow(self._carry_out(intent, doubt))
        return self.pending[before:]

    def _follow(self, intents: Sequence[Pending]) -> None:
        """What the same process carries on with a history that it knows, no other process ever sees."""
        due = deque(intents)
        while due:
            intent = due.popleft()
            if self.carries and isinstance(intent, Advance | CallModel) and intent.past is not None:
                assert intent.seen is not None
                self.before_carrying(self.store.url, intent.seen, intent.past)
                due.extendleft(reversed(self._carry_out(intent, doubt=False)))
            else:
                self.pending.append(as_sent(intent))

    def _carry_out(self, intent: Pending, doubt: bool) -> Sequence[Pending]:
        rt = self.runtime
        match intent:
            case Dispatch(group=group, hint=hint):
                return stages.dispatch(rt, group, hint)
            case CallTool(call_ids=call_ids):
                follow = stages.run_batch(rt, call_ids, in_doubt=True)
                return [*follow, *stages.after_lone_call(rt, call_ids[-1])]
            case Header(call_ids=call_ids, body=body, claimed_for=claimed_for):
                follow = stages.run_batch(rt, call_ids, in_doubt=doubt, claimed_for=claimed_for)
                body.waiting.discard(call_ids)
                return follow if body.waiting else [*follow, body.intent]
            case CancelTurn(turn_id=turn_id, reason=reason):
                return stages.cancel_turn(rt, turn_id, reason, space=CALLERS)[1]  # as the Celery task does it
            case CallTools():
                return self._fan_out(intent)
            case ContinueBulk(job_id=job_id):
                return stages.continue_bulk(rt, job_id)
            case Project():
                return stages.project(rt)
            case Deliver():
                return stages.deliver(rt)
            case _:
                next_intents = carry_out(rt, intent)
                assert next_intents is not None, f"{intent} is carried out nowhere"
                return next_intents

    def is_empty(self, queue: str) -> bool:
        """What is pending is what waits in the queues of Redis."""
        return all(getattr(intent, "group", None) != queue for intent in self.pending)

    def lengths(self, queues: Sequence[str]) -> Mapping[str, int]:
        return {queue: sum(getattr(intent, "group", None) == queue for intent in self.pending) for queue in queues}

    def _fan_out(self, fan: CallTools) -> list[Header]:
        """What a chord does while nothing goes wrong: its body fires when the last of its headers has returned."""
        body = Body(intent=CommitRound(run_id=fan.run_id, step=fan.step, group=fan.group), waiting=set(fan.batches))
        return [Header(call_ids=batch, body=body, claimed_for=fan.claims.get(batch[0])) for batch in fan.batches]

    def run_dry(self, limit: int = 10_000) -> None:
        """Deliver everything, in order, until nothing is pending."""
        for _ in range(limit):
            if not self.pending:
                return
            self.deliver(self.pending.pop(0))
        raise AssertionError("the world does not come to rest")

    def sweep(self, seconds: float = 0.0) -> list[Intent]:
        self.revive()
        self.clock.pass_by(seconds)
        with self.as_another_process():
            woken = stages.rescue(self.runtime)
        self.pending += woken
        return woken

    def recover(self, limit: int = 60) -> None:
        """Time passes, rescue sweeps and a person answers whatever is asked, until every turn is done."""
        for _ in range(limit):
            self.run_dry()
            if not self.unfinished():
                return
            self.revive()
            for row in self.inbox():
                self.decide(a_persons_answer(row))
            self.forget_the_dead()
            self.sweep(seconds=40)
        raise AssertionError(f"not finished: {self.unfinished()}")

    def forget_the_dead(self) -> None:
        """What Redis holds for processes that are gone runs out."""
        self.revive()
        self.locks.lapse()

    # what can be asked

    def unfinished(self) -> list[str]:
        with self.store.read() as tx:
            return list(tx.execute(select(schema.turns.c.id).where(schema.turns.c.status != "done")).scalars())

    def rows(self, table: str, **where: object) -> list[dict[str, Any]]:
        chosen = schema.metadata.tables[table]
        found = select(chosen).where(*(chosen.c[name] == value for name, value in where.items()))
        if table == "journal" and "kind" not in where:  # what runs have committed; notes are asked for by their kind
            found = found.where(chosen.c.kind.not_in([note.value for note in NOTES]))
        with self.store.read() as tx:
            return [dict(row) for row in tx.execute(found.order_by(*chosen.primary_key.columns)).mappings()]

    def wake_ups(self) -> Counter[str]:
        """How many are under way for each group. A run that its consumer moves on takes its own place again."""
        return Counter(intent.group.value for intent in self.pending if isinstance(intent, Dispatch | StepOn))

    def row(self, table: str, **where: object) -> dict[str, Any]:
        (row,) = self.rows(table, **where)
        return row


def a_persons_answer(row: Mapping[str, Any]) -> DecisionRequest:
    """Yes to all that may run; an unknown outcome is called failed."""
    payload = {"answer": "failed"} if row["why"] == "outcome_unknown" else True
    return DecisionRequest(target=str(row["id"]), action=Action.RESUME, payload=payload)


def as_sent(intent: Pending) -> Pending:
    """As it would arrive in a message: with nothing that only the same process may know."""
    return replace(intent, seen=None, past=None) if isinstance(intent, CallModel | Advance) else intent


def _unsynced(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=OFF")


@dataclass(eq=False)
class Body:
    intent: CommitRound
    waiting: set[tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Header:
    """One header of a chord, on its way."""

    call_ids: tuple[str, ...]
    body: Body
    claimed_for: str | None = None


Pending = Intent | Header
