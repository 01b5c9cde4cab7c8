"""The embedded fleet: Valkey, the database, workers and the runtime loops, as processes of one machine.

They are started in order and stopped in order, the broker last. A member that dies is started again. None outlives the
fleet: the reaper ends what a killed fleet leaves behind. All state is in one directory, so the next fleet resumes
queued and running turns.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from chordage.config import settings as config
from chordage.config.settings import Settings
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.orchestrator.system import private_files
from chordage.workers import connections
from chordage.workers.fleet import agent_run, fleet_file, state_lock
from chordage.workers.fleet.agent_run import AgentRunWriter
from chordage.workers.fleet.fleet_file import FleetAddresses
from chordage.workers.fleet.member import Member, MemberRole, wait_until_ready
from chordage.workers.fleet.reaper import Reaper
from chordage.workers.fleet.supervision import Supervision
from chordage.workers.fleet.valkey import ValkeyServer, start_broker

PULSE, COPIES = "pulse.json", "agents"  # the pulse for readers without a database; agent files as last read well
LAST = 9  # the rank of the broker
INTAKE = ("celery",)  # where a plain Celery app leaves its messages
GRACE = 5.0  # for tools, when a fleet of one machine stops
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_CHECK = 0.1


class Fleet:
    """Brings a Redis of its own where `settings` name none, or always with `own_redis`.

    After `start`, `settings` are complete: all processes that work with this fleet use them. `say` gets what happens to
    members; `check` is called while waiting, and may raise.
    """

    def __init__(
        self,
        settings: Settings,
        roles: Sequence[MemberRole],
        *,
        say: Callable[[str], None] = lambda _text: None,
        check: Callable[[], None] = lambda: None,
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
        self._reaper: Reaper | None = None
        self._supervision: Supervision | None = None
        self._at_end = contextlib.ExitStack()  # what is closed when no process runs any more

    def start(self) -> None:
        """Returns when all are ready. Raises Unavailable or ConfigError, and leaves no process behind."""
        try:
            self._start()
        except BaseException:
            self.stop_or_kill()
            raise

    def stop_or_kill(self) -> None:
        """Stop in order; kill when that is interrupted."""
        try:
            self.stop()
        except KeyboardInterrupt:
            self.kill()
            raise

    def _start(self) -> None:
        lock = self._at_end.enter_context(state_lock.lock_fleet(self.state))
        self._tighten()
        private_files.write(self.state / ".gitignore", "*\n")
        self._reaper = self._at_end.enter_context(contextlib.closing(Reaper(lock)))
        self.settings = self._complete(self._broker())
        self._migrate()
        fleet_file.write(self.state, self._addresses())
        environment = {**config.environment(), **config.as_environment(self.settings)}
        launch = self._reaper.launch
        self.members = [Member(role, self.state, environment, launch(role.rank)) for role in self._roles]
        for member in self.members:
            member.start()
        wait_until_ready(self.members, self._check)
        summary = AgentRunWriter(self.settings, self.members, self.valkey, say=self._say)
        self._at_end.callback(summary.end)
        summary.begin()
        self._supervision = Supervision(self.members, self.valkey, self._reaper, say=self._say, look=summary.update)
        self._supervision.start()

    def _tighten(self) -> None:
        """Close files that an earlier version, or a person, has left open to other users of this machine."""
        state, room = self.state, self.settings.room_path
        ours = [state / name for name in (".gitignore", fleet_file.FILE, "fleet.lock")]
        ours += [] if room.is_relative_to(state) else [state]
        ours += [room / name for name in (agent_run.FILE, PULSE)]
        folders = [state / name for name in ("logs", "ready", "valkey", COPIES)]
        for folder in (*folders, room / "poll", room / "hooks"):
            ours += [folder, *folder.rglob("*")]
        if closed := private_files.tighten(ours):
            names = ", ".join(str(path) for path in closed[:3]) + (", ..." if len(closed) > 3 else "")
            self._say(
                f"other users of this machine could use {len(closed)} files or folders, and no longer can: {names}"
            )

    def _broker(self) -> str:
        """The URL of the Redis that the settings name, or of one that is started here."""
        if self.settings.redis is not None and not self._own_redis:
            from chordage.workers.bootstrap import check_redis  # brings all the gateways along

            check_redis(self.settings)
            return self.settings.redis
        assert self._reaper is not None
        self.valkey = start_broker(self.state, self._reaper.launch(LAST))
        return self.valkey.url

    def _complete(self, redis_url: str) -> Settings:
        """Pass every setting on, so that neither this folder's files nor its environment change it for a member."""
        before = {name: getattr(self.settings, name) for name in self.settings.model_fields_set}
        ours: dict[str, Any] = {"redis_url": redis_url, "room": self.settings.room_path, "state": self.state}
        ours |= {"soft_shutdown": min(self.settings.soft_shutdown, GRACE)}
        if self.settings.database_url is None:
            ours["database_url"] = self.settings.database
        if self.valkey is not None:
            ours["intake_queues"] = tuple(dict.fromkeys((*self.settings.intake_queues, *INTAKE)))
        return config.load(**{**before, **ours})

    def _migrate(self) -> None:
        with contextlib.closing(Store(self.settings.database, pool_size=2)) as store:
            schema_version.upgrade(store)
        wanted = sum(role.connections(self.settings) for role in self._roles)
        if (shortage := connections.shortage(self.settings, wanted, "this fleet")) is not None:
            self._say(shortage)

    def _addresses(self) -> FleetAddresses:
        assert self.settings.redis is not None
        return FleetAddresses(
            pid=os.getpid(),
            room=str(self.settings.room_path),
            redis_url=self.settings.redis,
            database_url=self.settings.database,
            http_port=next((role.port for role in self._roles if role.port), None),
            valkey_port=self.valkey.port if self.valkey else None,
        )

    def stop(self) -> None:
        """In order: the processes that let work in, then the workers, the broker last."""
        if self._supervision is not None:
            self._supervision.stop()
        for rank in sorted({member.role.rank for member in self.members}):
            self._stop_members([member for member in self.members if member.role.rank == rank])
        if self.valkey is not None and (pid := self.valkey.pid):
            self.valkey.stop()
            self._release(pid)
        self._at_end.close()

    def _stop_members(self, members: Sequence[Member]) -> None:
        for member in members:
            member.send_signal(signal.SIGTERM)
        until = time.monotonic() + GRACE + 3.0
        for member in members:
            member.wait(until)
            self._kill_rest_of(member)

    def _kill_rest_of(self, member: Member) -> None:
        if member.started:
            member.kill_group()
            self._release(member.pid)

    def _release(self, pid: int) -> None:
        if self._reaper is not None:
            self._reaper.release(pid)

    def kill(self) -> None:
        """Without a grace. The next fleet resumes the work in flight, as after a crash."""
        if self._supervision is not None:
            self._supervision.stop()
        for member in self.members:
            self._kill_rest_of(member)
        if self.valkey is not None and (pid := self.valkey.pid):
            self.valkey.kill()
            self._release(pid)
        self._at_end.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_or_kill()


class StopSignals:
    """Ctrl-C, SIGTERM and the closing of the terminal, for the process that runs a fleet: the first requests its stop,
    the second forces it.

    The first only sets a flag: an exception could be raised between the start of a process and the moment it is known.
    """

    def __init__(self) -> None:
        self.requested = False
        self.forced = False
        self.number = signal.SIGINT  # the last one received
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        handled = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as by nohup
        self._before = {number: signal.signal(number, self._on_signal) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: object) -> None:
        self.number = signal.Signals(number)
        if self.requested:
            self.forced = True
            raise KeyboardInterrupt
        self.requested = True

    @property
    def code(self) -> int:
        """The exit code of a shell for a process that was ended by this signal."""
        return 128 + self.number

    def check(self) -> None:
        if self.requested:
            raise KeyboardInterrupt

    def wait(self) -> None:
        while not self.requested:
            time.sleep(STOP_CHECK)
