"""Errors of a driver that was spoken to directly, as the library would have raised them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError


def as_the_library_says(tx: Connection, sql: str, error: Any) -> BaseException:
    """A connection that broke is thrown away."""
    dialect = tx.dialect
    lost = dialect.is_disconnect(error, tx.connection, None)
    if lost:
        tx.invalidate(error)
    wrapped: BaseException = DBAPIError.instance(
        sql, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=dialect
    )
    return wrapped
