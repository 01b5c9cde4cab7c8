"""What every Celery task of ours is: a runtime, a courier, and a loop that follows a run as far as this process may.

An intent is followed here, without a message, when it belongs to the run in hand and fans nothing out. So a round of
K calls costs K + 1 messages, and a run goes back through its group's queue once a round: there a chore yields to a
chat. Where a run would ask its model again without a round between, because that paused, planned, was refused or asked
for nothing that could run, a chat goes on at once, and any other run goes back to its queue first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import structlog
from celery import Task

from chordage.orchestrator import stages
from chordage.orchestrator.core.errors import BrokenAgent, Unavailable
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.intents import Advance, CallModel, CommitRound, Intent, StepOn
from chordage.orchestrator.runtime import Runtime
from chordage.tasks.courier import Courier

if TYPE_CHECKING:
    from collections.abc import Callable

log = structlog.get_logger()


class StageTask(Task):  # type: ignore[type-arg]  # Celery's class is generic for the type checker only
    abstract = True
    max_retries = None  # what is sent again after a pause is sent until it can be stored
    throws = (BrokenAgent, Unavailable)  # logged in one line; the work waits, and is sent again
    build_runtime: Callable[[], Runtime]

    @property
    def runtime(self) -> Runtime:
        return type(self).build_runtime()

    @property
    def courier(self) -> Courier:
        return Courier(self.app)

    def follow(self, intents: Iterable[Intent], *, asked: bool = False) -> None:
        carry_on(self.runtime, intents, self.courier.send, asked=asked)

    def on_failure(self, exc: BaseException, task_id: str, args: Any, kwargs: dict[str, Any], einfo: Any) -> None:  # noqa: ARG002 - Celery's signature
        """A broken agent is logged where it is met."""
        if isinstance(exc, Unavailable):
            log.warning("a service does not answer; the work is sent again", error=str(exc))

    def before_start(self, task_id: str, args: Any, kwargs: dict[str, Any]) -> None:  # noqa: ARG002 - Celery's signature
        ids = {name: value for name, value in kwargs.items() if name in {"run", "step", "turn", "group"}}
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(task=self.name, **ids)


def carry_on(
    rt: Runtime, intents: Iterable[Intent], send: Callable[[Iterable[Intent]], None], *, asked: bool = False
) -> None:
    """Carry on with what belongs to the run in hand; send the rest. `asked`: this message has asked a model already."""
    due = deque(intents)
    while due:
        intent = due.popleft()
        stays_here = not rt.in_flight.stopping and not (asked and _gives_way(intent))
        try:
            followed = _follow(rt, intent) if stays_here else None
        except Exception:  # of the run in hand; what else is due is not lost with it
            send(due)
            raise
        if followed is None:
            send([intent])
        else:
            asked = asked or isinstance(intent, CallModel)
            due.extend(followed)


def _gives_way(intent: Intent) -> bool:
    """One model call a message, then whoever comes first: in the queues the groups stand in their order."""
    return isinstance(intent, CallModel) and intent.group is not Group.CHAT


def _follow(rt: Runtime, intent: Intent) -> list[Intent] | None:
    match intent:
        case Advance(run_id=run_id):
            return stages.advance(rt, run_id)
        case CallModel(run_id=run_id, step=step, seen=seen):
            return stages.call_model(rt, run_id, step, seen)
        case CommitRound(run_id=run_id, step=step):
            return stages.commit_round(rt, run_id, step)
        case StepOn(run_id=run_id):
            return stages.step_on(rt, run_id)
        case _:
            return None
