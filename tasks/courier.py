"""From intent to Celery message: the only place that knows both.

A message carries ids and is a wake-up. It may be lost, doubled or late; sending fails softly, because truth knows
what is due and rescue sends it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import assert_never

import structlog
from celery import Celery
from kombu import Producer
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from chordage.orchestrator.core.groups import DELIVERY_QUEUE, SYSTEM_QUEUE
from chordage.orchestrator.core.intents import (
    Advance,
    CallModel,
    CallTool,
    CallTools,
    CancelTurn,
    CommitRound,
    Deliver,
    Dispatch,
    Intent,
    Project,
    StepOn,
)
from chordage.orchestrator.core.records import Subject
from chordage.tasks import names, rounds, shown

log = structlog.get_logger()

SEND_ERRORS = (RedisError, KombuError, OSError)


class Courier:
    def __init__(self, app: Celery, producer: Producer | None = None) -> None:
        self._app = app
        self._producer = producer  # None: one of the pool, for each message

    def send_in_one_trip(self, intents: Sequence[Intent]) -> None:
        """As `send`, for many at a time."""
        if not intents:
            return
        try:
            with self._app.producer_or_acquire() as producer, _batch(producer):
                Courier(self._app, producer).send(intents)
        except SEND_ERRORS as error:
            log.warning("wake-ups not sent; rescue will send them", intents=len(intents), error=str(error))

    def send(self, intents: Iterable[Intent]) -> None:
        for intent in intents:
            try:
                self._send(intent)
            except SEND_ERRORS as error:
                log.warning("wake-up not sent; rescue will send it", intent=type(intent).__name__, error=str(error))

    def _send(self, intent: Intent) -> None:
        match intent:
            case Dispatch(group=group, hint=hint, of=of):
                of_hint = {"turn": hint.turn_id, "thread": hint.thread_id} if hint else {}
                self._wake(names.DISPATCH, group.queue, {"group": group.value, **of_hint}, of)
            case Advance(run_id=run_id, group=group, of=of):
                self._wake(names.ADVANCE, group.queue, {"run": run_id}, of)
            case CallModel(run_id=run_id, step=step, group=group, of=of):
                self._wake(names.CALL_MODEL, group.queue, {"run": run_id, "step": step}, of)
            case CommitRound(run_id=run_id, step=step, group=group, of=of):
                self._wake(names.COMMIT_ROUND, group.queue, {"run": run_id, "step": step}, of)
            case CallTool(call_ids=call_ids, run_id=run_id, group=group, of=of, tools=tools):
                kwargs = {"run": run_id, "calls": list(call_ids), "alone": True}
                self._wake(names.CALL_TOOLS, group.tools_queue, kwargs, of, tools=tools.values())
            case CancelTurn(turn_id=turn_id, reason=reason, of=of):
                self._wake(names.CANCEL, SYSTEM_QUEUE, {"turn": turn_id, "reason": reason}, of)
            case StepOn(run_id=run_id, group=group, of=of):
                self._wake(names.STEP_ON, group.queue, {"run": run_id}, of)
            case Project():
                self._wake(names.PROJECT, SYSTEM_QUEUE, {})
            case Deliver():
                self._wake(names.DELIVER, DELIVERY_QUEUE, {})
            case CallTools():
                self._fan_out(intent)
            case _:
                assert_never(intent)

    def _wake(
        self,
        name: str,
        queue: str,
        kwargs: dict[str, object],
        of: Subject | None = None,
        *,
        tools: Collection[str] = (),
    ) -> None:
        view = shown.headers(kwargs, of=of, tools=tools)
        self._app.send_task(name, kwargs=kwargs, queue=queue, producer=self._producer, **rounds.AS_A_WAKE_UP, **view)

    def _fan_out(self, intent: CallTools) -> None:
        """One chord a round, its headers published by one producer in one round trip."""
        with self._app.producer_or_acquire(self._producer) as producer, _batch(producer):
            rounds.send(self._app, producer, intent, limit=self._limit)

    @property
    def _limit(self) -> int:
        limit = self._app.tasks[names.CALL_TOOLS].time_limit
        assert limit is not None
        return limit


def _batch(producer: Producer) -> AbstractContextManager[object]:
    """Publish in one trip. Kombu before 5.7 cannot: there each message is published at once."""
    return producer.batch() if hasattr(producer, "batch") else nullcontext()
