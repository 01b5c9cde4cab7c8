"""One process of the fleet: how it is started, whether it is ready, how it is stopped, and what it logs."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.system import private_files, process_identity
from chordage.workers.fleet.reaper import Launch, launch_unwatched

LARGE_LOG = 5_000_000  # bytes; a larger log is renamed at the next start
READY_WITHIN = 60.0
READY_CHECK = 0.05
LOWEST_PORT = 15_000  # below are those of well-known programs
PORT_TRIES = 10
OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
IANA_FIRST = 49_152  # of the ports that systems give to outgoing connections


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberRole:
    """What a member is, before it runs. `port`: it is ready when it listens there; `says_ready`: when it writes its
    ready file.
    """

    name: str
    arguments: tuple[str, ...]
    rank: int = 1  # 0 is stopped first
    port: int | None = None
    host: str = "127.0.0.1"
    says_ready: bool = False
    url: str | None = None  # what it serves
    connections: Callable[[Settings], int] = lambda _settings: 0  # to the database, at most


class Member:
    def __init__(
        self, role: MemberRole, state: Path, environment: Mapping[str, str], launch: Launch = launch_unwatched
    ) -> None:
        self.role = role
        self.log = state / "logs" / f"{role.name}.log"
        self._ready_file = state / "ready" / role.name
        self._environment = dict(environment)
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None
        self.born: str | None = None  # tells its process from a later one with the same number
        self._log_start = 0
        self._was_ready = False
        self.started_at = 0.0
        self.starts = 0
        self.restarted_at: datetime | None = None

    @property
    def name(self) -> str:
        return self.role.name

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs or was never started."""
        return self._process.poll() if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        for folder in (self.log.parent, self._ready_file.parent):
            private_files.folder(folder)
        self._ready_file.unlink(missing_ok=True)
        if self.log.exists() and self.log.stat().st_size > LARGE_LOG:
            self.log.replace(self.log.with_suffix(".log.1"))
        self._was_ready = False
        with open(self.log, "ab", opener=private_files.opener) as log:
            self._log_start = log.tell()
            self._process = self._launch(  # in a session of its own: Ctrl-C is for the fleet, which stops it in order
                [*self.role.arguments, *(("--ready-file", str(self._ready_file)) if self.role.says_ready else ())],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        self.born = process_identity.start_time_of_child(self._process.pid)
        self.started_at = time.monotonic()
        self.starts += 1
        self.restarted_at = datetime.now(UTC) if self.starts > 1 else None

    @property
    def ready(self) -> bool:
        if not self.running:
            return False
        if self.role.port is not None:
            return _listens(self.role.host, self.role.port)
        return not self.role.says_ready or self._wrote_ready_file()

    @property
    def was_ready(self) -> bool:
        """Whether it has been ready since its start. Once it was, its port is not connected to again."""
        self._was_ready = self._was_ready or self.ready
        return self._was_ready

    def _wrote_ready_file(self) -> bool:
        try:
            return self._ready_file.read_text().strip() == str(self.pid)
        except FileNotFoundError:
            return False

    def send_signal(self, number: signal.Signals) -> None:
        """To the leader alone, which ends its children itself."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, until: float) -> bool:
        """Whether it ended before that moment of the monotonic clock."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_group(self) -> None:
        """Kill what is left of it: the leader if it still runs, and children it left behind."""
        if self._process is None:
            return
        process_identity.kill_group(self._process.pid, self.born)
        self._process.wait()
        self._ready_file.unlink(missing_ok=True)

    def log_tail(self, lines: int = 12) -> str:
        """The end of what it has logged since its start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def wait_until_ready(members: Sequence[Member], check: Callable[[], None], *, patience: float = READY_WITHIN) -> None:
    """Raises Unavailable with the end of the log when a member ends or takes too long. `check` is called while waiting,
    and may raise.
    """
    give_up = time.monotonic() + patience
    waiting = list(members)
    while waiting := [member for member in waiting if not member.ready]:
        for member in waiting:
            if not member.running:
                raise Unavailable(_did_not_start(member, f"ended with code {member.code}"))
            if time.monotonic() > give_up:
                raise Unavailable(_did_not_start(member, f"was not ready within {patience:g} s"))
        check()
        time.sleep(READY_CHECK)


def _did_not_start(member: Member, event: str) -> str:
    tail = "".join(f"\n  {line}" for line in member.log_tail().splitlines())
    return f"{member.name} {event}; the end of {member.log}:{tail or ' it is empty'}"


def free_port(host: str = "127.0.0.1") -> int:
    """A free TCP port. Another process may take it before its user does: be ready to ask again.

    Where it can be chosen, none of those that the system gives to outgoing connections. While a server restarts, one of
    its own clients may otherwise be given the port of the server, which then cannot listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    lasting = range(LOWEST_PORT, _first_outgoing_port())
    for port in (*secrets.SystemRandom().sample(lasting, min(PORT_TRIES, len(lasting))), 0):
        with contextlib.suppress(OSError), socket.socket(family) as listener:
            listener.bind((host, port))
            free: int = listener.getsockname()[1]
            return free
    raise Unavailable(f"no port of {host} is free")


def _first_outgoing_port() -> int:
    try:
        return int(OUTGOING_PORTS.read_text().split()[0])
    except OSError:  # not Linux
        return IANA_FIRST


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=0.2).close()
    except OSError:
        return False
    return True
