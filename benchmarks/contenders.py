"""Who is measured: two hand-written Celery chords, and Chordage on two sets of workers, each as its client uses it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from celery import Celery

from chordage.benchmarks import chord_by_hand, chord_with_rows, workload
from chordage.benchmarks.workload import REMARK, TurnShape
from chordage.config.settings import Settings, as_environment, load
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.tasks.accepting import accept
from chordage.tasks.courier import Courier
from chordage.workers.app import make_app
from chordage.workers.bootstrap import runtime_from
from chordage.workers.fleet.member import MemberRole
from chordage.workers.fleet.roles import CHORDAGE
from chordage.workers.turn_waiter import TurnWaiter, wait_for_turn, waiter_for

PATIENCE = 120.0
QUESTION = "Look it up."


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """The same for every contender. Each has a Redis database of its own, and each fleet of ours an SQL database."""

    redis_url: str
    database_url: str
    folder: Path
    shape: TurnShape
    in_flight: int
    threads: int = 0  # of each worker; 0: processes, four a worker


class Contender(Protocol):
    name: str
    redis_number: int

    @property
    def database_url(self) -> str:
        """The database it writes to."""

    def prepare(self) -> Sequence[MemberRole]:
        """Create what workers need, and return the workers to start."""

    def environment(self) -> dict[str, str]:
        """The environment variables of its workers."""

    def turn(self, thread: str) -> None:
        """One turn on that thread, from the message to the end as a client sees it. Callable from many threads."""

    def remember(self, thread: str, messages: int) -> None:
        """Give a new thread that many messages of history."""

    def close(self) -> None:
        """Close the client's connections."""


class Chord:
    """Nothing is stored but results; the client learns the end of a turn through AsyncResult.get."""

    name = "bare"
    redis_number = 1
    _module = "chordage.benchmarks.chord_by_hand"

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._redis_url = f"{conditions.redis_url}/{self.redis_number}"
        self._app = self._make_app()
        self._histories: dict[str, list[dict[str, str]]] = {}

    def _make_app(self) -> Celery:
        return chord_by_hand.make_app(self._redis_url, self._conditions.shape)

    @property
    def database_url(self) -> str:
        return self._conditions.database_url

    def prepare(self) -> Sequence[MemberRole]:
        return [self._worker(f"{self.name}-{number}") for number in range(2)]

    def _worker(self, name: str) -> MemberRole:
        options = {
            "name": name,
            "shape": asdict(self._conditions.shape),
            "pool": "threads" if self._conditions.threads else "prefork",
            "concurrency": self._conditions.threads or 4,
        }
        command = (sys.executable, "-P", "-m", self._module, json.dumps(options))
        return MemberRole(name=name, arguments=command, says_ready=True)

    def environment(self) -> dict[str, str]:
        """Addresses hold passwords, and arguments of a process can be read by every account of the machine."""
        return {chord_by_hand.REDIS: self._redis_url, chord_by_hand.DATABASE: self.database_url}

    def turn(self, thread: str) -> None:
        self._wait("by_hand.start", [*self._histories.get(thread, ()), {"role": "user", "text": QUESTION}])

    def _wait(self, name: str, argument: object) -> None:
        text = self._app.send_task(name, (argument,)).get(timeout=PATIENCE)
        if text != "Here it is.":
            raise AssertionError(f"{name} ended with {text!r}")

    def remember(self, thread: str, messages: int) -> None:
        self._histories[thread] = [{"role": "user", "text": REMARK}] * messages

    def close(self) -> None:
        self._app.close()


class ChordWithRows(Chord):
    """The same with its checkpoints in SQL."""

    name = "bare+sql"
    redis_number = 2
    _module = "chordage.benchmarks.chord_with_rows"

    def __init__(self, conditions: Conditions) -> None:
        super().__init__(conditions)
        self._rows = chord_with_rows.Rows(conditions.database_url)

    def _make_app(self) -> Celery:
        return chord_with_rows.make_app(self._redis_url, self._conditions.shape, self.database_url)

    def prepare(self) -> Sequence[MemberRole]:
        self._rows.create()
        return super().prepare()

    def turn(self, thread: str) -> None:
        self._wait("by_hand.rows.start", self._rows.submit(thread, QUESTION))

    def remember(self, thread: str, messages: int) -> None:
        self._rows.remember(thread, [REMARK] * messages)

    def close(self) -> None:
        super().close()
        self._rows.engine.dispose()


