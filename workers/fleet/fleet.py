"""The embedded fleet: Valkey, the database, workers, and what else is asked for, as processes of one machine.

Started in order and stopped in order, the broker last. A member that dies is started again. None outlives the fleet,
however that ends: the keeper sees to it. State lies in one directory, so queued and running turns go on with the next
fleet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Self

from chordage.config import settings as config
from chordage.config.settings import Settings
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.system import private_files
from chordage.workers import connections
from chordage.workers.fleet import agent_run, broker, fleet_lock, found
from chordage.workers.fleet.environ import environment_of
from chordage.workers.fleet.keeper import Keeper
from chordage.workers.fleet.member import Member, Role
from chordage.workers.fleet.mirror import Mirror
from chordage.workers.fleet.readiness import wait_until_ready
from chordage.workers.fleet.supervision import Supervision
from chordage.workers.fleet.valkey import ValkeyServer

PULSE, COPIES = "pulse.json", "agents"  # the mirror of the pulse; agent files as they could last be read
LAST = 9  # the rank of the broker
INTAKE = ("celery",)  # where a plain Celery app leaves its messages
GRACE = 5.0  # for tools, when a fleet of one machine is told to stop


def _silent(_text: str) -> None:
    """Nobody wants to be told."""


def _nothing() -> None:
    """Nobody wants to end the waiting."""


class Fleet:
    """Brings a Redis of its own where `settings` name none, or always with `own_redis`.

    After `start`, `settings` are complete: what everybody uses who works with this fleet. `say` is told what happens to
    members; `check` is called while waiting, and may raise.
    """

    def __init__(
        self,
        settings: Settings,
        roles: Sequence[Role],
        *,
        say: Callable[[str], None] = _silent,
        check: Callable[[], None] = _nothing,
        own_redis: bool = False,
    ) -> None:
        self.settings = settings
        self.state: Path = settings.state_path
        self.members: list[Member] = []
        self.valkey: ValkeyServer | None = None
        self._roles = roles
        self._say = say
        self._check = check
        self._own_redis = own_redis
        self._lock: IO[str] | None = None
        self._keeper: Keeper | None = None
        self._supervision: Supervision | None = None
        self._mirror: Mirror | None = None

    def start(self) -> None:
        """Returns when everybody is ready. Raises Unavailable or ConfigError, and leaves nothing behind."""
        try:
            self._start()
        except BaseException:
            self.stop_or_kill()
            raise

    def stop_or_kill(self) -> None:
        """Stop in order; who interrupts that insists."""
        try:
            self.stop()
        except KeyboardInterrupt:
            self.kill()
            raise

    def _start(self) -> None:
        self._lock = fleet_lock.take(self.state)
        self._tighten()
        private_files.write(self.state / ".gitignore", "*\n")
        self._keeper = Keeper(self._lock)
        self.settings = self._complete(self._broker())
        self._migrate()
        found.leave(self.state, self._whereabouts())
        environment = {**config.environment(), **environment_of(self.settings)}
        launch = self._keeper.launch
        self.members = [Member(role, self.state, environment, launch(role.rank)) for role in self._roles]
        for member in self.members:
            member.start()
        wait_until_ready(self.members, self._check)
        self._mirror = Mirror(self.settings, self.members, self.valkey, say=self._say)
        self._mirror.begin()
        self._supervision = Supervision(
            self.members,
            self.valkey,
            self._keeper,
            say=self._say,
            look=self._mirror.look,
        )
        self._supervision.start()

    def _tighten(self) -> None:
        """What an earlier version, or somebody's hand, has left open to other users of this machine."""
        state, room = self.state, self.settings.room_path
        ours = [state / name for name in (".gitignore", found.FILE, "fleet.lock")]
        ours += [] if room.is_relative_to(state) else [state]
        ours += [room / name for name in (agent_run.FILE, PULSE)]
        folders = [state / name for name in ("logs", "ready", "valkey", COPIES)]
        for folder in (*folders, room / "poll", room / "hooks"):
            ours += [folder, *folder.rglob("*")]
        if closed := private_files.tighten(ours):
            told = ", ".join(str(path) for path in closed[:3]) + (", ..." if len(closed) > 3 else "")
            self._say(
                f"other users of this machine could use {len(closed)} files or folders, and no longer can: {told}"
            )

    def _broker(self) -> str:
        """The Redis that the settings name, or one of our own."""
        if self.settings.redis is not None and not self._own_redis:
            from chordage.workers.bootstrap import check_redis  # brings all the gateways along

            check_redis(self.settings)
            return self.settings.redis
        assert self._keeper is not None
        self.valkey = broker.start(self.state, self._keeper.launch(LAST))
        return self.valkey.url

    def _complete(self, redis_url: str) -> Settings:
        """What is given in full, so that neither this folder's files nor its environment change it for a member."""
        given = {name: getattr(self.settings, name) for name in self.settings.model_fields_set}
        ours = {"redis_url": redis_url, "room": self.settings.room_path, "state": self.state}
        ours |= {"soft_shutdown": min(self.settings.soft_shutdown, GRACE)}
        if self.settings.database_url is None:
            ours["database_url"] = self.settings.database
        if self.valkey is not None:
            ours["intake_queues"] = tuple(dict.fromkeys((*self.settings.intake_queues, *INTAKE)))
        return config.load(**{**given, **ours})

    def _migrate(self) -> None:
        with contextlib.closing(Store(self.settings.database, pool_size=1)) as store:
            schema_version.upgrade(store)
        wanted = sum(role.connections(self.settings) for role in self._roles)
        if (told := connections.shortage(self.settings, wanted, "this fleet")) is not None:
            self._say(told)

    def _whereabouts(self) -> found.Found:
        assert self.settings.redis is not None
        return found.Found(
            pid=os.getpid(),
            room=str(self.settings.room_path),
            redis_url=self.settings.redis,
            database_url=self.settings.database,
            http_port=next((role.port for role in self._roles if role.port), None),
            valkey_port=self.valkey.port if self.valkey else None,
        )

    def stop(self) -> None:
        """In order: who lets work in, then the workers, the broker last."""
        if self._supervision is not None:
            self._supervision.stop()
        for rank in sorted({member.role.rank for member in self.members}):
            self._stop_members([member for member in self.members if member.role.rank == rank])
        if self.valkey is not None and (pid := self.valkey.pid):
            self.valkey.stop()
            self._release(pid)
        self._close()

    def _stop_members(self, members: Sequence[Member]) -> None:
        for member in members:
            member.tell(signal.SIGTERM)
        until = time.monotonic() + GRACE + 3.0
        for member in members:
            member.wait(until)
            self._bury(member)

    def _bury(self, member: Member) -> None:
        if member.started:
            member.sweep_up()
            self._release(member.pid)

    def _release(self, pid: int) -> None:
        if self._keeper is not None:
            self._keeper.release(pid)

    def kill(self) -> None:
        """For the impatient. What was in hand is found by the next fleet, as after a crash."""
        if self._supervision is not None:
            self._supervision.stop()
        for member in self.members:
            self._bury(member)
        if self.valkey is not None and (pid := self.valkey.pid):
            self.valkey.kill()
            self._release(pid)
        self._close()

    def _close(self) -> None:
        if self._mirror is not None:
            self._mirror.end()
            self._mirror = None
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_or_kill()
