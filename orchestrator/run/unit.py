"""A unit of work: one transaction of the engine, what follows from it, and who must be informed of it.

Every change of state goes through a `Unit`. Code inside it writes through `unit.tx`, notes what must happen next with
`unit.follow`, and whom to inform with `unit.announce`. A rollback drops both. After the commit the announcements are
made here and nowhere else; the caller sends `unit.intents`.

A process may die between the commit and its announcements, and the answer to a commit may be lost. Then the thread
lock of a run that is done is taken over by the next start, clients that wait for a turn ask the database again, and
live events are lost, as they may be at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, assert_never

import structlog

from chordage.orchestrator.core.errors import LostRace, Unavailable
from chordage.orchestrator.core.intents import Intent
from chordage.orchestrator.core.model import Usage
from chordage.orchestrator.core.reasons import Ending, disposition_of
from chordage.orchestrator.core.records import Run
from chordage.orchestrator.core.status import Disposition
from chordage.orchestrator.run import plugins
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import runs
from chordage.orchestrator.store.database import INSIST_SECONDS, Tx

log = structlog.get_logger()
T = TypeVar("T")
NO_USAGE = Usage()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStarted:
    """`takes_thread`: its lock of the thread was not taken before."""

    run: Run
    takes_thread: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContinues:
    """It keeps its thread."""

    run: Run


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSuspended:
    """It waits for decisions and releases its thread."""

    run: Run


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHeld:
    """It waits for its consumer and releases its thread."""

    run: Run


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded:
    """`run` as it was before its end. `ending` is None where it was ended from outside: its row is read then."""

    run: Run
    ending: Ending | None = None
    usage: Usage = NO_USAGE  # of the reply it ended with


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnSteered:
    """A message became part of a run at work."""

    turn_id: str
    run: Run


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnDropped:
    """A turn ended and never had a run."""

    turn_id: str
    disposition: Disposition


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveEvent:
    """News for watchers of a run, and nothing else."""

    run_id: str
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)


Announcement = RunStarted | RunContinues | RunSuspended | RunHeld | RunEnded | TurnSteered | TurnDropped | LiveEvent


class Unit:
    """`with Unit(rt) as unit:` opens a transaction. `opening`: another kind of it, such as `rt.store.single`."""

    __slots__ = ("_announcements", "_late", "_opening", "_transaction", "intents", "now", "rt", "tx")

    tx: Tx
    now: datetime
    _transaction: AbstractContextManager[Tx]

    def __init__(self, rt: Runtime, opening: Callable[[], AbstractContextManager[Tx]] | None = None) -> None:
        self.rt = rt
        self.intents: list[Intent] = []
        self._late: list[Callable[[], Intent]] = []
        self._announcements: list[Announcement | Callable[[], Announcement | None]] = []
        self._opening = opening or rt.store.write

    def follow(self, *intents: Intent) -> None:
        """What must happen next."""
        self.intents += intents

    def follow_result(self, intent: Callable[[], Intent]) -> None:
        """What must happen next by a result that comes with the commit, as in `Store.one_trip`."""
        self._late.append(intent)

    def announce(self, announcement: Announcement | Callable[[], Announcement | None], *, first: bool = False) -> None:
        """Whom to inform after the commit. `first`: before what is noted already. A function is called after the
        commit: for a statement whose result comes with it, as in `Store.one_trip`.
        """
        self._announcements.insert(0 if first else len(self._announcements), announcement)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of the transaction that is undone alone when it raises, with what it noted."""
        intents, announcements = len(self.intents), len(self._announcements)
        try:
            with self.tx.begin_nested():
                yield
        except BaseException:
            del self.intents[intents:]
            del self._announcements[announcements:]
            raise

    def lease(self) -> datetime:
        """Until when work that is claimed now is believed to be alive. By the clock as it is: the transaction may have
        waited for a lock since it began.
        """
        return self.rt.leases.until(self.rt.now())

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(kind, error, trace)
        if kind is None:
            self.make_announcements()

    def begin(self) -> None:
        self._transaction = self._opening()
        self.tx = self._transaction.__enter__()
        self.now = self.rt.now()

    def finish(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._transaction.__exit__(kind, error, trace)
        if kind is None:
            self.intents += [intent() for intent in self._late]

    def make_announcements(self) -> None:
        """The commit is done: an announcement that fails costs neither the others nor the intents."""
        for announcement in self._announcements:
            try:
                known = announcement() if callable(announcement) else announcement
                if known is not None:
                    _make(self.rt, known)
            except Exception:
                log.exception("an announcement failed", announcement=repr(announcement))


def insist(
    rt: Runtime,
    work: Callable[[Unit], T],
    *,
    patience: float = INSIST_SECONDS,
    opening: Callable[[], AbstractContextManager[Tx]] | None = None,
) -> tuple[T, list[Intent]]:
    """Commit what must not be thrown away because the database is away: the outcome of a call that was made.

    `work` may run again after a commit whose answer was lost; its guards make the second run find nothing to do.
    """

    def attempt() -> tuple[T, Unit]:
        unit = Unit(rt, opening)
        unit.begin()
        try:
            result = work(unit)
        except BaseException as error:
            unit.finish(type(error), error, error.__traceback__)
            raise
        unit.finish()
        return result, unit

    result, unit = rt.store.retry(attempt, patience=patience)
    unit.make_announcements()
    return result, unit.intents


def record(rt: Runtime, work: Callable[[Unit], object]) -> list[Intent] | None:
    """As `insist`, for what a guard may refuse. None: another worker was first, and nothing is stored."""
    try:
        return insist(rt, work)[1]
    except LostRace:
        return None


def _make(rt: Runtime, announcement: Announcement) -> None:
    match announcement:
        case LiveEvent(run_id=run_id, kind=kind, data=data):
            rt.events.emit(run_id, kind, **data)
        case RunStarted(run=run, takes_thread=takes_thread):
            if takes_thread:
                rt.locks.extend(run.thread_id, run.owner)
            rt.events.emit(run.id, "run.started", turn=run.turn_id, thread=run.thread_id)
        case RunContinues(run=run):
            rt.locks.extend(run.thread_id, run.owner)
        case RunSuspended(run=run):
            rt.locks.release(run.thread_id, run.owner)
            rt.events.emit(run.id, "run.waiting", turn=run.turn_id)
        case RunHeld(run=run):
            rt.events.emit(run.id, "run.held", turn=run.turn_id)
            rt.locks.release(run.thread_id, run.owner, more=True)
            rt.events.turn_done(run.turn_id)
        case RunEnded(run=run, ending=ending, usage=usage):
            _inform_plugins(rt, run, ending)
            rt.events.emit(run.id, "run.finished", turn=run.turn_id)
            rt.locks.release(run.thread_id, run.owner, more=True)
            rt.events.turn_done(run.turn_id)
            _log_end(rt, run, ending, usage)
        case TurnSteered(turn_id=turn_id, run=run):
            rt.events.emit(run.id, "turn.steered", turn=turn_id)
            rt.events.turn_done(turn_id)
            disposition = Disposition.STEERED.value
            log.info("turn ended", turn=turn_id, run=run.id, thread=run.thread_id, disposition=disposition)
        case TurnDropped(turn_id=turn_id, disposition=disposition_):
            rt.events.turn_done(turn_id)
            log.info("turn ended", turn=turn_id, disposition=disposition_.value)
        case _:
            assert_never(announcement)


def _inform_plugins(rt: Runtime, run: Run, ending: Ending | None) -> None:
    """The end is on record: nothing that fails here changes it."""
    try:
        agent = rt.agent_of(run)
        session = plugins.session_of_end(rt, run, agent, ending) if rt.has_plugins(agent) else None
        if session is not None and session.notes:
            with Unit(rt) as unit:
                plugins.store_notes(unit.tx, session)
    except Exception:
        log.exception("plugins were not informed of the end", run=run.id)


def _log_end(rt: Runtime, run: Run, ending: Ending | None, usage: Usage) -> None:
    """One line for each turn, in the process that ended it."""
    if ending is None:
        run = _read_ended(rt, run)
        ending = Ending(reason=run.reason, code=run.code, detail=run.detail) if run.reason else None
    spent = run.usage + usage
    seconds = ((run.ended_at or rt.now()) - run.started_at).total_seconds()
    log.info(
        "turn ended", turn=run.turn_id, run=run.id, thread=run.thread_id, agent=run.agent,
        disposition=disposition_of(ending).value if ending else None, code=ending.code if ending else None,
        seconds=round(seconds, 3), rounds=run.rounds,
        input_tokens=spent.input_tokens, output_tokens=spent.output_tokens, cost_nanos=spent.cost_nanos,
        unpriced=spent.unpriced,
    )  # fmt: skip


def _read_ended(rt: Runtime, run: Run) -> Run:
    try:
        with rt.store.read() as tx:
            return runs.load(tx, run.id) or run
    except Unavailable:  # the end is committed, and must not fail for a line of the log
        return replace(run, reason=None)
