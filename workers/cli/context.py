"""What commands work with: the settings, a log apart from the answer, the database at this schema, the fleet.

Imports what is heavy (SQLAlchemy, Redis, Celery) inside its functions, so that `--help` and usage errors are quick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from chordage.config import log
from chordage.config.settings import Settings
from chordage.orchestrator.core.errors import Unavailable

if TYPE_CHECKING:
    from chordage.orchestrator.core.contents import Cipher
    from chordage.orchestrator.core.intents import Intent
    from chordage.orchestrator.runtime import Runtime
    from chordage.orchestrator.store.database import Store

SQLITE = "sqlite:///"


def command_settings() -> Settings:
    """Standard output is for the answer alone: warnings of the engine go to standard error."""
    from chordage.workers.fleet.fleet_file import settings_for_cli

    settings = settings_for_cli()
    log.configure("WARNING" if settings.log_level == "INFO" else settings.log_level, settings.log_format)
    return settings


@contextmanager
def open_store(settings: Settings) -> Iterator[Store]:
    from chordage.orchestrator.store.database import Store

    with closing(Store(settings.database, pool_size=1, cipher=cipher_of(settings))) as store:
        check_database(settings, store)
        yield store


def cipher_of(settings: Settings) -> Cipher | None:
    """What encrypts contents. Raises ConfigError."""
    if settings.cipher is None and settings.cipher_keys is None:
        return None
    from chordage.workers import bootstrap

    return bootstrap.cipher_of(settings)


@contextmanager
def open_runtime(settings: Settings, *, with_redis: bool | None = None) -> Iterator[Runtime]:
    """The database has to be at this schema. Redis is used if one is set, and has to answer; `with_redis` overrides."""
    from chordage.workers.bootstrap import runtime_from

    if with_redis is None:
        check_ready(settings)
    rt = runtime_from(settings, with_redis=settings.redis is not None if with_redis is None else with_redis)
    with closing(rt.store):
        if with_redis is not None:
            check_database(settings, rt.store)
        yield rt


def has_no_database(settings: Settings) -> bool:
    """SQLite creates a file for every name it is given; a command that only reads must not."""
    return settings.database.startswith(SQLITE) and not Path(settings.database.removeprefix(SQLITE)).exists()


def check_database(settings: Settings, store: Store) -> None:
    from chordage.orchestrator.store import schema_version

    if has_no_database(settings):
        raise Unavailable(
            f"there is no database at {settings.database.removeprefix(SQLITE)}: nothing was started here yet. "
            "`chordage start` (or `chordage dev`) starts a fleet and creates it, `chordage migrate` only creates it; "
            "or go to the folder of the room, or set CHORDAGE_DATABASE_URL"
        )
    schema_version.check(store)


def check_keys(settings: Settings) -> None:
    """Raises ConfigError for a server that wants keys while there is none. The database may not be there yet."""
    from chordage.workers.fleet import roles

    if not roles.wants_keys(settings):
        return
    if has_no_database(settings):
        raise roles.no_valid_key(settings, first="make the database with `chordage migrate`, then ")
    with open_store(settings):
        roles.check_keys(settings)


def check_ready(settings: Settings) -> None:
    """The database is there, at this schema; and Redis answers, if one is set."""
    from chordage.workers.bootstrap import check_redis

    with open_store(settings):
        if settings.redis is not None:
            check_redis(settings)


def check_ready_with_redis(settings: Settings) -> None:
    """For processes that cannot run without Redis: the error says where to set it."""
    from chordage.workers.bootstrap import redis_from

    redis_from(settings).close()
    check_ready(settings)


def send(settings: Settings, intents: Sequence[Intent]) -> None:
    """Send the messages that a change calls for. Without a Redis no fleet can be running."""
    if settings.redis is not None:
        from chordage.tasks.courier import Courier
        from chordage.workers.app import make_app

        Courier(make_app(settings)).send(intents)