class Engine:
    """Chordage as it is meant to be run: one worker for turns, in threads, one for tools, in processes.

    The client is a service with the Python API: it stores the turn itself and waits for its end.
    """

    name = "chordage"
    redis_number = 3

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self.room = room = conditions.folder / self.name
        workload.write_room(room, conditions.shape)
        self.settings: Settings = load(
            room=room,
            state=room / ".chordage",
            database_url=self.database_url,
            redis_url=f"{conditions.redis_url}/{self.redis_number}",
            pool_size=max(4, conditions.in_flight // 2),
            log_level="WARNING",
        )

    @property
    def database_url(self) -> str:
        return self._conditions.database_url

    def prepare(self) -> Sequence[MemberRole]:
        store = Store(self.settings.database, pool_size=1)
        schema_version.upgrade(store)
        store.close()
        return self._workers()

    def _workers(self) -> list[MemberRole]:
        tools = ("--pool", "threads") if self._conditions.threads else ("--pool", "prefork")
        slots = str(2 * self._conditions.threads or 4)
        return [
            self._worker("turns", "--role", "turns"),
            self._worker("tools", "--role", "tools", *tools, "--concurrency", slots),
        ]

    def _worker(self, name: str, *options: str) -> MemberRole:
        full = f"{self.name}-{name}"
        return MemberRole(name=full, arguments=(*CHORDAGE, "worker", "--name", full, *options), says_ready=True)

    def environment(self) -> dict[str, str]:
        return as_environment(self.settings.model_copy(update={"pool_size": 8}))

    @cached_property
    def runtime(self) -> Runtime:
        return runtime_from(self.settings)

    @cached_property
    def _app(self) -> Celery:
        return make_app(self.settings)

    @cached_property
    def _courier(self) -> Courier:
        return Courier(self._app)

    @cached_property
    def _waiter(self) -> TurnWaiter:
        return waiter_for(self.settings)

    def turn(self, thread: str, agent: str = workload.WORKER) -> None:
        turn_id = self.submit(thread, agent)
        turn = wait_for_turn(self._waiter, self.runtime, turn_id, PATIENCE)
        if turn.answer is None or turn.reason is not Reason.NATURAL_END:
            raise AssertionError(f"turn {turn_id}: {turn.fate}")

    def submit(self, thread: str, agent: str = workload.WORKER) -> str:
        message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=thread, text=QUESTION)
        return accept(self.runtime, self._courier, TurnRequest(message=message, agent=agent)).turn_id

    def remember(self, thread: str, messages: int) -> None:
        """Histories are made of turns, two messages each."""
        turns = [self.submit(thread, workload.TALKER) for _ in range(messages // 2)]
        wait_for_turn(self._waiter, self.runtime, turns[-1], PATIENCE)

    def close(self) -> None:
        self.runtime.store.close()
        self._app.close()
        self._waiter.close()


class AllInOne(Engine):
    """Workers of the same kind and number as the hand-written contenders have: two, of four processes."""

    name = "chordage-all"
    redis_number = 4

    @cached_property
    def database_url(self) -> str:
        """Two fleets on one database would work on each other's turns."""
        return database_beside(self._conditions.database_url, self.name)

    def _workers(self) -> list[MemberRole]:
        pool = ("--pool", "threads" if self._conditions.threads else "prefork")
        options = ("--role", "all", *pool, "--concurrency", str(self._conditions.threads or 4))
        return [self._worker(str(number), *options) for number in range(2)]


KINDS = (Chord, ChordWithRows, Engine, AllInOne)
NAMES = tuple(kind.name for kind in KINDS)  # the first one is the base of every ratio


def contenders(names: Sequence[str], conditions: Conditions) -> list[Contender]:
    return [kind(conditions) for kind in KINDS if kind.name in names]


def database_beside(url: str, name: str) -> str:
    """The URL of another database on the same server or in the same folder. It is created unless it exists."""
    where, _, database = url.partition("?")[0].rpartition("/")
    if url.startswith("sqlite"):
        return f"{where}/{name}-{database}"
    second = f"{database}_{name.replace('-', '_')}"
    _create_database(url, second)
    return url.replace(f"{where}/{database}", f"{where}/{second}", 1)


def _create_database(url: str, name: str) -> None:
    import psycopg
    from psycopg import sql

    try:
        with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.errors.DuplicateDatabase:
        return
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"two fleets need two databases, and {name!r} may not be made ({error.diag.message_primary}): give a role "
            "that may create databases, or leave one out: --only bare,bare+sql,chordage"
        ) from error
