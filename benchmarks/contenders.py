"""Who is measured: the plain Celery chord, and Chordage in scenarios. Both have two workers of four processes, and a
client that sends a Celery task by its name and receives the end on a Redis channel.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from celery import Celery

from chordage.benchmarks import plain_chord, workload
from chordage.benchmarks.workload import AS_IS, REMARK, RoomOptions, TurnShape
from chordage.config.settings import Budgets, Settings, as_environment, load
from chordage.orchestrator.core.errors import ConfigError
from chordage.orchestrator.core.groups import Group
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.tasks import names
from chordage.tasks.accepting import accept
from chordage.tasks.courier import Courier
from chordage.workers.app import make_app
from chordage.workers.bootstrap import runtime_from
from chordage.workers.fleet.member import MemberRole
from chordage.workers.fleet.roles import CHORDAGE
from chordage.workers.turn_waiter import TurnWaiter, wait_for_turn, waiter_for

PATIENCE = 120.0
OPEN = Budgets(chat=1_000)  # nothing of a burst waits for a place; the chord knows none
WORKERS, PROCESSES = 2, 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Chordage as it is measured. `turns`: of a burst; None: as the command says."""

    name: str
    about: str
    room: RoomOptions = AS_IS
    budgets: Budgets | None = OPEN  # None: the default
    by_role: bool = False  # one worker for turns, in threads, and one for tools, instead of two for everything
    turns: int | None = None


