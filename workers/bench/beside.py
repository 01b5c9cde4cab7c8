"""A database of its own for a second fleet: two in one would see to the turns of each other, and fight for the bus."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL, make_url

from chordage.orchestrator.core.errors import ConfigError


def database_beside(url: str, name: str) -> str:
    """As the one at `url`, on the same server or in the same folder. It is made, unless it is there."""
    parsed = make_url(url)
    own = (parsed.database or "bench") + "_" + name.replace("-", "_")
    if parsed.get_backend_name() == "postgresql":
        _create(parsed, own)
        return parsed.set(database=own).render_as_string(hide_password=False)
    file = Path(parsed.database or "bench.db")
    return f"sqlite:///{file.with_name(f'{file.stem}-{name}{file.suffix}')}"


def _create(url: URL, name: str) -> None:
    import psycopg
    from psycopg import sql

    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.errors.DuplicateDatabase:
        return
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"two fleets need two databases, and {name!r} may not be made ({error.diag.message_primary}): give a role "
            "that may create databases, or leave one out: --only bare,bare+sql,chordage"
        ) from error
