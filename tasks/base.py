"""What every Celery task of ours is: a runtime, a courier, and a loop that follows a run as far as this process may.

An intent is followed here, without a message, when it belongs to the run in hand and fans nothing out. So a round of
K calls costs K + 1 messages, and a run goes back through its group's queue once a round: there a chore yields to a
chat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import structlog
from celery import Task

from chordage.orchestrator import stages
from chordage.orchestrator.core.intents import Advance, CallModel, CommitRound, Intent, StepOn
from chordage.orchestrator.runtime import Runtime
from chordage.tasks.courier import Courier

if TYPE_CHECKING:
    from collections.abc import Callable


class StageTask(Task):  # type: ignore[type-arg]  # Celery's class is generic for the type checker only
    abstract = True
    build_runtime: Callable[[], Runtime]

    @property
    def runtime(self) -> Runtime:
        return type(self).build_runtime()

    @property
    def courier(self) -> Courier:
        return Courier(self.app)

    def follow(self, intents: Iterable[Intent]) -> None:
        """Carry on with what belongs to the run in hand; send the rest."""
        due = deque(intents)
        while due:
            intent = due.popleft()
            followed = None if self.runtime.held.stopping else _follow(self.runtime, intent)
            if followed is None:
                self.courier.send([intent])
            else:
                due.extend(followed)

    def before_start(self, task_id: str, args: Any, kwargs: dict[str, Any]) -> None:  # noqa: ARG002 - Celery's signature
        ids = {name: value for name, value in kwargs.items() if name in {"run", "step", "turn", "group"}}
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(task=self.name, **ids)


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
