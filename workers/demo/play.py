"""One turn on a running fleet: watched while it happens, and read from the database when it is done."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.orchestrator.core.contents import decrypt_json
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.gateways.redis_events import EVERY_RUN, live_context, watch
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.views import TurnView
from chordage.orchestrator.views.runs import InferenceStep, ToolRound
from chordage.workers.bootstrap import cipher_of, redis_from
from chordage.workers.fleet.fleet import Fleet
from chordage.workers.fleet.roles import TURNS
from chordage.workers.presence import worker_name

PATIENCE = 60.0  # seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownEvent:
    """An entry of the run's live stream."""

    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkSpan:
    """One model call or tool call: what, where, from when to when."""

    what: str
    member: str  # the fleet's name of the worker
    worker: str  # host:pid
    status: str
    started: datetime
    ended: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayedTurn:
    turn: TurnView
    model_calls: tuple[WorkSpan, ...]
    calls: tuple[WorkSpan, ...]


def submit(settings: Settings, text: str) -> str:
    """As any other service would: by name, with a Celery app that imports nothing of Chordage.

    The run is to be watched, and it begins at once: so it is said before.
    """
    from celery import Celery

    with redis_from(settings) as redis:
        watch(redis, EVERY_RUN, 2 * PATIENCE, prefix=settings.prefix)
    with Celery("visitor", broker=settings.redis, backend=settings.redis, set_as_current=False) as app:
        prefix = {"global_keyprefix": settings.broker_prefix}
        app.conf.update(broker_transport_options=prefix, result_backend_transport_options=prefix)
        result = app.send_task("turns.submit", kwargs={"text": text})
        turn_id: str = result.get(timeout=PATIENCE)
        result.forget()
    return turn_id


def play(fleet: Fleet, turn_id: str, show: Callable[[ShownEvent], None], check: Callable[[], None]) -> PlayedTurn:
    """Returns when the turn is done. The live stream may lose entries; what is returned comes from the database."""
    members = _Members(fleet)
    with closing(Store(fleet.settings.database, pool_size=1, cipher=cipher_of(fleet.settings))) as store:
        give_up = time.monotonic() + PATIENCE
        while (run_id := views.turn(store, turn_id).run_id) is None:
            check()
            if time.monotonic() > give_up:
                raise Unavailable(f"turn {turn_id} was not started within {PATIENCE:g} s")
            time.sleep(0.02)
        for event in _live_events(fleet.settings, run_id, lambda: views.is_done(store, turn_id), check):
            if worker := event.data.get("worker"):
                members.name_of(str(worker))  # while its process lives
            show(event)
        return _played(store, turn_id, run_id, members)


def _live_events(
    settings: Settings, run_id: str, is_done: Callable[[], bool], check: Callable[[], None]
) -> Iterator[ShownEvent]:
    """The run's live stream, from its beginning until the turn is done."""
    assert settings.redis is not None
    give_up = time.monotonic() + PATIENCE
    last, cipher = "0", cipher_of(settings)
    with redis_from(settings, decode_responses=True) as redis:
        while True:
            check()
            done = is_done()
            entries = _read_after(redis, f"{settings.prefix}live:{run_id}", last)
            for last, entry in entries:  # noqa: B007 - the next read begins there
                yield ShownEvent(
                    kind=entry["kind"], data=json.loads(decrypt_json(cipher, entry["data"], live_context(run_id)))
                )
            if done and not entries:
                return
            if time.monotonic() > give_up:
                raise Unavailable(f"run {run_id} was not done within {PATIENCE:g} s")


def _read_after(redis: Redis, stream: str, last: str) -> list[tuple[str, dict[str, str]]]:
    try:
        streams: Any = redis.xread({stream: last}, block=100)
    except RedisError:  # the database says when the turn is done
        time.sleep(0.1)
        return []
    return streams[0][1] if streams else []


class _Members:
    """The member of the fleet that a process belongs to: the leader of its process group, read while it lives."""

    def __init__(self, fleet: Fleet) -> None:
        self._names = {member.pid: member.name for member in fleet.members}
        self._known: dict[str, str] = {}

    def name_of(self, worker: str) -> str:
        if worker not in self._known:
            try:
                leader = os.getpgid(int(worker.rpartition(":")[2]))
            except ProcessLookupError:  # a child that has been replaced since
                leader = 0
            self._known[worker] = self._names.get(leader, "?")
        return self._known[worker]

    @property
    def of_turns(self) -> tuple[str, str]:
        """Name and process of the member that makes the model calls: a fleet of one machine has one."""
        name, pid = next((name, pid) for pid, name in self._names.items() if name == TURNS)
        return name, worker_name(pid)


def _played(store: Store, turn_id: str, run_id: str, members: _Members) -> PlayedTurn:
    turns, worker = members.of_turns
    steps = views.run(store, run_id).steps
    model_calls = tuple(
        WorkSpan(
            what="model", member=turns, worker=worker, status=step.status.value,
            started=step.at - timedelta(seconds=step.seconds), ended=step.at,
        )
        for step in steps
        if isinstance(step, InferenceStep) and step.at is not None and step.seconds is not None
    )  # fmt: skip
    calls = tuple(
        WorkSpan(
            what=call.tool, member=members.name_of(call.worker), worker=call.worker, status=call.status.value,
            started=call.started_at, ended=call.ended_at,
        )
        for step in steps
        if isinstance(step, ToolRound)
        for call in step.calls
        if call.started_at is not None and call.ended_at is not None and call.worker is not None
    )  # fmt: skip
    return PlayedTurn(turn=views.turn(store, turn_id), model_calls=model_calls, calls=calls)
