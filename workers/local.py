"""One turn carried out in this process, without Celery: intents come from a list, the calls of a round run in threads.

Only this turn and its sub-agents are started here, and nothing that is due for others is carried out: beside a fleet on
the same database this process is one more worker, alone it is all there is. What it holds is renewed by its heartbeat.
If it is killed, the run stays open until a fleet's rescue finds it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar, assert_never

import structlog

from chordage.orchestrator import stages, views
from chordage.orchestrator.core import subagents
from chordage.orchestrator.core.errors import ChordageError
from chordage.orchestrator.core.intents import (
    Advance,
    CallHere,
    CallModel,
    CallTool,
    CallTools,
    CancelTurn,
    CommitRound,
    ContinueBulk,
    Deliver,
    Dispatch,
    Hint,
    Intent,
    Project,
    StepOn,
)
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.views import TurnView
from chordage.tasks.follow import follow

log = structlog.get_logger()

T = TypeVar("T")

LOOK = 0.2  # seconds between two looks at a turn that cannot start yet, or that others carry out
AT_ONCE = 16  # calls of a round, where the agent sets no limit
TICK = 1.0  # how often work in hand is asked whether it was cancelled
ABORT_WITHIN = 5.0  # seconds
ABORT_EVERY = 0.05
FIRST_BEAT = 2.0  # work that lasts longer than this is put on record


def complete(rt: Runtime, turn_id: str, *, on_wait: Callable[[TurnView], None]) -> TurnView:
    """Start the turn once it is its turn, and carry it out; the turn as it is when it is done."""
    while (turn := views.turn(rt.store, turn_id)).status is not TurnStatus.DONE:
        due = begin(rt, turn) or _below(rt, turn)
        if due:
            carry_out(rt, due)
        else:
            on_wait(turn)
            time.sleep(LOOK)
    return turn


def begin(rt: Runtime, turn: TurnView) -> list[Intent]:
    """Start this turn and no other; nothing, while it cannot start."""
    if turn.status is not TurnStatus.QUEUED:
        return []
    return stages.dispatch(rt, turn.group, Hint(turn_id=turn.turn_id, thread_id=turn.thread_id), only=True)


def _below(rt: Runtime, turn: TurnView) -> list[Intent]:
    """The sub-agents of this turn that have not started: there may have been no budget for them."""
    queued = views.queued_children(rt.store, turn.run_id) if turn.run_id else []
    started = (stages.dispatch(rt, turn.group, Hint(*child), only=True) for child in queued)
    return next((due for due in started if due), [])


def carry_out(rt: Runtime, intents: Iterable[Intent]) -> None:
    """Until nothing is left to do. What a worker would send as a message is done here."""
    due = deque(intents)
    while due:
        sent: list[Intent] = []
        follow(rt, [due.popleft()], sent.extend)
        for intent in sent:
            due.extend(_instead_of_message(rt, intent))


def _instead_of_message(rt: Runtime, intent: Intent) -> list[Intent]:
    match intent:
        case CallTools():
            return _round(rt, intent)
        case CallTool(call_ids=call_ids) | CallHere(call_ids=call_ids):
            late = stages.run_batch(rt, call_ids, in_doubt=True)
            return [*late, *stages.after_lone_call(rt, call_ids[-1])]
        case CancelTurn(turn_id=turn_id, reason=reason):
            return stages.cancel_turn(rt, turn_id, reason)[1]
        case Dispatch(group=group, hint=hint) if hint is not None and hint.thread_id.startswith(
            subagents.THREAD_PREFIX
        ):
            return stages.dispatch(rt, group, hint, only=True)
        case Dispatch():
            return []  # the end of our turn lets another begin: that one is not ours
        case Project() | Deliver() | ContinueBulk():
            return []  # a fleet does that
        case Advance() | CallModel() | CommitRound() | StepOn():
            return [intent]  # it gave way, and there is no other run here
        case _:
            assert_never(intent)


def _round(rt: Runtime, fan_out: CallTools) -> list[Intent]:
    with ThreadPoolExecutor(min(len(fan_out.batches), AT_ONCE), thread_name_prefix="tool") as threads:
        done = list(
            threads.map(
                lambda batch: stages.run_batch(rt, batch, claimed_for=fan_out.claims.get(batch[0])), fan_out.batches
            )
        )
    late = [intent for follow in done for intent in follow]
    return [*late, CommitRound(run_id=fan_out.run_id, step=fan_out.step, group=fan_out.group)]


@contextmanager
def heartbeat(rt: Runtime, every: float) -> Iterator[None]:
    """While the block runs, renew the leases of its work, and abort work that was cancelled."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(min(TICK, every / 2)):
            try:
                stages.beat(rt, first=min(FIRST_BEAT, every), every=every)
                stages.share_durations(rt)
            except ChordageError as error:
                log.warning("heartbeat missed", error=str(error))

    thread = threading.Thread(target=beat, name="chordage-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def abort_work(rt: Runtime) -> None:
    """Abort what runs in this process, for a few seconds again and again: a batch starts its next call when the one
    before has ended.
    """
    until = threading.Event()
    for _ in range(int(ABORT_WITHIN / ABORT_EVERY)):
        if not (running := rt.in_flight.all()):
            return
        rt.in_flight.abort(running)
        until.wait(ABORT_EVERY)


def interruptible(work: Callable[[], T]) -> T:
    """Work done in another thread, so that Ctrl-C reaches the caller and never interrupts a transaction."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="chordage-turn", daemon=True).start()
    return result.result()
