"""Fresh databases for tests, SQLite and PostgreSQL: empty ones, and migrated ones.

Migrating takes longer than most tests. So each session migrates one template per backend and every test gets a copy.
A copy in PostgreSQL takes longer than most tests as well: it is emptied and given to the next test. And what SQLAlchemy
has compiled for the store of one test serves those of all later ones, as it serves all requests of one process.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from chordage.orchestrator.store import database
from chordage.orchestrator.store.contents import cipher_of
from chordage.orchestrator.store.database import SWITCH
from support import emptying
from support.postgres import Postgres

BACKENDS = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))
CURSORS = "cursors"  # PostgreSQL with CHORDAGE_PIPELINE=off
BACKENDS_BOTH_WAYS = (*BACKENDS, pytest.param(CURSORS, marks=pytest.mark.postgres))


COMPILED: LRUCache[Any, Any] = LRUCache(5_000)


@pytest.fixture(scope="session", autouse=True)
def compiled_statements() -> Iterator[None]:
    """All stores of the session share them: a flow test spends a third of its time compiling otherwise. A dialect is
    part of their key, and the dialects of all stores with the same cipher have the same options.
    """

    def create(*args: Any, **options: Any) -> Engine:
        engine = create_engine(*args, **options)
        engine._compiled_cache = COMPILED
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "create_engine", create)
        for dialect in (SQLiteDialect_pysqlite, PGDialect_psycopg):
            patch.setattr(dialect, "__eq__", _is_same)
            patch.setattr(dialect, "__hash__", lambda self: hash(type(self)))
        yield


def _is_same(ours: Any, other: Any) -> bool:
    return type(ours) is type(other) and cipher_of(ours) == cipher_of(other)


class Databases:
    """Makes databases and drops them. `postgres` is asked only when a test wants PostgreSQL."""

    def __init__(self, folder: Path, postgres: Callable[[], Postgres], upgrade: Callable[[str], None]) -> None:
        self._folder = folder
        self._postgres = postgres
        self._upgrade = upgrade
        self._numbers = itertools.count()
        self._template = functools.cache(self._make_template)
        self._copies: dict[str, psycopg.Connection] = {}  # of the template, in PostgreSQL, with what empties each
        self._shape: emptying.Shape | None = None
        self._free: list[str] = []  # those of them that are not in use

    def empty(self, backend: str) -> str:
        if backend == "postgres":
            return self._postgres().create_database()
        return f"sqlite:///{self._folder / f'{next(self._numbers)}.db'}"

    def migrated(self, backend: str) -> str:
        template = self._template(backend)
        if backend == "postgres":
            return self._free.pop() if self._free else self._copy_of(template)
        return self._copied(template)

    def copied(self, url: str) -> str:
        """A copy of a database of SQLite that nothing has open: for tests that fill one with many rows."""
        _fold_log_in(_file(url))
        return self._copied(url)

    def _copied(self, url: str) -> str:
        copy = self.empty("sqlite")
        shutil.copy(_file(url), _file(copy))  # with its mode: one that others could read is logged
        return copy

    def _copy_of(self, template: str) -> str:
        url = self._postgres().create_database(template)
        self._copies[url] = emptying.connected(url)
        self._shape = self._shape or emptying.shape_of(self._copies[url])
        return url

    def drop(self, url: str) -> None:
        if url in self._copies and self._shape and emptying.emptied(self._copies[url], self._shape):
            self._free.append(url)
            return
        if not url.startswith("sqlite"):
            if url in self._copies:
                self._copies.pop(url).close()
            self._postgres().drop_database(url)
            return
        for file in _file(url).parent.glob(f"{_file(url).name}*"):
            file.unlink()

    def close(self) -> None:
        for connection in self._copies.values():
            connection.close()

    def _make_template(self, backend: str) -> str:
        url = self.empty(backend)
        self._upgrade(url)
        if backend == "postgres":
            self._postgres().close_to_clients(url)
        else:
            _fold_log_in(_file(url))
        return url


def _file(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def _fold_log_in(file: Path) -> None:
    """A copy takes the main file only, so nothing may be left in the write-ahead log."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _upgrade(url: str) -> None:
    from chordage.orchestrator.store import schema_version
    from chordage.orchestrator.store.database import Store

    store = Store(url)
    schema_version.upgrade(store)
    store.close()


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Databases]:
    folder = tmp_path_factory.mktemp("databases")
    made = Databases(folder, lambda: request.getfixturevalue("postgres_server"), _upgrade)
    yield made
    made.close()


@pytest.fixture
def make_database_url(databases: Databases) -> Iterator[Callable[[Callable[[str], str], str], str]]:
    """Makes databases that are dropped after the test."""
    made: list[str] = []

    def make(how: Callable[[str], str], backend: str) -> str:
        made.append(how(backend))
        return made[-1]

    yield make
    for url in made:
        databases.drop(url)


@pytest.fixture
def migrated_database_url(databases: Databases, make_database_url: Callable[..., str]) -> Callable[[str], str]:
    """`migrated_database_url("sqlite")`: for tests that want one backend, or more than one database."""
    return functools.partial(make_database_url, databases.migrated)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def database_url(backend: str, migrated_database_url: Callable[[str], str]) -> str:
    """A fresh database at the newest schema, once per backend."""
    return _switched(backend, migrated_database_url(_server_of(backend)))


@pytest.fixture
def empty_database_url(backend: str, databases: Databases, make_database_url: Callable[..., str]) -> str:
    """A fresh database without tables, once per backend."""
    return _switched(backend, make_database_url(databases.empty, _server_of(backend)))


def _server_of(backend: str) -> str:
    return "postgres" if backend == CURSORS else backend


def _switched(backend: str, url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{SWITCH}=off" if backend == CURSORS else url
