"""One turn on a running fleet, watched while it happens and told afterwards as the rows have it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from chordage.config.settings import Settings
from chordage.orchestrator import views
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.core.status import TurnStatus
from chordage.orchestrator.store.database import Store
from chordage.workers.bootstrap import redis_from
from chordage.workers.demo.played import Homes, Played, told
from chordage.workers.fleet.fleet import Fleet

PATIENCE = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """Something that happened to the run, as the live stream tells it."""

    kind: str
    data: dict[str, Any]


def submit(settings: Settings, text: str) -> str:
    """As any other service would: by name, with a Celery app that knows nothing of ours."""
    from celery import Celery

    with Celery("visitor", broker=settings.redis, backend=settings.redis, set_as_current=False) as app:
        prefix = {"global_keyprefix": settings.broker_prefix}
        app.conf.update(broker_transport_options=prefix, result_backend_transport_options=prefix)
        result = app.send_task("turns.submit", kwargs={"text": text})
        turn_id: str = result.get(timeout=PATIENCE)
        result.forget()
    return turn_id


def play(fleet: Fleet, turn_id: str, tell: Callable[[News], None], check: Callable[[], None]) -> Played:
    """Returns when the turn is done. What the stream tells is lossy; what is returned is what was stored."""
    store = Store(fleet.settings.database, pool_size=1)
    homes = Homes(fleet)
    try:
        run_id = _run_of(store, turn_id, check)
        for news in _follow(
            fleet.settings, run_id, lambda: views.turn(store, turn_id).status is TurnStatus.DONE, check
        ):
            if worker := news.data.get("worker"):
                homes.of(str(worker))
            tell(news)
        return told(views.turn(store, turn_id), views.run(store, run_id), homes)
    finally:
        store.close()


def _run_of(store: Store, turn_id: str, check: Callable[[], None]) -> str:
    give_up = time.monotonic() + PATIENCE
    while (run_id := views.turn(store, turn_id).run_id) is None:
        check()
        if time.monotonic() > give_up:
            raise Unavailable(f"turn {turn_id} was not started within {PATIENCE:g} s")
        time.sleep(0.02)
    return run_id


def _follow(settings: Settings, run_id: str, is_done: Callable[[], bool], check: Callable[[], None]) -> Iterator[News]:
    """The run's live stream, from its beginning until the turn is done."""
    assert settings.redis is not None
    give_up = time.monotonic() + PATIENCE
    last = "0"
    with redis_from(settings, decode_responses=True) as redis:
        while True:
            check()
            done = is_done()
            entries = _read_on(redis, f"{settings.prefix}live:{run_id}", last)
            for last, entry in entries:  # noqa: B007 - read on from there
                yield News(kind=entry["kind"], data=json.loads(entry["data"]))
            if done and not entries:
                return
            if time.monotonic() > give_up:
                raise Unavailable(f"run {run_id} was not done within {PATIENCE:g} s")


def _read_on(redis: Redis, stream: str, last: str) -> list[tuple[str, dict[str, str]]]:
    try:
        found: Any = redis.xread({stream: last}, block=100)
    except RedisError:  # news is lossy: the row tells when it is over
        time.sleep(0.1)
        return []
    return found[0][1] if found else []
