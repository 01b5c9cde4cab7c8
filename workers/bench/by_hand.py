"""The hand-written contenders, seen from their client: the end of a turn is learnt through AsyncResult.get."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from celery import Celery

from chordage.workers.bench.contender import Ground
from chordage.workers.bench.shape import REMARK
from chordage.workers.bench.worker_by_hand import DATABASE, REDIS, app_of
from chordage.workers.fleet.member import Role

PATIENCE = 120.0
WORKERS = 2


class Chord:
    name = "bare"
    redis_number = 1

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._app = app_of(self._redis, ground.shape, self._database)
        self._histories: dict[str, list[dict[str, str]]] = {}

    @property
    def _redis(self) -> str:
        return f"{self._ground.redis_url}/{self.redis_number}"

    @property
    def _database(self) -> str | None:
        return None

    def prepare(self) -> Sequence[Role]:
        return [self._role(f"{self.name}-{number}") for number in range(WORKERS)]

    def _role(self, name: str) -> Role:
        given = {
            "name": name,
            "shape": asdict(self._ground.shape),
            "pool": "threads" if self._ground.threads else "prefork",
            "concurrency": self._ground.threads or 4,
        }
        module = ("-P", "-m", "chordage.workers.bench.worker_by_hand")
        return Role(name=name, arguments=(sys.executable, *module, json.dumps(given)), says_ready=True)

    def environment(self) -> dict[str, str]:
        """Addresses hold passwords: they are no arguments, which everybody on the machine may read."""
        return {REDIS: self._redis, **({DATABASE: self._database} if self._database else {})}

    def turn(self, thread: str) -> None:
        messages = [*self._histories.get(thread, ()), {"role": "user", "text": "Look it up."}]
        self._wait(self._app, "by_hand.start", messages)

    @staticmethod
    def _wait(app: Celery, name: str, argument: object) -> None:
        text = app.send_task(name, (argument,)).get(timeout=PATIENCE)
        if text != "Here it is.":
            raise AssertionError(f"{name} ended with {text!r}")

    @property
    def database_url(self) -> str:
        return self._ground.database_url

    def remember(self, thread: str, messages: int) -> None:
        self._histories[thread] = [{"role": "user", "text": REMARK}] * messages

    def close(self) -> None:
        self._app.close()


class ChordWithRows(Chord):
    name = "bare+sql"
    redis_number = 2

    def __init__(self, ground: Ground) -> None:
        from chordage.workers.bench.chord_with_rows import Rows

        super().__init__(ground)
        self._rows = Rows(ground.database_url)

    @property
    def _database(self) -> str | None:
        return self._ground.database_url

    def prepare(self) -> Sequence[Role]:
        self._rows.create()
        return super().prepare()

    def turn(self, thread: str) -> None:
        self._wait(self._app, "by_hand.rows.start", self._rows.submit(thread, "Look it up."))

    def remember(self, thread: str, messages: int) -> None:
        self._rows.remember(thread, [REMARK] * messages)

    def close(self) -> None:
        super().close()
        self._rows.engine.dispose()
