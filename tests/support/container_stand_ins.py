"""What pytest-docker-tools takes for a container of docker-py, and is a local process."""

from __future__ import annotations

import os
import signal as signals
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import processes
from support.valkey import WatchedValkey


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPlan:
    """How the workers of a test are started. `env` adds to ours, from the broker's and the backend's URL."""

    app: str = "chordage.workers.app"
    names: tuple[str, ...] = ("one", "two")
    queues: tuple[str, ...] = ()
    pool: str = "prefork"
    concurrency: int = 2
    arguments: tuple[str, ...] = ()
    env: Callable[[str, str], Mapping[str, str]] = field(default=lambda broker, backend: {})

    def argv(self, hostname: str) -> list[str]:
        queues = ["-Q", ",".join(self.queues)] if self.queues else []
        size = ["-P", self.pool, "-c", str(self.concurrency)]
        command = [sys.executable, "-m", "celery", "-A", self.app, "worker", "-l", "INFO", "-n", hostname]
        return [*command, *queues, *size, *self.arguments]


class StandIn:
    """What pytest-docker-tools asks of a container, apart from running."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = uuid.uuid4().hex
        network: dict[str, Any] = {"Networks": {}, "Ports": {}}
        self.attrs = {"NetworkSettings": network, "Config": {"Hostname": "127.0.0.1", "Env": []}}

    def reload(self) -> None:
        """Docker's copy of the state may be stale; ours is asked every time."""


class ValkeyStandIn(StandIn):
    def __init__(self, name: str, server: WatchedValkey) -> None:
        super().__init__(name)
        self.server = server
        self.server.start()

    @property
    def status(self) -> str:
        return "running" if self.server.running else "exited"

    def logs(self) -> bytes:
        return self.server.log.read_bytes()

    def kill(self, signal: str | int | None = None) -> None:
        if signal_number(signal) == signals.SIGKILL:
            self.server.kill()
        else:
            self.server.stop()

    def restart(self, timeout: float = 10) -> None:
        self.server.stop(timeout=timeout)
        self.server.start()


class WorkerStandIn(StandIn):
    def __init__(self, name: str, plan: WorkerPlan, env: Mapping[str, str], log: Path) -> None:
        super().__init__(name)
        self.hostname = f"{name}@{self.id[:12]}"  # what pytest-celery believes the worker is called
        self._argv = plan.argv(self.hostname)
        self._env = {**os.environ, **env}
        self._log = log
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> str:
        return "running" if self._process.poll() is None else "exited"

    def logs(self) -> bytes:
        """All it ever wrote; pytest-celery looks for log lines here."""
        return self._log.read_bytes()

    def logs_since_start(self) -> bytes:
        return self.logs()[self._log_start :]

    def kill(self, signal: str | int | None = None) -> None:
        """SIGKILL takes the whole process tree, as the loss of a machine does; others go to the main process alone."""
        if signal_number(signal) == signals.SIGKILL:
            processes.kill_tree(self._process)
        else:
            self._process.send_signal(signal_number(signal))

    def stop(self, timeout: float = 10) -> int:
        return processes.stop(self._process, patience=timeout)

    def restart(self, timeout: float = 10) -> None:
        self.stop(timeout)
        self._start()

    def exit_code(self, timeout: float = 30) -> int:
        return self._process.wait(timeout)

    def _start(self) -> None:
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._process = processes.spawn(self._argv, self._log, env=self._env)


def signal_number(signal: str | int | None) -> signals.Signals:
    if isinstance(signal, str):
        return signals.Signals[signal]
    return signals.Signals(signal or signals.SIGKILL)
