"""A room, and the command line in this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chordage.workers.cli import main
from support import client_room


@pytest.fixture
def room(tmp_path: Path) -> Path:
    return client_room.write(tmp_path / "room")


@pytest.fixture
def chordage(room: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """`chordage("invoke", "hello")`, as if called in the room. Logging and the environment are put back: commands set
    them for good.
    """
    monkeypatch.chdir(room)
    environment = dict(os.environ)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    runner = CliRunner()

    def call(*arguments: str, stdin: bytes | str | None = None, **env: str) -> Result:
        return runner.invoke(
            main, list(arguments), input=stdin, env={f"CHORDAGE_{k.upper()}": v for k, v in env.items()}
        )

    yield call
    os.environ.clear()
    os.environ.update(environment)
    root.handlers[:] = handlers
    root.setLevel(level)
