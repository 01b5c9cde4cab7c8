"""The servers a bench runs on: given ones, or its own, which end with it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from chordage.workers.bench.postgres import OwnPostgres
from chordage.workers.fleet import fleet_lock
from chordage.workers.fleet.keeper import Keeper
from chordage.workers.fleet.valkey import ValkeyServer

EMBEDDED = "postgres"
SERVERS_LAST = 9


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """`redis_url` has no database number. `pids` are the servers that are ours."""

    folder: Path
    redis_url: str
    database_url: str
    keeper: Keeper
    pids: tuple[int, ...]

    @property
    def kind(self) -> str:
        """For the report: no password."""
        return self.database_url.partition(":")[0].partition("+")[0]


@contextmanager
def services(*, database: str | None, redis_url: str | None) -> Iterator[Services]:
    """`database`: a URL, or "postgres" for a server of our own, or None for a file."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="chordage-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o711)
        keeper = stack.enter_context(_keeper(folder))
        servers: list[int] = []
        if redis_url is None:
            valkey = stack.enter_context(
                ValkeyServer(folder / "valkey", appendonly=False, launch=keeper.launch(SERVERS_LAST))
            )
            assert valkey.pid is not None
            servers.append(valkey.pid)
            redis_url = valkey.url
        if database == EMBEDDED:
            (folder / "postgres").mkdir()
            postgres = stack.enter_context(OwnPostgres(folder / "postgres"))
            keeper.watch(postgres.pid, SERVERS_LAST)
            servers.append(postgres.pid)
            database = postgres.url
        yield Services(
            folder=folder,
            redis_url=redis_url.rsplit("/", 1)[0] if redis_url.count("/") > 2 else redis_url,
            database_url=database or f"sqlite:///{folder / 'bench.db'}",
            keeper=keeper,
            pids=tuple(servers),
        )


@contextmanager
def _keeper(folder: Path) -> Iterator[Keeper]:
    """Ends what we started, should we be killed."""
    with fleet_lock.take(folder) as lock:
        keeper = Keeper(lock)
        try:
            yield keeper
        finally:
            keeper.close()
