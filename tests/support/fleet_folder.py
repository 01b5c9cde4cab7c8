"""A folder in which fleets are run by the command line, and who is alive there."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from support.waiting import PATIENCE

CHORDAGE = (sys.executable, "-P", "-m", "chordage.workers.cli")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def call(room: Path, *arguments: str, patience: float = PATIENCE) -> Done:
    """As if called in the room. The output goes into files: what a command starts may hold a pipe open."""
    with (room.parent / "out").open("w+") as out, (room.parent / "err").open("w+") as err:
        done = subprocess.run(
            [*CHORDAGE, *arguments],
            cwd=room,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            timeout=patience,
            check=False,
        )
        out.seek(0)
        err.seek(0)
        return Done(code=done.returncode, out=out.read(), err=err.read())


def status(room: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(call(room, "status", "--json").out)
    return told


def agent_run(room: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((room / "agent.run").read_text())
    return told


def alive_in(folder: Path) -> list[psutil.Process]:
    """Processes that were started in this folder: all of a fleet's are, its broker and its keeper too."""
    return [process for process in psutil.process_iter() if _is_in(process, folder)]


def kill(found: Iterable[psutil.Process]) -> None:
    """Any of them may end by itself meanwhile, or be ended by the reaper."""
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def started_as(word: str, folder: Path) -> psutil.Process | None:
    """A process of this folder that has the word in its command."""
    return next((process for process in alive_in(folder) if word in _command(process)), None)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended meanwhile
        return ""


def _is_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder)
    except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
        return False
