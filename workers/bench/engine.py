"""Our engine as a contender: the client is a service with the Python API, that stores the turn itself and waits
for its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from celery import Celery

from chordage.config.settings import Settings, load
from chordage.orchestrator.core.message import Message, Origin, Sender, TurnRequest
from chordage.orchestrator.core.reasons import Reason
from chordage.orchestrator.runtime import Runtime
from chordage.orchestrator.store import migrating
from chordage.orchestrator.store.tx import Store
from chordage.tasks.courier import Courier
from chordage.tasks.intake import accept
from chordage.workers.app import make_app
from chordage.workers.bench import rooms
from chordage.workers.bench.beside import database_beside
from chordage.workers.bench.contender import Ground
from chordage.workers.bootstrap import runtime_from
from chordage.workers.fleet.environ import environment_of
from chordage.workers.fleet.member import Role
from chordage.workers.fleet.roles import CHORDAGE
from chordage.workers.waiting import Bell, bell_for, wait_for_turn

PATIENCE = 120.0


class Engine:
    """The fleet as it is meant: one worker for turns, in threads, one for tools, in processes."""

    name = "chordage"
    redis_number = 3

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.room = room = ground.folder / self.name
        rooms.write_room(room, ground.shape)
        self.settings: Settings = load(
            room=room,
            state=room / ".chordage",
            database_url=self.database_url,
            redis_url=f"{ground.redis_url}/{self.redis_number}",
            pool_size=max(4, ground.in_flight // 2),
            log_level="WARNING",
        )

    @property
    def database_url(self) -> str:
        return self._ground.database_url

    def prepare(self) -> Sequence[Role]:
        store = Store(self.settings.database, pool_size=1)
        migrating.upgrade(store)
        store.close()
        return self._workers()

    def _workers(self) -> list[Role]:
        tools = ("--pool", "threads") if self._ground.threads else ("--pool", "prefork")
        slots = str(2 * self._ground.threads or 4)
        return [
            self._worker("turns", "--role", "turns"),
            self._worker("tools", "--role", "tools", *tools, "--concurrency", slots),
        ]

    def _worker(self, name: str, *options: str) -> Role:
        full = f"{self.name}-{name}"
        return Role(name=full, arguments=(*CHORDAGE, "worker", "--name", full, *options), says_ready=True)

    def environment(self) -> dict[str, str]:
        return environment_of(self.settings.model_copy(update={"pool_size": 8}))

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
    def _bell(self) -> Bell:
        return bell_for(self.settings)

    def turn(self, thread: str, agent: str = rooms.WORKER) -> None:
        turn_id = self.submit(thread, agent)
        seen = wait_for_turn(self._bell, self.runtime, turn_id, PATIENCE)
        if seen.answer is None or seen.reason is not Reason.NATURAL_END:
            raise AssertionError(f"turn {turn_id}: {seen.fate}")

    def submit(self, thread: str, agent: str = rooms.WORKER) -> str:
        said = Message(origin=Origin.INVOKE, channel=None, sender=Sender.SERVICE, thread_id=thread, text="Look it up.")
        return accept(self.runtime, self._courier, TurnRequest(message=said, agent=agent)).turn_id

    def remember(self, thread: str, messages: int) -> None:
        """A history is made as histories are: by turns, two messages each."""
        turns = [self.submit(thread, rooms.TALKER) for _ in range(messages // 2)]
        wait_for_turn(self._bell, self.runtime, turns[-1], PATIENCE)

    def close(self) -> None:
        self.runtime.store.close()
        self._app.close()
        self._bell.close()


class AllInOne(Engine):
    """Workers of the same kind and number as the hand-written contenders have: two, of four processes."""

    name = "chordage-all"
    redis_number = 4

    @cached_property
    def database_url(self) -> str:
        return database_beside(self._ground.database_url, self.name)

    def _workers(self) -> list[Role]:
        pool = ("--pool", "threads" if self._ground.threads else "prefork")
        options = ("--role", "all", *pool, "--concurrency", str(self._ground.threads or 4))
        return [self._worker(str(number), *options) for number in range(2)]
