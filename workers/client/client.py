"""The way in for a program that drives turns itself."""

from __future__ import annotations

from typing import Any, Self, overload

import structlog
from celery import Celery

from chordage.config import log
from chordage.config.settings import Settings, load
from chordage.workers.client.runner import Runner
from chordage.workers.client.ways import ByName, OwnStore, Way

TERMS = ("max_iterations", "cap_policy", "hold_seconds", "on_held", "params", "options")


def client(settings: Settings | None = None, *, app: Celery | None = None, **given: Any) -> Client:
    """With `app`, a Celery app that reaches the fleet's broker and results, everything goes by name. Without, through
    the database of the fleet: `given` are settings such as room, database_url and redis_url.
    """
    if app is not None and settings is None and not given:
        return Client(ByName(app))
    settings = settings or load(**given)
    if not structlog.is_configured():  # nobody has said where a log goes: not among what the program itself says
        log.configure("WARNING", settings.log_format)
    return Client(OwnStore(settings, app))


class Client:
    def __init__(self, way: Way) -> None:
        self._way = way

    @overload
    def runner(self, text: str, *, timeout: float | None = None, **fields: Any) -> Runner: ...
    @overload
    def runner(self, *, run_id: str, timeout: float | None = None) -> Runner: ...

    def runner(
        self, text: str | None = None, *, run_id: str | None = None, timeout: float | None = None, **fields: Any
    ) -> Runner:
        """A new turn, driven from here; or with `run_id` (or the id of its turn) one that is there. `fields`: as
        `turns.submit` takes them, with max_iterations, cap_policy, hold_seconds, on_held, params and options among
        them.
        """
        if (text is None) == (run_id is None):
            raise TypeError("runner() takes the text of a new turn, or the run_id of one that is there")
        target = run_id if text is None else self._submit(text, fields)
        assert target is not None
        return Runner(self._way, target, timeout=timeout)

    def _submit(self, text: str, fields: dict[str, Any]) -> str:
        terms = {name: fields.pop(name) for name in TERMS if name in fields}
        return self._way.submit({**fields, "text": text, "control": "step", "step": terms})

    def close(self) -> None:
        self._way.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
