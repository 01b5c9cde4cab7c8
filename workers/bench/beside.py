"""A database of its own for a second fleet: two in one would see to the turns of each other, and fight for the bus."""

from __future__ import annotations

from chordage.orchestrator.core.errors import ConfigError


def database_beside(url: str, name: str) -> str:
    """As the one at `url`, on the same server or in the same folder. It is made, unless it is there."""
    where, _, database = url.partition("?")[0].rpartition("/")
    if url.startswith("sqlite"):
        return f"{where}/{name}-{database}"
    own = f"{database}_{name.replace('-', '_')}"
    _create(url, own)
    return url.replace(f"{where}/{database}", f"{where}/{own}", 1)


def _create(url: str, name: str) -> None:
    import psycopg
    from psycopg import sql

    try:
        with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.errors.DuplicateDatabase:
        return
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"two fleets need two databases, and {name!r} may not be made ({error.diag.message_primary}): give a role "
            "that may create databases, or leave one out: --only bare,bare+sql,chordage"
        ) from error
