"""A real PostgreSQL for tests: one that was given to us, or one of our own that lives as long as the test session."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from sqlalchemy import URL, make_url

from chordage.benchmarks import postgres
from chordage.orchestrator.core.errors import ConfigError
from support import processes, skips

DRIVER = "postgresql+psycopg"
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
Mode = Literal["smart", "fast", "immediate"]


class Postgres:
    """Any server on which we may create databases."""

    def __init__(self, admin: URL) -> None:
        self._admin = admin.set(drivername="postgresql")
        self._made: set[str] = set()

    def create_database(self, template: str | None = None) -> str:
        """A new database, empty or a copy of the database behind the URL `template`."""
        name = f"chordage_{uuid.uuid4().hex}"
        copied = f' TEMPLATE "{make_url(template).database}" STRATEGY FILE_COPY' if template else ""
        self._run(f'CREATE DATABASE "{name}"{copied}')
        url = self._admin.set(drivername=DRIVER, database=name).render_as_string(hide_password=False)
        self._made.add(url)
        return url

    def close_to_clients(self, url: str) -> None:
        """Only a database without connections can be copied."""
        name = make_url(url).database
        self._run(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        self._run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")

    def drop_database(self, url: str) -> None:
        self._run(f'DROP DATABASE IF EXISTS "{make_url(url).database}" WITH (FORCE)')
        self._made.discard(url)

    def drop_what_we_made(self) -> None:
        for url in list(self._made):
            self.drop_database(url)

    def _run(self, statement: str) -> None:
        with contextlib.closing(self.connect()) as connection:
            connection.execute(statement)

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self._admin.render_as_string(hide_password=False), autocommit=True, connect_timeout=60)


class PostgresServer(Postgres):
    """A server process of our own on a free port of 127.0.0.1. Can be stopped, crashed and started again in place.

    `fsync=False` makes tests several times faster and survives crashes of its processes all the same; only a test that
    asks what survives a power cut, or measures, wants True.
    """

    def __init__(self, *, fsync: bool = False, folder: Path | None = None) -> None:
        sync = "on" if fsync else "off"
        options = {"max_connections": "200", "fsync": sync, "synchronous_commit": sync, "full_page_writes": sync}
        folder = folder or processes.scratch_folder("postgres")
        self._server = postgres.PostgresServer(folder, options, watch=processes.guard().watch)
        self._server.start()
        super().__init__(make_url(self._server.url))

    @property
    def pid(self) -> int:
        """Of its postmaster."""
        assert self._server.process is not None
        return self._server.process.pid

    @property
    def running(self) -> bool:
        return self._server.running

    def start(self) -> None:
        """Start where `stop` left off; returns when it takes connections."""
        self._server.start()

    def stop(self, mode: Mode = "fast") -> None:
        """`immediate` is a crash: the next start has to recover."""
        if self._server.process is not None:
            processes.stop(self._server.process, SIGNALS[mode])

    def restart(self, mode: Mode = "fast") -> None:
        self.stop(mode)
        self.start()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """The session's server. Leave it alone: a test that restarts or crashes one uses `start_postgres`."""
    if url := os.environ.get("TEST_DATABASE_URL"):
        given = Postgres(make_url(url))
        yield given
        given.drop_what_we_made()
        return
    server = _started()
    yield server
    server.stop("immediate")


@pytest.fixture
def start_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Makes servers of the test's own."""
    started: list[PostgresServer] = []

    def start(**options: Any) -> PostgresServer:
        started.append(_started(**options))
        return started[-1]

    yield start
    for server in started:
        server.stop("immediate")


def _started(**options: Any) -> PostgresServer:
    try:
        return PostgresServer(**options)
    except ConfigError as error:
        skips.unavailable(f"{error}, or set TEST_DATABASE_URL")