DEFAULT = "chordage"
BURST = 800
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name=DEFAULT, about="as installed, with open budgets"),
        Scenario(name="here", about="placement here", room=RoomOptions(placement="here")),
        Scenario(name="together", about="placement together", room=RoomOptions(placement="together")),
        Scenario(name="spread", about="placement spread", room=RoomOptions(placement="spread")),
        Scenario(name="unsafe", about="unsafe tools", room=RoomOptions(effect="unsafe")),
        Scenario(name="plugin", about="a plugin at the end of each run", room=RoomOptions(plugin=True)),
        Scenario(name="by-role", about="a worker for turns (threads), one for tools", by_role=True),
        Scenario(name="burst", about=f"{BURST} at once, open budgets", turns=BURST),
        Scenario(name="budgets", about=f"{BURST} at once, default budgets", budgets=None, turns=BURST),
    )
}
AS_MEANT = Scenario(name=DEFAULT, about="by role, with default budgets", budgets=None, by_role=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """The same for both. `threads`: of each worker; 0: processes, four a worker."""

    redis_url: str
    database_url: str
    folder: Path
    shape: TurnShape
    threads: int = 0


class Contender(Protocol):
    name: str
    redis_number: int

    @property
    def database_url(self) -> str | None:
        """The database it writes to."""

    @property
    def ends(self) -> str:
        """The pattern of the Redis channels on which the ends of its turns are published."""

    def prepare(self) -> Sequence[MemberRole]:
        """Create what workers need, and return the workers to start."""

    def environment(self) -> dict[str, str]:
        """The environment variables of its workers."""

    def send(self) -> None:
        """Send a turn on a new thread, by the name of a Celery task. Callable from many threads."""

    def close(self) -> None:
        """Close the client's connections."""


class Chord:
    name = "chord"
    redis_number = 1
    database_url = None
    ends = f"{plain_chord.ENDS}*"

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._redis_url = f"{conditions.redis_url}/{self.redis_number}"
        self._app = plain_chord.make_app(self._redis_url)

    def prepare(self) -> Sequence[MemberRole]:
        return [self._worker(f"{self.name}-{number}") for number in range(WORKERS)]

    def _worker(self, name: str) -> MemberRole:
        options = {
            "name": name,
            "shape": asdict(self._conditions.shape),
            "pool": "threads" if self._conditions.threads else "prefork",
            "concurrency": self._conditions.threads or PROCESSES,
        }
        command = (sys.executable, "-P", "-m", plain_chord.__name__, json.dumps(options))
        return MemberRole(name=name, arguments=command, says_ready=True)

    def environment(self) -> dict[str, str]:
        """The address may hold a password, and arguments of a process can be read by every account of the machine."""
        return {plain_chord.REDIS: self._redis_url}

    def send(self) -> None:
        self._app.send_task(plain_chord.TURN, (str(uuid.uuid4()), REMARK), ignore_result=True)

    def close(self) -> None:
        self._app.close()


class Engine:
    """Chordage. `turn` is what a service does that has the Python API, for tests that count: it stores the turn itself
    and waits for its end.
    """

    redis_number = 3

    def __init__(self, conditions: Conditions, scenario: Scenario = AS_MEANT) -> None:
        self.name = scenario.name
        self._conditions = conditions
        self._scenario = scenario
        self.room = room = conditions.folder / self.name
        workload.write_room(room, conditions.shape, scenario.room)
        self.settings: Settings = load(
            room=room,
            state=room / ".chordage",
            database_url=self.database_url,
            redis_url=f"{conditions.redis_url}/{self.redis_number}",
            prefix=f"{self.name}:",
            log_level="WARNING",
            **({"budgets": scenario.budgets} if scenario.budgets else {}),
        )
        self.ends = f"{self.settings.prefix}done:*"

    @cached_property
    def database_url(self) -> str:
        """Two fleets on one database would work on each other's turns."""
        url = self._conditions.database_url
        return url if self._scenario is AS_MEANT else database_beside(url, f"{self.name}-{self._conditions.threads}")

    def prepare(self) -> Sequence[MemberRole]:
        store = Store(self.settings.database, pool_size=1)
        schema_version.upgrade(store)
        store.close()
        if self._scenario.by_role:
            tools = ("--pool", "threads") if self._conditions.threads else ("--pool", "prefork")
            slots = str(2 * self._conditions.threads or PROCESSES)
            return [
                self._worker("turns", "--role", "turns"),
                self._worker("tools", "--role", "tools", *tools, "--concurrency", slots),
            ]
        pool = ("--pool", "threads" if self._conditions.threads else "prefork")
        options = ("--role", "all", *pool, "--concurrency", str(self._conditions.threads or PROCESSES))
        return [self._worker(str(number), *options) for number in range(WORKERS)]

    def _worker(self, name: str, *options: str) -> MemberRole:
        full = f"{self.name}-{name}"
        return MemberRole(name=full, arguments=(*CHORDAGE, "worker", "--name", full, *options), says_ready=True)

    def environment(self) -> dict[str, str]:
        return as_environment(self.settings.model_copy(update={"pool_size": 24 if self._conditions.threads else 8}))

    @cached_property
    def _sender(self) -> Celery:
        """As in a service that imports nothing of ours."""
        app = Celery("service", broker=f"{self._conditions.redis_url}/{self.redis_number}", set_as_current=False)
        app.conf.broker_transport_options = {"global_keyprefix": self.settings.broker_prefix}
        return app

    def send(self) -> None:
        fields = {"text": REMARK, "thread_id": str(uuid.uuid4())}
        self._sender.send_task(names.SUBMIT, kwargs=fields, queue=Group.CHAT.queue, ignore_result=True)

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
        message = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=thread, text=REMARK)
        return accept(self.runtime, self._courier, TurnRequest(message=message, agent=agent)).turn_id

    def remember(self, thread: str, messages: int) -> None:
        """Histories are made of turns, two messages each."""
        turns = [self.submit(thread, workload.TALKER) for _ in range(messages // 2)]
        wait_for_turn(self._waiter, self.runtime, turns[-1], PATIENCE)

    def close(self) -> None:
        self.runtime.store.close()
        for client in (self._sender, self._app, self._waiter):
            client.close()


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
            f"each scenario needs a database, and {name!r} may not be made ({error.diag.message_primary}): give a role "
            "that may create databases, or none: --postgres starts a server"
        ) from error
