"""A Valkey server of our own on this machine: what the embedded default and the tests run on.

It has a session of its own, so Ctrl-C does not take the broker away before the workers are done: whoever started it
stops it, and stops it last.

It listens on this machine only, and obeys nobody without its password: other users of the machine reach the port too.
The password stays the same over restarts, as the port does. It lies in a file that only its owner may read, and stands
on no command line, for everybody sees those.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.orchestrator.system import private_files
from chordage.workers.fleet import births, launching, state_lock
from chordage.workers.fleet.launching import Launch
from chordage.workers.fleet.ports import free_port
from chordage.workers.fleet.valkey_program import ADVICE, find_program

HOST = "127.0.0.1"
PORT_TAKEN = "Address already in use"
NAME = "valkey"  # of its lock
CONFIGURATION = "auth.conf"
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
        launch: Launch = launching.alone,
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
        self.starts = 0

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
                return
            self.kill()
            if not (left and PORT_TAKEN in trouble):
                raise Unavailable(f"Valkey did not start on port {port}: {trouble} (log: {self.log})")

    def stop(self, *, timeout: float = 15.0) -> None:
        """Ask it to write everything down and end; SIGKILL when it takes too long."""
        if self._process is None or not self.running:
            return
        for number in (signal.SIGCONT, signal.SIGTERM):
            self._process.send_signal(number)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """As a power cut would: no goodbye, and what was not yet on disk is lost."""
        if self._process is not None and self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """The server exists and answers nobody: what a network partition looks like to its clients."""
        if self._process is None or not self.running:
            raise Unavailable(f"the Valkey server of {self.state_dir} is not running: call start() first")
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def pause(self, seconds: float) -> None:
        """Freeze it for a while; returns when it runs again."""
        with self.frozen():
            time.sleep(seconds)

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
            state_lock.write_holder(lock, self._process.pid, births.born_now(self._process.pid))

    def _password_on_disk(self) -> str:
        """That of the last server here; a new one where there is none, or none that could be meant."""
        path = self.state_dir / CONFIGURATION
        try:
            known = _PASSWORD.fullmatch(path.read_text())
        except FileNotFoundError:
            known = None
        if known is not None:
            private_files.tighten([path])
            return known[1]
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
                return f"no answer in time; {self._last_words()}"
            time.sleep(0.02)
        return f"it ended with code {self._process.returncode}; {self._last_words()}"

    def _last_words(self, lines: int = 2) -> str:
        """What this start wrote to the log: its warnings (marked #) if there are any, without process id and date."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            said = log.read().decode(errors="replace").splitlines()
        warnings = [line.partition(" # ")[2] for line in said if " # " in line]
        words = " | ".join((warnings or said)[-lines:]) or "its log is empty"
        return words + (self._advice_on_file() if "append only file" in words else "")

    def _advice_on_file(self) -> str:
        return f"; it holds no truth, only wake-ups: move {self.state_dir / 'appendonlydir'} away and start again"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _answers(port: int, password: str, pid: int) -> bool:
    """Whether our own process serves that port. Another server may sit there: then ours is about to give up."""
    once = Retry(NoBackoff(), 0)
    client = redis.Redis(HOST, port, password=password, socket_timeout=1, socket_connect_timeout=1, retry=once)
    with contextlib.closing(client):
        try:
            return bool(client.ping()) and client.info("server")["process_id"] == pid
        except redis.RedisError:  # not there yet, or still reading its file
            return False
