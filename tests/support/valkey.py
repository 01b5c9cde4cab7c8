"""A real Valkey or Redis for tests, and servers of a test's own that it may kill."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from chordage.orchestrator.core.errors import ConfigError, Unavailable
from chordage.workers.fleet.valkey import ValkeyServer, find_program
from support import processes, skips

DATABASES = 16


class WatchedValkey(ValkeyServer):
    """The product's server; the guard sees to it that it does not outlive the tests."""

    def start(self, **options: Any) -> None:
        super().start(**options)
        assert self.pid is not None
        self._watched = self.pid
        processes.guard().watch(self._watched)

    def stop(self, **options: Any) -> None:
        super().stop(**options)
        self._release()

    def kill(self) -> None:
        super().kill()
        self._release()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The server exists and answers no client: what a network partition looks like to its clients."""
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

    def _release(self) -> None:
        if watched := getattr(self, "_watched", None):
            processes.guard().release(watched)


@pytest.fixture(scope="session")
def valkey_program() -> Path:
    try:
        return find_program()
    except ConfigError as error:
        skips.unavailable(f"{error}; or set TEST_REDIS_URL")


@pytest.fixture(scope="session")
def redis_databases(request: pytest.FixtureRequest) -> Iterator[Iterator[str]]:
    """URLs of the numbered databases of the session's server, round and round; parallel workers share none."""
    if url := os.environ.get("TEST_REDIS_URL"):
        mine, workers = _place_among_workers(request.config)
        yield itertools.cycle(f"{url.rstrip('/')}/{number}" for number in range(mine, DATABASES, workers))
        return
    program = request.getfixturevalue("valkey_program")
    with WatchedValkey(processes.scratch_folder("valkey"), appendonly=False, program=program) as server:
        yield itertools.cycle(server.database(number) for number in range(DATABASES))


@pytest.fixture
def redis_url(redis_databases: Iterator[str]) -> str:
    """An empty numbered database. TEST_REDIS_URL names a server without a database: all of them are ours."""
    url = next(redis_databases)
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


@pytest.fixture
def start_valkey(valkey_program: Path, tmp_path: Path) -> Iterator[Callable[..., WatchedValkey]]:
    """Makes servers of the test's own, to be killed, frozen and started again."""
    started: list[WatchedValkey] = []

    def start(name: str = "valkey", **options: Any) -> WatchedValkey:
        server = WatchedValkey(tmp_path / name, program=valkey_program, **options)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


def _place_among_workers(config: pytest.Config) -> tuple[int, int]:
    given = getattr(config, "workerinput", {"workerid": "gw0", "workercount": 1})
    return int(given["workerid"].removeprefix("gw")), int(given["workercount"])
