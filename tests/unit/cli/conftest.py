"""A room, and the command line in this process."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from redis import retry
from sqlalchemy import make_url

from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store
from chordage.workers.cli import main
from support import client_room
from support.databases import Databases


@pytest.fixture(autouse=True)
def no_pause_between_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is away is tried several times, with seconds between them."""
    monkeypatch.setattr(retry, "sleep", lambda _seconds: None)


@pytest.fixture(scope="session")
def migrated_file(databases: Databases) -> Path:
    return Path(make_url(databases.migrated("sqlite")).database or "")


@pytest.fixture(autouse=True)
def migrated_by_copy(migrated_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not there yet is a copy of a migrated one, which takes a tenth of the time."""
    plain = schema_version.upgrade

    def upgrade(store: Store) -> tuple[str | None, str]:
        address, _, name = store.url.partition(":///")
        file = Path(name)
        if address != "sqlite" or file.exists() or not file.parent.is_dir():
            return plain(store)
        shutil.copy(migrated_file, file)  # with its mode
        return None, schema_version.newest()

    monkeypatch.setattr(schema_version, "upgrade", upgrade)


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
