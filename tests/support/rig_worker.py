"""One `chordage worker` of a rig: started, waited for, killed, started again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support import processes
from support.waiting import until


@dataclass
class Worker:
    """One `chordage worker`."""

    name: str
    arguments: tuple[str, ...]
    env: dict[str, str]
    folder: Path
    program: tuple[str, ...] = ("-m", "chordage.workers.cli")  # of Python
    starts: Iterator[int] = field(default_factory=itertools.count)
    process: processes.Process | None = None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self._ready = self.folder / f"{self.name}.{next(self.starts)}.ready"
        command = [*self.program, "worker", "--name", self.name, "--ready-file", str(self._ready), *self.arguments]
        self.process = processes.spawn_warm(command, self.log, env=self.env, cwd=self.folder)

    def wait_until_ready(self) -> None:
        until(self._ready_or_dead, f"worker {self.name} gets ready")
        assert self._ready.exists(), f"worker {self.name} ended: {self.said()[-3000:]}"

    def kill(self) -> None:
        """The whole tree, as when its machine is lost."""
        assert self.process is not None
        processes.kill_tree(self.process)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def is_ready(self) -> bool:
        return self.alive and self._ready.exists()

    def _ready_or_dead(self) -> bool:
        return self._ready.exists() or not self.alive
