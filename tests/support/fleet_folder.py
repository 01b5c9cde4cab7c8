"""A folder in which fleets are run by the command line, and who is alive there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

CHORDAGE = (sys.executable, "-P", "-m", "chordage.workers.cli")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def call(room: Path, *arguments: str, patience: float = 60) -> Done:
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


def _is_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder)
    except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
        return False
