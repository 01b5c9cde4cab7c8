"""How a program reaches its turns: through the database it shares with the fleet, or through Celery alone, by name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from celery import Celery

from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.tasks import names
from chordage.tasks.courier import Courier
from chordage.tasks.intake import accept, step
from chordage.tasks.schema import request_from, verb_from
from chordage.workers.app import make_app
from chordage.workers.bootstrap import runtime_from
from chordage.workers.turn_waiter import waiter_for

SOURCE = "client"
QUEUE = "chat"  # where any worker takes in what comes by name
ANSWER = 60.0  # seconds within which a worker answers
LOOK_BY_NAME = 0.2  # seconds between two questions to a worker


class Word(Protocol):
    def wait(self, seconds: float) -> object: ...


class Way(Protocol):
    def submit(self, fields: Mapping[str, Any]) -> str:
        """The id of the turn."""

    def step(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A verb, and how the turn stands behind it."""

    def look(self, turn: str) -> dict[str, Any]:
        """What is held."""

    def watching(self, turn_id: str) -> AbstractContextManager[Word]:
        """A word comes whenever it may be worth to look."""

    def close(self) -> None: ...


class OwnStore:
    """With the settings of the fleet: what comes is stored here, and the fleet is woken."""

    def __init__(self, settings: Settings, app: Celery | None = None) -> None:
        self._runtime = runtime_from(settings)
        self._courier = Courier(app or make_app(settings))
        self._waiter = waiter_for(settings)

    def submit(self, fields: Mapping[str, Any]) -> str:
        return accept(self._runtime, self._courier, request_from(fields, source=SOURCE, space=None)).turn_id

    def step(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return step(self._runtime, self._courier, verb_from(fields, space=None))

    def look(self, turn: str) -> dict[str, Any]:
        return views.as_json(views.stepped(self._runtime.store, turn))

    def watching(self, turn_id: str) -> AbstractContextManager[Word]:
        return self._waiter.subscribed(turn_id)

    def close(self) -> None:
        self._runtime.store.close()
        self._waiter.close()


class ByName:
    """With a Celery app of the user's own: tasks by name, and their results."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def submit(self, fields: Mapping[str, Any]) -> str:
        return str(self._ask(names.SUBMIT, dict(fields)))

    def step(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._ask(names.STEP, dict(fields)))

    def look(self, turn: str) -> dict[str, Any]:
        return dict(self._ask(names.HELD, {"turn": turn}))

    def _ask(self, name: str, kwargs: dict[str, Any]) -> Any:
        result = self._app.send_task(name, kwargs=kwargs, queue=QUEUE)
        try:
            return result.get(timeout=ANSWER)
        finally:
            result.forget()

    @contextmanager
    def watching(self, turn_id: str) -> Iterator[Word]:  # noqa: ARG002 - nobody brings word over Celery
        yield Pause()

    def close(self) -> None:
        """The app is the user's."""


class Pause:
    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, LOOK_BY_NAME))
