"""What a monitor of Celery events sees: each task with its thread, agent and tool. No tick, no word of a message."""

from __future__ import annotations

import ast
import threading
from contextlib import closing

import pytest
from celery import Celery
from redis import Redis

from support import processes
from support.fleet_folder import CHORDAGE
from support.rig import UNHURRIED, Rig
from support.waiting import until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

TICKS = {"system.rescue", "system.project", "system.pulse"}
SECRET = "what nobody else may read"
SCRIPT = f"""
- tool_calls:
    - {{name: pure, arguments: {{who: "{SECRET}"}}}}
    - {{name: idempotent, arguments: {{who: b}}}}
- text: "{SECRET} as well"
"""


class Watch:
    """As Flower listens."""

    def __init__(self, app: Celery) -> None:
        self.events: list[dict] = []
        self._app = app
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with self._app.connection_for_read() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"*": self.events.append})
            while not self._over.is_set():
                try:
                    receiver.capture(limit=None, timeout=0.5, wakeup=False)
                except TimeoutError:
                    continue

    def of(self, kind: str) -> list[dict]:
        return [event for event in list(self.events) if event["type"] == kind]

    def close(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture(scope="module")
def seen(databases, redis_databases, tmp_path_factory):
    """All events of a turn with a round, of a message by name, and of some seconds of ticks."""
    redis_url = next(redis_databases)
    with Redis.from_url(redis_url) as redis:
        redis.flushdb()
    url = databases.migrated("sqlite")
    with closing(Rig(tmp_path_factory.mktemp("rig"), url, redis_url, **UNHURRIED, project=0.5, pulse=0.5)) as rig:
        rig.agent("clerk", "scripted:clerk.yaml", SCRIPT)
        rig.worker("turns", "--role", "turns", "--concurrency", "4", "--events")
        rig.worker("tools", "--role", "tools", "--concurrency", "2", "--events")
        rig.ready()
        beat = processes.spawn([*CHORDAGE, "beat"], rig.folder / "beat.log", env=rig.env, cwd=rig.folder)
        with closing(Watch(rig.app)) as watch:
            until(lambda: watch.of("worker-heartbeat"), "the watch sees workers")
            sent = {"text": SECRET, "thread_id": "customer-4", "agent": "clerk", "meta": {"note": SECRET}}
            rig.app.send_task("turns.submit", kwargs=sent, queue="chat")
            until(lambda: rig.rows("turns"), "the message is stored")
            rig.wait_until_done()
            until(lambda: has_all_of_the_turn(watch), "all events have arrived")
            until(lambda: ticks(rig.app) == TICKS, "ticks of each kind were carried out")
            yield watch.events
        processes.stop(beat)
    databases.drop(url)


def has_all_of_the_turn(watch: Watch) -> bool:
    """The events of one worker come in their order, and those of two do not."""
    received = {event["uuid"]: event["name"] for event in watch.of("task-received")}
    succeeded = {event["uuid"] for event in watch.of("task-succeeded")}
    names = list(received.values())
    return names.count("tools.call") == 2 and "rounds.commit" in names and succeeded == received.keys()


def ticks(app: Celery) -> set[str]:
    """Of which kinds workers have carried some out."""
    stats = app.control.inspect(timeout=1).stats() or {}
    return {name for told in stats.values() for name in told["total"] if name in TICKS}


def shown(events, name: str | None = None) -> list[dict]:
    received = [event for event in events if event["type"] == "task-received" and name in {None, event["name"]}]
    return [{"name": event["name"], **ast.literal_eval(event["kwargs"])} for event in received]


def test_every_task_shows_its_thread_and_its_agent(seen) -> None:
    told = shown(seen)

    assert {task["name"] for task in told} >= {"turns.submit", "tools.call", "rounds.commit"}
    assert {(task.get("thread"), task.get("agent")) for task in told} == {("api:customer-4", "clerk")}


def test_task_of_tool_calls_shows_which_tools(seen) -> None:
    assert sorted(task["tool"] for task in shown(seen, "tools.call")) == ["idempotent", "pure"]


def test_no_message_text_is_shown(seen) -> None:
    assert SECRET not in str(seen)


def test_no_tick_is_shown(seen) -> None:
    assert not [event for event in seen if str(event.get("name")).startswith("system.")]
