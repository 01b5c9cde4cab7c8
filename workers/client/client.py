"""For a program that drives stepped turns: through the database it shares with the fleet, or through Celery alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self, overload

import structlog
from celery import Celery

from chordage.config import log
from chordage.config.settings import Settings, load
from chordage.orchestrator import views
from chordage.tasks import names
from chordage.tasks.accepting import accept, step
from chordage.tasks.courier import Courier
from chordage.tasks.schema import request_from, verb_from
from chordage.workers.app import make_app
from chordage.workers.bootstrap import runtime_from
from chordage.workers.client.runner import FleetAccess, Runner, Waits, runner_for
from chordage.workers.turn_waiter import waiter_for

SOURCE = "client"
QUEUE = "chat"  # that any worker serves
RESULT_TIMEOUT = 60.0  # seconds
POLL_EVERY = 0.2  # seconds between two reads through Celery


def client(settings: Settings | None = None, *, app: Celery | None = None, **overrides: Any) -> FleetClient:
    """With only `app`, a Celery app that reaches the fleet's broker and results, everything goes through tasks by name.
    Otherwise through the database of the fleet: `overrides` are settings such as room, database_url and redis_url.
    """
    if app is not None and settings is None and not overrides:
        return FleetClient(CeleryAccess(app))
    settings = settings or load(**overrides)
    if not structlog.is_configured():  # the program has not chosen where its log goes: keep it off standard output
        log.configure("WARNING", settings.log_format)
    return FleetClient(DatabaseAccess(settings, app))


class FleetClient:
    def __init__(self, access: FleetAccess) -> None:
        self._access = access

    @overload
    def runner(self, text: str, *, timeout: float | None = None, **fields: Any) -> Runner: ...
    @overload
    def runner(self, *, run_id: str, timeout: float | None = None) -> Runner: ...

    def runner(
        self, text: str | None = None, *, run_id: str | None = None, timeout: float | None = None, **fields: Any
    ) -> Runner:
        """A new turn; or with `run_id` (or the id of its turn) an existing one. `fields`: those of `turns.submit`, and
        max_iterations, cap_policy, hold_seconds, on_held, params and options.
        """
        return runner_for(self._access, text, run_id, timeout, fields)

    def close(self) -> None:
        self._access.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DatabaseAccess:
    """With the settings of the fleet: messages and verbs are stored from here, and the fleet is woken."""

    def __init__(self, settings: Settings, app: Celery | None = None) -> None:
        self._runtime = runtime_from(settings)
        self._courier = Courier(app or make_app(settings))
        self._waiter = waiter_for(settings)

    def submit(self, fields: Mapping[str, Any]) -> str:
        return accept(self._runtime, self._courier, request_from(fields, source=SOURCE, space=None)).turn_id

    def step(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return step(self._runtime, self._courier, verb_from(fields, space=None))

    def read(self, turn: str) -> dict[str, Any]:
        return views.as_json(views.stepped(self._runtime.store, turn))

    def subscribed(self, turn_id: str) -> AbstractContextManager[Waits]:
        return self._waiter.subscribed(turn_id)

    def close(self) -> None:
        self._runtime.store.close()
        self._waiter.close()


class CeleryAccess:
    """With a Celery app of the user: tasks by name, and their results."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def submit(self, fields: Mapping[str, Any]) -> str:
        return str(self._call(names.SUBMIT, dict(fields)))

    def step(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._call(names.STEP, dict(fields)))

    def read(self, turn: str) -> dict[str, Any]:
        return dict(self._call(names.HELD, {"turn": turn}))

    def _call(self, name: str, kwargs: dict[str, Any]) -> Any:
        result = self._app.send_task(name, kwargs=kwargs, queue=QUEUE)
        try:
            return result.get(timeout=RESULT_TIMEOUT)
        finally:
            result.forget()

    @contextmanager
    def subscribed(self, turn_id: str) -> Iterator[Waits]:  # noqa: ARG002 - Celery has no notifications: poll
        yield _Polling()

    def close(self) -> None:
        """The app belongs to the user."""


class _Polling:
    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, POLL_EVERY))
