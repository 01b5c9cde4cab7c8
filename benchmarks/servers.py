"""The servers and workers of a benchmark: servers are given or its own, and what it starts ends with it."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from chordage.benchmarks.contenders import Contender
from chordage.benchmarks.postgres import PostgresServer
from chordage.config import settings as config
from chordage.orchestrator.core.errors import Unavailable
from chordage.workers.fleet import state_lock
from chordage.workers.fleet.member import Member
from chordage.workers.fleet.reaper import Reaper
from chordage.workers.fleet.valkey import ValkeyServer

EMBEDDED = "postgres"
SERVERS_LAST = 9
READY_WITHIN = 60.0
GRACE = 10.0
POSTGRES = {
    "max_connections": "400",
    "shared_buffers": "256MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "autovacuum": "off",  # it takes transaction ids, and those are counted
    "checkpoint_timeout": "1h",  # after one, the log gets whole pages, and its bytes are counted
    "max_wal_size": "8GB",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track_utility": "on",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Servers:
    """`redis_url` has no database number. `pids` are the servers this benchmark started."""

    folder: Path
    redis_url: str
    database_url: str
    keeper: Reaper
    pids: tuple[int, ...]

    @property
    def kind(self) -> str:
        """For the report: no password."""
        return self.database_url.partition(":")[0].partition("+")[0]


@contextmanager
def running_servers(*, database: str | None, redis_url: str | None) -> Iterator[Servers]:
    """`database`: a URL, or "postgres" to start a server, or None for an SQLite file."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="chordage-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o711)
        keeper = Reaper(stack.enter_context(state_lock.lock_fleet(folder)))
        stack.callback(keeper.close)
        pids: list[int] = []
        if redis_url is None:
            valkey = stack.enter_context(
                ValkeyServer(folder / "valkey", appendonly=False, launch=keeper.launch(SERVERS_LAST))
            )
            assert valkey.pid is not None
            pids.append(valkey.pid)
            redis_url = valkey.url
        if database == EMBEDDED:
            (folder / "postgres").mkdir()
            watch = partial(keeper.watch, rank=SERVERS_LAST)
            postgres = stack.enter_context(PostgresServer(folder / "postgres", POSTGRES, watch=watch))
            assert postgres.process is not None
            pids.append(postgres.process.pid)
            database = postgres.url
        yield Servers(
            folder=folder,
            redis_url=redis_url.rsplit("/", 1)[0] if redis_url.count("/") > 2 else redis_url,
            database_url=database or f"sqlite:///{folder / 'bench.db'}",
            keeper=keeper,
            pids=tuple(pids),
        )


@contextmanager
def running_workers(contenders: Sequence[Contender], servers: Servers) -> Iterator[dict[str, list[int]]]:
    """Process ids of the workers of each contender, once all are ready. An idle worker costs next to nothing, so the
    workers of all contenders run side by side.
    """
    with ExitStack() as stack:
        members: dict[str, list[Member]] = {}
        for contender in contenders:
            stack.callback(contender.close)
            members[contender.name] = _start(contender, servers, stack)
        for workers in members.values():
            for worker in workers:
                _wait(worker)
        yield {name: [worker.pid for worker in workers] for name, workers in members.items()}


def _start(contender: Contender, servers: Servers, stack: ExitStack) -> list[Member]:
    scratch = servers.folder / "scratch"  # a prefork pool leaves a folder behind in each
    scratch.mkdir(exist_ok=True)
    environment = {**config.environment(), **contender.environment(), "TMPDIR": str(scratch)}
    roles = contender.prepare()
    workers = [Member(role, servers.folder / "members", environment, servers.keeper.launch(0)) for role in roles]
    stack.callback(_end, workers, servers)
    for worker in workers:
        worker.start()
    return workers


def _wait(worker: Member) -> None:
    until = time.monotonic() + READY_WITHIN
    while not worker.ready:
        if not worker.running or time.monotonic() > until:
            raise Unavailable(f"worker {worker.name} of the benchmark did not start:\n{worker.log_tail()}")
        time.sleep(0.05)


def _end(workers: Sequence[Member], servers: Servers) -> None:
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    until = time.monotonic() + GRACE
    for worker in workers:
        worker.wait(until)
        worker.kill_group()
        servers.keeper.release(worker.pid)
