"""Settings, log and database as commands need them: the log apart from the answer, the database at our schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chordage.config import log
from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import Unavailable
from chordage.orchestrator.store import schema_version
from chordage.orchestrator.store.database import Store

SQLITE = "sqlite:///"


def settings_of_command() -> Settings:
    """Standard output is for the answer alone: what the engine logs goes to standard error, and only if it matters."""
    from chordage.workers.fleet.fleet_file import settings_for_cli

    settings = settings_for_cli()
    log.configure("WARNING" if settings.log_level == "INFO" else settings.log_level, settings.log_format)
    return settings


@contextmanager
def opened(settings: Settings) -> Iterator[Store]:
    store = Store(settings.database, pool_size=1)
    try:
        check_database(settings, store)
        yield store
    finally:
        store.close()


def check_database(settings: Settings, store: Store) -> None:
    """SQLite makes a file of every name it is given: a question must not leave one behind."""
    file = Path(settings.database.removeprefix(SQLITE))
    if settings.database.startswith(SQLITE) and not file.exists():
        raise Unavailable(
            f"there is no database at {file}: nothing was started here yet. `chordage start` (or `chordage dev`) "
            "starts a fleet and makes it, `chordage migrate` makes it alone; or go to the folder of the room, "
            "or set CHORDAGE_DATABASE_URL"
        )
    schema_version.check(store)


def check_ready(settings: Settings) -> None:
    """The database is there, at our schema; and Redis answers, where one is set."""
    from chordage.workers.bootstrap import check_redis

    with opened(settings):
        if settings.redis is not None:
            check_redis(settings)


def is_empty(store: Store) -> bool:
    return schema_version.current(store) is None
